"""`prepare`: tokenize documents into token records, once, before training.

One process reads documents in units of about a million characters. Workers split them into
sentences and tokenize them. The first process takes the results in order and writes shards. Every
decision depends on the documents alone, so the files do not depend on the number of workers, or on
interruptions. A journal is stored next to the shards: the same command resumes after the last
complete shard. Memory holds one shard and a few units, however long the text is.
"""
import collections
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import itertools
import operator
import os
import random
import time

from etils import epath
import numpy as np
import tqdm

from plm_jax import storage, tokenizers
from plm_jax.data import records, window_counts
from plm_jax.data.window_rules import WindowRule
from plm_jax.distributed import worker_pool
from plm_jax.errors import add_advice, name_field, print_line
from plm_jax.preparation import (
  encode,
  finalize,
  parallel_prepare,
  tokenizer_fit,
  word_segmentation,
)
from plm_jax.preparation import journal as journal_lib
from plm_jax.preparation.journal import PendingShard, PrepareJournal
from plm_jax.preparation.parallel_stages import RunStages
from plm_jax.preparation.prepare_config import PrepareConfig, TextConfig
from plm_jax.progress import is_terminal
from plm_jax.sources import lines, text_sources
from plm_jax.sources.document_formats import Document
from plm_jax.sources.lines import SourceError
from plm_jax.sources.source_files import EXPECTED_SOURCE
from plm_jax.storage import lock
from plm_jax.storage.digests import digest_json
from plm_jax.tokenizers import sentencepiece_training, wordpiece
from plm_jax.tokenizers.contract import FIM_TOKENS


def prepare(config: PrepareConfig, folder: epath.PathLike, rules: Sequence[WindowRule] = (),
            run: RunStages | None = None) -> records.RecordsMeta:
  """Write the token records of `config.source`, or resume, or return the finished ones.

  If several processes prepare the same folder, one works and the others wait for it.

  Args:
    config: the text, and how it becomes records.
    folder: for the records.
    rules: how runs will divide the text. Windows under these rules are counted now, so that no run
      has to. The records do not depend on them. Rules for another kind of text are ignored.
    run: runs the stages of `parallel_prepare`; None: this machine does the work.

  Raises:
    SourceError: text is missing, empty or (unless skipped) damaged.
    TokenizerError: the tokenizer cannot be loaded or trained.
    RecordsError: the folder has other records in it.
    StorageError: the folder cannot be written.
    SpaceError: the disk is full.
  """
  folder = check_folder(folder, config.texts)
  # Now, not in a worker, because it may not be installed:
  word_segmentation.load_segmenter(config.segmenter)
  tokenizer = load_tokenizer(config)
  source = fingerprint(config, tokenizer)
  counted = ('examples', 'pairs') if config.has_pairs else ('document', 'sentences')
  rules = [rule for rule in rules if rule.assembly in counted]
  meta = load_existing(folder, source)
  if not meta:
    write = functools.partial(parallel_prepare.prepare_in_parallel, run) if run else write_records
    meta = prepare_folder(
        config, folder, tokenizer, source, functools.partial(write, rules=rules))
  window_counts.count_missing(folder, meta, rules)
  return meta


def prepare_folder(
    config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer | None, source: str,
    writing: Callable[..., records.RecordsMeta]) -> records.RecordsMeta:
  """Lock the folder, and prepare records in it. source: fingerprint; others: see `prepare`."""
  stats = lines.ReadStats()
  for text in config.texts:
    if next(text_sources.read_documents(text, config.read_config, stats), None) is None:
      why = lines.describe_skipped(stats) or ': nothing to prepare'
      raise SourceError(f'{text} holds no documents{why}')
  if stats.line_divided:
    advice = add_advice(f'. {name_field("documents")}=files makes one of each file instead')
    print_line(
        f'{stats.line_divided[0]} has no blank line: every line of it is a document{advice}')
  with contextlib.ExitStack() as stack:
    stack.enter_context(storage.io_errors_as(folder, 'written', records.RecordsError))
    if not storage.is_remote(folder):
      folder.mkdir(parents=True, exist_ok=True)
    held = stack.enter_context(lock.Lock(folder, 'prepare', wait=True))
    journal_lib.remove_all_drafts(folder)
    if meta := load_existing(folder, source):
      return meta
    try:
      tokenizer, journal = open_journal(config, folder, tokenizer, source)
      return writing(config, folder, tokenizer, journal, held)
    finally:
      journal_lib.remove_all_drafts(folder)
      held.release()
      if not storage.is_remote(folder):
        with contextlib.suppress(OSError):
          os.rmdir(folder)  # a source without text leaves nothing


