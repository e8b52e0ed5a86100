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
# Train a BERT from raw text and let it fill blanks. Nothing is downloaded: the training text is the English documentation
# of the Python packages on this machine. The notebook takes about five minutes on two idle CPU cores.
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

import plm_jax

TEXT = os.environ.get('PLM_JAX_NOTEBOOK_TEXT', 'embedded')  # or your own file

# %% [markdown]
# ## Look at the training examples
#
# BERT reads two segments of text. It predicts 15% of the tokens: most of them are replaced by `[MASK]`, some by a random
# token, and some are left unchanged. `inspect` builds an example with the same code as a training run. The first call
# collects the text and trains the tokenizer, which takes a minute.
#
# In the figure, yellow tokens are masked, red ones are replaced and green ones are unchanged. The labels are blue.

# %% tags=["hide-input"]
bert = plm_jax.recipe('bert_base', scale=SCALE, output='runs/first_bert', data={'path': (TEXT,)})
row, = plm_jax.inspect(bert, rows=1).rows

COLORS = {'mask': '#f4b400', 'other': '#e06666', 'same': '#93c47d', 'special': '#cccccc'}


def draw(columns, wide=9):
  """Draws tokens as boxes, with the labels of predicted tokens below."""
  figure, axes = plt.subplots(figsize=(11, 0.62 * -(-len(columns) // wide)))
  axes.set(xlim=(0, wide), ylim=(-(-len(columns) // wide), 0))
  axes.axis('off')
  for place, column in enumerate(columns):
    y, x = divmod(place, wide)
    axes.text(x + 0.5, y + 0.3, column.piece, ha='center', va='center', fontsize=9,
              bbox={'facecolor': COLORS.get(column.kind, '#f3f3f3'), 'edgecolor': 'none', 'pad': 3})
    axes.text(x + 0.5, y + 0.78, column.target, ha='center', va='center', fontsize=8, color='#1a56b0')
  return figure


draw(row.lanes[-1].columns)
plt.show()

# %% [markdown]
# ## Train
#
# This is the published recipe at a smaller size: the same tokenizer, masks, objective and optimizer, with two layers
# instead of twelve. If you interrupt the cell, run it again: training resumes from the last checkpoint.

# %%
trained = plm_jax.train(bert)
trained

# %% [markdown]
# ## Learning curves
#
# BERT has two objectives: predict the masked tokens (MLM), and predict whether the second segment followed the first one
# (NSP). The curves show training text and held-out text. On the plateau at the beginning, the model knows how frequent
# tokens are, but nothing about their order.

# %% tags=["hide-input"]
curves = plm_jax.history('runs/first_bert').curves
figure, axes = plt.subplots(1, 2, figsize=(11, 3.4))
for name, title, axis in (('mlm', 'MLM loss (nats)', axes[0]),
                          ('mlm_accuracy', 'MLM accuracy', axes[1])):
  for split, style in (('train', {'alpha': 0.4}), ('heldout', {'marker': 'o'})):
    if points := curves.get(name, {}).get(split):
      axis.plot(*zip(*points, strict=True), label=split, **style)
  axis.set(title=title, xlabel='step')
  axis.legend()
baseline = curves['mlm_baseline']['heldout'][-1][1] if 'mlm_baseline' in curves else 0
axes[1].axhline(baseline, color='grey', linestyle=':')
axes[1].text(0, baseline, 'majority-class baseline', va='bottom', fontsize=8, color='grey')
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Fill blanks

# %% tags=["hide-input"]
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
# A BERT with one million parameters that has read four million tokens knows which words go together, not what is true.
#
# ## Export the model
#
# `export` writes a checkpoint that transformers loads with `BertForPreTraining.from_pretrained('runs/first_bert_exported')`.
# `plm_jax.load` reads the same folder.

# %%
shutil.rmtree('runs/first_bert_exported', ignore_errors=True)
print(plm_jax.export(trained, 'runs/first_bert_exported').how)
again = plm_jax.load('runs/first_bert_exported')
print(plm_jax.fill_mask(again, PROMPTS[0], top=1))
file = shutil.make_archive('runs/first_bert', 'zip', 'runs/first_bert_exported')
print(os.path.relpath(file), f'{os.path.getsize(file) / 1e6:.1f} MB')

# %% [markdown]
# Next, use your own text: `plm_jax.recipe('bert_base', scale='laptop', data={'path': ('my_text.txt',)})`. The file has one
# paragraph per line and a blank line between documents. Notebook 2 does this in Chinese.
