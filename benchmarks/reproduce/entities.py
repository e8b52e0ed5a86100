"""Keras' example of named entities: a Transformer encoder of one layer, trained on CoNLL-2003 from scratch.

Source: keras-team/keras-io at 1909c6710cd3f5af6401f1176dcee9e26781b4f3, examples/nlp/md/ner_transformers.md (the page
keras.io/examples/nlp/ner_transformers): settings in "Make the NER label lookup table" and "Compile and fit the model",
figures in the output of "Metrics calculation". The data are the 14,041 and 3,250 sentences of its data set: train.txt and
valid.txt of v-mipeng/LexiconNER at 9a2003d5eeffa1997550199a9dc541cbd074f7e3, data/conll2003.
"""
import collections
import json
import pathlib
import tempfile
import time
from typing import Any

import numpy as np

WIDTH, HEADS, MLP, LENGTH = 32, 4, 64, 128  # NERModel(embed_dim=32, num_heads=4, ff_dim=64), maxlen of NERModel
VOCAB, ROWS, EPOCHS, RATE, DROPOUT = 20000, 32, 10, 1e-3, 0.1  # vocab_size, batch_size, fit, Adam and rate of Keras
WORDS = 21009  # distinct words in lower case, which the example prints
SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]']

Sentences = list[tuple[list[str], list[str]]]


def read(data: str) -> tuple[Sentences, Sentences, list[str]]:
  """Read the training and the validation sentences as (words, tags), and the most frequent words."""
  from benchmarks import kept
  parts = []
  for part in ('train', 'valid'):
    blocks = kept.place(data, f'conll2003/{part}.txt').read_text().strip().split('\n\n')
    rows = [[line.split() for line in block.splitlines()] for block in blocks]
    parts.append([([row[0] for row in sentence], [row[1] for row in sentence]) for sentence in rows])
  counts = collections.Counter(word.lower() for words, _ in parts[0] for word in words)
  sizes = len(parts[0]), len(parts[1]), sum(len(words) for words, _ in parts[1]), len(counts)
  if sizes != (14041, 3250, 51362, WORDS):
    raise ValueError(f'{data} has other sentences of CoNLL-2003 than the example: {sizes}')
  return parts[0], parts[1], [word for word, _ in counts.most_common(VOCAB - 2)]


def score(valid: Sentences, found: list[list[str]]) -> dict[str, float]:
  """Score tags as the example does: F1 of entities and accuracy, in percent, of all words without borders of sentences."""
  from plm_jax.metrics.tasks import chunk_f1
  true = [tag for _, tags in valid for tag in tags]
  tags = [tag for some in found for tag in some]
  total = chunk_f1([true], [tags]).total
  right = np.mean([one == other for one, other in zip(true, tags, strict=True)])
  return {'score': total.f1, 'precision': total.precision, 'recall': total.recall, 'accuracy': 100 * float(right)}


def write_tokenizer(words: list[str], folder: pathlib.Path) -> None:
  """Write a tokenizer of whole words in lower case."""
  import tokenizers
  from tokenizers import models, normalizers, pre_tokenizers
  ids = {word: number for number, word in enumerate([*SPECIALS, *words])}
  # Without pieces that continue words, a word is in the vocabulary or unknown.
  library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token='[UNK]'))
  library.normalizer, library.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
  library.add_special_tokens(SPECIALS)
  folder.mkdir()
  library.save(str(folder / 'tokenizer.json'))
  names = dict(zip(('pad_token', 'unk_token', 'cls_token', 'sep_token'), SPECIALS, strict=True))
  (folder / 'tokenizer_config.json').write_text(json.dumps(names))


def options(folder: str, seed: int, epochs: int, vocab: int) -> list[str]:
  """Return the options of `python -m plm_jax finetune` for the published run.

  Args:
    folder: contains train.conll and the folder tokenizer; the run is written to its folder run.
    seed: of the run.
    epochs: fewer than EPOCHS for a short form of it.
    vocab: size of the vocabulary.
  """
  return [
      '--task=tagging', '--scale=laptop', f'--train={folder}/train.conll', f'--output={folder}/run', f'--seed={seed}',
      f'--data.tokenizer={folder}/tokenizer', f'--data.epochs={epochs}', '--data.warmup=0', '--data.baseline=False',
      f'--model.vocab={vocab}', f'--model.max-length={LENGTH + 2}', '--model.pooler=False', '--model.embeddings.types=0',
      '--model.stack.layers=1', f'--model.block.width={WIDTH}', f'--model.block.heads={HEADS}',
      f'--model.block.head-size={WIDTH}', f'--model.block.mlp-dim={MLP}', f'--model.block.dropout={DROPOUT}',
      '--model.block.attention.dropout=0', '--model.block.mlp.activation=relu', '--model.block.norm.eps=1e-6',
      # Keras: matrices by Glorot and Bengio, tables uniform between -0.05 and 0.05.
      '--model.block.init.fan=average', '--model.block.init.matrices=uniform', '--model.block.init.tables=uniform',
      f'--model.block.init.std={0.05 / 3 ** 0.5:.7f}',
      f'--optim.peak={RATE}', '--optim.schedule=constant', '--optim.warmup=0', '--optim.weight-decay=0',
      '--optim.clip=0', '--optim.eps=1e-7', '--optim.bias-correction=True',
      f'--train.phases.0.length={LENGTH + 2}', f'--train.phases.0.batch={ROWS}', '--train.best=', '--mesh.data=1']


