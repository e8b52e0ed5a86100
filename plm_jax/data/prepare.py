"""prepare: documents -> token records, once, before training.

One process reads documents, in units of about a million characters; workers split them into sentences and encode them;
the first process takes the results in order and writes shards. Every decision depends on the documents alone, so the
number of workers and where a run was killed leave no trace in the files. A journal is kept beside the shards: the same
command continues where the last whole shard ended. Memory holds a shard and a few units, however long the text.
"""
from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import logging
import os
import time
from typing import Literal

from etils import epath
import numpy as np
import tqdm

from plm_jax import tokenizers
from plm_jax.data import encode, records, segment, sources

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TextConfig:
  """How text becomes token records, whatever the text."""

  tokenizer: str = ''
  """A vocab.txt, a vocab.json, a SentencePiece .model, or a folder with one. Empty: train one on the source."""
  kind: Literal[
      'wordpiece', 'sentencepiece-unigram', 'sentencepiece-bpe', 'byte-bpe', 'word-bpe', 'bytes'] = 'wordpiece'
  """The tokenizer to train; word-bpe is GPT's; bytes, ByT5's, learn nothing, and are 384 whatever `vocab` says."""
  lowercase: bool = True
  """Whether the tokenizer to train ignores case (and, for WordPiece, accents); byte-level BPE never does."""
  layout: tokenizers.Layout | Literal['gpt2'] = 'bert'
  """Special pieces of the SentencePiece model to train: as BERT has them, or ALBERT, DeBERTa, XLNet, GLM, T5 or
  mBART; of a WordPiece vocabulary, BERT's or GLM's; of byte-level BPE, RoBERTa's (bert) or GPT-2's."""
  sentinels: int = 100
  """Of the layout t5: ids that stand for spans which are left out, as many as a row may have of them."""
  sample: int = 50_000_000
  """Characters of text to train the tokenizer on, spread over the source."""
  sentences: encode.Sentences = 'split'
  """Sentences are found by rule, or every line of the source is one."""
  segmenter: segment.Segmenter = 'none'
  """What a word is, for whole-word masks: as the tokenizer says; Chinese words as jieba finds them; or as the spaces of
  a pre-segmented source say, which are no part of the ids beside Chinese and Japanese characters."""
  newlines: bool = False
  """Paragraphs behind another begin with a line break, for language models: of the tokenizers, BPE of bytes and
  SentencePiece as LLaMA has it keep one."""
  heldout: float = 0.01
  """Share of the documents that training never sees, chosen by their text. At least one, unless 0."""
  on_error: sources.OnError = 'refuse'
  """What to do with a line that is not UTF-8 or not JSON: stop and name it, or leave it out and count it."""
  shard_tokens: int = 1 << 22
  """Tokens a shard."""
  workers: int = 0
  """Processes that encode; 0 for one a core. Changes nothing in the records."""

  def __post_init__(self):
    if not 0 <= self.heldout < 1:
      raise ValueError(f'heldout is a share of the documents, from 0 to below 1, not {self.heldout}.')
    for field in ('sample', 'shard_tokens', 'sentinels'):
      if getattr(self, field) < 1:
        raise ValueError(f'{field} must be positive, not {getattr(self, field)}.')
    if self.newlines and self.segmenter != 'none':
      raise ValueError('newlines are for language models, segmenters for masks of whole words: give one of them.')
    if self.workers < 0:
      raise ValueError(f'workers must be 0 or more, not {self.workers}.')


@dataclasses.dataclass(frozen=True)
class PrepareConfig(TextConfig):
  """What to read, and how."""

  source: str = 'embedded'
  """Files, globs, folders (local or gs://, comma-separated; .txt, .jsonl, .gz, .xz), tfds:NAME[:SPLIT], or embedded."""
  vocab: int = 30_522
  """Pieces of the tokenizer to train."""

  def __post_init__(self):
    super().__post_init__()
    if self.vocab < 1:
      raise ValueError(f'vocab must be positive, not {self.vocab}.')


def prepare(config: PrepareConfig, folder: epath.PathLike) -> records.Meta:
  """Writes the records of `config.source` to `folder`, or continues, or finds them finished.

  Raises SourceError for text that is missing, empty or (unless skipped) damaged, TokenizerError for a tokenizer that
  cannot be had, RecordsError for a folder with other records in it and for a full disk.
  """
  folder = epath.Path(folder).expanduser()
  segment.cached(config.segmenter)  # here, not in a worker: it may not be installed
  tokenizer = tokenizers.load(config.tokenizer) if config.tokenizer else None
  source = fingerprint(config, tokenizer)
  if (folder / 'records.json').exists():
    meta = records.read_meta(folder)
    refuse_other(folder, meta.source, source)
    return meta
  journal = read_journal(folder)
  if journal:
    refuse_other(folder, journal.source, source)
    tokenizer = tokenizers.load(folder / 'tokenizer')
  elif next(sources.documents(config.source, config.on_error), None) is None:
    raise sources.SourceError(f'{config.source} holds no documents: nothing to prepare.')
  tokenizer = tokenizer or train_tokenizer(config)
  with disk_errors(folder):
    return write(config, folder, tokenizer, journal or Journal(source))


