"""prepare: documents -> token records, once, before training.

One process reads documents, in units of about a million characters; workers split them into sentences and encode them;
the first process takes the results in order and writes shards. Every decision depends on the documents alone, so the
number of workers and where a run was killed leave no trace in the files. A journal is kept beside the shards: the same
command continues where the last whole shard ended. Memory holds a shard and a few units, however long the text.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import time
from typing import Literal, get_args

from etils import epath
import numpy as np
import tqdm

from plm_jax import storage, tokenizers
from plm_jax.checked import Checked, within
from plm_jax.data import counts, encode, formats, lines, records, segment, sources
from plm_jax.data import journal as journal_lib
from plm_jax.data.cutting import Rule
from plm_jax.data.files import EXPECTED
from plm_jax.data.journal import Journal
from plm_jax.data.lines import SourceError
from plm_jax.data.shards import Shards
from plm_jax.errors import option
from plm_jax.storage import lock

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TextConfig(Checked):
  """How text becomes token records, whatever the text."""

  limits = within(
      sentinels='[1, 100000]', sample='[1, 1e15]', heldout='[0, 1)', shard_tokens='[1, inf)', workers='[0, 4096]')

  tokenizer: str = ''
  """A vocab.txt, a vocab.json, a SentencePiece .model, or a folder with one. Empty: train one on the source."""
  kind: Literal['wordpiece', 'sentencepiece-unigram', 'sentencepiece-bpe', 'byte-bpe', 'word-bpe', 'bytes', 'words',
                'words-and-signs'] = 'wordpiece'
  """The tokenizer to train; word-bpe is GPT's; bytes, ByT5's, learn nothing, and are 384; words are ELMo's."""
  lowercase: bool = True
  """Whether the tokenizer to train ignores case (and, for WordPiece, accents); byte-level BPE and words never do."""
  layout: tokenizers.Layout | Literal['gpt2'] = 'bert'
  """Special pieces of the SentencePiece model to train: as BERT has them, or ALBERT, DeBERTa, XLNet, GLM, T5 or
  mBART; of a WordPiece vocabulary, BERT's or GLM's; of byte-level BPE, RoBERTa's (bert) or GPT-2's."""
  sentinels: int = 100
  """Of the layout t5: ids that stand for spans which are left out, as many as a row may have of them."""
  sample: int = 50_000_000
  """Characters of text to train the tokenizer on, spread over the source."""
  sentences: encode.Sentences = 'split'
  """Sentences are found by rule; or they end at every . ? ! ; : (GLM's blanks); or every line of the source is one."""
  segmenter: segment.Segmenter = 'none'
  """What a word is, for whole-word masks: as the tokenizer says; Chinese words as jieba finds them; or as the spaces of
  a pre-segmented source say, which are no part of the ids beside Chinese and Japanese characters."""
  newlines: bool = False
  """Paragraphs behind another begin with a line break, for language models: of the tokenizers, BPE of bytes and
  SentencePiece as LLaMA has it keep one."""
  heldout: float = 0.01
  """Share of the documents that training never sees, chosen by their text. At least one, unless 0."""
  on_error: lines.OnError = 'refuse'
  """What to do with a line that is not UTF-8 or not JSON: stop and name it, or leave it out and count it."""
  text_field: str = 'text'
  """Field with the text, of JSON lines, of tables and of TFDS."""
  documents: formats.Division = 'auto'
  """What divides plain text into documents: blank lines; every line is one, or every file. auto: blank lines, and where
  a file has none in its first MiB its lines do, unless it is shorter than that and not alone: then it is a document."""
  shard_tokens: int = 1 << 22
  """Tokens a shard."""
  workers: int = 0
  """Processes that encode; 0 for one a core. Changes nothing in the records."""

  def conflict(self, option):
    """Says which options do not go together: line breaks with a segmenter, a layout with another kind of tokenizer."""
    if self.newlines and self.segmenter != 'none':
      return (f'{option("newlines")} is for language models, {option("segmenter")} for masks of whole words: give one '
              'of them')
    if not self.tokenizer and self.layout not in (known := layouts(self.kind)):
      return (f'{option("layout")} is {" or ".join(known)} with {option("kind")}={self.kind}, got {self.layout}: it is '
              'the layout of other tokenizers')
    return None

  @property
  def reading(self) -> formats.Reading:
    """How the sources of text are read."""
    return formats.Reading(self.on_error, self.text_field, self.documents)


def layouts(kind: str) -> tuple[str, ...]:
  """Returns the layouts that a kind of tokenizer can have."""
  if kind.startswith('sentencepiece'):
    return get_args(tokenizers.Layout)
  return {'wordpiece': ('bert', 'glm'), 'byte-bpe': ('bert', 'gpt2')}.get(kind, ('bert',))


