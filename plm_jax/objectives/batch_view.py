"""Arrange model inputs for people: the arrays of a batch next to the tokens that they describe."""
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from plm_jax.layers import char_ids
from plm_jax.layers.masks import attention_mask
from plm_jax.tokenizers import Tokenizer

TokenKind = Literal['', 'special', 'mask', 'same', 'other', 'next']
"""How a token is displayed: plain text; a special token; a predicted position that holds a mask,
the token itself, or another token; or a token whose label is the next token or a class."""
HIDDEN_ARRAYS = (
    'tokens', 'labels', 'weights', 'positions', 'content', 'draw', 'visible', 'weight', 'feature',
    'decoded', 'window')
"""arrays that are not numbers per token or sequence, or are displayed in another way"""
SIGNS = {'\n': '⏎', '\t': '⇥', '\r': '␍', ' ': '␣'}
MAX_MASK_TOKENS = 160
"""longest sequence whose attention mask is drawn"""
Targets = dict[int, tuple[str, dict[str, Any]]]
"""position -> (the token or class to predict, numbers of this prediction)"""


class Column(NamedTuple):
  """A token, with its label and numbers."""

  piece: str
  kind: TokenKind = ''
  target: str = ''
  """label to predict at this position"""
  numbers: tuple[str, ...] = ()


class Lane(NamedTuple):
  """A sequence of tokens."""

  title: str
  columns: Sequence[Column]
  names: Sequence[str] = ()
  """names of the numbers"""
  padding: int = 0
  """number of padding tokens, which are left out"""


class BatchRow(NamedTuple):
  """A row of a batch: its text, model inputs and labels."""

  title: str
  lanes: Sequence[Lane]
  facts: Mapping[str, str]
  """values of the whole row"""
  attention_mask: np.ndarray | None = None
  """bool [length, length], True where the token of a line attends to that of a column; None: too
  many tokens"""


