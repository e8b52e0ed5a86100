"""How far a preparation has come, kept beside its shards: what is not in the journal does not count."""
from collections.abc import Sequence
import dataclasses
import hashlib
import json
import re
from typing import Any

from etils import epath
import numpy as np

from plm_jax import storage, tokenizers
from plm_jax.data import records
from plm_jax.data.cutting import Rule
from plm_jax.data.heldout import Bounds

NAME = 'journal.json'
FORMAT = 2  # raise it when documents are found or shared out by another rule: the work then begins again
OURS = re.compile(r'(train|heldout)-\d+(\.\w+)?\.npy(\.tmp)?|(journal|records)\.json(\.tmp)?')  # with drafts of before


@dataclasses.dataclass
class Journal:
  """Everything before `documents` is in the shards."""

  source: str  # fingerprint of the text and of the settings
  tokenizer: str = ''  # hash
  documents: int = 0  # of the source, read
  empty: int = 0  # examples of a task that were left out, as a side of theirs has no tokens
  lowest: int = -1  # document hash that is held out whatever its value, see `heldout.Bounds`
  highest: int = -1  # document hash that is trained on whatever its value
  train: list[records.Shard] = dataclasses.field(default_factory=list)
  heldout: list[records.Shard] = dataclasses.field(default_factory=list)
  # By split and rule, such as 'train-document-128': `Rule.count` of the shards from the first on, of all of them unless
  # an earlier run was told of other rules.
  windows: dict[str, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)

  @property
  def bounds(self) -> Bounds:
    """Returns the two documents whose split is settled."""
    return Bounds(self.lowest, self.highest)

  @bounds.setter
  def bounds(self, bounds: Bounds) -> None:
    """Notes them: they are settled once."""
    self.lowest, self.highest = bounds

  def shards(self, split: records.Split) -> list[records.Shard]:
    """Returns the list of a split's shards, to which new ones are added."""
    return self.train if split == 'train' else self.heldout

  def add(self, split: records.Split, shard: records.Shard, sentences: np.ndarray, rules: Sequence[Rule]) -> None:
    """Notes a shard that is written, and how many windows it has under the rules."""
    done = self.shards(split)
    for rule in rules:
      counted = self.windows.setdefault(f'{split}-{rule}', [])
      if len(counted) == len(done):
        counted.append(rule.count(sentences, shard))
    done.append(shard)

  def counts(self, split: records.Split, rule: Rule) -> list[tuple[int, int]] | None:
    """Returns `Rule.count` of every shard, if all have been counted."""
    counted = self.windows.get(f'{split}-{rule}', [])
    return counted if len(counted) == len(self.shards(split)) else None


class Pending:
  """Documents on their way to a shard."""

  def __init__(self):
    self.tokens = 0
    self._tokens: list[np.ndarray] = []
    self._lengths: list[np.ndarray] = []

  def add(self, lengths: np.ndarray, tokens: np.ndarray) -> None:
    """Adds a document: tokens [T], and the lengths of its sentences, which sum up to T."""
    self.tokens += len(tokens)
    self._tokens.append(tokens)
    self._lengths.append(lengths)

  def write(self, folder: epath.Path, name: str) -> tuple[records.Shard, np.ndarray]:
    """Writes the documents as a shard, at least one -> the shard, its sentences. Raises RecordsError."""
    lengths = np.concatenate(self._lengths)
    starts = np.empty(len(lengths), records.SENTENCE)
    starts['start'] = np.cumsum(lengths) - lengths
    starts['document'] = np.repeat(np.arange(len(self._lengths)), [len(sizes) for sizes in self._lengths])
    return records.write_shard(folder, name, np.concatenate(self._tokens), starts), starts


def commit(
    folder: epath.Path, tokenizer: tokenizers.Tokenizer, journal: Journal, shards: dict[records.Split, Pending],
    rules: Sequence[Rule]) -> None:
  """Writes what is pending of both splits, then the journal: before it, the shards do not count."""
  if not any(pending.tokens for pending in shards.values()):
    return
  if not journal.train and not journal.heldout:
    tokenizer.save(folder / 'tokenizer')  # not earlier: a source without text leaves nothing behind
  for split, pending in shards.items():
    if pending.tokens:
      journal.add(split, *pending.write(folder, shard_name(split, len(journal.shards(split)))), rules)
      shards[split] = Pending()
  write(folder, journal)


def shard_name(split: records.Split, number: int) -> str:
  """Returns how the files of a shard begin."""
  return f'{split}-{number:05d}'


def write(folder: epath.Path, journal: Journal) -> None:
  """Writes the journal at once and whole."""
  fields = {'format': FORMAT, **dataclasses.asdict(journal)}
  storage.write_json(folder / NAME, {**fields, 'check': digest(fields)}, records.RecordsError)


def read(folder: epath.Path) -> Journal | str | None:
  """Reads the journal of a folder; None where there is none, and why it cannot be used where it cannot."""
  path = folder / NAME
  with storage.explained(path, 'read', records.RecordsError):
    if not path.exists():
      return None
  content = storage.read_bytes(path, error=records.RecordsError)
  try:
    fields = storage.parse_json(content.decode(errors='replace'), path, dict, records.RecordsError)
  except records.RecordsError:
    return f'{path} is damaged'
  check = fields.pop('check', None)
  if check is None and fields.get('format') is None and isinstance(fields.get('source'), str):
    return f'{path} is of an earlier version'
  if check != digest(fields) or fields.pop('format') != FORMAT:
    return f'{path} is damaged or of another version'
  for split in records.SPLITS:
    fields[split] = [records.Shard(**shard) for shard in fields[split]]
  return Journal(**fields)


def tokenizer_of(folder: epath.Path, journal: Journal) -> tokenizers.Tokenizer | str:
  """Loads the tokenizer that the shards of a journal were made with, or says why there is no going on from them."""
  try:
    tokenizer = tokenizers.load(folder / 'tokenizer')
    if not storage.remote(folder):  # in a bucket objects are whole
      for shard in journal.train + journal.heldout:
        records.open_tokens(folder, shard)
        records.read_sentences(folder, shard)
  except (tokenizers.TokenizerError, records.RecordsError) as error:
    return f'{error}'
  return tokenizer if tokenizer.hash == journal.tokenizer else f'{folder / "tokenizer"} is another tokenizer'


def clear(folder: epath.Path) -> None:
  """Takes away what an unfinished preparation has left in a folder. For who has locked it."""
  with storage.explained(folder, 'written', records.RecordsError):
    for path in folder.iterdir():
      if OURS.fullmatch(path.name):
        path.unlink(missing_ok=True)


def clear_drafts(folder: epath.Path) -> None:
  """Removes files that a killed preparation has left half written, under names of today and of before."""
  for place in (folder, folder / 'tokenizer'):
    storage.remove_drafts(place)
    if not storage.remote(place) and place.is_dir():
      for path in place.glob('*.tmp'):
        if OURS.fullmatch(path.name) or place != folder:
          path.unlink(missing_ok=True)


def digest(fields: dict[str, Any]) -> str:
  """Returns sha256 hex over JSON values, whatever their order."""
  return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
