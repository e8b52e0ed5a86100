"""What a reader of words is given before it learns: which words it has, and the vectors that these begin with."""
import collections
from collections.abc import Sequence
import functools
from typing import Any

from etils import epath
import jax

from plm_jax.errors import ConfigError
from plm_jax.layers.reader import ReaderConfig
from plm_jax.tasks.examples import Example
from plm_jax.tasks.recurrent import RecurrentTask
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.words import END_OF_LIST, SPECIALS, Words
from plm_jax.vectors import formats
from plm_jax.vectors.words import WordVectors


def vocabulary(task: RecurrentTask, examples: Sequence[Example]) -> Words:
  """Lists the words that have a vector of their own: those of training examples, the most frequent first, that come
  `reader.least` times or have a vector to begin with, then all others that have one, in the order of their file."""
  counts = collections.Counter(word for example in examples for word in task.words_of(example))
  given = vectors_of(task.reader)
  known = given.index if given else {}
  own = [word for word, number in counts.items()
         if number >= task.reader.least or word in known or word.lower() in known]
  words = [*sorted(own, key=lambda word: (-counts[word], word)), *(word for word in known if word not in counts)]
  signs = *SPECIALS, END_OF_LIST
  return Words([*SPECIALS, *(word for word in words if word.split() == [word] and word not in signs)])


def with_vectors(task: Any, tokenizer: Tokenizer, params: Any) -> Any:
  """Returns fresh parameters of a task in which words have the vectors that they are to begin with, those that lack one
  that of the word in lower case; params as they are where nothing is given. Raises what `vectors_of` does."""
  given = vectors_of(task.reader) if isinstance(task, RecurrentTask) else None
  if not given:
    return params
  places = [given.index.get(word, given.index.get(word.lower(), -1)) for word in tokenizer.pieces]
  rows = [row for row, place in enumerate(places) if place >= 0]
  name = f'heads_{task.head}'
  reader = params[name]['reader']
  table = reader['words'].at[jax.numpy.array(rows, int)].set(given.matrix[[places[row] for row in rows]])
  reader = {**reader, 'words': jax.device_put(table, reader['words'].sharding)}
  return {**params, name: {**params[name], 'reader': reader}}


def vectors_of(reader: ReaderConfig) -> WordVectors | None:
  """Loads the word vectors that a reader begins with; None: random ones. Raises VectorsError, and ConfigError for
  vectors of another width."""
  if not reader.vectors:
    return None
  found = loaded(reader.vectors)
  if (width := found.matrix.shape[1]) != reader.width:
    raise ConfigError(f'the vectors of {reader.vectors} have {width} numbers: give --objective.reader.width={width}')
  return found


@functools.lru_cache(maxsize=1)
def loaded(path: epath.PathLike) -> WordVectors:
  """Loads word vectors, once for all that ask one after another."""
  return formats.load(path)
