"""The end of a preparation: records.json makes a folder of shards records, and what was seen on the way is said."""
from collections.abc import Sequence
import dataclasses
import itertools
import logging
import time

from etils import epath

from plm_jax import tokenizers
from plm_jax.data import counts, formats, journal, lines, records, sources
from plm_jax.data.cutting import Rule
from plm_jax.data.lines import SourceError
from plm_jax.data.settings import PrepareConfig
from plm_jax.data.shards import Shards
from plm_jax.errors import option
from plm_jax.tokenizers.wordpiece import is_chinese

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Seen:
  """What happened on the way, as far as it is said at the end."""

  tally: lines.Tally
  began: float  # time.monotonic()
  tokens: int = 0  # encoded
  unknown: int = 0  # of these, the tokenizer did not know so many
  workers: int = 0  # that encoded; 0: a cluster's


def end(config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer, done: journal.Journal,
        rules: Sequence[Rule], seen: Seen) -> records.Meta:
  """Writes records.json and the numbers of windows for shards that are all written; the journal goes, and what is left
  of work by pieces. Raises SourceError where there is no shard to train on."""
  if not done.train:
    raise SourceError(f'{config.source} holds no text: none of its {done.documents} documents has a token.')
  meta = records.write_meta(folder, records.Meta(
      tokenizer.vocab.size, tokenizer.hash, tuple(done.train), tuple(done.heldout), done.source,
      seen.tally.skipped + done.empty))
  for split, rule in itertools.product(records.SPLITS, rules):
    if found := done.counts(split, rule):
      counts.store(Shards(folder, meta, split), rule, counts.total(found))
  (folder / journal.NAME).unlink(missing_ok=True)
  for left in folder.glob(f'{PIECES}*'):
    left.rmtree()
  report(config, meta, seen)
  return meta


def report(config: PrepareConfig, meta: records.Meta, seen: Seen) -> None:
  """Says what was made, and what was left out and why."""
  for split in records.SPLITS:
    shards = meta.shards(split)
    print(f'{split}: {sum(s.documents for s in shards):,} documents, {sum(s.sentences for s in shards):,} sentences, '
          f'{meta.tokens(split):,} tokens in {len(shards)} shards')
  seconds, tally = time.monotonic() - seen.began, seen.tally
  rate = seen.tokens / max(seconds, 1e-9)
  each = f', {rate / seen.workers:,.0f} a worker ({seen.workers})' if seen.workers else ''
  print(f'{seconds:.1f} s, {rate:,.0f} tokens/s{each}')
  if tally.cut:
    log.warning('%d documents of over %d characters were cut: do blank lines separate the documents?', tally.cut,
                formats.MAX_DOCUMENT)
  if meta.skipped:
    more = f'\n  and {meta.skipped - len(tally.examples)} more' if meta.skipped > len(tally.examples) else ''
    log.warning('%d lines were left out:\n  %s%s', meta.skipped, '\n  '.join(tally.examples), more)
  if len(tally.lined) > 1:
    log.warning('%d files have no blank line, and every line of theirs is a document: %s and so on', len(tally.lined),
                tally.lined[0])
  if config.heldout and not meta.heldout:
    log.warning('nothing is held out, as there is but one document, or copies of one: a run needs another to be '
                'evaluated on. Put blank lines between documents, or give %s', option('documents=lines'))
  if seen.unknown > 0.001 * seen.tokens:
    log.warning(UNKNOWN[chinese(config)], 100 * seen.unknown / seen.tokens)


def chinese(config: PrepareConfig) -> bool:
  """Tells whether the first documents are Chinese, and so their reader."""
  some = itertools.islice(sources.documents(config.source, config.reading), 20)
  return is_chinese('\n'.join(paragraph[:1000] for document in some for paragraph in document.paragraphs[:5]))


UNKNOWN = {
    False: '%.1f%% of the tokens are unknown to the tokenizer: is it made for this text? One that is trained on it '
           'knows all but the rarest characters, with a larger vocabulary more of them',
    True: '%.1f%% 的词元不在词表中：分词器适合这份语料吗？'
          '在语料上训练的分词器，认得除最生僻字以外的所有字；词表越大，认得越多'}


PIECES = '.pieces-'  # beginning of folders in that of the records, see `parallel`
EMPTY = '{}: its target or its inputs have no tokens'  # of an example that is left out
