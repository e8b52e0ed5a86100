"""prepare, in parallel: the same records, byte for byte, by stages that many machines work on in any order.

    read_part      a part of the source -> its documents, in pieces of about PIECE characters
    encode_piece   a piece -> a file with it encoded, and one with the tokens of each document by split
    plan           the counts of all pieces, in order -> which documents are in which shard
    write_shards   the shards that begin in a piece -> written; what records.json says of them
    gather         what is known of pieces and shards -> two small files for who has launched all this

Where a shard ends depends on all that is before it, so counts go through one worker, in order: two numbers
a document, read a few pieces at a time. Text and tokens never meet in one place. What a stage has to be, and what works
on it, is in `stages`.
"""
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import functools
import hashlib
import itertools
import time
from typing import NamedTuple

from etils import epath
import numpy as np

from plm_jax import storage, tokenizers
from plm_jax.data import encode, ending, heldout, lines, records, sources, stages
from plm_jax.data import journal as journal_lib
from plm_jax.data.cutting import Rule
from plm_jax.data.heldout import Bounds
from plm_jax.data.journal import Journal
from plm_jax.data.lines import SourceError
from plm_jax.data.records import RecordsError
from plm_jax.data.settings import PrepareConfig
from plm_jax.data.stages import Key, Read, Run, Runner, Text, ahead, load, stem, store
from plm_jax.storage import lock

PIECE = 1 << 23  # characters; a worker has a few pieces in memory
FORMAT = 1  # raise it when pieces are cut or stored in another way: those of before are then made again


@dataclasses.dataclass(frozen=True)
class Work:
  """What every stage knows."""

  config: PrepareConfig
  folder: epath.Path
  pieces: epath.Path  # folder for what is between the stages, and for the tokenizer
  bounds: Bounds
  rules: tuple[Rule, ...]
  characters: int  # of a piece


class Piece(NamedTuple):
  """A piece that is encoded."""

  key: Key
  documents: int
  tokens: int
  unknown: int
  empty: list[str]  # where examples begin that are left out


class Cut(NamedTuple):
  """Documents that are shards: one of each split that they are of."""

  shards: list[tuple[records.Split, int]]  # split, number
  stretches: list[tuple[Key, int, int]]  # a piece, its first document, the one behind the last


class Written(NamedTuple):
  """A shard that is written."""

  split: records.Split
  number: int
  shard: records.Shard
  windows: list[tuple[int, int]]  # by rule: `Rule.count`


def write(run: Run, config: PrepareConfig, folder: epath.Path, tokenizer: tokenizers.Tokenizer, journal: Journal,
          held: lock.Lock, rules: Sequence[Rule]) -> records.Meta:
  """Prepares as `prepare.write` does, with workers that `run` has. Pieces that an interrupted one has left are not
  encoded again.

  Raises SourceError for damaged text, RecordsError for a folder that the workers do not see.
  """
  seen = ending.Seen(lines.Tally(), time.monotonic())
  name = repr((FORMAT, journal.source, tokenizer.hash, PIECE))
  pieces = folder / f'{ending.PIECES}{hashlib.sha256(name.encode()).hexdigest()[:16]}'
  tokenizer.save(pieces / 'tokenizer')
  work = Work(config, folder, pieces, bounds_of(config, tokenizer), tuple(rules), PIECE)
  (pieces / journal_lib.NAME).unlink(missing_ok=True)
  run(functools.partial(describe, work))
  held.check()
  done = journal_lib.read(pieces)
  if not isinstance(done, Journal):
    raise RecordsError(f'the workers have left nothing in {folder}, expected a folder that all of them see, as one '
                       'in a bucket')
  found = storage.read_json(pieces / SEEN)
  if found['problem'] or not done.train:  # which leaves nothing behind
    pieces.rmtree()
  else:
    tokenizer.save(folder / 'tokenizer')
  if found['problem']:
    raise SourceError(found['problem'])
  done.source = journal.source
  seen.tally, seen.tokens, seen.unknown = lines.Tally(**found['tally']), found['tokens'], found['unknown']
  return ending.end(config, folder, tokenizer, done, rules, seen)


def describe(work: Work, runner: Runner) -> None:
  """Describes the stages."""
  cut = functools.partial(encode.units, characters=work.characters)
  read = stages.read(runner, work.config.source, work.config.reading, cut)
  encoded = runner.each(functools.partial(encode_piece, work), read)
  written = runner.each(functools.partial(write_shards, work), runner.together(functools.partial(plan, work), encoded))
  runner.together(functools.partial(gather, work), encoded, written)


def bounds_of(config: PrepareConfig, tokenizer: tokenizers.Tokenizer) -> Bounds:
  """Settles which documents are trained on and held out in any case: by the first units, as `prepare.write` has
  them."""
  bounds = Bounds()
  for unit in encode.units(sources.documents(config.source, config.reading)) if config.heldout else ():
    bounds = heldout.settle(bounds, encode.encode(encode.texts(unit), tokenizer, *config.encoding), config.least)
    if bounds.lowest >= 0:
      break
  return bounds