def check_folder(folder: epath.PathLike, texts: Sequence[str]) -> epath.Path:
  """Return the folder of the records as a path.

  Raises:
    RecordsError: it cannot be used.
    SourceError: no text is given.
  """
  if not all(text.strip() for text in texts) or not texts:
    raise SourceError(f'no text is given: {EXPECTED_SOURCE}')
  if not os.fspath(folder).strip():
    raise records.RecordsError(
        'no folder for the records is given: expected one, local or gs://')
  folder = storage.resolve_path(folder)
  if storage.is_hub_file(folder):
    folder.mkdir()  # refused, before any text is read
  with storage.io_errors_as(folder, 'read', records.RecordsError):
    if folder.exists() and not folder.is_dir():
      raise records.RecordsError(f'{folder} is a file, expected a folder for the records')
  for text in itertools.chain.from_iterable(map(text_sources.source_folders, texts)):
    if text in (folder, *folder.parents):
      raise records.RecordsError(
          f'{folder} lies in {text}: records among the text would be read as text')
  return folder


def load_existing(folder: epath.Path, source: str) -> records.RecordsMeta | None:
  """Read the finished records of this source; None if there are none.

  Raises:
    RecordsError: the folder has other records.
  """
  with storage.io_errors_as(folder, 'read', records.RecordsError):
    if not (folder / 'records.json').exists():
      return None
  meta = records.read_meta(folder)
  check_fingerprint(folder, meta.source, source)
  return meta


def records_folder(config: PrepareConfig) -> epath.Path:
  """Return the default folder for the records of this configuration, below the cache folder."""
  tokenizer = load_tokenizer(config)
  return epath.Path(storage.cache_folder()) / 'records' / fingerprint(config, tokenizer)[:16]


def load_tokenizer(config: TextConfig) -> tokenizers.Tokenizer | None:
  """Load the tokenizer that the configuration names, with the special tokens that it needs.

  Raises:
    TokenizerError: it cannot be loaded, or gives other text back than it was given, which filling
      in the middle needs.
  """
  tokenizer = tokenizers.load(config.tokenizer) if config.tokenizer else None
  return tokenizer and add_fill_middle_tokens(config, tokenizer)