@dataclasses.dataclass(frozen=True)
class PrepareConfig(TextConfig):
  """What to read, and how."""

  limits = within(vocab='[1, 16777216]')

  source: str = 'embedded'
  """Files, globs, folders (local or gs://, comma-separated; .txt, .jsonl, .gz, .xz), tfds:NAME[:SPLIT], or embedded."""
  vocab: int = 30_522
  """Pieces of the tokenizer to train."""


def prepare(config: PrepareConfig, folder: epath.PathLike, rules: Sequence[Rule] = ()) -> records.Meta:
  """Writes the records of `config.source` to `folder`, or continues, or finds them finished.

  rules: how runs will cut the text: its windows are counted by the way, and no run has to. What the records are does
  not depend on them; a rule that is for text of another kind is left out.

  Of several that are asked for the same folder at once, one works and the others wait for it. Raises SourceError for
  text that is missing, empty or (unless skipped) damaged, TokenizerError for a tokenizer that cannot be had,
  RecordsError for a folder with other records in it, StorageError for one that cannot be written, SpaceError for a full
  disk.
  """
  folder = place_of(folder, config.source)
  segment.cached(config.segmenter)  # here, not in a worker: it may not be installed
  tokenizer = tokenizers.load(config.tokenizer) if config.tokenizer else None
  source = fingerprint(config, tokenizer)
  counted = ('examples',) if config.source.startswith(sources.TASK) else ('document', 'sentences')
  rules = [rule for rule in rules if rule.assembly in counted]
  meta = existing_records(config, folder, tokenizer, source) or make(config, folder, tokenizer, source, rules)
  counts.complete(folder, meta, rules)
  return meta


def make(config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer | None, source: str,
         rules: Sequence[Rule]) -> records.Meta:
  """Prepares where nothing is finished yet. source: fingerprint."""
  tally = lines.Tally()
  if next(sources.documents(config.source, config.reading, tally), None) is None:
    raise SourceError(f'{config.source} holds no documents: nothing to prepare.')
  if tally.lined:
    print(f'{tally.lined[0]} has no blank line: every line of it is a document. '
          f'{option("documents=files")} makes one of each file instead', flush=True)
  with contextlib.ExitStack() as stack:
    stack.enter_context(storage.explained(folder, 'written', records.RecordsError))
    if not storage.remote(folder):
      folder.mkdir(parents=True, exist_ok=True)
    held = stack.enter_context(lock.Lock(folder, 'prepare', wait=True))
    journal_lib.clear_drafts(folder)
    if meta := existing_records(config, folder, tokenizer, source):
      return meta
    try:
      return write(config, folder, *open_journal(config, folder, tokenizer, source), held, rules)
    finally:
      journal_lib.clear_drafts(folder)
      held.release()
      if not storage.remote(folder):
        with contextlib.suppress(OSError):
          os.rmdir(folder)  # a source without text leaves nothing behind


def place_of(folder: epath.PathLike, source: str) -> epath.Path:
  """Returns the folder of the records. Raises RecordsError for one that cannot be it, SourceError for no text."""
  if not source.strip():
    raise SourceError(f'no text is given: {EXPECTED}')
  if not os.fspath(folder).strip():
    raise records.RecordsError('no folder for the records is given: expected one, local or gs://')
  folder = storage.path_of(folder)
  with storage.explained(folder, 'read', records.RecordsError):
    if folder.exists() and not folder.is_dir():
      raise records.RecordsError(f'{folder} is a file, expected a folder for the records')
  for text in sources.folders(source):
    if text in (folder, *folder.parents):
      raise records.RecordsError(f'{folder} lies in {text}: records among the text would be read as text')
  return folder


def existing_records(config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer | None, source: str
             ) -> records.Meta | None:
  """Reads the records of this source, if they are there. Raises RecordsError for others."""
  with storage.explained(folder, 'read', records.RecordsError):
    if not (folder / 'records.json').exists():
      return None
  meta = records.read_meta(folder)
  if meta.source != source and not is_former(config, tokenizer, folder, meta.source):
    refuse_other(folder, meta.source, source)
  return meta


def is_former(config: PrepareConfig, tokenizer: tokenizers.Tokenizer | None, folder: epath.Path, found: str) -> bool:
  """Tells whether finished records in `folder`, of the fingerprint `found`, are of this source as sources were known
  before, when an edit of equal size in the middle of a text was not noticed; and the text is older than they."""
  if found != fingerprint(config, tokenizer, sources.former_fingerprint):
    return False
  with storage.explained(folder, 'read', records.RecordsError):
    return sources.written(config.source) < (folder / 'records.json').stat().mtime


