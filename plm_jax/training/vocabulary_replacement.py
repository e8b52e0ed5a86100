"""Vocabulary replacement: initialize the token embeddings of another tokenizer from a trained
model.

Every new row is a weighted mean of old rows (`Mixture`). Tokens that both vocabularies have are
copied, whatever marks their word boundaries (`##`, `▁`, `Ġ`). The others start as the mean of the
tokens that their text was, or by FOCUS (Dobler and de Melo 2023, "FOCUS: Effective Embedding
Initialization for Monolingual Specialization of Multilingual Models"). WECHSEL (Minixhofer et al.
2022) finds similar old tokens for all new ones, by vectors of both languages.
"""
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from plm_jax import unicode_words
from plm_jax.tokenizers import Tokenizer

ROLES = ('unk', 'pad', 'mask', 'sop', 'eop', 'gmask', 'smask', 'cls', 'bos', 'sep', 'eos')
"""Roles of special tokens. A token of several roles, such as <|endoftext|>, takes the row of the
last one."""
OTHER_ROLES = {'cls': 'bos', 'bos': 'cls', 'sep': 'eos', 'eos': 'sep'}
"""special tokens that replace each other between encoders and decoders"""
CONTEXTS = '(xqa1'
"""Characters after which the text of a token is encoded. A word continues after a letter, and in
most tokenizers after a bracket, with which fewer tokens merge."""
CHUNK = 256  # tokens whose similarities are computed at once
NEIGHBORS, TEMPERATURE = 10, 0.1  # of WECHSEL


class Mixture(NamedTuple):
  """A new row as a weighted sum of old rows."""

  ids: np.ndarray
  """old tokens; none: the new token has no text that the old vocabulary knows"""
  weights: np.ndarray
  """their weights, which sum to 1"""


def map_token_rows(params: Any, size: int, change: Callable[[np.ndarray], np.ndarray]) -> Any:
  """Change the tables with a row per token id, in the embeddings and the heads for tokens.

  Args:
    params: parameters of a model.
    size: rows of its tables, the vocabulary size of the model.
    change: rows [size, ...] -> other rows.
  """
  def leaf(path, x):
    names = [entry.key for entry in path]
    of_head = names[-2].startswith('heads_') and names[-1] in ('bias', 'kernel')
    axis = 0 if names[-1] in ('tokens', 'bias') else x.ndim - 1
    if not (names[-1] == 'tokens' or of_head) or x.shape[axis] != size:
      return x
    return np.moveaxis(change(np.moveaxis(np.asarray(x), axis, 0)), 0, axis)
  return jax.tree_util.tree_map_with_path(leaf, params)