@dataclasses.dataclass
class Journal:
  """How far a run has come: everything before `documents` is in the shards."""

  source: str  # fingerprint
  documents: int = 0  # of the source, read
  lowest: int = -1  # document hash that is held out whatever its value, see `choose_split`
  highest: int = -1  # document hash that is trained on whatever its value
  train: list[records.Shard] = dataclasses.field(default_factory=list)
  heldout: list[records.Shard] = dataclasses.field(default_factory=list)


def write(config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer, journal: Journal) -> records.Meta:
  """Reads on from the journal to the end of the source."""
  tally, began = sources.Tally(), time.monotonic()
  read = itertools.islice(sources.documents(config.source, config.on_error, tally), journal.documents, None)
  total = sources.size(config.source)
  shards = {'train': Pending(), 'heldout': Pending()}
  count = unknown = 0
  workers = min(config.workers or os.cpu_count() or 1, 1 + (total or 1 << 62) // WORTH_A_WORKER)
  how, newlines = config.sentences, config.newlines
  if config.source.startswith(sources.TASK):  # a document is a target and its inputs, each whole
    how, newlines = 'line', False
  encoded = encode.encode_all(encode.units(read), tokenizer, how, workers, config.segmenter, newlines)
  progress = tqdm.tqdm(total=total, unit='B', unit_scale=True, desc='prepare', disable=None)  # None: not in a log file
  with progress, contextlib.closing(encoded):
    for unit in encoded:
      if journal.highest < 0:
        hashes = [h for h, size in zip(unit.hashes, unit.sentences, strict=True) if size]
        journal.lowest, journal.highest = (min(hashes), max(hashes)) if hashes else (-1, -1)
      for text_hash, sentence_lengths, tokens in encode.each_document(unit):
        journal.documents += 1
        if len(tokens):
          shards[choose_split(text_hash, config.heldout, journal)].add(sentence_lengths, tokens)
        if max(pending.tokens for pending in shards.values()) >= config.shard_tokens:
          commit(folder, tokenizer, journal, shards)
      count += len(unit.tokens)
      unknown += int(np.count_nonzero(unit.tokens['token'] == tokenizer.vocab.unk))
      progress.set_postfix_str(f'{count / (time.monotonic() - began):,.0f} tokens/s', refresh=False)
      progress.update(tally.bytes - progress.n)
  commit(folder, tokenizer, journal, shards)
  if not journal.train:
    raise sources.SourceError(f'{config.source} holds no text: none of its {journal.documents} documents has a token.')
  meta = records.Meta(
      tokenizer.vocab.size, tokenizer.hash, tuple(journal.train), tuple(journal.heldout), journal.source, tally.skipped)
  records.write_meta(folder, meta)
  (folder / JOURNAL).unlink(missing_ok=True)
  report(meta, tally, count, unknown, time.monotonic() - began, workers)
  return meta


def choose_split(text_hash: int, share: float, journal: Journal) -> records.Split:
  """By the text alone, so that copies of a document stay together.

  Of the first unit the lowest hash is always held out and the highest never: neither split is empty when there are
  two documents to share out.
  """
  if not share or text_hash == journal.highest:
    return 'train'
  return 'heldout' if text_hash == journal.lowest or text_hash < share * 2**64 else 'train'


class Pending:
  """Documents on their way to a shard."""

  def __init__(self):
    self.tokens = 0
    self._tokens: list[np.ndarray] = []
    self._lengths: list[np.ndarray] = []

  def add(self, lengths: np.ndarray, tokens: np.ndarray) -> None:
    self.tokens += len(tokens)
    self._tokens.append(tokens)
    self._lengths.append(lengths)

  def write(self, folder: epath.Path, name: str) -> records.Shard:
    lengths = np.concatenate(self._lengths)
    starts = np.empty(len(lengths), records.SENTENCE)
    starts['start'] = np.cumsum(lengths) - lengths
    starts['document'] = np.repeat(np.arange(len(self._lengths)), [len(sizes) for sizes in self._lengths])
    return records.write_shard(folder, name, np.concatenate(self._tokens), starts)


def commit(folder: epath.Path, tokenizer: tokenizers.Tokenizer, journal: Journal, shards: dict[str, Pending]) -> None:
  """Writes what is pending of both splits, then the journal: before it, the shards do not count."""
  if not any(pending.tokens for pending in shards.values()):
    return
  if not journal.train and not journal.heldout:
    tokenizer.save(folder / 'tokenizer')  # not earlier: a source without text leaves nothing behind
  for split, pending in shards.items():
    if pending.tokens:
      done = getattr(journal, split)
      done.append(pending.write(folder, f'{split}-{len(done):05d}'))
      shards[split] = Pending()
  draft = folder / f'{JOURNAL}.tmp'
  draft.write_text(json.dumps(dataclasses.asdict(journal), indent=1))
  draft.replace(folder / JOURNAL)


def read_journal(folder: epath.Path) -> Journal | None:
  if not (folder / JOURNAL).exists():
    return None
  fields = json.loads((folder / JOURNAL).read_text())
  for split in ('train', 'heldout'):
    fields[split] = [records.Shard(**shard) for shard in fields[split]]
  return Journal(**fields)


def train_tokenizer(config: PrepareConfig) -> tokenizers.Tokenizer:
  """On every n-th document, so that the sample is spread over the source and always the same."""
  if config.kind == 'bytes':
    return tokenizers.Bytes()
  every = max(1, sources.characters(config.source) // config.sample)
  began = time.monotonic()
  documents = itertools.islice(sources.documents(config.source, config.on_error), 0, None, every)
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


def first_characters(documents: Iterable[sources.Document], limit: int) -> Iterator[str]:
  length = 0
  for document in documents:
    for paragraph in document.paragraphs:
      yield paragraph
      length += len(paragraph)
      if length >= limit:
        return


def fingerprint(config: PrepareConfig, tokenizer: tokenizers.Tokenizer | None) -> str:
  """sha256 hex of everything that decides the bytes of the records."""
  settings = dataclasses.asdict(config)
  del settings['workers']
  if config.segmenter == 'none':
    del settings['segmenter']  # records from before there were segmenters are the same
  if not config.newlines:
    del settings['newlines']
  if config.sentinels == 100:
    del settings['sentinels']
  if tokenizer:
    for field in ('kind', 'vocab', 'lowercase', 'layout', 'sample', 'sentinels'):
      settings.pop(field, None)
    settings['tokenizer'] = tokenizer.hash
  settings['source'] = sources.fingerprint(config.source)
  return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def refuse_other(folder: epath.Path, found: str, expected: str) -> None:
  if found != expected:
    raise records.RecordsError(
        f'{folder} holds records of another source, or made with other settings (fingerprint {found[:12]}, expected '
        f'{expected[:12]}). Choose another folder, or delete this one.')


@contextlib.contextmanager
def disk_errors(folder: epath.Path) -> Iterator[None]:
  """A full disk becomes a clear error; drafts of files do not stay behind, whatever happens."""
  try:
    yield
  except OSError as error:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
      raise
    raise records.RecordsError(
        f'no space left for {folder} ({error}). What is there is whole: make room, and the same command continues.'
    ) from error
  finally:
    if folder.exists():
      for draft in [*folder.glob('*.tmp'), *folder.glob('tokenizer/*.tmp')]:
        draft.unlink()


def report(
    meta: records.Meta, tally: sources.Tally, count: int, unknown: int, seconds: float, workers: int) -> None:
  """Says what was made, and what was left out and why."""
  for split in ('train', 'heldout'):
    shards = meta.shards(split)
    print(f'{split}: {sum(s.documents for s in shards):,} documents, {sum(s.sentences for s in shards):,} sentences, '
          f'{meta.tokens(split):,} tokens in {len(shards)} shards')
  rate = count / max(seconds, 1e-9)
  print(f'{seconds:.1f} s, {rate:,.0f} tokens/s, {rate / workers:,.0f} a worker ({workers})')
  if tally.cut:
    log.warning('%d documents of over %d characters were cut: do blank lines separate the documents?', tally.cut,
                sources.MAX_DOCUMENT)
  if tally.skipped:
    more = f'\n  and {tally.skipped - len(tally.examples)} more' if tally.skipped > len(tally.examples) else ''
    log.warning('%d lines were left out:\n  %s%s', tally.skipped, '\n  '.join(tally.examples), more)
  if unknown > 0.01 * count:
    log.warning('%.1f%% of the tokens are unknown to the tokenizer: is it made for this text?', 100 * unknown / count)


JOURNAL = 'journal.json'
WORTH_A_WORKER = 1 << 24  # bytes on disk; below, starting another process costs more than it saves