@dataclasses.dataclass(frozen=True)
class BatchReader:
  """Arranges batches of a run as rows of lanes."""

  tokenizer: Tokenizer
  model: Any
  """configuration of the backbone"""
  objective: Any
  packed: bool
  """rows may hold several texts that do not attend to each other"""
  labels: Sequence[str] = ()
  """class names of a task"""

  def rows(
      self, windows: Mapping[str, Any], batch: Mapping[str, Any], filled: Any = None
  ) -> list[BatchRow]:
    """Arrange every row of windows, and of the batch that the objective made of them.

    Args:
      windows: numpy arrays [batch, ...] before corruption.
      batch: numpy arrays [batch, ...] that the model reads.
      filled: for replaced-token detection, the tokens after a generator has filled the masks and
        whether each was replaced, both [batch, length]; None: there is no generator.
    """
    found = []
    for number in range(len(batch['tokens' if 'tokens' in batch else 'streams'])):
      origin = batch['window'][number] if 'window' in batch else number
      window, row = row_arrays(windows, origin), row_arrays(flat_arrays(batch), number)
      lanes = [*self.text(window), *self.read(row)]
      if filled is not None:
        tokens, replaced = np.asarray(filled[0])[number], np.asarray(filled[1])[number]
        lanes.append(self.replaced_token_lane(row, tokens, replaced))
      title = row_title(window, number)
      found.append(BatchRow(title, lanes, self.facts(row), self.attention_mask(row)))
    return found

  def text(self, window: Mapping[str, np.ndarray]) -> Iterator[Lane]:
    """Yield the original text of a window, with its words and sentences; none for examples."""
    if 'words' in window:
      numbers = {name: window[name] for name in ('words', 'sentences', 'segments')}
      yield self.make_lane('text', window['tokens'], window['segments'] > 0, numbers)

  def read(self, row: Mapping[str, np.ndarray]) -> Iterator[Lane]:
    """Yield the inputs of the model, with the labels."""
    if 'streams' in row:
      yield from self.character_lanes(row)
      return
    if 'memory_tokens' in row:
      yield self.make_lane('memory', row['memory_tokens'], row['memory_segments'] > 0, {})
    if row['tokens'].ndim == 2:  # a group: the choices of a question
      aligned = [name for name, x in row.items() if x.shape[:2] == row['tokens'].shape]
      for number in range(len(row['tokens'])):
        one = {name: row[name][number] for name in aligned}
        numbers = token_numbers(one, one['tokens'])
        yield self.make_lane(f'reads, {number + 1}', one['tokens'], one['segments'] > 0, numbers)
      return
    has_decoder = 'decoder_tokens' in row
    targets: Targets = {}
    if 'tags' in row:
      targets = self.tags(row)
    elif 'labels' in row and not has_decoder:
      targets = self.targets(row)
    predicts_next = 'tags' in row or ('lm' in self.heads and not has_decoder)
    numbers = token_numbers(row, row['tokens'])
    yield self.make_lane(
        'reads', row['tokens'], row['segments'] > 0, numbers, targets, predicts_next)
    if has_decoder:
      side = {name.removeprefix('decoder_'): x for name, x in row.items()
              if name.startswith('decoder_')}
      numbers = token_numbers(side, side['tokens'])
      targets = self.targets({name: row[name] for name in ('labels', 'weights')})
      yield self.make_lane(
          'decoder reads', side['tokens'], side['segments'] > 0, numbers, targets, True)

  @property
  def heads(self) -> Sequence[str]:
    """Names of the heads that the objective trains."""
    return tuple(self.objective.heads(self.model))

  def targets(self, row: Mapping[str, np.ndarray]) -> Targets:
    """Return the labels that have a weight, by position, with further numbers."""
    labels, weights = row['labels'], row['weights']
    places = row.get('positions', np.arange(len(labels)))
    more = {}
    if 'positions' in row:
      for name, x in row.items():
        aligned = x.shape == labels.shape != row['tokens'].shape
        if aligned and name not in HIDDEN_ARRAYS:
          more[name] = x
    if not {*np.unique(weights)} <= {0.0, 1.0}:
      more['weight'] = weights
    found: Targets = {}
    for at, (place, label) in enumerate(zip(places, labels, strict=True)):
      if weights[at] > 0:
        numbers = {name: format_number(x[at]) for name, x in more.items()}
        found[int(place)] = self.token_text(label), numbers
    return found

  def tags(self, row: Mapping[str, np.ndarray]) -> Targets:
    """Return the classes of tokens that have one, by position."""
    found: Targets = {}
    for place in np.flatnonzero(row['marks'] > 0):
      found[int(place)] = self.labels[int(row['tags'][place])], {}
    return found

  def make_lane(
      self, called: str, ids: np.ndarray, real: np.ndarray, numbers: Mapping[str, np.ndarray],
      targets: Targets | None = None, following: bool = False) -> Lane:
    """Return a lane of tokens with numbers and labels.

    Args:
      called: its title.
      ids: token ids [length].
      real: bool [length], False for padding.
      numbers: whole numbers per token [length].
      targets: labels by position.
      following: a label is the next token, or a class, and not the token at its position.
    """
    targets = targets or {}
    places = np.flatnonzero(real)
    shown = [name for name, x in numbers.items() if is_informative(name, x[places])]
    more: dict[str, None] = {}
    for _, some in targets.values():
      more |= dict.fromkeys(some)
    columns = []
    for place in places.tolist():
      target, some = targets.get(place, ('', {}))
      values = [format_number(numbers[name][place]) for name in shown]
      values += [some.get(name, '') for name in more]
      kind = self.kind(int(ids[place]), target, following)
      columns.append(Column(self.token_text(ids[place]), kind, target, tuple(values)))
    return Lane(called, columns, (*shown, *more), len(ids) - len(places))

  def kind(self, token: int, target: str, following: bool) -> TokenKind:
    """Return how a token with this label is displayed."""
    vocab = self.tokenizer.vocab
    masks = {vocab.mask, vocab.gmask, vocab.smask} - {-1}
    last = vocab.sentinel
    if token in masks or (last >= 0 and last - vocab.sentinels < token <= last):
      return 'mask'
    if target and following:
      return 'next'
    if target:
      return 'same' if self.token_text(token) == target else 'other'
    return 'special' if token in vocab.specials else ''

  def token_text(self, token: Any) -> str:
    """Return the text of a token."""
    pieces = self.tokenizer.pieces
    if 0 <= int(token) < len(pieces):
      return show_invisible(pieces[int(token)])
    return f'#{int(token)}'

  def replaced_token_lane(
      self, row: Mapping[str, np.ndarray], filled: np.ndarray, replaced: np.ndarray) -> Lane:
    """Return the input of a discriminator, with the tokens that a generator has replaced."""
    real = np.flatnonzero(row['segments'] > 0)
    columns = []
    for at in real.tolist():
      kind = 'other' if replaced[at] else self.kind(int(filled[at]), '', False)
      columns.append(
          Column(self.token_text(filled[at]), kind, 'replaced' if replaced[at] else ''))
    return Lane('filled', columns, padding=len(filled) - len(real))

  def character_lanes(self, row: Mapping[str, np.ndarray]) -> Iterator[Lane]:
    """Yield both directions of a bidirectional LM over words as characters (ELMo)."""
    for side, name in enumerate(('forward', 'backward')):
      valid = np.flatnonzero(row['valid'][side])
      columns = []
      for at in valid.tolist():
        label = self.token_text(row['labels'][side, at])
        columns.append(Column(spell_word(row['streams'][side, at]), 'next', label))
      yield Lane(name, columns, padding=row['valid'].shape[1] - len(valid))

  def facts(self, row: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return values of the whole row, or of each text in it."""
    if 'streams' in row:
      return {}
    found, names = {}, self.labels
    for name, x in row.items():
      # A value per packed text has the shape of `extract`, the positions of their first tokens.
      per_text = (x.ndim == 1 and 'extract' in row and x.shape == row['extract'].shape[-1:]
                  and x.shape != row['tokens'].shape)
      if name == 'label' and names and x.dtype.kind == 'f' and x.shape[-1] == len(names):
        texts = [', '.join(names[n] for n in np.flatnonzero(one).tolist())
                 for one in x.reshape(-1, len(names))]
        found['labels'] = '; '.join(text or 'none' for text in texts)
      if name in HIDDEN_ARRAYS or not (x.ndim == 0 or per_text):
        continue
      values = np.atleast_1d(x)
      if 'weight' in row and row['weight'].shape == values.shape:
        values = values[row['weight'] > 0]
      named = name == 'label' and names and values.dtype.kind == 'i'
      texts = [f'{value} ({names[value]})' if named else format_number(value)
               for value in values.tolist()]
      found['first token at' if name == 'extract' else name] = ', '.join(texts)
    return found

  def attention_mask(self, row: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the attention mask among the tokens of a row, as the architectures compute it."""
    if 'streams' in row or row['tokens'].ndim > 1:
      return None
    real = row['segments'] > 0
    size = int(real.sum())
    if not 0 < size <= MAX_MASK_TOKENS:
      return None
    if 'visible' in row:
      return row['visible'][np.ix_(real, real)]
    kind = self.model.kind
    divided = self.packed or kind in ('decoder', 'infilling')
    segments = row['segments'][real][None] if divided else np.ones((1, size), np.int32)
    ranks = row.get('ranks')  # positions in the order of prediction
    if ranks is None and kind == 'decoder' and self.model.causal:
      ranks = row.get('place', np.arange(len(real)))
    if ranks is None:
      return np.asarray(attention_mask(segments, segments))[0, 0]
    order = ranks[real][None]
    mask = np.asarray(attention_mask(segments, segments, order, order))[0, 0]
    return mask | np.eye(size, dtype=bool)


def row_arrays(arrays: Mapping[str, Any], number: int) -> dict[str, np.ndarray]:
  """Return one row of the arrays that have rows."""
  return {name: np.asarray(x)[number] for name, x in arrays.items() if np.ndim(x)}


def flat_arrays(batch: Mapping[str, Any]) -> dict[str, Any]:
  """Return the arrays of a batch, without nested ones."""
  return {name: x for name, x in batch.items() if hasattr(x, 'ndim')}


def token_numbers(row: Mapping[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
  """Return the arrays of whole numbers per token."""
  hidden = (*HIDDEN_ARRAYS, 'tags', 'marks', 'characters')
  found = {}
  for name, x in row.items():
    if name in hidden or name.startswith(('decoder_', 'memory_')):
      continue
    if x.shape == tokens.shape and x.dtype.kind in 'iu':
      found[name] = x
  return found


def is_informative(name: str, values: np.ndarray) -> bool:
  """Return whether numbers add something to the tokens: they differ, and do not just count."""
  if len(set(values.tolist())) <= 1:
    return False
  counts = np.arange(len(values)) + values[0]
  return not (name in ('place', 'words') and np.array_equal(values, counts))


def row_title(window: Mapping[str, np.ndarray], row: int) -> str:
  """Return where a row comes from."""
  if 'index' not in window:
    return f'row {row}'
  title = f'row {row}: window {int(window["index"]):,}, document {int(window["document"]):,}'
  for name in ('corpus', 'epoch'):
    if window[name]:
      title += f', {name} {int(window[name])}'
  return title


def format_number(value: Any) -> str:
  """Format a number in few characters."""
  value = value.item() if hasattr(value, 'item') else value
  return f'{value:.4g}' if isinstance(value, float) else str(value)


def spell_word(characters: np.ndarray) -> str:
  """Decode a word from character ids (`layers.char_ids`); <S> and </S> are sentence boundaries."""
  ids = characters.tolist()
  boundaries = {char_ids.SENTENCE_BEGIN: '<S>', char_ids.SENTENCE_END: '</S>'}
  for one in ids:
    if one in boundaries:
      return boundaries[one]
  text = bytes(one - 1 for one in ids if 1 <= one <= 256)
  return show_invisible(text.decode(errors='replace'))


def show_invisible(piece: str) -> str:
  """Replace spaces and characters that cannot be printed with visible signs."""
  escaped = (c if c.isprintable() else c.encode('unicode_escape').decode() for c in piece)
  return ''.join(SIGNS.get(c, shown) for c, shown in zip(piece, escaped, strict=True))