def encode_piece(work: Work, item: Text | Read) -> Iterator[Piece | Read]:
  """Encodes a piece, and stores it. What was seen of a part goes by."""
  if isinstance(item, Read):
    yield item
    return
  counted = stem(work.pieces, item.key, '.counts.npz')
  with storage.explained(counted, 'read', RecordsError):
    done = counted.exists()
  if not done:
    tokenizer = tokenizer_of(work.pieces)
    unit = encode.encode(item.texts, tokenizer, *work.config.encoding)
    counts = np.zeros((len(unit.hashes), len(records.SPLITS)), '<u4')
    for row, (text_hash, lengths, tokens) in zip(counts, encode.each_document(unit), strict=True):
      if len(lengths) >= work.config.least:
        row[records.SPLITS.index(heldout.choose_split(text_hash, work.config.heldout, work.bounds))] = len(tokens)
    unknown = np.count_nonzero(unit.tokens['token'] == tokenizer.vocab.unk)
    store(stem(work.pieces, item.key, '.npz'), tokens=unit.tokens, lengths=unit.lengths, sentences=unit.sentences)
    store(counted, counts=counts, seen=np.array([len(unit.tokens), unknown]))
  found = load(counted)
  left_out = found['counts'].sum(1) == 0
  empty = [item.places[n] for n in np.flatnonzero(left_out)] if work.config.pairs else []
  tokens, unknown = map(int, found['seen'])
  yield Piece(item.key, len(item.texts), tokens, unknown, empty)


def plan(work: Work, encoded: Iterable[Piece | Read]) -> Iterator[list[Cut]]:
  """Shares out the documents to shards -> those that begin in the same piece, together; none where text is damaged."""
  encoded = list(encoded)
  if any(item.problem for item in encoded if isinstance(item, Read)):
    return
  keys = sorted(item.key for item in encoded if isinstance(item, Piece))
  counts = ahead(lambda key: load(stem(work.pieces, key, '.counts.npz'))['counts'], keys)
  found = cuts(zip(keys, counts, strict=True), work.config.shard_tokens)
  for _, together in itertools.groupby(found, lambda cut: cut.stretches[0][0]):
    yield list(together)


def cuts(counts: Iterable[tuple[Key, np.ndarray]], shard_tokens: int) -> Iterator[Cut]:
  """Cuts pieces, each with the tokens [D, splits] of its documents: behind every document with which a split has
  `shard_tokens` since the last cut."""
  numbers = [0] * len(records.SPLITS)
  pending, stretches = np.zeros(len(numbers), np.int64), []

  def cut() -> Cut:
    nonlocal pending, stretches
    made = Cut([], stretches)
    for n in np.flatnonzero(pending):
      made.shards.append((records.SPLITS[n], numbers[n]))
      numbers[n] += 1
    pending, stretches = np.zeros_like(pending), []
    return made

  for key, tokens in counts:
    before = np.concatenate([np.zeros((1, len(numbers)), np.int64), np.cumsum(tokens, 0, np.int64)])
    first = 0
    while first < len(tokens):
      wanted = before[first] + shard_tokens - pending
      last = min(int(np.searchsorted(before[:, n], wanted[n])) for n in range(len(numbers)))
      stop = min(last, len(tokens))
      pending += before[stop] - before[first]
      stretches.append((key, first, stop))
      first = stop
      if last <= len(tokens):
        yield cut()
  if pending.any():
    yield cut()


def write_shards(work: Work, some: list[Cut]) -> Iterator[Written]:
  """Writes the shards of some cuts in a row."""
  opened = functools.lru_cache(1)(functools.partial(open_piece, work))  # shards may be smaller than a piece
  for cut in some:
    shards = {split: journal_lib.Pending() for split in records.SPLITS}
    for key, first, stop in cut.stretches:
      unit, counts = opened(key)
      documents = zip(encode.each_document(unit), counts, strict=True)
      for (_, lengths, tokens), row in itertools.islice(documents, first, stop):
        for n in np.flatnonzero(row):
          shards[records.SPLITS[n]].add(lengths, tokens)
    for split, number in cut.shards:
      shard, sentences = shards[split].write(work.folder, journal_lib.shard_name(split, number))
      yield Written(split, number, shard, [rule.count(sentences, shard) for rule in work.rules])


def gather(work: Work, encoded: Iterable[Piece | Read], written: Iterable[Written]) -> Iterator[None]:
  """Stores what `ending.end` asks for: a journal, last, and what was seen. Yields nothing."""
  encoded = list(encoded)
  pieces = sorted(item for item in encoded if isinstance(item, Piece))
  read = sorted((item for item in encoded if isinstance(item, Read)), key=lambda item: item.part)
  empty = [place for piece in pieces for place in piece.empty]
  tally = lines.Tally(
      sum(part.tally.bytes for part in read), sum(part.tally.skipped for part in read),
      [*(example for part in read for example in part.tally.examples), *map(ending.EMPTY.format, empty)][:10],
      sum(part.tally.cut for part in read), [file for part in read for file in part.tally.lined])
  done = Journal('', documents=sum(piece.documents for piece in pieces), empty=len(empty))
  for one in sorted(written, key=lambda one: one.number):
    done.shards(one.split).append(one.shard)
    for rule, count in zip(work.rules, one.windows, strict=True):
      done.windows.setdefault(f'{one.split}-{rule}', []).append(count)
  storage.write_json(work.pieces / SEEN, {
      'problem': next((part.problem for part in read if part.problem), ''), 'tally': dataclasses.asdict(tally),
      'tokens': sum(piece.tokens for piece in pieces), 'unknown': sum(piece.unknown for piece in pieces)}, RecordsError)
  journal_lib.write(work.pieces, done)
  yield from ()


def open_piece(work: Work, key: Key) -> tuple[encode.Encoded, np.ndarray]:
  """Reads a piece -> it, without hashes, and the tokens [D, splits] of its documents."""
  found, counts = load(stem(work.pieces, key, '.npz')), load(stem(work.pieces, key, '.counts.npz'))['counts']
  return encode.Encoded(found['tokens'], found['lengths'], found['sentences'], [0] * len(counts)), counts


@functools.lru_cache(1)
def tokenizer_of(pieces: epath.Path) -> tokenizers.Tokenizer:
  """Loads the tokenizer, once a process."""
  return tokenizers.load(pieces / 'tokenizer')


SEEN = 'seen.json'