@dataclasses.dataclass(frozen=True)
class Replacement:
  """The rows of a new vocabulary as mixtures of the old ones.

  Attributes:
    old: number of old tokens.
    mixtures: of each new token.
    copied: new tokens that the old vocabulary has, too, up to case and word boundaries.
  """

  old: int
  mixtures: Sequence[Mixture]
  copied: Sequence[int]

  def mix(self, rows: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Compute new rows [size, ...] from old rows [V, ...]; rows beyond the new tokens are zeros.

    A token without old tokens is sampled from the normal distribution of the old rows, as in
    konstantinjdobler/focus, src/deepfocus/focus.py, lines 250 to 254.
    """
    old = rows[:self.old].astype(np.float32)
    mean, deviation = old.mean(0), old.std(0)
    random = np.random.default_rng(seed)
    new = np.zeros((size, *rows.shape[1:]), np.float32)
    for n, (ids, weights) in enumerate(self.mixtures):
      if len(ids):
        new[n] = np.tensordot(weights, old[ids], 1)
      else:
        new[n] = random.normal(mean, deviation)
    return new.astype(rows.dtype)

  def describe(self) -> str:
    """Return a sentence on how many tokens begin in which way."""
    random = sum(not len(mixture.ids) for mixture in self.mixtures)
    total = len(self.mixtures)
    return (f'{len(self.copied):,} of {total:,} tokens are copied, '
            f'{total - len(self.copied) - random:,} start as means of others, {random:,} at random')


def match_vocabularies(old: Tokenizer, new: Tokenizer) -> Replacement:
  """Match the tokens of two tokenizers: the same token, or else the mean of the old tokens."""
  contents = new.token_bytes
  before = {key: i for i, key in enumerate(zip(old.pieces, old.token_bytes, strict=True))}
  after = list(zip(new.pieces, contents, strict=True))
  same = {n: before[key] for n, key in enumerate(after) if key in before}
  same |= match_specials(old, new)

  if new.kind == 'wordpiece':  # its punctuation and Chinese characters need no space before them
    bare = [content.removeprefix(b' ') for content in contents]
    contents = [text if unicode_words.starts_word(text.decode()) else content
                for text, content in zip(bare, contents, strict=True)]
  pieces = [[same[n]] if n in same else ids for n, ids in enumerate(find_pieces(old, contents))]
  texts = [content.strip().lower() for content in old.token_bytes]
  copied = [n for n, (ids, content) in enumerate(zip(pieces, contents, strict=True))
            if n in same or (len(ids) == 1 and texts[ids[0]] == content.strip().lower())]
  mixtures = [Mixture(np.array(ids, np.int64), np.full(len(ids), 1 / max(1, len(ids)), np.float32))
              for ids in pieces]
  return Replacement(old.vocab.size, mixtures, copied)


def match_specials(old: Tokenizer, new: Tokenizer) -> dict[int, int]:
  """Match special tokens by their role: new id -> old id.

  [CLS] and the start of a text replace each other, and so do [SEP] and its end. Sentinels are
  matched by their number.
  """
  before, after = old.vocab, new.vocab
  found = {}
  if min(before.sentinel, after.sentinel) >= 0:
    number = min(before.sentinels, after.sentinels)
    found = {after.sentinel - n: before.sentinel - n for n in range(number)}
  for role in ROLES:
    i, n = getattr(before, role), getattr(after, role)
    if i < 0:
      i = getattr(before, OTHER_ROLES.get(role, role))
    if min(i, n) >= 0:
      found[n] = i
  return found


def find_pieces(tokenizer: Tokenizer, contents: Sequence[bytes]) -> list[list[int]]:
  """Find the tokens that a tokenizer has for texts within a sentence, without unknown ones.

  A text that begins with a space begins a word, others continue one where a token can.

  Args:
    tokenizer: any tokenizer.
    contents: texts [N] in UTF-8, or parts of characters.

  Returns:
    The ids of each text; none where the tokenizer has no token for any of it.
  """
  # Texts that are a token. WordPiece has tokens within words, such as ##中, that no text has there.
  by_bytes = {}
  for i, content in enumerate(tokenizer.token_bytes):
    text = decode_whole(content)
    if content and (tokenizer.starts_word[i] or not text or not unicode_words.starts_word(text)):
      by_bytes[content] = i

  # Texts of several tokens are encoded after a character that does not merge with them.
  waiting = {n: text for n, content in enumerate(contents)
             if content not in by_bytes and (text := decode_whole(content))}
  found: dict[int, list[int]] = {}
  for context in CONTEXTS:
    if not waiting:
      break
    ids, lengths, offsets = tokenizer.encode_with_offsets([context + t for t in waiting.values()])
    ends = np.cumsum(lengths)
    items = zip(list(waiting.items()), ends - lengths, ends, strict=True)
    for (n, text), start, end in items:
      is_start = text.startswith(' ')
      first = start + int(np.searchsorted(offsets[start:end], len(context)))
      if first == end or offsets[first] > len(context) + is_start:
        continue
      continues = not tokenizer.starts_word[ids[first]]
      if continues or n not in found:
        found[n] = ids[first:end].tolist()
      if continues or is_start:
        del waiting[n]
  alone = {n: text for n, text in waiting.items() if n not in found}
  found.update(zip(alone, tokenizer.encode_batch(list(alone.values())), strict=True))

  # Parts of characters are found by their bytes.
  unknown, pieces = tokenizer.vocab.unk, []
  for n, content in enumerate(contents):
    ids = [by_bytes[content]] if content in by_bytes else found.get(n, [])
    ids = [i for i in ids if i != unknown]
    if not ids:
      single = [bytes([b]) for b in content]
      ids = [by_bytes[part] for part in single if part in by_bytes]
    pieces.append(ids)
  return pieces


def decode_whole(content: bytes) -> str:
  """Decode UTF-8; '' for bytes that are not whole characters."""
  text = content.decode(errors='ignore')
  return text if text.encode() == content else ''


def apply_focus(found: Replacement, vectors: np.ndarray) -> Replacement:
  """Replace means by FOCUS (Dobler and de Melo 2023, section 2): mixtures of similar tokens.

  A new token is a mixture of the old rows of the copied tokens, by the sparsemax of the cosine
  similarities of auxiliary vectors. As konstantinjdobler/focus, src/deepfocus/focus.py, lines 281
  to 320, except for tokens without an auxiliary vector: they stay means, and are random there.

  Args:
    found: of both vocabularies.
    vectors: auxiliary vectors [V, D] of the new tokens, zeros for tokens without one.
  """
  norms = np.linalg.norm(vectors, axis=1)
  unit = vectors / np.maximum(norms, 1e-30)[:, None]
  copied = set(found.copied)
  anchors = [n for n in found.copied if norms[n]]
  others = [n for n in np.flatnonzero(norms).tolist() if n not in copied]
  if not anchors:
    return found
  sources = np.array([found.mixtures[n].ids[0] for n in anchors])
  mixtures = mix_similar(unit, others, unit[anchors], sources, sparsemax)
  return dataclasses.replace(found, mixtures=[
      mixtures.get(n, mixture) for n, mixture in enumerate(found.mixtures)])


def apply_wechsel(found: Replacement, old: np.ndarray, new: np.ndarray) -> Replacement:
  """Replace mixtures by those of WECHSEL (Minixhofer et al. 2022, section 3).

  A new token is a mixture of the ten nearest old tokens, by the softmax of their cosine
  similarities. As CPJKU/wechsel at 395e3d4, wechsel/__init__.py, lines 214 to 310, except for
  tokens without a vector that are not special: they keep their mixture, and are random there.

  Args:
    found: of both vocabularies.
    old: vectors [V, D] of the old tokens, zeros for tokens without one.
    new: vectors [W, D] of the new tokens in the same space.
  """
  def weigh(scores):  # [chunk, V] -> the same, zeros but for the nearest
    count = min(NEIGHBORS, scores.shape[1])
    nearest = np.argpartition(scores, -count, axis=1)[:, -count:]
    weights = np.exp(np.take_along_axis(scores, nearest, 1) / TEMPERATURE)
    sparse = np.zeros_like(scores)
    np.put_along_axis(sparse, nearest, weights / weights.sum(1, keepdims=True), 1)
    return sparse
  units = [x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-8) for x in (old, new)]
  others = np.flatnonzero(new.any(1)).tolist()
  mixtures = mix_similar(units[1], others, units[0], np.arange(len(old)), weigh)
  return Replacement(
      found.old, [mixtures.get(n, mixture) for n, mixture in enumerate(found.mixtures)],
      [n for n in found.copied if n not in mixtures])


def mix_similar(
    targets: np.ndarray, numbers: Sequence[int], sources: np.ndarray, ids: np.ndarray,
    weigh: Callable[[np.ndarray], np.ndarray]) -> dict[int, Mixture]:
  """Mix old tokens by the similarities of vectors of length 1.

  Args:
    targets: vectors [W, D] of the new tokens.
    numbers: new tokens to mix.
    sources: vectors [K, D] of old tokens.
    ids: their ids [K].
    weigh: similarities [chunk, K] -> weights.
  """
  mixtures = {}
  for first in range(0, len(numbers), CHUNK):
    chunk = numbers[first:first + CHUNK]
    for n, row in zip(chunk, weigh(targets[chunk] @ sources.T), strict=True):
      mixtures[n] = Mixture(ids[row > 0], row[row > 0].astype(np.float32))
  return mixtures


def sparsemax(scores: np.ndarray) -> np.ndarray:
  """Compute the sparsemax of rows [N, K]: the nearest point of the simplex.

  Martins and Astudillo 2016, "From softmax to sparsemax", algorithm 1.
  """
  descending = -np.sort(-scores, axis=1)
  sums = np.cumsum(descending, axis=1)
  sizes = np.arange(1, scores.shape[1] + 1)
  support = (1 + sizes * descending > sums).sum(1)
  threshold = (sums[np.arange(len(scores)), support - 1] - 1) / support
  return np.maximum(scores - threshold[:, None], 0)
