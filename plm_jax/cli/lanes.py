"""What a model is given, row by row: a batch's arrays laid beside the tokens that they tell of, for people to read."""
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax.layers import spelling
from plm_jax.layers.masks import visible
from plm_jax.tokenizers import Tokenizer

Kind = Literal['', 'special', 'mask', 'same', 'other', 'next']
"""of a token as it is read: text; one of the tokenizer's special tokens; to be predicted, and a mask, itself or another
token stands there; what is to be predicted is told of it, or comes next"""
BESIDE = ('tokens', 'labels', 'weights', 'positions', 'content', 'draw', 'visible', 'weight', 'feature')
"""arrays that are no numbers of a token or of a row, or are shown otherwise"""
SIGNS = {'\n': '⏎', '\t': '⇥', '\r': '␍', ' ': '␣'}
SIGHT = 160
"""tokens of a row, at most, for which who sees whom is drawn"""


class Column(NamedTuple):
  """A token, and what is told of it."""

  piece: str
  kind: Kind = ''
  target: str = ''
  """what is to be predicted of it, or behind it"""
  numbers: tuple[str, ...] = ()


class Lane(NamedTuple):
  """Tokens that are read one after another."""

  title: str
  columns: Sequence[Column]
  names: Sequence[str] = ()
  """of the numbers"""
  padding: int = 0
  """tokens of padding, which are left out"""


class Row(NamedTuple):
  """A row of a batch, from its text to what is asked."""

  title: str
  lanes: Sequence[Lane]
  facts: Mapping[str, str]
  """what is told of the whole row"""
  sees: np.ndarray | None = None
  """bool [L, L], True where the token of a line sees that of a column; None: too many tokens"""