def records_folder(config: PrepareConfig) -> epath.Path:
  """Returns where the records of a source with these settings are kept: below the cache folder."""
  tokenizer = tokenizers.load(config.tokenizer) if config.tokenizer else None
  home = epath.Path(storage.cache_folder()) / 'records'
  folder = home / fingerprint(config, tokenizer)[:16]
  if not (folder / 'records.json').exists():
    found = fingerprint(config, tokenizer, sources.former_fingerprint)
    before = home / found[:16]
    if (before / 'records.json').exists():
      if is_former(config, tokenizer, before, found):
        return before
      print(f'{config.source} was written after its records in {before}: it is prepared again', flush=True)
  return folder


def open_journal(config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer | None, source: str
          ) -> tuple[tokenizers.Tokenizer, Journal]:
  """Returns where an earlier run of the same has come to, or the beginning. Raises RecordsError for a run of
  another."""
  found = journal_lib.read(folder)
  if isinstance(found, Journal):
    if found.source != source:
      refuse_other(folder, found.source, source)
    known = journal_lib.tokenizer_of(folder, found)
    if not isinstance(known, str):
      return known, found
    found = known
  if found:
    print(f'{found}: the work begins again', flush=True)
  journal_lib.clear(folder)
  tokenizer = tokenizer or train_tokenizer(config)
  return tokenizer, Journal(source, tokenizer.hash)


