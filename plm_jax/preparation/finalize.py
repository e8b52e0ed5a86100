"""The last step of `prepare`: write records.json, count windows, and print a report."""
from collections.abc import Sequence
import dataclasses
import itertools
import logging
import time

from etils import epath

from plm_jax import tokenizers
from plm_jax.data import records, window_counts
from plm_jax.data.shards import Shards
from plm_jax.data.window_rules import WindowRule
from plm_jax.errors import name_field, warn
from plm_jax.preparation import journal, tokenizer_fit
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.sources import document_formats, lines, text_sources
from plm_jax.sources.lines import SourceError, describe_skipped
from plm_jax.storage import journal as journal_file
from plm_jax.tokenizers.wordpiece import is_chinese

log = logging.getLogger(__name__)
MAX_FILES = 10  # that are named in the report


@dataclasses.dataclass
class PrepareStats:
  """What happened during a preparation, for the report at its end."""

  read: lines.ReadStats
  start_time: float  # time.monotonic()
  tokens: int = 0  # encoded
  unknown: int = 0  # of these, unknown to the tokenizer
  workers: int = 0  # processes that encoded; 0: a cluster's


def finalize_records(
    config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer,
    done: journal.PrepareJournal, rules: Sequence[WindowRule], stats: PrepareStats
) -> records.RecordsMeta:
  """Write records.json and window counts for finished shards, and remove temporary files.

  Args:
    config: what was prepared.
    folder: of the records.
    tokenizer: that made the ids.
    done: journal of the shards.
    rules: under which windows are counted.
    stats: for the report.

  Raises:
    SourceError: there is no shard to train on.
  """
  if not done.train:
    why = describe_skipped(stats.read) or f': none of its {done.documents} documents has a token'
    raise SourceError(f'{config.source} holds no text{why}')
  if config.heldout_path and not done.heldout:
    raise SourceError(f'{config.heldout_path} holds no text: none of its documents has a token')
  skipped = stats.read.skipped + done.empty
  meta = records.write_meta(folder, records.RecordsMeta(
      tokenizer.vocab.size, tokenizer.hash, tuple(done.train), tuple(done.heldout), done.source,
      skipped, config.heldout_path, config.heldout_share, config.exact))
  for split, rule in itertools.product(records.SPLITS, rules):
    if counts := done.window_counts(split, rule):
      shards = Shards(folder, meta, split)
      window_counts.store_counts(shards, rule, window_counts.sum_counts(counts))
  (folder / journal_file.FILE_NAME).unlink(missing_ok=True)
  for pieces in folder.glob(f'{PIECES_PREFIX}*'):
    pieces.rmtree()
  print_report(config, tokenizer, meta, stats)
  return meta


def print_report(config: PrepareConfig, tokenizer: tokenizers.Tokenizer, meta: records.RecordsMeta,
                 stats: PrepareStats) -> None:
  """Print the size of the records and the speed; warn of text that was left out, and why."""
  # Sizes and speed.
  for split in records.SPLITS:
    shards = meta.shards(split)
    documents = sum(shard.documents for shard in shards)
    sentences = sum(shard.sentences for shard in shards)
    files = '1 shard' if len(shards) == 1 else f'{len(shards)} shards'
    texts = '1 document' if documents == 1 else f'{documents:,} documents'
    origin = f', from {config.heldout_path}' if split == 'heldout' and config.heldout_path else ''
    print(f'{split}: {texts}, {sentences:,} sentences, {meta.tokens(split):,} tokens in {files}'
          f'{origin}')
  seconds, read = time.monotonic() - stats.start_time, stats.read
  rate = stats.tokens / max(seconds, 1e-9)
  workers = f', {rate / stats.workers:,.0f} per worker ({stats.workers})' if stats.workers else ''
  print(f'{seconds:.1f} s, {rate:,.0f} tokens/s{workers}')

  # Documents of each file, and files with the same text.
  if len(read.files) <= MAX_FILES:
    for name, (count, _) in read.files.items():
      print(f'  {name}: {count:,} document{"" if count == 1 else "s"}')
  else:
    counts = [count for count, _ in read.files.values()]
    print(f'  {len(counts):,} files gave {min(counts):,} to {max(counts):,} documents each')
  copies: dict[str, list[str]] = {}
  for name, (count, digest) in read.files.items():
    if count:
      copies.setdefault(digest, []).append(name)
  for names in copies.values():
    first, *others = sorted(names, key=len)
    if others:
      log.warning('%s has copies with the same text, which is read %d times: %s', first,
                  1 + len(others), ', '.join(others[:MAX_FILES]))

  # How the text was read.
  if read.split_documents:
    log.warning('%d documents of over %d characters were cut: do blank lines separate the '
                'documents?', read.split_documents, document_formats.MAX_DOCUMENT)
  if meta.skipped:
    left = meta.skipped - len(read.examples)
    more = f'\n  and {left} more' if left > 0 else ''
    examples = '\n  '.join(read.examples)
    warn(f'{meta.skipped} lines were left out:\n  {examples}{more}')
  for note in read.notes:
    warn(note)
  if len(read.line_divided) > 1:
    log.warning('%d files have no blank line, and every line of theirs is a document: %s and so on',
                len(read.line_divided), read.line_divided[0])

  # Documents.
  if config.heldout_share and not meta.heldout:
    advice = 'more text'
    if meta.exact or len(first_paragraphs(config, 2)) > 1:
      advice = f'{name_field("documents")}=lines'
    divide = 'Put blank lines between documents'
    if meta.exact:
      divide = f'Divide it at blank lines with {name_field("documents")}=blank-lines'
    warn('nothing is held out, as there is but one document, or copies of one: a run needs '
         f'another to be evaluated on. {divide}, or give {advice}')
  if stats.unknown > 0.001 * stats.tokens:
    warn_of_unknown_tokens(config, tokenizer, stats)


def warn_of_unknown_tokens(
    config: PrepareConfig, tokenizer: tokenizers.Tokenizer, stats: PrepareStats) -> None:
  """Warn of the share of unknown tokens, in the language of the text, and suggest a remedy."""
  language = 'zh' if is_chinese('\n'.join(first_paragraphs(config, 20))) else 'en'
  unspaced = False
  if isinstance(tokenizer, tokenizers.WordPiece):
    paragraphs = first_paragraphs(config, 200)
    unspaced = tokenizer_fit.measure_long_words(tokenizer, paragraphs)[0] > 0
  remedy = tokenizer_fit.choose_remedy(config, tokenizer_fit.is_vocab_full(tokenizer), unspaced)
  advice = tokenizer_fit.ADVICE[language][remedy].format(
      vocab=2 * config.vocab, **tokenizer_fit.ADVICE_FIELDS)
  warn(UNKNOWN_WARNING[language] % (100 * stats.unknown / stats.tokens, advice))


def first_paragraphs(config: PrepareConfig, documents: int) -> list[str]:
  """Return the beginnings of paragraphs of the first documents."""
  found = []
  for document in itertools.islice(
      text_sources.read_documents(config.source, config.read_config), documents):
    found.extend(paragraph[:1000] for paragraph in document.paragraphs[:5])
  return found


UNKNOWN_WARNING = {
    'en': '%.1f%% of the tokens are unknown to the tokenizer: %s',
    'zh': '%.1f%% 的词元不在词表中：%s'}


PIECES_PREFIX = '.pieces-'  # of folders in the records' folder, see `parallel_prepare`
EMPTY_EXAMPLE = '{}: its target or its inputs have no tokens'  # why an example is left out
