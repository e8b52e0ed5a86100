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
# # 3. One text, nine objectives
#
# A pre-training objective turns text into inputs and labels. This notebook applies nine objectives to the same sentence
# and shows the input, the labels and the attention mask of each. Only tokenizers are trained, so it takes one or two
# minutes on two CPU cores.
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
from plm_jax.sources import builtin_corpus

SENTENCE = ('The function returns the sum of all values in the array. The shape of the array is the same as before, '
            'and the type of the values does not change.')  # your own sentence, with words that are not too rare
TEXT = os.environ.get('PLM_JAX_NOTEBOOK_TEXT') or builtin_corpus.corpus_path()
HERE = pathlib.Path('runs/objectives')
HERE.mkdir(parents=True, exist_ok=True)
# The tokenizers are trained on English text. The examples contain one sentence, many times.
(HERE / 'text.txt').write_text(pathlib.Path(TEXT).read_text(encoding='utf-8')[:1_000_000 if SCALE == 'laptop' else 200_000],
                               encoding='utf-8')
# (Each copy ends with a number, because the held-out documents are selected by their content.)
_ = (HERE / 'sentence.txt').write_text('\n\n'.join(f'{SENTENCE}\n{number}' for number in range(200)), encoding='utf-8')

# %% [markdown]
# Each recipe uses the tokenizer of its paper: WordPiece (BERT, SpanBERT, ELECTRA, GLM), SentencePiece (XLNet, T5) or
# byte-level BPE (BART, GPT-2).

# %%
OBJECTIVES = {
    'masked tokens (BERT)': ('bert_base', {}),
    'masked words (BERT, whole words)': ('bert_base', {'masking': {'unit': 'word'}}),
    'masked spans (SpanBERT)': ('spanbert_base', {}),
    'permutation (XLNet)': ('xlnet_base', {}),
    'replaced tokens (ELECTRA)': ('electra_small', {}),
    'span corruption (T5)': ('t5_small', {}),
    'denoising (BART)': ('bart_base', {}),
    'blank infilling (GLM)': ('glm_large', {}),
    'next token (GPT-2)': ('gpt2_small', {}),
}
TOKENIZER = {'spanbert_base': 'bert_base', 'electra_small': 'bert_base'}  # recipes that share a tokenizer
rows = {}
for title, (name, options) in OBJECTIVES.items():
  of = TOKENIZER.get(name, name)
  records = HERE / of
  if not records.exists():
    plm_jax.prepare(str(HERE / 'text.txt'), records, like=of, vocab=2048, heldout=0.1)
  config = plm_jax.recipe(
      name, scale='test', output=str(HERE / 'none'), objective=options, model={'vocab': 2048},
      data={'path': (str(HERE / 'sentence.txt'),), 'prepare': {'tokenizer': str(records / 'tokenizer'), 'heldout': 0.1}})
  rows[title], = plm_jax.inspect(config, rows=1).rows

# %% [markdown]
# ## Inputs and labels
#
# Yellow tokens are masks, or sentinels for removed text. Red tokens were replaced by another token. Green tokens are
# predicted but unchanged. Labels are blue, below their token. An encoder-decoder has two rows: the second one is the
# decoder's.

# %% tags=["hide-input"]
COLORS = {'mask': '#f4b400', 'other': '#e06666', 'same': '#93c47d', 'special': '#cccccc'}
SHOWN, WIDE = 32, 16


def draw(title, row):
  """Draws the inputs and labels of an example, without the original text."""
  lanes = [lane for lane in row.lanes if lane.title != 'text']
  heights = [-(-min(SHOWN, len(lane.columns)) // WIDE) for lane in lanes]
  _, axes = plt.subplots(figsize=(13, 0.62 * sum(heights) + 0.3))
  axes.set(xlim=(-1.3, WIDE), ylim=(sum(heights), 0))
  axes.axis('off')
  axes.set_title(title, loc='left', fontsize=11, weight='bold')
  top = 0
  for lane, height in zip(lanes, heights, strict=True):
    axes.text(-1.3, top + 0.3, lane.title, va='center', fontsize=8, color='grey')
    for place, column in enumerate(lane.columns[:SHOWN]):
      y, x = divmod(place, WIDE)
      axes.text(x + 0.5, top + y + 0.3, column.piece.replace('$', r'\$'), ha='center', va='center', fontsize=7.5,
                bbox={'facecolor': COLORS.get(column.kind, '#f3f3f3'), 'edgecolor': 'none', 'pad': 2})
      axes.text(x + 0.5, top + y + 0.75, column.target.replace('$', r'\$'), ha='center', va='center', fontsize=7,
                color='#1a56b0')
    top += height
  plt.show()


for title, row in rows.items():
  draw(title, row)

# %% [markdown]
# ## Attention masks
#
# Each line is a query token, each column a key token that it attends to. BERT attends to all tokens and GPT-2 to earlier
# ones. XLNet attends to tokens that come earlier in a random order. GLM attends to the whole text with its blanks, and to
# the part of the blanks that is already generated. For encoder-decoders, the figure shows the encoder.

# %% tags=["hide-input"]
figure, axes = plt.subplots(3, 3, figsize=(10, 10))
for axis, (title, row) in zip(axes.flat, rows.items(), strict=True):
  axis.imshow(row.attention_mask if row.attention_mask is not None else np.zeros((2, 2)), cmap='Blues', vmin=0, vmax=1.4)
  axis.set_title(title, fontsize=9)
  axis.set(xticks=[], yticks=[])
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Labels per sequence
#
# The more tokens of a sequence have labels, the more a training step learns from it. The objectives differ in this.

# %% tags=["hide-input"]
shares = {}
for title, row in rows.items():
  lane = row.lanes[-1]
  labels = len(lane.columns) if 'ELECTRA' in title else sum(bool(column.target) for column in lane.columns)
  shares[title] = labels / max(len(lane.columns) for lane in row.lanes)
figure, axis = plt.subplots(figsize=(8, 3.2))
axis.barh([*shares], [*shares.values()], color='#4285f4')
axis.set(title='Tokens with a label / tokens read, in this example')
axis.invert_yaxis()
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Save the examples as a page
#
# The next cell writes the examples to an HTML page. `python -m plm_jax inspect RECIPE` makes such a page for any recipe,
# any task and your own text. Look at it first if a loss does not decrease.

# %%
from plm_jax.report import batch_drawing

page = HERE / 'objectives.html'
page.write_text(batch_drawing.render_page('One sentence, nine objectives', [SENTENCE],
                                          [row._replace(title=title) for title, row in rows.items()]), encoding='utf-8')
print(page, f'{page.stat().st_size / 1000:.0f} kB')