def write(config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer, journal: Journal,
          held: lock.Lock, rules: Sequence[Rule]) -> records.Meta:
  """Reads on from the journal to the end of the source."""
  tally, began = lines.Tally(), time.monotonic()
  read = itertools.islice(sources.documents(config.source, config.reading, tally), journal.documents, None)
  total = sources.size(config.source)
  shards: dict[records.Split, journal_lib.Pending] = {split: journal_lib.Pending() for split in records.SPLITS}
  count = unknown = 0
  workers = min(config.workers or os.cpu_count() or 1, 1 + (total or 1 << 62) // WORTH_A_WORKER)
  pairs = config.source.startswith(sources.TASK)  # a document is a target and its inputs, each whole
  how, newlines = ('line', False) if pairs else (config.sentences, config.newlines)
  encoded = encode.encode_all(encode.units(read), tokenizer, how, workers, config.segmenter, newlines)
  progress = tqdm.tqdm(total=total, unit='B', unit_scale=True, desc='prepare', disable=None)  # None: not in a log file
  with progress, contextlib.closing(encoded):
    for places, unit in encoded:
      settle_bounds(journal, unit, 2 if pairs else 1)
      for where, (text_hash, sentence_lengths, tokens) in zip(places, encode.each_document(unit), strict=True):
        journal.documents += 1
        if pairs and len(sentence_lengths) < 2:
          journal.empty += 1
          tally.example(f'{where}: its target or its inputs have no tokens')
        elif len(tokens):
          shards[choose_split(text_hash, config.heldout, journal)].add(sentence_lengths, tokens)
        if max(pending.tokens for pending in shards.values()) >= config.shard_tokens:
          held.check()
          journal_lib.commit(folder, tokenizer, journal, shards, rules)
      count += len(unit.tokens)
      unknown += int(np.count_nonzero(unit.tokens['token'] == tokenizer.vocab.unk))
      progress.set_postfix_str(f'{count / (time.monotonic() - began):,.0f} tokens/s', refresh=False)
      progress.update(tally.bytes - progress.n)
  held.check()
  journal_lib.commit(folder, tokenizer, journal, shards, rules)
  if not journal.train:
    raise SourceError(f'{config.source} holds no text: none of its {journal.documents} documents has a token.')
  meta = records.Meta(
      tokenizer.vocab.size, tokenizer.hash, tuple(journal.train), tuple(journal.heldout), journal.source,
      tally.skipped + journal.empty)
  meta = records.write_meta(folder, meta)
  for split, rule in itertools.product(records.SPLITS, rules):
    if found := journal.counts(split, rule):
      counts.store(Shards(folder, meta, split), rule, counts.total(found))
  (folder / journal_lib.NAME).unlink(missing_ok=True)
  report(config, meta, tally, count, unknown, time.monotonic() - began, workers)
  return meta


def settle_bounds(journal: Journal, unit: encode.Encoded, least: int) -> None:
  """Settles which document is trained on and which is held out whatever their hashes are: the highest and the lowest of
  the first unit that has documents, of at least `least` sentences, to choose from."""
  if journal.lowest >= 0:
    return
  hashes = {text_hash for text_hash, size in zip(unit.hashes, unit.sentences, strict=True) if size >= least}
  if journal.highest < 0:
    journal.highest = max(hashes, default=-1)
  journal.lowest = min(hashes - {journal.highest}, default=-1)


def choose_split(text_hash: int, share: float, journal: Journal) -> records.Split:
  """Chooses a split by the text alone, so that copies of a document stay together.

  See `settle_bounds`: neither split is empty when there are two documents to share out.
  """
  if not share or text_hash == journal.highest:
    return 'train'
  return 'heldout' if text_hash == journal.lowest or text_hash < share * 2**64 else 'train'


def train_tokenizer(config: PrepareConfig) -> tokenizers.Tokenizer:
  """Trains a tokenizer on every n-th document, so that the sample is spread over the source and always the same."""
  if config.kind == 'bytes':
    return tokenizers.Bytes()
  every = max(1, sources.characters(config.source) // config.sample)
  began = time.monotonic()
  documents = itertools.islice(sources.documents(config.source, config.reading), 0, None, every)
  # What jieba finds changes no text, so it is not asked here.
  cut = segment.segmenter('spaces') if config.segmenter == 'spaces' else None
  texts = (segment.text_of(cut, text) for text in first_characters(documents, config.sample))
  if config.kind == 'wordpiece':
    tokenizer = tokenizers.train_wordpiece(texts, config.vocab, tokenizers.BertText(config.lowercase),
                                           blanks=config.layout == 'glm')
  elif config.kind == 'byte-bpe':
    layout = 'gpt2' if config.layout == 'gpt2' else 'bert'
    tokenizer = tokenizers.train_byte_bpe(texts, config.vocab, layout=layout)
  elif config.kind == 'word-bpe':
    tokenizer = tokenizers.train_word_bpe(texts, config.vocab)
  elif config.kind in ('words', 'words-and-signs'):
    tokenizer = tokenizers.train_words(texts, config.vocab, signs=config.kind != 'words')
  elif config.layout == 'mbart':
    tokenizer = tokenizers.train_languages(texts, config.vocab)
  elif config.layout == 'gpt2':
    raise tokenizers.TokenizerError(f'the layout gpt2 is one of byte-bpe, not of {config.kind}.')
  else:
    algorithm = 'bpe' if config.kind == 'sentencepiece-bpe' else 'unigram'
    tokenizer = tokenizers.train_sentencepiece(
        texts, config.vocab, algorithm, config.lowercase, layout=config.layout, sentinels=config.sentinels)
  print(f'trained a {config.kind} tokenizer of {tokenizer.vocab.size:,} pieces in {time.monotonic() - began:.0f} s')
  return tokenizer


def first_characters(documents: Iterable[formats.Document], limit: int) -> Iterator[str]:
  """Yields paragraphs up to the one in which `limit` characters are reached."""
  length = 0
  for document in documents:
    for paragraph in document.paragraphs:
      yield paragraph
      length += len(paragraph)
      if length >= limit:
        return


def fingerprint(config: PrepareConfig, tokenizer: tokenizers.Tokenizer | None,
                of_text: Callable[[str], str] = sources.fingerprint) -> str:
  """Returns sha256 hex of everything that decides the bytes of the records."""
  settings = dataclasses.asdict(config)
  del settings['workers']
  if config.segmenter == 'none':
    del settings['segmenter']  # records from before there were segmenters are the same
  if not config.newlines:
    del settings['newlines']
  for field, usual in (('sentinels', 100), ('text_field', 'text'), ('documents', 'auto')):
    if settings[field] == usual:
      del settings[field]
  if tokenizer:
    for field in ('kind', 'vocab', 'lowercase', 'layout', 'sample', 'sentinels'):
      settings.pop(field, None)
    settings['tokenizer'] = tokenizer.hash
  settings['source'] = of_text(config.source)
  return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def refuse_other(folder: epath.Path, found: str, expected: str) -> None:
  """Raises RecordsError where the fingerprint that was found is not the one expected."""
  if found != expected:
    raise records.RecordsError(
        f'{folder} holds records of another source, or made with other settings (fingerprint {found[:12]}, expected '
        f'{expected[:12]}). Choose another folder, or delete this one.')


def report(config: PrepareConfig, meta: records.Meta, tally: lines.Tally, count: int, unknown: int, seconds: float,
           workers: int) -> None:
  """Says what was made, and what was left out and why."""
  for split in ('train', 'heldout'):
    shards = meta.shards(split)
    print(f'{split}: {sum(s.documents for s in shards):,} documents, {sum(s.sentences for s in shards):,} sentences, '
          f'{meta.tokens(split):,} tokens in {len(shards)} shards')
  rate = count / max(seconds, 1e-9)
  print(f'{seconds:.1f} s, {rate:,.0f} tokens/s, {rate / workers:,.0f} a worker ({workers})')
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
  if unknown > 0.001 * count:
    log.warning('%.1f%% of the tokens are unknown to the tokenizer: is it made for this text? One that is trained on '
                'it knows all but the rarest characters, with a larger vocabulary more of them', 100 * unknown / count)


WORTH_A_WORKER = 1 << 24  # bytes on disk; below, starting another process costs more than it saves
