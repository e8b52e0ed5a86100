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
# # 1. Your first BERT
#
# From text to a model that fills blanks. Nothing is downloaded: the text is the English documentation of the Python
# packages on this machine. About five minutes on two CPU cores, less on a T4 or a TPU.

# %% Install: a minute on Colab, nothing where all is there already
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
  checkouts = [str(folder) for folder in (here, here.parent) if (folder / 'plm_jax' / 'api.py').exists()]
  source = os.environ.get('PLM_JAX_SOURCE') or next(iter([*wheels, *checkouts]), '')  # PLM_JAX_SOURCE: git+https://...
  assert source, 'upload plm_jax-*.whl to this folder, or set PLM_JAX_SOURCE to the address of its repository'
  chips = ['jax[cuda13]'] * bool(shutil.which('nvidia-smi')) + ['jax[tpu]'] * os.path.exists('/dev/vfio/0')
  install(source, *chips)
if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
  install(*missing)

SCALE = os.environ.get('PLM_JAX_NOTEBOOK_SCALE', 'laptop')  # laptop: minutes on two cores; test: seconds

# %%
import matplotlib.pyplot as plt

import plm_jax

TEXT = os.environ.get('PLM_JAX_NOTEBOOK_TEXT', 'embedded')  # or a file of yours

# %% [markdown]
# ## What the model will be given
#
# BERT reads two stretches of text, and 15% of the tokens are asked for: most of these are replaced by `[MASK]`, some by
# another token, some by themselves. `inspect` makes a row as the run will, with the tokenizer that it trains on the
# text. (The first time, the text is collected and the tokenizer trained: a minute.)

# %%
bert = plm_jax.recipe('bert_base', scale=SCALE, output='runs/first_bert', data={'path': (TEXT,)})
row, = plm_jax.inspect(bert, rows=1).rows

COLOURS = {'mask': '#f4b400', 'other': '#e06666', 'same': '#93c47d', 'special': '#cccccc'}


def draw(columns, wide=9):
  """Draws tokens as boxes, and below those that are asked for what is right."""
  figure, axes = plt.subplots(figsize=(11, 0.62 * -(-len(columns) // wide)))
  axes.set(xlim=(0, wide), ylim=(-(-len(columns) // wide), 0))
  axes.axis('off')
  for place, column in enumerate(columns):
    y, x = divmod(place, wide)
    axes.text(x + 0.5, y + 0.3, column.piece, ha='center', va='center', fontsize=9,
              bbox={'facecolor': COLOURS.get(column.kind, '#f3f3f3'), 'edgecolor': 'none', 'pad': 3})
    axes.text(x + 0.5, y + 0.78, column.target, ha='center', va='center', fontsize=8, color='#1a56b0')
  return figure


draw(row.lanes[-1].columns)
plt.show()

# %% [markdown]
# ## Training
#
# The published recipe, smaller: the same tokenizer, masks, objective and optimizer; two layers instead of twelve. Run
# this cell again, and it goes on where it was.

# %%
trained = plm_jax.train(bert)
trained

# %% [markdown]
# ## Curves
#
# Two tasks: which token was masked (MLM), and whether the second stretch followed the first in the text (NSP). The
# figures are of text that was held out. The plateau at the beginning is where the model knows how frequent tokens are,
# and nothing of their order.

# %%
curves = plm_jax.history('runs/first_bert').curves
figure, axes = plt.subplots(1, 2, figsize=(11, 3.4))
for name, title, axis in (('mlm', 'Loss of masked tokens (nats)', axes[0]),
                          ('mlm_accuracy', 'Masked tokens that it gets right', axes[1])):
  for split, style in (('train', {'alpha': 0.4}), ('heldout', {'marker': 'o'})):
    if points := curves.get(name, {}).get(split):
      axis.plot(*zip(*points, strict=True), label=split, **style)
  axis.set(title=title, xlabel='step')
  axis.legend()
baseline = curves['mlm_baseline']['heldout'][-1][1] if 'mlm_baseline' in curves else 0
axes[1].axhline(baseline, color='grey', linestyle=':')
axes[1].text(0, baseline, 'always the most frequent token', va='bottom', fontsize=8, color='grey')
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Filling blanks

# %%
PROMPTS = ['Returns the [MASK] of the array.', 'This method is used [MASK] compute the gradient.',
           'The number [MASK] rows in the matrix.']
figure, axes = plt.subplots(1, len(PROMPTS), figsize=(12, 2.4))
for axis, prompt, (candidates,) in zip(axes, PROMPTS, plm_jax.fill_mask(trained, PROMPTS), strict=True):
  words, probabilities = zip(*candidates, strict=True)
  axis.barh(range(len(words)), probabilities, color='#4285f4')
  axis.set(yticks=range(len(words)), yticklabels=words, xlim=(0, 1))
  axis.set_title(prompt, fontsize=8)
  axis.invert_yaxis()
plt.tight_layout()
plt.show()

# %% [markdown]
# It is a BERT of a million parameters after four million tokens: it knows which words go together, not what is true.
#
# ## Yours
#
# The model as a checkpoint that transformers loads, and as a file to take home. It is what
# `BertForPreTraining.from_pretrained('runs/first_bert_exported')` reads, and `plm_jax.load` too.

# %%
shutil.rmtree('runs/first_bert_exported', ignore_errors=True)
print(plm_jax.export(trained, 'runs/first_bert_exported').how)
again = plm_jax.load('runs/first_bert_exported')
print(plm_jax.fill_mask(again, PROMPTS[0], top=1))
file = shutil.make_archive('runs/first_bert', 'zip', 'runs/first_bert_exported')
print(os.path.relpath(file), f'{os.path.getsize(file) / 1e6:.1f} MB')

# %% [markdown]
# Next: your own text instead. `plm_jax.recipe('bert_base', scale='laptop', data={'path': ('my_text.txt',)})`, one
# paragraph a line and a blank line between documents. Notebook 2 does it in Chinese.
