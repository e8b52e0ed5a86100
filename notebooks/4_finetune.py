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
# # 4. Fine-tune and compare
#
# Learn one task in four ways: with a randomly initialized model, with a classifier on a frozen BERT, with LoRA, and by
# fine-tuning all parameters of BERT. The task is to recognize which Python package a paragraph of documentation comes
# from. Its examples are built in. The notebook takes about five minutes on two CPU cores if notebook 1 has left its BERT
# in `runs/first_bert`; otherwise that model is trained first.
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
import time

import matplotlib.pyplot as plt
import numpy as np

import plm_jax

TEXT = os.environ.get('PLM_JAX_NOTEBOOK_TEXT', 'embedded')
bert = plm_jax.train('bert_base', scale=SCALE, output='runs/first_bert', data={'path': (TEXT,)})

# %% [markdown]
# ## Look at the examples

# %%
from plm_jax.sources import builtin_tasks

some = [row.columns for row in builtin_tasks.builtin_rows('embedded:classification:dev')]
print(len(some), 'test paragraphs, such as')
for row in some[:3]:
  print(f'  {row["label"]:6} {row["text"][:90]}')

# %% [markdown]
# ## Four ways to fine-tune
#
# The output of a frozen backbone is computed once, so its epochs are cheap. LoRA trains small matrices next to the
# kernels; they can be stored for each task. Full fine-tuning needs a small learning rate to keep what was pre-trained.
# Each method uses a learning rate that suits it.

# %%
WAYS = {
    'from scratch': ('', {'optim': {'peak': 1e-3}}),
    'frozen, with a head': ('runs/first_bert', {'tuning': {'top': 0}, 'optim': {'peak': 5e-3}}),
    'LoRA': ('runs/first_bert', {'tuning': {'adapter': {'kind': 'lora', 'rank': 8}}, 'optim': {'peak': 3e-3}}),
    'full': ('runs/first_bert', {'optim': {'peak': 5e-4}}),
}
models, seconds = {}, {}
for way, (init, options) in WAYS.items():
  began = time.time()
  folder = f'runs/packages_{way.split(",")[0].replace(" ", "_")}'
  models[way] = plm_jax.finetune(init, 'classification', scale=SCALE, output=folder, **options)
  seconds[way] = time.time() - began

# %% [markdown]
# ## Compare
#
# All four models are evaluated on the same paragraphs, which none of them was trained on.

# %% tags=["hide-input"]
texts, labels = [row['text'] for row in some], [row['label'] for row in some]
predicted = {way: [found.label for found in plm_jax.predict(model, texts)] for way, model in models.items()}
accuracy = {way: np.mean([a == b for a, b in zip(found, labels, strict=True)]) for way, found in predicted.items()}
frequent = max(labels.count(label) for label in set(labels)) / len(labels)
figure, axes = plt.subplots(1, 2, figsize=(11, 3))
axes[0].bar([*accuracy], [*accuracy.values()], color=['#999999', '#f4b400', '#93c47d', '#4285f4'])
axes[0].axhline(frequent, color='grey', linestyle=':')
axes[0].set(title='Accuracy (dotted: always the most frequent package)', ylim=(0, 1))
axes[0].tick_params('x', labelsize=8)
for way, value in accuracy.items():
  axes[0].text(way, value, f'{value:.0%}', ha='center', va='bottom')
for way in WAYS:
  folder = f'runs/packages_{way.split(",")[0].replace(" ", "_")}'
  axes[1].plot(*zip(*plm_jax.history(folder).curves['accuracy']['heldout'], strict=True), marker='o', label=way)
axes[1].set(title='Accuracy during training', xlabel='step')
axes[1].legend(fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
plt.show()
print({way: f'{taken:.0f} s' for way, taken in seconds.items()})

# %% [markdown]
# ## Confusion matrix

# %% tags=["hide-input"]
best = max(accuracy, key=accuracy.get)
names = sorted(set(labels))
table = np.zeros((len(names), len(names)), int)
for right, told in zip(labels, predicted[best], strict=True):
  table[names.index(right), names.index(told)] += 1
figure, axis = plt.subplots(figsize=(4.2, 3.6))
axis.imshow(table / table.sum(1, keepdims=True), cmap='Blues', vmin=0, vmax=1)
for (y, x), count in np.ndenumerate(table):
  axis.text(x, y, count, ha='center', va='center', fontsize=8)
axis.set(xticks=range(len(names)), xticklabels=names, yticks=range(len(names)), yticklabels=names,
         xlabel='predicted', ylabel='correct', title=best)
plt.show()

# %% [markdown]
# ## Use the classifier
#
# The best model classifies your own sentences, and `export` writes a folder for transformers'
# `pipeline('text-classification')`. To learn a task of your own, write a file with the columns `text` and `label`:
# `plm_jax.finetune('runs/first_bert', 'classification', train='reviews.tsv', dev='dev.tsv', output='runs/reviews')`.

# %%
for text in ('Computes the eigenvalues of a symmetric matrix.', 'A layer with learned parameters.',
             'The gradient transformation scales updates by the learning rate.'):
  found, = plm_jax.predict(models[best], text)
  print(f'{found.label:6} {found.probability:4.0%}  {text}')
shutil.rmtree('runs/packages_exported', ignore_errors=True)
print(plm_jax.export(models[best], 'runs/packages_exported').how)
