"""prepare: documents -> token records, once, before training.

One process reads documents, in units of about a million characters; workers split them into sentences and encode them;
the first process takes the results in order and writes shards. Every decision depends on the documents alone, so the
number of workers and where a run was killed leave no trace in the files. A journal is kept beside the shards: the same
command continues where the last whole shard ended. Memory holds a shard and a few units, however long the text.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import time

from etils import epath
import numpy as np
import tqdm

from plm_jax import storage, tokenizers
from plm_jax.data import counts, encode, ending, formats, heldout, lines, records, segment, sources
from plm_jax.data import journal as journal_lib
from plm_jax.data.cutting import Rule
from plm_jax.data.files import EXPECTED
from plm_jax.data.journal import Journal
from plm_jax.data.lines import SourceError
from plm_jax.data.settings import PrepareConfig
from plm_jax.errors import option
from plm_jax.storage import lock


def prepare(config: PrepareConfig, folder: epath.PathLike, rules: Sequence[Rule] = (),
            writing: Callable[..., records.Meta] | None = None) -> records.Meta:
  """Writes the records of `config.source` to `folder`, or continues, or finds them finished.

  rules: how runs will cut the text: its windows are counted by the way, and no run has to. What the records are does
  not depend on them; a rule that is for text of another kind is left out. writing: what does the work, by default
  `write`, which does it on this machine.

  Of several that are asked for the same folder at once, one works and the others wait for it. Raises SourceError for
  text that is missing, empty or (unless skipped) damaged, TokenizerError for a tokenizer that cannot be had,
  RecordsError for a folder with other records in it, StorageError for one that cannot be written, SpaceError for a full
  disk.
  """
  folder = place_of(folder, config.source)
  segment.cached(config.segmenter)  # here, not in a worker: it may not be installed
  tokenizer = tokenizers.load(config.tokenizer) if config.tokenizer else None
  source = fingerprint(config, tokenizer)
  counted = ('examples', 'pairs') if config.source.startswith(sources.TASK) else ('document', 'sentences')
  rules = [rule for rule in rules if rule.assembly in counted]
  meta = existing_records(config, folder, tokenizer, source) or make(
      config, folder, tokenizer, source, functools.partial(writing or write, rules=rules))
  counts.complete(folder, meta, rules)
  return meta


def make(config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer | None, source: str,
         writing: Callable[..., records.Meta]) -> records.Meta:
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
      return writing(config, folder, *open_journal(config, folder, tokenizer, source), held)
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
  workers = min(config.workers or os.cpu_count() or 1, 1 + (total or 1 << 62) // WORTH_A_WORKER)
  seen = ending.Seen(tally, began, workers=workers)
  encoded = encode.encode_all(encode.units(read), tokenizer, *config.encoding, workers)
  progress = tqdm.tqdm(total=total, unit='B', unit_scale=True, desc='prepare', disable=None)  # None: not in a log file
  with progress, contextlib.closing(encoded):
    for places, unit in encoded:
      journal.bounds = heldout.settle(journal.bounds, unit, config.least)
      for where, (text_hash, sentence_lengths, tokens) in zip(places, encode.each_document(unit), strict=True):
        journal.documents += 1
        if len(sentence_lengths) >= config.least:
          shards[heldout.choose_split(text_hash, config.heldout, journal.bounds)].add(sentence_lengths, tokens)
        elif config.pairs:
          journal.empty += 1
          tally.example(ending.EMPTY.format(where))
        if max(pending.tokens for pending in shards.values()) >= config.shard_tokens:
          held.check()
          journal_lib.commit(folder, tokenizer, journal, shards, rules)
      seen.tokens += len(unit.tokens)
      seen.unknown += int(np.count_nonzero(unit.tokens['token'] == tokenizer.vocab.unk))
      progress.set_postfix_str(f'{seen.tokens / (time.monotonic() - began):,.0f} tokens/s', refresh=False)
      progress.update(tally.bytes - progress.n)
  held.check()
  journal_lib.commit(folder, tokenizer, journal, shards, rules)
  return ending.end(config, folder, tokenizer, journal, rules, seen)


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
  elif config.layout in ('mbart', 'mbart50', 'xlm-r'):
    tokenizer = tokenizers.train_languages(texts, config.vocab, layout=config.layout)
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
  else:
    settings['segmenter'] = segment.identity(config.segmenter)
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


WORTH_A_WORKER = 1 << 24  # bytes on disk; below, starting another process costs more than it saves
