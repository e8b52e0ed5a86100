# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Generate
#
# Let a small GPT-2 continue a text: greedily, by sampling at several temperatures, and with beam search. Then test it with
# no examples and with several examples in the prompt (few-shot). The notebook takes about ten minutes on two CPU cores.
#
# *To run this notebook in [Colab](https://colab.research.google.com/), choose File > Upload notebook, and upload the
# wheel of plm_jax next to it.*

# %% Install plm_jax if it is missing (one minute in Colab) tags=["hide-input"]
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

NEEDS = ['matplotlib']


def install(*packages):
  subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *packages], check=True)


if importlib.util.find_spec('plm_jax') is None:
  here = pathlib.Path.cwd()
  wheels = sorted(map(str, here.glob('plm_jax-*.whl')))
  checkouts = [str(folder) for folder in (here, here.parent) if (folder / 'plm_jax' / '__init__.py').exists()]
  source = os.environ.get('PLM_JAX_SOURCE') or next(iter([*wheels, *checkouts]), '')  # a path or git+https://...
  assert source, 'upload plm_jax-*.whl to this folder, or set PLM_JAX_SOURCE to the address of the repository'
  chips = ['jax[cuda13]'] * bool(shutil.which('nvidia-smi')) + ['jax[tpu]'] * os.path.exists('/dev/vfio/0')
  install(source, *chips)
if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
  install(*missing)

SCALE = os.environ.get('PLM_JAX_NOTEBOOK_SCALE', 'laptop')  # laptop: minutes on two CPU cores; test: seconds

# %%
import matplotlib.pyplot as plt
import numpy as np

import plm_jax
from plm_jax.config.run import Phase

TEXT = os.environ.get('PLM_JAX_NOTEBOOK_TEXT', 'embedded')

# %% [markdown]
# ## Train
#
# The recipe takes 40 minutes at laptop scale on two cores. One sixth of its steps is enough for readable phrases. To train
# longer, increase `STEPS` and run the cell again: training resumes.

# %%
STEPS = 1000
brief = {'optim': {'warmup': 100}, 'train': {'phases': (Phase(STEPS, 128, 16),), 'eval_every': 250, 'save_every': 500}}
gpt = plm_jax.train('gpt2_small', scale=SCALE, output='runs/gpt2', data={'path': (TEXT,)},
                    **(brief if SCALE == 'laptop' else {}))
gpt

# %% tags=["hide-input"]
curves = plm_jax.history('runs/gpt2').curves['bits_per_byte']['heldout']
figure, axis = plt.subplots(figsize=(6, 2.8))
axis.plot(*zip(*curves, strict=True), marker='o')
axis.set(title='Bits per byte of held-out text', xlabel='step')
plt.show()

# %% [markdown]
# ## Next-token probabilities and temperature
#
# The model assigns a probability to every token. A temperature below 1 sharpens the distribution; a temperature above 1
# flattens it.

# %% tags=["hide-input"]
PROMPT = 'Returns the'
WORDS = [' array', ' shape', ' number', ' value', ' same', ' function', ' first', ' giraffe']
likely = plm_jax.score(gpt, [(PROMPT, word) for word in WORDS])
figure, axes = plt.subplots(1, 3, figsize=(11, 2.6), sharey=True)
for axis, temperature in zip(axes, (0.5, 1.0, 2.0), strict=True):
  share = np.exp(likely / temperature)
  axis.barh([word.strip() for word in WORDS], share / share.sum(), color='#4285f4')
  axis.set(title=f'"{PROMPT} ...", temperature {temperature}', xlim=(0, 1))
axes[0].invert_yaxis()
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Greedy decoding, sampling, beam search

# %%
NEW = 24 if SCALE == 'laptop' else 6
WAYS = {'greedy': {}, 'temperature 0.7': {'temperature': 0.7}, 'temperature 1.3': {'temperature': 1.3},
        'top-p 0.9': {'temperature': 1.0, 'top_p': 0.9}, '4 beams': {'beams': 4},
        '4 beams, no repeats': {'beams': 4, 'no_repeat_ngram': 3}}
written = {}
for way, options in WAYS.items():
  (found,), = plm_jax.generate(gpt, PROMPT, max_new=NEW, seed=1, **options)
  written[way] = found
  print(f'{way:22}{PROMPT}{found.text!r}')

# %% [markdown]
# Beam search finds more probable texts, but not better ones: they are unsurprising and repetitive. The figure shows, for
# forty samples at each temperature, the probability of a text and the share of distinct tokens in it.

# %% tags=["hide-input"]
figure, axis = plt.subplots(figsize=(6.5, 3.6))
DRAWS = 40 if SCALE == 'laptop' else 4
for temperature in (0.5, 0.8, 1.1, 1.5):
  drawn, = plm_jax.generate(gpt, PROMPT, max_new=NEW, temperature=temperature, number=DRAWS)
  drawn = [one for one in drawn if one.text.strip()]
  logs = plm_jax.score(gpt, [(PROMPT, one.text) for one in drawn])
  axis.scatter(logs / [len(one.tokens) for one in drawn],
               [len(set(one.tokens)) / len(one.tokens) for one in drawn], s=14, label=f'sampled, {temperature}')
for way in ('greedy', '4 beams'):
  one = written[way]
  if one.text.strip():
    log, = plm_jax.score(gpt, [(PROMPT, one.text)])
    axis.scatter(log / len(one.tokens), len(set(one.tokens)) / len(one.tokens), s=90, marker='*', label=way)
axis.set(xlabel='log-likelihood per token', ylabel='share of distinct tokens')
axis.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## Few-shot
#
# Ask a question after zero, one or more examples with answers. A model of this size does not learn from examples in the
# prompt as GPT-3 does: check whether the bars differ from the dotted line, which is chance.

# %% tags=["hide-input"]
PLURALS = [('array', 'arrays'), ('value', 'values'), ('function', 'functions'), ('axis', 'axes'), ('index', 'indices'),
           ('model', 'models'), ('matrix', 'matrices'), ('parameter', 'parameters'), ('class', 'classes'),
           ('row', 'rows'), ('key', 'keys'), ('batch', 'batches')]
shots = (0, 1, 3, 6) if SCALE == 'laptop' else (0, 1)
right = []
for number in shots:
  hits = []
  for place, (one, many) in enumerate(PLURALS):
    others = [PLURALS[(place + step) % len(PLURALS)] for step in range(1, number + 1)]
    context = ''.join(f'one {a}, many {b}. ' for a, b in others) + f'one {one}, many'
    choices = [many, *(PLURALS[(place + 7 + step) % len(PLURALS)][1] for step in range(3))]
    scores = plm_jax.score(gpt, [(context, f' {choice}') for choice in choices])
    hits.append(int(np.argmax(scores)) == 0)
  right.append(np.mean(hits))
figure, axis = plt.subplots(figsize=(5, 2.8))
axis.bar([str(number) for number in shots], right, color='#93c47d')
axis.axhline(0.25, color='grey', linestyle=':')
axis.set(title='Accuracy of plurals, four choices', xlabel='examples before the question', ylim=(0, 1))
plt.show()

# %% [markdown]
# ## Stream a text and export the model

# %%
for piece in plm_jax.stream(gpt, 'The model', max_new=NEW, temperature=0.8, top_p=0.95):
  print(piece.text, end='', flush=True)
shutil.rmtree('runs/gpt2_exported', ignore_errors=True)
print('\n' + plm_jax.export(gpt, 'runs/gpt2_exported').how)
