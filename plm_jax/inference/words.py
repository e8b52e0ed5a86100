"""What all layers of a model say of the words of sentences, and where its heads look."""
from collections.abc import Callable, Iterator, Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.inference import elmo, encode
from plm_jax.inference.loading import Trained
from plm_jax.tasks.examples import Example
from plm_jax.tasks.forms import form_of
from plm_jax.tasks.tagging import divided
from plm_jax.training.checkpoint import CheckpointError

Sentence = Sequence[str]
"""its words"""
LONG = 64  # characters of a word, of which addresses of the web have more: what is behind them is not read
LONGEST = 512  # tokens of a row, of a model that reads any number


class Row(NamedTuple):
  """Words of a sentence as a model reads them; a long sentence has several rows."""

  sentence: int
  words: range
  tokens: list[int]
  """special ones included"""
  starts: np.ndarray
  """where each word begins in `tokens`, and where the last one ends [words + 1]"""


def rows_of(trained: Trained, sentences: Sequence[Sentence]) -> list[Row]:
  """Makes the rows of sentences, in their order, none longer than the model reads.

  Raises CheckpointError for a model without a tokenizer, ConfigError for a word that is longer than a row.
  """
  if trained.tokenizer is None:
    raise CheckpointError('the model has no tokenizer: sentences cannot be read without it')
  form, vocab = form_of(trained.family), trained.tokenizer.vocab
  longest = trained.model.max_length or LONGEST
  examples = [Example(tuple(word[:LONG] for word in words), where=f'sentence {number + 1}')
              for number, words in enumerate(sentences)]
  made = []
  for piece in divided(examples, trained.tokenizer, longest - form.specials(vocab, 1))[0]:
    row = form.row([piece.ids], vocab, longest, 'none')
    starts = row.starts[0] + np.array([*piece.first, len(piece.ids)])
    made.append(Row(piece.example, piece.words, row.tokens, starts))
  return made


def word_layers(trained: Trained, sentences: Sequence[Sentence], params: Any = None) -> list[np.ndarray]:
  """Returns of each sentence the vectors of its words in all layers, float32 [K + 1, words, D]: 0 the embeddings, K the
  last. A word's is the mean of its tokens'.

  params: of the backbone, in place of the trained ones. Raises what `rows_of` does.
  """
  params = trained.params['backbone'] if params is None else params
  if trained.model.kind == 'recurrent':
    changed = Trained(**{**vars(trained), 'params': {**trained.params, 'backbone': params}})
    return elmo.word_layers(changed, sentences)
  found: list[list[np.ndarray]] = [[] for _ in sentences]
  for row, states in each(trained, sentences, params, attention=False):
    ends = np.diff(row.starts)
    sums = np.add.reduceat(states[:, :row.starts[-1]], row.starts[:-1], axis=1)
    found[row.sentence].append(sums / ends[:, None])
  width = trained.model.block.width
  depth = encode.encoder_of(trained.model).stack.blocks + 1
  return [np.concatenate(some, 1) if some else np.zeros((depth, 0, width), np.float32) for some in found]


def attention(trained: Trained, sentences: Sequence[Sentence]) -> Iterator[tuple[Row, np.ndarray]]:
  """Yields rows with the probabilities of every head, float32 [K, H, tokens, tokens]: who looks, and where to.

  Raises ConfigError for an ELMo, which has no heads, and what `rows_of` does.
  """
  if trained.model.kind == 'recurrent':
    raise ConfigError('an ELMo is of LSTMs: it has no attention to look at')
  return each(trained, sentences, trained.params['backbone'], attention=True)


def each(trained: Trained, sentences: Sequence[Sentence], params: Any, attention: bool, tokens: int = 4096
         ) -> Iterator[tuple[Row, np.ndarray]]:
  """Yields rows with what `encode.layers` has of each, without padding. Rows of like length go through together."""
  assert trained.tokenizer
  rows = rows_of(trained, sentences)
  config: Any = encode.encoder_of(trained.model)
  params = jax.tree.map(jnp.asarray, {name: part for name, part in params.items()
                                      if name != 'decoder' or trained.model.kind != 'encoder-decoder'})
  longest = config.max_length
  for numbers, batch in encode.batches([row.tokens for row in rows], longest, tokens,
                                       max(trained.tokenizer.vocab.pad, 0)):
    read: Callable[..., jax.Array] = functools.partial(encode.layers, config, params)
    said = np.asarray(read(batch, attention=attention))
    for place, number in enumerate(numbers):
      size = len(rows[number].tokens)
      yield rows[number], said[:, place, :, :size, :size] if attention else said[:, place, :size]