def add_fill_middle_tokens(
    config: TextConfig, tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  """Add the special tokens for filling in the middle to a tokenizer, where they are needed.

  Raises:
    TokenizerError: they cannot be added, or the tokenizer changes texts.
  """
  if not config.holes:
    return tokenizer
  if not tokenizer.vocab.fills_middle:
    tokenizer = tokenizers.add_special_tokens(tokenizer, list(FIM_TOKENS))
  (ids, _), content = encode.encode_exactly(
      [HARD_TEXT], np.array([True]), tokenizer), tokenizer.token_bytes
  if b''.join(content[i] for i in ids) != HARD_TEXT.encode():
    raise tokenizers.TokenizerError(
        'the middle of texts is moved to their end, but this tokenizer does not keep all '
        'characters of a text: expected byte-level BPE, bytes, or SentencePiece with bytes and '
        f'without normalization. Without {name_field("fim_rate")}, it can be used')
  return tokenizer


def open_journal(
    config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer | None, source: str
) -> tuple[tokenizers.Tokenizer, PrepareJournal]:
  """Return the tokenizer and the journal of an interrupted run, or starts over.

  Raises:
    RecordsError: the folder has an interrupted run for other text or settings.
  """
  found = journal_lib.read_journal(folder)
  if isinstance(found, PrepareJournal):
    check_fingerprint(folder, found.source, source)
    loaded = journal_lib.load_journal_tokenizer(folder, found)
    if not isinstance(loaded, str):
      return loaded, found
    found = loaded
  if found:
    print(f'{found}: the work begins again', flush=True)
  journal_lib.remove_unfinished(folder)
  if tokenizer:
    beginning = itertools.islice(read_paragraphs(config), tokenizer_fit.MAX_PARAGRAPHS)
    texts = (text[:tokenizer_fit.MAX_CHARACTERS] for text in beginning)
    tokenizer_fit.check_tokenizer(config, tokenizer, texts)
  else:
    tokenizer = train_tokenizer(config)
  return tokenizer, PrepareJournal(source, tokenizer.hash)


def write_records(
    config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer,
    journal: PrepareJournal, held: lock.Lock, rules: Sequence[WindowRule]) -> records.RecordsMeta:
  """Tokenize the source from the position of the journal to its end.

  Args:
    config: the text, and how it becomes records.
    folder: for the records.
    tokenizer: makes the ids.
    journal: of an interrupted run, or a new one.
    held: lock of the folder.
    rules: under which windows are counted.
  """
  read_stats, start_time = lines.ReadStats(), time.monotonic()
  remaining = itertools.islice(read_splits(config, read_stats), journal.documents, None)
  sizes = [text_sources.source_bytes(text) for text in config.texts]
  total = None if None in sizes else sum(filter(None, sizes))
  workers = worker_pool.count_workers(config.workers, total)
  stats = finalize.PrepareStats(read_stats, start_time, workers=workers)
  shards: dict[records.Split, PendingShard] = {split: PendingShard() for split in records.SPLITS}
  in_progress = collections.deque()  # of units: the split, and where each document begins
  def read_units() -> Iterator[list[Document]]:
    for split, documents in itertools.groupby(remaining, operator.itemgetter(0)):
      for unit in encode.batch_documents(document for _, document in documents):
        in_progress.append((split, [document.where for document in unit]))
        yield unit

  encode_unit = functools.partial(
      encode.encode_documents, tokenizer=tokenizer, sentence_rule=config.sentence_rule,
      segmenter=config.segmenter, holes=config.holes)
  encoded = worker_pool.map_ordered(encode_unit, read_units(), workers)
  progress = tqdm.tqdm(
      total=total, unit='B', unit_scale=True, desc='prepare', disable=not is_terminal())
  with progress, contextlib.closing(encoded):
    for unit in encoded:
      journal.bounds = encode.update_bounds(journal.bounds, unit, config.min_sentences)
      unit_split, places = in_progress.popleft()
      for where, document in zip(places, encode.iterate_documents(unit), strict=True):
        text_hash, sentence_lengths, tokens, follows = document
        journal.documents += 1
        if len(sentence_lengths) >= config.min_sentences:
          split = unit_split or encode.choose_split(
              text_hash, config.heldout_share, journal.bounds)
          shards[split].add_document(sentence_lengths, tokens, journal.documents, follows)
        elif config.has_pairs:
          journal.empty += 1
          read_stats.add_example(finalize.EMPTY_EXAMPLE.format(where))
        if max(pending.tokens for pending in shards.values()) >= config.shard_tokens:
          held.check()
          journal_lib.commit_shards(folder, tokenizer, journal, shards, rules)
      stats.tokens += len(unit.tokens)
      stats.unknown += int(np.count_nonzero(unit.tokens['token'] == tokenizer.vocab.unk))
      speed = stats.tokens / (time.monotonic() - start_time)
      progress.set_postfix_str(f'{speed:,.0f} tokens/s', refresh=False)
      progress.update(read_stats.bytes - progress.n)
  held.check()
  journal_lib.commit_shards(folder, tokenizer, journal, shards, rules)
  return finalize.finalize_records(config, folder, tokenizer, journal, rules, stats)


def read_splits(config: PrepareConfig, stats: lines.ReadStats
                ) -> Iterator[tuple[records.Split | None, Document]]:
  """Yield (split, document) of the source, then of the held-out text.

  The split is None where the hash of the document decides.
  """
  for document in text_sources.read_documents(config.source, config.read_config, stats):
    yield None, document
  if config.heldout_path:
    for document in text_sources.read_documents(config.heldout_path, config.read_config, stats):
      yield 'heldout', document


def train_tokenizer(config: PrepareConfig) -> tokenizers.Tokenizer:
  """Train a tokenizer on a fixed sample from the whole source. Raises TokenizerError."""
  if config.kind == 'bytes':
    return add_fill_middle_tokens(config, tokenizers.ByteTokenizer())
  start_time = time.monotonic()
  # jieba's words do not change the text, so it is not needed here.
  texts = sample_paragraphs(config)
  if config.segmenter == 'spaces':
    texts = (word_segmentation.split_by_spaces(text)[0] for text in texts)
  sample = tokenizer_fit.TextSample()
  texts = sample.watch(texts)
  if config.exact and config.kind.startswith('sentencepiece'):  # its pieces have no line breaks
    texts = itertools.chain.from_iterable(text.split('\n') for text in texts)
  coverage = config.coverage or sentencepiece_training.COVERAGE
  size = config.vocab - len(FIM_TOKENS) if config.holes else config.vocab
  if config.kind == 'wordpiece':
    accents = None if config.strip_accents else False
    normalization = tokenizers.BertNormalization(config.lowercase, accents)
    coverage = config.coverage or wordpiece.COVERAGE
    tokenizer = tokenizers.train_wordpiece(
        texts, config.vocab, normalization, coverage, blanks=config.layout == 'glm')
  elif config.kind == 'byte-bpe':
    layout = 'gpt2' if config.layout == 'gpt2' else 'bert'
    tokenizer = tokenizers.train_byte_bpe(texts, size, layout=layout)
  elif config.kind == 'word-bpe':
    tokenizer = tokenizers.train_word_bpe(texts, config.vocab)
  elif config.kind in ('words', 'words-and-signs'):
    tokenizer = tokenizers.train_word_tokenizer(
        texts, config.vocab, signs=config.kind != 'words')
  elif config.layout in ('mbart', 'mbart50', 'xlm-r'):
    tokenizer = tokenizers.train_fairseq_sentencepiece(
        texts, config.vocab, layout=config.layout, coverage=coverage)
  elif config.layout == 'gpt2':
    raise tokenizers.TokenizerError(
        f'the layout gpt2 is one of byte-bpe, not of {config.kind}.')
  else:
    algorithm = 'bpe' if config.kind == 'sentencepiece-bpe' else 'unigram'
    tokenizer = tokenizers.train_sentencepiece(
        texts, size, algorithm, config.lowercase, coverage, layout=config.layout,
        sentinels=config.sentinels, strip_accents=config.strip_accents)
  tokenizer = add_fill_middle_tokens(config, tokenizer)
  fewer = ''
  if tokenizer.vocab.size < config.vocab:
    fewer = f' (fewer than {config.vocab:,}, because the text is small)'
  print(f'trained a {config.kind} tokenizer with a vocabulary of {tokenizer.vocab.size:,} tokens'
        f'{fewer} in {time.monotonic() - start_time:.0f} s')
  tokenizer_fit.check_tokenizer(config, tokenizer, sample.texts)
  return tokenizer


def sample_paragraphs(config: PrepareConfig) -> Iterator[str]:
  """Yield about `config.sample` characters of paragraphs; all of a shorter text.

  From a longer text it takes paragraphs, or parts of long ones, in proportion from everywhere. They
  are random but always the same. Randomness among neighbors ensures that no language or speaker of
  an alternating text is missed.
  """
  size, total = text_sources.estimate_characters(config.source), 0
  surely_all = 0 < size * MAX_EXPANSION <= config.sample
  if config.sample < ALL_CHARACTERS and not surely_all:
    total = sum(map(len, read_paragraphs(config)))
  if total <= config.sample:
    yield from read_paragraphs(config)
    return
  share, random_state, seen, taken = config.sample / total, random.Random(0), 0, 0
  for paragraph in read_paragraphs(config):
    for start in range(0, len(paragraph), SAMPLE_PART):
      part = paragraph[start:start + SAMPLE_PART]
      seen += len(part)
      if taken + random_state.random() * len(part) <= share * seen:
        taken += len(part)
        yield part


def read_paragraphs(config: PrepareConfig) -> Iterator[str]:
  """Yield all paragraphs of the source."""
  for document in text_sources.read_documents(config.source, config.read_config):
    yield from document.paragraphs


def fingerprint(config: PrepareConfig, tokenizer: tokenizers.Tokenizer | None) -> str:
  """Return the sha256 hex of everything that determines the bytes of the records.

  Args:
    config: of the records.
    tokenizer: finished tokenizer; None: one is trained.
  """
  settings = dataclasses.asdict(config)
  del settings['workers']
  if config.segmenter == 'none':
    del settings['segmenter']  # records from versions without segmenters are the same
  else:
    settings['segmenter'] = word_segmentation.segmenter_identity(config.segmenter)
  # Options of later versions count only if they are not at their default.
  defaults = {'sentinels': 100, 'text_field': 'text', 'documents': 'auto', 'strip_accents': True,
              'coverage': 0.0, 'encoding': 'utf-8', 'fim_rate': 0.0, 'fim_spm_rate': 0.5,
              'fim_context': 0, 'fim_seed': 0}
  for field, default in defaults.items():
    if settings[field] == default:
      del settings[field]
  if tokenizer:
    for field in ('kind', 'vocab', 'lowercase', 'strip_accents', 'coverage', 'layout', 'sample',
                  'sentinels'):
      settings.pop(field, None)
    settings['tokenizer'] = tokenizer.hash
  settings['source'] = text_sources.fingerprint(config.source)
  del settings['heldout_path']
  if config.heldout_path:
    settings['heldout'] = text_sources.fingerprint(config.heldout_path)
  return digest_json(settings)


def check_fingerprint(folder: epath.Path, found: str, expected: str) -> None:
  """Raise RecordsError where the fingerprint of records is not the expected one."""
  if found != expected:
    raise records.RecordsError(
        f'{folder} holds records of another source, or made with other settings (fingerprint '
        f'{found[:12]}, expected {expected[:12]}). Choose another folder, or delete this one.')


ALL_CHARACTERS = 10 ** 12  # a sample of this size is all of any text
MAX_EXPANSION = 25  # a compressed file has at most so many times the estimate of `text_sources`
SAMPLE_PART = 10_000  # characters of a paragraph that are sampled together
HARD_TEXT = '\n\n  x\r\n\t\u00e9e\u0301\u3000\u4e2d\ufb01\U0001f600 '  # a tokenizer must keep it