@dataclasses.dataclass(frozen=True)
class Reader:
  """Reads batches as a run makes them."""

  tokenizer: Tokenizer
  model: Any
  """configuration of the backbone"""
  objective: Any
  packed: bool
  """rows may hold several texts, apart from each other"""

  def rows(self, windows: Mapping[str, Any], batch: Mapping[str, Any], filled: Any = None) -> list[Row]:
    """Lays out every row of windows and of the batch that the objective made of them, numpy arrays [B, ...].

    filled [B, L]: tokens as a generator has filled the masks, and `replaced`; None: there is none.
    """
    found = []
    for number in range(len(batch['tokens'] if 'tokens' in batch else batch['streams'])):
      own, given = ({name: np.asarray(x)[number] for name, x in some.items() if np.ndim(x)}
                    for some in (windows, flat(batch)))
      lanes = [*self.text(own), *self.read(given)]
      if filled is not None:
        lanes.append(self.told_apart(given, *(np.asarray(x)[number] for x in filled)))
      found.append(Row(title(own, number), lanes, self.facts(given), self.sees(given)))
    return found

  def text(self, window: Mapping[str, np.ndarray]) -> Iterator[Lane]:
    """Yields the text as it was cut, with what is known of it; of labelled examples nothing."""
    if 'words' in window:
      beside = {name: window[name] for name in ('words', 'sentences', 'segments')}
      yield self.lane('text', window['tokens'], window['segments'] > 0, beside)

  def read(self, row: Mapping[str, np.ndarray]) -> Iterator[Lane]:
    """Yields what the model reads."""
    if 'streams' in row:
      yield from self.spelled(row)
      return
    if 'memory_tokens' in row:
      yield self.lane('memory', row['memory_tokens'], row['memory_segments'] > 0, {})
    if row['tokens'].ndim == 2:  # a group: the choices of a question
      aligned = [name for name, x in row.items() if x.shape[:2] == row['tokens'].shape]
      for number in range(len(row['tokens'])):
        one = {name: row[name][number] for name in aligned}
        yield self.lane(f'reads, {number + 1}', one['tokens'], one['segments'] > 0, beside(one, one['tokens']))
      return
    decoded = 'decoder_tokens' in row
    asked = self.tags(row) if 'tags' in row else {} if decoded or 'labels' not in row else self.asked(row)
    yield self.lane('reads', row['tokens'], row['segments'] > 0,
                    beside(row, row['tokens']), asked, 'tags' in row or ('lm' in self.heads and not decoded))
    if decoded:
      side = {name.removeprefix('decoder_'): x for name, x in row.items() if name.startswith('decoder_')}
      yield self.lane('decoder reads', side['tokens'], side['segments'] > 0, beside(side, side['tokens']),
                      self.asked({name: row[name] for name in ('labels', 'weights')}), True)

  @property
  def heads(self) -> Sequence[str]:
    """Names of what the objective asks."""
    return tuple(self.objective.heads(self.model))

  def asked(self, row: Mapping[str, np.ndarray]) -> dict[int, tuple[str, dict[str, Any]]]:
    """Returns place -> (piece to predict, further numbers of this prediction)."""
    labels, weights = row['labels'], row['weights']
    places = row.get('positions', np.arange(len(labels)))
    more = {name: x for name, x in row.items()
            if 'positions' in row and name not in BESIDE and x.shape == labels.shape != row['tokens'].shape}
    if not {*np.unique(weights)} <= {0.0, 1.0}:
      more['weight'] = weights
    return {int(place): (self.piece(label), {name: number(x[at]) for name, x in more.items()})
            for at, (place, label) in enumerate(zip(places, labels, strict=True)) if weights[at] > 0}

  def tags(self, row: Mapping[str, np.ndarray]) -> dict[int, tuple[str, dict[str, Any]]]:
    """Returns place -> (name of the class, nothing) of tokens that have one."""
    names = self.objective.labels
    return {int(place): (names[row['tags'][place]], {}) for place in np.flatnonzero(row['marks'] > 0)}

  def lane(self, called: str, ids: np.ndarray, real: np.ndarray, numbers: Mapping[str, np.ndarray],
           asked: Mapping[int, tuple[str, dict[str, Any]]] | None = None, following: bool = False) -> Lane:
    """Lays numbers and what is asked beside tokens [L]. following: what is asked is what comes next."""
    asked, places = asked or {}, np.flatnonzero(real)
    told = [name for name, x in numbers.items() if telling(name, x[places])]
    more = [*dict.fromkeys(name for _, some in asked.values() for name in some)]
    columns = []
    for place in places.tolist():
      target, some = asked.get(place, ('', {}))
      kind = self.kind(int(ids[place]), target, following)
      columns.append(Column(self.piece(ids[place]), kind, target, (
          *(number(numbers[name][place]) for name in told), *(some.get(name, '') for name in more))))
    return Lane(called, columns, (*told, *more), len(ids) - len(places))

  def kind(self, token: int, target: str, following: bool) -> Kind:
    """Says how a token is to be seen."""
    vocab = self.tokenizer.vocab
    masks = {vocab.mask, vocab.gmask, vocab.smask} - {-1}
    if token in masks or (vocab.sentinel >= 0 and vocab.sentinel - vocab.sentinels < token <= vocab.sentinel):
      return 'mask'
    if target:
      return 'next' if following else 'same' if self.piece(token) == target else 'other'
    return 'special' if token in vocab.specials else ''

  def piece(self, token: Any) -> str:
    """Names a token."""
    pieces = self.tokenizer.pieces
    return clean(pieces[int(token)]) if 0 <= int(token) < len(pieces) else f'#{int(token)}'

  def told_apart(self, row: Mapping[str, np.ndarray], filled: np.ndarray, replaced: np.ndarray) -> Lane:
    """Lays out what a discriminator reads: masks filled by a generator, and whether a token is another than it was."""
    real = np.flatnonzero(row['segments'] > 0)
    columns = [Column(self.piece(filled[at]), 'other', 'replaced') if replaced[at] else
               Column(self.piece(filled[at]), self.kind(int(filled[at]), '', False)) for at in real.tolist()]
    return Lane('filled', columns, padding=len(filled) - len(real))

  def spelled(self, row: Mapping[str, np.ndarray]) -> Iterator[Lane]:
    """Yields both directions of words that are read by their characters."""
    for side, name in enumerate(('forward', 'backward')):
      valid = np.flatnonzero(row['valid'][side])
      columns = [Column(word_of(row['streams'][side, at]), 'next', self.piece(row['labels'][side, at]))
                 for at in valid.tolist()]
      yield Lane(name, columns, padding=row['valid'].shape[1] - len(valid))

  def facts(self, row: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Returns numbers of the whole row, or of each text in it."""
    if 'streams' in row:
      return {}
    found, names = {}, getattr(self.objective, 'labels', ())
    for name, x in row.items():
      each = x.ndim == 0 or (x.ndim == 1 and 'extract' in row and x.shape == row['extract'].shape[-1:] and (
          x.shape != row['tokens'].shape))
      if not each or name in BESIDE:
        continue
      values = np.atleast_1d(x)
      if 'weight' in row and row['weight'].shape == values.shape:
        values = values[row['weight'] > 0]
      of_class = name == 'label' and names and values.dtype.kind == 'i'
      found[name] = ', '.join(f'{value} ({names[value]})' if of_class else number(value) for value in values.tolist())
    return found

  def sees(self, row: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Returns who sees whom among the tokens of the row, as the architectures have it."""
    if 'streams' in row or row['tokens'].ndim > 1 or not 0 < (size := int((row['segments'] > 0).sum())) <= SIGHT:
      return None
    real = row['segments'] > 0
    apart = row['segments'][real][None] if self.packed or self.model.kind in ('decoder', 'infilling') else np.ones(
        (1, size), np.int32)
    ranks = row.get('ranks', row.get('place', np.arange(len(real))) if self.model.kind == 'decoder' else None)
    if 'visible' in row:
      return row['visible'][np.ix_(real, real)]
    if ranks is None:
      return np.asarray(visible(apart, apart))[0, 0]
    return np.asarray(visible(apart, apart, ranks[real][None], ranks[real][None]))[0, 0] | np.eye(size, dtype=bool)


def flat(batch: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the arrays of a batch without what is nested in it."""
  return {name: x for name, x in batch.items() if hasattr(x, 'ndim')}


def beside(row: Mapping[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the whole numbers that are told of each token."""
  return {name: x for name, x in row.items()
          if x.shape == tokens.shape and x.dtype.kind in 'iu' and name not in (*BESIDE, 'tags', 'marks', 'characters')
          and not name.startswith(('decoder_', 'memory_'))}


def telling(name: str, values: np.ndarray) -> bool:
  """Tells whether numbers say what tokens alone do not: not one for all, and not their places."""
  counts = np.arange(len(values)) + (values[0] if len(values) else 0)
  return len({*values.tolist()}) > 1 and not (name in ('place', 'words') and np.array_equal(values, counts))


def title(window: Mapping[str, np.ndarray], row: int) -> str:
  """Says where a row is from."""
  if 'index' not in window:
    return f'row {row}'
  said = f'row {row}: window {int(window["index"]):,}, document {int(window["document"]):,}'
  return said + ''.join(f', {name} {int(window[name])}' for name in ('corpus', 'epoch') if window[name])


def number(value: Any) -> str:
  """Writes a number in few characters."""
  value = value.item() if hasattr(value, 'item') else value
  return f'{value:.4g}' if isinstance(value, float) else str(value)


def word_of(characters: np.ndarray) -> str:
  """Reads a word as it is spelled (`layers.spelling`); <S> and </S> are the ends of sentences."""
  ids = characters.tolist()
  marks = {spelling.SENTENCE_BEGIN: '<S>', spelling.SENTENCE_END: '</S>'}
  if named := [marks[one] for one in ids if one in marks]:
    return named[0]
  return clean(bytes(one - 1 for one in ids if 1 <= one <= 256).decode(errors='replace'))


def clean(piece: str) -> str:
  """Writes a piece with signs for what cannot be seen."""
  return ''.join(SIGNS.get(c) or (c if c.isprintable() else c.encode('unicode_escape').decode()) for c in piece)
