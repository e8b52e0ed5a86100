"""Word-level features: hidden states of words in all layers, and attention probabilities."""
from collections.abc import Iterator, Sequence
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from plm_jax import progress
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.errors import ConfigError, check_finite
from plm_jax.inference import elmo, encode
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.input_formats import get_input_format
from plm_jax.tasks.token_classification import split_sentences

Sentence = Sequence[str]
"""the words of a sentence"""
MAX_WORD_LENGTH = 64
"""maximum characters of a word; the rest, as of long web addresses, is ignored"""
MAX_ROW_LENGTH = 512
"""maximum sequence length for models without a limit"""


class WordRow(NamedTuple):
  """Words of a sentence as model input; a long sentence is divided into several rows."""

  sentence: int
  words: range
  tokens: list[int]
  """including special tokens"""
  starts: np.ndarray
  """index in `tokens` at which each word begins, and at which the last one ends [words + 1]"""


def build_rows(trained: LoadedModel, sentences: Sequence[Sentence]) -> list[WordRow]:
  """Encode sentences as rows that fit the model, in order.

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: a word is longer than a row.
  """
  if trained.tokenizer is None:
    raise CheckpointError('the model has no tokenizer: sentences cannot be read without it')
  form, vocab = get_input_format(trained.family), trained.tokenizer.vocab
  longest = trained.model.max_length or MAX_ROW_LENGTH
  examples = []
  for number, words in enumerate(sentences, 1):
    shortened = tuple(word[:MAX_WORD_LENGTH] for word in words)
    examples.append(Example(shortened, where=f'sentence {number}'))
  rows = []
  room = longest - form.count_special(vocab, 1)
  for piece in split_sentences(examples, trained.tokenizer, room)[0]:
    row = form.make_row([piece.ids], vocab, longest, 'none')
    starts = row.text_starts[0] + np.array([*piece.first, len(piece.ids)])
    rows.append(WordRow(piece.example, piece.words, row.tokens, starts))
  return rows


def word_layers(
    trained: LoadedModel, sentences: Sequence[Sentence], params: Any = None,
) -> list[np.ndarray]:
  """Compute the vectors of words in all layers; the vector of a word is the mean over its tokens.

  Args:
    trained: any model with a tokenizer, or an ELMo.
    sentences: the words of each sentence.
    params: parameters of the backbone to use instead of the model's; None: the model's.

  Returns:
    float32 [layers + 1, words, hidden] per sentence; layer 0 is the embeddings.

  Raises:
    CheckpointError, ConfigError: as for `build_rows`.
  """
  if params is None:
    params = trained.device_params('backbone')['backbone']
  if trained.model.kind == 'recurrent':
    changed = dataclasses.replace(trained, params={**trained.params, 'backbone': params})
    return elmo.word_layers(changed, sentences)
  found: list[list[np.ndarray]] = [[] for _ in sentences]
  for row, states in iterate_rows(trained, sentences, params, attention=False):
    tokens_per_word = np.diff(row.starts)
    sums = np.add.reduceat(states[:, :row.starts[-1]], row.starts[:-1], axis=1)
    found[row.sentence].append(sums / tokens_per_word[:, None])
  width = trained.model.block.width
  depth = encode.encoder_config(trained.model).stack.blocks + 1
  empty = np.zeros((depth, 0, width), np.float32)
  return [np.concatenate(parts, 1) if parts else empty for parts in found]


def iterate_attention(
    trained: LoadedModel, sentences: Sequence[Sentence],
) -> Iterator[tuple[WordRow, np.ndarray]]:
  """Yield rows with the attention probabilities of all heads.

  Attention is float32 [layers, heads, queries, keys] over the tokens of the row.

  Raises:
    CheckpointError, ConfigError: as for `build_rows`; also ConfigError for an ELMo, which has no
      heads.
  """
  if trained.model.kind == 'recurrent':
    raise ConfigError('an ELMo is of LSTMs: it has no attention to look at')
  params = trained.device_params('backbone')['backbone']
  return iterate_rows(trained, sentences, params, attention=True)


def iterate_rows(
    trained: LoadedModel, sentences: Sequence[Sentence], params: Any, attention: bool,
    tokens: int = 4096,
) -> Iterator[tuple[WordRow, np.ndarray]]:
  """Yield rows with the hidden states or attention of all layers (`encode.layers`), unpadded.

  Rows of similar length go through the model together, at most `tokens` tokens per batch.
  """
  assert trained.tokenizer
  rows = build_rows(trained, sentences)
  config: Any = encode.encoder_config(trained.model)
  params = encode.encoder_params(trained.model, params)
  pad = max(trained.tokenizer.vocab.pad, 0)
  batches = encode.iterate_batches([row.tokens for row in rows], config, tokens, pad)
  with progress.progress_bar('sentences', len(rows)) as done:
    for numbers, batch in batches:
      found = np.asarray(encode.compute_all_layers(config, params, batch, attention=attention))
      for place, number in enumerate(numbers):
        size = len(rows[number].tokens)
        if attention:
          yield rows[number], check_finite(found[:, place, :, :size, :size])
        else:
          yield rows[number], check_finite(found[:, place, :size])
      done.update(len(numbers))
