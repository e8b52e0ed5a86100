"""Vocabulary and initial word vectors of a task on an ELMo."""
import collections
from collections.abc import Sequence
import functools
import itertools
from typing import Any

from etils import epath
import jax

from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.recurrent_heads import ReaderConfig
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.elmo import RecurrentTask
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.whole_words import END_OF_LIST, SPECIALS, WordTokenizer
from plm_jax.word_vectors import formats
from plm_jax.word_vectors.vectors import WordVectors


def build_word_list(task: RecurrentTask, examples: Sequence[Example]) -> WordTokenizer:
  """Build the vocabulary of words that have their own vectors.

  First come the words of training examples, by frequency, that occur `reader.least` times or have
  an initial vector. All other words with an initial vector follow, in the order of their file.
  """
  words = itertools.chain.from_iterable(map(task.get_words, examples))
  counts = collections.Counter(words)
  vectors = load_reader_vectors(task.reader)
  known = vectors.index if vectors else {}
  own = [word for word, count in counts.items()
         if count >= task.reader.least or word in known or word.lower() in known]
  own.sort(key=lambda word: (-counts[word], word))
  words = own + [word for word in known if word not in counts]
  reserved = {END_OF_LIST}.union(SPECIALS)
  valid = [word for word in words if word.split() == [word] and word not in reserved]
  return WordTokenizer(list(SPECIALS) + valid)


def set_word_vectors(task: Any, tokenizer: Tokenizer, params: Any) -> Any:
  """Set the initial word vectors in freshly initialized parameters of a task on an ELMo.

  A word without one gets that of its lower-case form. Other tasks, and tasks without initial
  vectors, keep `params`. Raises what `load_reader_vectors` raises.
  """
  if not isinstance(task, RecurrentTask):
    return params
  vectors = load_reader_vectors(task.reader)
  if not vectors:
    return params
  rows, sources = [], []
  for row, word in enumerate(tokenizer.pieces):
    source = vectors.index.get(word, vectors.index.get(word.lower(), -1))
    if source >= 0:
      rows.append(row)
      sources.append(source)
  head = params[f'heads_{task.head}']
  old = head['reader']['words']
  table = old.at[jax.numpy.array(rows, int)].set(vectors.matrix[sources])
  reader = {**head['reader'], 'words': jax.device_put(table, old.sharding)}
  return {**params, f'heads_{task.head}': {**head, 'reader': reader}}


def load_reader_vectors(reader: ReaderConfig) -> WordVectors | None:
  """Load the initial word vectors of a task on an ELMo; None: random ones.

  Raises VectorsError, and ConfigError for vectors of another width.
  """
  if not reader.vectors:
    return None
  vectors = load_vectors_once(reader.vectors)
  width = vectors.matrix.shape[1]
  if width != reader.width:
    raise ConfigError(f'the vectors of {reader.vectors} have {width} numbers: give '
                      f'{name_field("objective.reader.width")}={width}')
  return vectors


@functools.lru_cache(maxsize=1)
def load_vectors_once(path: epath.PathLike) -> WordVectors:
  """Load word vectors; the last file is cached."""
  return formats.load(path)
