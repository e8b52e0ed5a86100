"""Tracks of the BabyLM challenge: word budgets, byte premiums, epochs and named checkpoints.

Rules of 2026 (Choshen et al. 2026, arXiv 2602.20092; guidelines.html of babylm/babylm.github.io at
12e16f8): a model of the track strict-small learns from at most 10 million words, and one of strict
from 100 million. The multilingual track has English, Dutch and Chinese text of 100 million
English-equivalent words together. The text may be read ten times: this follows from the last
checkpoint; the call for papers, which states the limit, was not read. Checkpoints are evaluated
after 1, 2, ..., 10, 20, ..., 100, 200, ..., 1,000 million words that the model has read, with
repetitions (babylm-org/babylm-eval at 45fe2c1, strict/README.md).

Words are separated by white space (`len(text.split())`, babylm-org/multilingual-babylm at 72783ce,
src/hf_uploader.py). White space does not divide Chinese, and languages need different numbers of
bytes for the same content. So the multilingual track counts UTF-8 bytes: 5.43 MB of English are a
million words (src/pad_utils.py there), and the text of another language has as many
English-equivalent words as its bytes divided by its byte premium (Arnett et al. 2024, section 3).
"""
from collections.abc import Sequence
import dataclasses
from typing import Literal, NamedTuple

from etils import epath

from plm_jax import storage
from plm_jax.data.records import RecordsError
from plm_jax.errors import ConfigError
from plm_jax.sources import text_sources
from plm_jax.sources.document_formats import TextReadConfig
from plm_jax.validation import ValidatedConfig

TrackName = Literal['none', 'strict-small', 'strict', 'multilingual']

MILLION = 1_000_000
BUDGETS = {'strict-small': 10 * MILLION, 'strict': 100 * MILLION, 'multilingual': 100 * MILLION}
"""maximum number of words of the text; multilingual: English-equivalent words"""
MAX_EPOCHS = 10
TOLERANCE = 0.02
"""Relative tolerance of sizes. The corpora of BabyBabelLM are made with it (multilingual-babylm at
72783ce, src/hf_uploader.py)."""
ENGLISH_BYTES_PER_WORD = 5.43
BYTE_PREMIUMS = {'eng': 1.0, 'nld': 1.0516057206199363, 'zho': 0.9359663917979646}
"""UTF-8 bytes of a language per byte of English with the same content: column byte_coef of
all_merged_20240223.tsv in catherinearnett/byte-premium-tool at f159231 (NLLB); zho is zho_hans"""
CHECKPOINT_MILLIONS = (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100))
"""millions of words after which a checkpoint is evaluated"""
COUNTS_FILE = 'text_size.json'
"""file next to token records with the size of their text"""


class TextSize(NamedTuple):
  """Size of a text."""

  words: int
  """parts between white space"""
  bytes: int
  """UTF-8 bytes, with a line break between paragraphs"""


@dataclasses.dataclass(frozen=True)
class TrackConfig(ValidatedConfig):
  """The track of the BabyLM challenge whose rules the run must follow."""

  name: TrackName = 'none'
  """strict-small: 10 million words; strict: 100 million words; multilingual: text of several
  languages with 100 million English-equivalent words. A run of a track checks the size of its text
  and reads it at most ten times. It keeps the checkpoints that the challenge evaluates: chck_1M
  after a million words, and so on"""
  languages: tuple[str, ...] = ()
  """language of each corpus in --data.path, for the multilingual track: eng, nld, zho"""

  def conflict(self, option):
    """Describe languages that do not fit the track."""
    if (self.name == 'multilingual') != bool(self.languages):
      return (f'{option("name")}=multilingual needs {option("languages")}, one per corpus, of '
              f'{", ".join(BYTE_PREMIUMS)}; other tracks take none')
    if unknown := [name for name in self.languages if name not in BYTE_PREMIUMS]:
      return (f'{option("languages")} are among {", ".join(BYTE_PREMIUMS)}, got '
              f'{", ".join(unknown)}: the challenge has no other languages')
    return None

  @property
  def budget(self) -> int:
    """Maximum number of words of the text. There is a track."""
    return BUDGETS[self.name]

  @property
  def word_unit(self) -> str:
    """What the track counts."""
    return 'English-equivalent words' if self.languages else 'words'

  def count_words(self, size: TextSize, corpus: int) -> float:
    """Return the number of words of a corpus, as the track counts them."""
    if not self.languages:
      return size.words
    premium = BYTE_PREMIUMS[self.languages[corpus]]
    return size.bytes / (premium * ENGLISH_BYTES_PER_WORD)

  def checkpoint_words(self) -> dict[str, int]:
    """Return name -> words read, of each checkpoint up to ten epochs of the budget."""
    return {f'chck_{millions}M': millions * MILLION
            for millions in CHECKPOINT_MILLIONS if millions * MILLION <= MAX_EPOCHS * self.budget}


def check_track(track: TrackConfig, corpora: int) -> None:
  """Check the number of languages. Raises ConfigError."""
  if track.languages and len(track.languages) != corpora:
    raise ConfigError(f'--track.languages gives {len(track.languages)} languages for {corpora} '
                      'corpora of --data.path: one each')


def check_budget(track: TrackConfig, words: Sequence[float]) -> str:
  """Check the size of the text against the budget of the track.

  Args:
    track: the track.
    words: number of words of each corpus, as the track counts them.

  Returns:
    A warning about text that is larger, within the tolerance of the challenge's corpora; or ''.

  Raises:
    ConfigError: the text is too large.
  """
  total = round(sum(words))
  found = f'the text has {total:,} {track.word_unit}, and the track {track.name} allows '
  if total > track.budget * (1 + TOLERANCE):
    raise ConfigError(f'{found}{track.budget:,}: give --data.path less text, or another '
                      '--track.name')
  if total > track.budget:
    return f'{found}{track.budget:,}: remove {total - track.budget:,} before you submit'
  return ''


def count_text(source: str, config: TextReadConfig, folder: epath.Path, digest: str) -> TextSize:
  """Count the words and bytes of a text, or read the stored counts.

  Args:
    source: the text, as for `text_sources.read_documents`.
    config: how it is read.
    folder: of its token records, in which the counts are stored.
    digest: `RecordsMeta.content_digest` of these records.
  """
  if found := read_text_size(folder, digest):
    return found
  words = size = 0
  for document in text_sources.read_documents(source, config):
    for paragraph in document.paragraphs:
      words += len(paragraph.split())
      size += len(paragraph.encode()) + 1
  found = TextSize(words, size)
  storage.write_json(folder / COUNTS_FILE, {'records': digest, **found._asdict()})
  return found


def read_text_size(folder: epath.Path, digest: str) -> TextSize | None:
  """Read the stored size of the text of token records; None if there is none for these."""
  path = folder / COUNTS_FILE
  with storage.io_errors_as(path, 'read', RecordsError):
    if not path.exists():
      return None
  fields = storage.read_json(path, error=RecordsError)
  if fields.get('records') != digest:
    return None
  return TextSize(int(fields['words']), int(fields['bytes']))