def run(given: dict[str, Any]) -> dict[str, Any]:
  """Train with plm_jax and score the validation set; given: data, seed and, for a short run, epochs."""
  import plm_jax
  from plm_jax.cli import finetune
  train, valid, words = read(given['data'])
  with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, 'train.conll').write_text(
        '\n'.join(''.join(f'{word} {tag}\n' for word, tag in zip(*sentence, strict=True)) for sentence in train))
    write_tokenizer(words, pathlib.Path(folder, 'tokenizer'))
    began = time.time()
    finetune.start(args=options(folder, given['seed'], given.get('epochs', EPOCHS), len(words) + len(SPECIALS)))
    seconds = time.time() - began
    found = [one.tags for one in plm_jax.tag(f'{folder}/run', [words for words, _ in valid])]
  return {**score(valid, found), 'seconds': round(seconds)}


def run_changed_keras(given: dict[str, Any]) -> dict[str, Any]:
  """Train the model of Keras with two changes that plm_jax has: masked padding, normalized embeddings."""
  return run_keras(given, changed=True)


def run_keras(given: dict[str, Any], changed: bool = False) -> dict[str, Any]:
  """Train a model of Keras, written from the description of the example.

  Args:
    given: as for `run`.
    changed: see `run_changed_keras`.
  """
  import keras
  from keras import layers, ops
  train, valid, words = read(given['data'])
  keras.utils.set_random_seed(given['seed'])
  ids = {word: number for number, word in enumerate(words, 1)}  # 0: unknown words, and padding
  tags = ['[PAD]', *sorted({tag for _, tags in train for tag in tags})]

  def make_batch(sentences: Sentences) -> tuple[Any, np.ndarray]:
    shape = len(sentences), max(len(words) for words, _ in sentences)
    x, y = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for row, (own, truth) in enumerate(sentences):
      x[row, :len(own)] = [ids.get(word.lower(), 0) for word in own]
      y[row, :len(own)] = [tags.index(tag) for tag in truth]
    return ([x, y > 0] if changed else x), y

  def loss(truth: Any, predicted: Any) -> Any:
    real = ops.cast(truth > 0, 'float32')
    return ops.sum(keras.losses.sparse_categorical_crossentropy(truth, predicted) * real) / ops.sum(real)

  tokens = layers.Input((None,), dtype='int32')
  places = layers.Embedding(LENGTH, WIDTH)(ops.cumsum(ops.ones_like(tokens), 1) - 1)
  x = layers.Embedding(VOCAB, WIDTH)(tokens) + places
  mask = None  # the example does not mask padding
  if changed:
    x = layers.Dropout(DROPOUT)(layers.LayerNormalization(epsilon=1e-6)(x))
    is_word = layers.Input((None,), dtype='bool')
    mask = ops.expand_dims(is_word, 1)
  attended = layers.MultiHeadAttention(HEADS, WIDTH)(x, x, attention_mask=mask)
  x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(DROPOUT)(attended))
  hidden = layers.Dense(WIDTH)(layers.Dense(MLP, 'relu')(x))
  x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dropout(DROPOUT)(hidden))
  x = layers.Dense(MLP, 'relu')(layers.Dropout(DROPOUT)(x))
  inputs = [tokens, is_word] if changed else tokens
  model = keras.Model(inputs, layers.Dense(len(tags), 'softmax')(layers.Dropout(DROPOUT)(x)))
  model.compile(keras.optimizers.Adam(RATE), loss)
  batches = [make_batch(train[start:start + ROWS]) for start in range(0, len(train), ROWS)]
  began, found = time.time(), []
  for _ in range(given.get('epochs', EPOCHS)):
    for inputs, truth in batches:  # in the order of the file, as in the example
      model.train_on_batch(inputs, truth)
  seconds = time.time() - began
  for start in range(0, len(valid), ROWS):
    some = valid[start:start + ROWS]
    best = np.asarray(model(make_batch(some)[0], training=False))[..., 1:].argmax(-1) + 1
    found += [[tags[tag] for tag in row[:len(own)]] for row, (own, _) in zip(best, some, strict=True)]
  return {**score(valid, found), 'seconds': round(seconds)}
