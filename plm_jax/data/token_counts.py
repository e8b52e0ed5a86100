"""The frequency of each token in the training split of records, counted once and stored.

The counts are next to the window counts of the records (`Shards.homes`): in the folder of the
records, or in the cache where that is read-only.
"""
from collections.abc import Sequence
import contextlib
import logging
from typing import Any

from etils import epath
import numpy as np

from plm_jax import storage
from plm_jax.data import records
from plm_jax.data.records import RecordsError, read_meta
from plm_jax.data.shards import Shards
from plm_jax.errors import UserError
from plm_jax.storage import checksums

PART = 1 << 24
"""tokens that are counted at once, which limits memory"""

logger = logging.getLogger(__name__)


def frequency_ranks(folders: Sequence[epath.Path]) -> np.ndarray:
  """Rank the tokens of a vocabulary by their frequency in corpora, int32 [vocab].

  The most frequent token has rank 0. Tokens of equal frequency are ranked by id. Corpora count with
  their sizes, whatever the weights of a data mixture.

  Raises:
    RecordsError: records cannot be read.
  """
  counts = np.sum([load_or_count(folder) for folder in folders], axis=0)
  ranks = np.empty(len(counts), np.int32)
  ranks[np.argsort(-counts, kind='stable')] = np.arange(len(counts))
  return ranks


def load_or_count(folder: epath.Path) -> np.ndarray:
  """Return how often each token occurs in the training split, int64 [vocab].

  Raises:
    RecordsError: the records cannot be read.
  """
  shards = Shards(folder, read_meta(folder), 'train')
  for home in shards.homes:
    path = home / 'token_counts.json'
    with contextlib.suppress(UserError, OSError):
      if path.exists():
        try:
          return read_counts(path, shards)
        except UserError as error:
          logger.warning('%s; it is made again', error)
  counts = np.zeros(shards.vocab, np.int64)
  for entry in shards.entries:
    tokens = records.open_tokens(folder, entry)
    for begin in range(0, len(tokens), PART):
      ids = tokens['token'][begin:begin + PART]
      found = np.bincount(ids, minlength=shards.vocab)
      if len(found) > shards.vocab:
        raise records.foreign_id_error(
            shards.path(entry, ''), len(found) - 1, shards.vocab)
      counts += found
  for home in shards.homes:
    with contextlib.suppress(UserError):  # read-only or full: try the next folder
      storage.write(
          home / 'token_counts.json', checksums.seal_json({'counts': counts.tolist()}))
      break
  return counts


def read_counts(path: epath.Path, shards: Shards) -> np.ndarray:
  """Read stored counts. Raises RecordsError where they cannot be those of these records."""
  found = checksums.unseal_json(storage.read_text(path, error=RecordsError), path, RecordsError)
  counts: Any = found.get('counts')
  total = sum(entry.tokens for entry in shards.entries)
  valid = isinstance(counts, list) and len(counts) == shards.vocab
  if not valid or any(type(count) is not int for count in counts) or sum(counts) != total:
    raise RecordsError(f'{path} does not count the tokens of these records')
  return np.array(counts, np.int64)
