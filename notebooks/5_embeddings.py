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
# # 5. Embeddings, from words to sentences
#
# Embed the same thirty sentences with four kinds of model: word vectors (2013), ELMo (2018), BERT (2018) and
# Sentence-BERT (2019), and plot them. The notebook takes about ten minutes on two CPU cores if notebook 1 has left its
# BERT.
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
from plm_jax import word_vectors
from plm_jax.config.run import Phase

TEXT = os.environ.get('PLM_JAX_NOTEBOOK_TEXT', 'embedded')
TOPICS = {
    'arrays': ['Returns the shape of the array.', 'The array has two dimensions.', 'Reshape the input array to a matrix.',
               'An array of the same shape as the input.', 'The number of elements along each axis.',
               'Concatenate arrays along the first axis.'],
    'training': ['The learning rate decays over the steps.', 'The optimizer updates the parameters by the gradient.',
                 'The loss is averaged over the batch.', 'Gradients are clipped before the update.',
                 'Adam keeps a moving average of the gradient.', 'The model is trained for ten epochs.'],
    'files': ['The path of the file to read.', 'Writes the data to a file on disk.', 'The directory does not exist.',
              'Opens the file and returns its contents.', 'Deletes the folder and all files in it.',
              'The name of the output file.'],
    'random': ['Draws samples from a normal distribution.', 'The seed of the random number generator.',
               'A random variable with mean zero.', 'The probability density of the distribution.',
               'Samples are drawn without replacement.', 'The standard deviation of the noise.'],
    'errors': ['Raises an error if the argument is invalid.', 'A warning is issued when it is deprecated.',
               'An exception is raised if it is not found.', 'The error message says what went wrong.',
               'If the type is not supported, an error is raised.', 'This function is deprecated and will be removed.'],
}
sentences = [sentence for some in TOPICS.values() for sentence in some]
topics = np.repeat(np.arange(len(TOPICS)), [len(some) for some in TOPICS.values()])

# %% [markdown]
# ## Word vectors: one vector per word, in every context

# %%
subprocess.run([sys.executable, '-m', 'plm_jax', 'train', 'word2vec', f'--scale={SCALE}', f'--data.path={TEXT}',
                '--output=runs/word2vec'], check=True, stdout=subprocess.DEVNULL)
words = word_vectors.load('runs/word2vec')
for word in ('array', 'gradient', 'file', 'error'):
  if word in words:
    print(f'{word:10}', ', '.join(f'{near} {cosine:.2f}' for near, cosine in words.nearest(word, top=5)))
maps = {'word2vec, mean': np.stack([
    np.mean([words[word] for word in sentence.lower().strip('.').replace(',', '').split() if word in words]
            or [np.zeros(words.matrix.shape[1])], axis=0) for sentence in sentences])}

# %% [markdown]
# ## ELMo: words from their characters, read in both directions

# %%
brief = {'train': {'phases': (Phase(600, 20, 32),), 'eval_every': 200, 'save_every': 300}} if SCALE == 'laptop' else {}
elmo = plm_jax.train('elmo_small', scale=SCALE, output='runs/elmo', data={'path': (TEXT,)}, **brief)
maps['ELMo, top layer'] = plm_jax.encode(elmo, sentences)

# %% [markdown]
# ## BERT: one vector per token and layer, in context

# %%
bert = plm_jax.train('bert_base', scale=SCALE, output='runs/first_bert', data={'path': (TEXT,)})
maps['BERT, embeddings'] = plm_jax.encode(bert, sentences, layer=0)
maps['BERT, last layer'] = plm_jax.encode(bert, sentences)

# %% [markdown]
# ## Sentence-BERT: related sentences get similar vectors
#
# Start from the same BERT and train on pairs of consecutive sentences. For each sentence, the model identifies its
# partner among all sentences of the batch (in-batch negatives).

# %%
sbert = plm_jax.finetune('runs/first_bert', 'embedding', 'embedded:embedding', 'embedded:similarity:dev', scale=SCALE,
                         output='runs/sentence_bert', optim={'peak': 5e-4}, data={'columns': {'label': 'score'}})
maps['Sentence-BERT'] = plm_jax.encode(sbert, sentences)

# %% [markdown]
# ## Plot the sentences
#
# Each panel shows the first two principal components of the thirty vectors. The percentage in the title is the share of
# sentences whose nearest neighbor, by cosine similarity, has the same topic. Chance is 17%.

# %% tags=["hide-input"]
def plane(found):
  """Projects vectors [N, D] to their first two principal components [N, 2]."""
  centered = found - found.mean(0)
  u, s, _ = np.linalg.svd(centered, full_matrices=False)
  return u[:, :2] * s[:2]


def topic_accuracy(found):
  """Returns the share of vectors whose nearest neighbor has the same topic."""
  unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
  cosines = unit @ unit.T - 2 * np.eye(len(unit))
  return np.mean(topics[cosines.argmax(1)] == topics)


figure, axes = plt.subplots(1, len(maps), figsize=(15, 3.3))
for axis, (title, found) in zip(axes, maps.items(), strict=True):
  at = plane(found)
  for number, topic in enumerate(TOPICS):
    axis.scatter(*at[topics == number].T, s=22, label=topic)
  axis.set_title(f'{title}: {topic_accuracy(found):.0%}', fontsize=10)
  axis.set(xticks=[], yticks=[])
figure.legend(*axes[0].get_legend_handles_labels(), ncols=len(TOPICS), loc='lower center')
plt.tight_layout(rect=(0, 0.08, 1, 1))
plt.show()

# %% [markdown]
# ## Similarity matrices

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(9, 4))
for axis, title in zip(axes, ('BERT, last layer', 'Sentence-BERT'), strict=True):
  unit = maps[title] / np.linalg.norm(maps[title], axis=1, keepdims=True)
  shown = axis.imshow(unit @ unit.T, cmap='viridis')
  axis.set_title(f'{title}: cosines', fontsize=10)
  axis.set(xticks=range(3, 30, 6), xticklabels=[*TOPICS], yticks=range(3, 30, 6), yticklabels=[*TOPICS])
  axis.tick_params(axis='x', rotation=30)
  figure.colorbar(shown, ax=axis, shrink=0.7)
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Search your own texts

# %%
query = 'an exception that tells what is wrong'
for hit in plm_jax.search(sbert, sentences, query, top=4)[0]:
  print(f'{hit.score:.2f}  {hit.text}')
shutil.rmtree('runs/sentence_bert_exported', ignore_errors=True)
print(plm_jax.export(sbert, 'runs/sentence_bert_exported').how)
