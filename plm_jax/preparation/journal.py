"""Journal of `prepare`, stored next to the shards so that an interrupted preparation can resume.

Shards that are not in the journal do not count.
"""
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

from etils import epath
import numpy as np

from plm_jax import storage, tokenizers
from plm_jax.data import records
from plm_jax.data.window_rules import WindowRule
from plm_jax.preparation.encode import SplitBounds
from plm_jax.storage import journal as journal_file

FORMAT = 3  # raise it when documents are found or split by another rule: work then starts over
OWN_FILES = re.compile(r'(train|heldout)-\d+(\.\w+)?\.npy|(journal|records)\.json')


@dataclasses.dataclass
class PrepareJournal:
  """Progress of a preparation: the first `documents` documents of the source are in the shards."""

  source: str  # fingerprint of the text and of the settings
  tokenizer: str = ''  # hash
  documents: int = 0  # read from the source
  empty: int = 0  # examples of a task left out because the inputs or target have no tokens
  bounds: SplitBounds = SplitBounds()
  train: list[records.Shard] = dataclasses.field(default_factory=list)
  heldout: list[records.Shard] = dataclasses.field(default_factory=list)
  # By split and rule, such as 'train-document-128': `WindowRule.count_windows` of each shard from
  # the first on. Not of all shards if an earlier run had other rules.
  windows: dict[str, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)

  def shards(self, split: records.Split) -> list[records.Shard]:
    """Return the list of a split's shards, to which new ones are added."""
    return getattr(self, split)

  def add_shard(self, split: records.Split, shard: records.Shard, sentences: np.ndarray,
                rules: Sequence[WindowRule]) -> None:
    """Add a written shard, and the number of its windows under the rules."""
    done = self.shards(split)
    for rule in rules:
      counted = self.windows.setdefault(f'{split}-{rule}', [])
      if len(counted) == len(done):
        counted.append(rule.count_windows(sentences, shard))
    done.append(shard)

  def window_counts(self, split: records.Split, rule: WindowRule) -> list[tuple[int, int]] | None:
    """Return `WindowRule.count_windows` of every shard; None if not all have been counted."""
    counted = self.windows.get(f'{split}-{rule}', [])
    return counted if len(counted) == len(self.shards(split)) else None


class PendingShard:
  """Documents to be written as a shard."""

  def __init__(self):
    self.tokens = 0
    self._tokens: list[np.ndarray] = []
    self._lengths: list[np.ndarray] = []
    self._documents: list[int] = []  # as they are numbered in the shard
    self._last = -1

  def add_document(
      self, lengths: np.ndarray, tokens: np.ndarray, number: int, follows: bool) -> None:
    """Add a document.

    Args:
      lengths: of its sentences.
      tokens: [T], as many as the sum of the lengths.
      number: of the document in the text.
      follows: it continues the document before it. If that one is in the shard, too, they are one.
    """
    before = self._documents[-1] if self._documents else -1
    same = follows and number == self._last + 1 and before >= 0
    self._documents.append(before if same else before + 1)
    self._last = number
    self.tokens += len(tokens)
    self._tokens.append(tokens)
    self._lengths.append(lengths)

  def write(self, folder: epath.Path, name: str) -> tuple[records.Shard, np.ndarray]:
    """Write the documents, at least one -> the shard, its sentences. Raises RecordsError."""
    lengths = np.concatenate(self._lengths)
    counts = [len(part) for part in self._lengths]
    sentences = np.empty(len(lengths), records.SENTENCE_DTYPE)
    sentences['start'] = np.cumsum(lengths) - lengths
    sentences['document'] = np.repeat(self._documents, counts)
    shard = records.write_shard(folder, name, np.concatenate(self._tokens), sentences)
    return shard, sentences


def commit_shards(
    folder: epath.Path, tokenizer: tokenizers.Tokenizer, journal: PrepareJournal,
    shards: dict[records.Split, PendingShard], rules: Sequence[WindowRule]) -> None:
  """Write the pending shards of both splits, then the journal, which makes them count."""
  if not any(pending.tokens for pending in shards.values()):
    return
  if not journal.train and not journal.heldout:
    tokenizer.save(folder / 'tokenizer')  # not earlier: a source without text leaves no files
  for split, pending in shards.items():
    if pending.tokens:
      name = shard_name(split, len(journal.shards(split)))
      shard, sentences = pending.write(folder, name)
      journal.add_shard(split, shard, sentences, rules)
      shards[split] = PendingShard()
  write_journal(folder, journal)


def shard_name(split: records.Split, number: int) -> str:
  """Return the name of a shard, with which its files begin."""
  return f'{split}-{number:05d}'


def write_journal(folder: epath.Path, journal: PrepareJournal) -> None:
  """Write the journal atomically."""
  journal_file.write_journal(
      folder, FORMAT, dataclasses.asdict(journal), records.RecordsError)


def read_journal(folder: epath.Path) -> PrepareJournal | str | None:
  """Read the journal of a folder.

  Returns:
    The journal; None if there is none; or a text that says why it cannot be used.
  """
  fields = journal_file.read_journal(folder, FORMAT, records.RecordsError)
  if not isinstance(fields, dict):
    return fields
  return journal_from_json(fields)


def journal_from_json(fields: dict[str, Any]) -> PrepareJournal:
  """Make a journal from its fields in a file."""
  for split in records.SPLITS:
    fields[split] = [records.Shard(**shard) for shard in fields[split]]
  fields['bounds'] = SplitBounds._make(fields['bounds'])
  return PrepareJournal(**fields)


def load_journal_tokenizer(folder: epath.Path, journal: PrepareJournal
                           ) -> tokenizers.Tokenizer | str:
  """Load the tokenizer of a journal's shards, or return why work cannot resume from them."""
  try:
    tokenizer = tokenizers.load(folder / 'tokenizer')
    if not storage.is_remote(folder):  # in a bucket objects are complete
      for shard in journal.train + journal.heldout:
        records.open_tokens(folder, shard)
        records.read_sentences(folder, shard)
  except (tokenizers.TokenizerError, records.RecordsError) as error:
    return f'{error}'
  if tokenizer.hash != journal.tokenizer:
    return f'{folder / "tokenizer"} is another tokenizer'
  return tokenizer


def remove_unfinished(folder: epath.Path) -> None:
  """Remove the files of an unfinished preparation from a folder, which must be locked."""
  with storage.io_errors_as(folder, 'written', records.RecordsError):
    for path in folder.iterdir():
      if OWN_FILES.fullmatch(path.name):
        path.unlink(missing_ok=True)


def remove_all_drafts(folder: epath.Path) -> None:
  """Remove half-written files of a killed preparation."""
  for place in (folder, folder / 'tokenizer'):
    storage.remove_drafts(place)
