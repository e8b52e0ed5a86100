"""Continues texts, or answers them: what a model of language has learned, in its own words."""
from collections.abc import Iterator, Sequence
import dataclasses
import itertools
from typing import Any, Literal, NamedTuple

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.config import ConfigError
from plm_jax.data.windows import Windows
from plm_jax.inference import blanks, engine, search
from plm_jax.inference.decoder import DecoderSteps
from plm_jax.inference.encoder_decoder import EncoderDecoderSteps
from plm_jax.inference.loading import Trained
from plm_jax.inference.prompts import check
from plm_jax.inference.rereading import RereadingSteps
from plm_jax.inference.samples import Sample
from plm_jax.inference.search import GenerationConfig, Ids
from plm_jax.objectives.clm import boundaries
from plm_jax.objectives.glm import end_of_text
from plm_jax.objectives.seq2seq import SequenceToSequence, delimiters
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import Vocab
from plm_jax.tokenizers.wordpiece import CHINESE
from plm_jax.training.checkpoint import CheckpointError

UNKNOWN = '\ufffd'  # what a tokenizer makes of bytes that are no character, or not yet


Prompt = str | Sequence[int]  # text, or its ids without special tokens
Ended = Literal['end', 'stop', 'length', '']  # by the token that ends a text, a stop sequence, at max_new; or not yet


class Piece(NamedTuple):
  """What one more token adds to a row."""

  text: str
  ended: Ended


@dataclasses.dataclass(frozen=True)
class Continuation:
  """What follows a prompt."""

  text: str
  """without the prompt, and up to the stop sequence"""
  tokens: tuple[int, ...]
  """all that were chosen, an end or a stop sequence among them"""
  ended: Ended
  """by what"""
  score: float | None = None
  """of a beam"""


def generate(
    trained: Trained, prompts: Sequence[Prompt], config: GenerationConfig = GenerationConfig(), seed: int = 0,
) -> list[list[Continuation]]:
  """Writes for each prompt config.number continuations, or of an encoder-decoder what it writes having read the prompt.
  Prompts of any lengths go through the model together.

  Raises CheckpointError for a model without the language-modelling head or a tokenizer, ConfigError for a prompt that
  is too long for the model, or empty where the tokenizer has no token that begins a text.
  """
  if config.beams > 1:
    return by_beams(trained, prompts, config)
  # The stop sequences are looked for in the text, which the device does not know: so it is asked now and then.
  *_, last = continuations(trained, prompts, config, seed, 16 if config.stop else config.max_new)
  return [last[i:i + config.number] for i in range(0, len(last), config.number)]


def stream(
    trained: Trained, prompts: Sequence[Prompt], config: GenerationConfig = GenerationConfig(), seed: int = 0,
) -> Iterator[list[Piece]]:
  """Yields token by token what is new in each row (config.number of a prompt, prompts in order): together the texts of
  `generate`. Nothing is given that may yet change: neither half a character nor the beginning of a stop sequence.

  Raises what `generate` does, and ConfigError for beams.
  """
  if config.beams > 1:
    raise ConfigError('beams are compared when they have ended: they cannot be streamed')
  given = [''] * len(prompts) * config.number
  for rows in continuations(trained, prompts, config, seed, chunk=1):
    texts = [row.text if row.ended else stable_prefix(row.text, config.stop) for row in rows]
    yield [Piece(text[len(before):], row.ended) for text, before, row in zip(texts, given, rows, strict=True)]
    given = texts


def examples(trained: Trained, prompts: Sequence[str], folder: epath.Path, seed: int = 0, number: int = 4,
             ) -> list[Sample]:
  """Shows how the prompts, and beginnings of held-out texts of the records in `folder`, go on; for the report.

  None for a model that fills blanks (GLM). An encoder-decoder answers the prompts alone.
  """
  if trained.model.kind == 'infilling':
    return []
  room = trained.model.max_length or 256
  beginning, new = min(24, room // 4), min(96, room // 2)
  asked: list[tuple[str, str | None]] = [(prompt, None) for prompt in prompts]
  if continues(trained):
    asked += heldout_beginnings(trained, folder, beginning, new, number)
  config = GenerationConfig(new, temperature=1.0, top_p=0.95)
  found = generate(trained, [prompt for prompt, _ in asked], config, seed) if asked else []
  return [Sample(prompt, continuation.text, truth)
          for (prompt, truth), (continuation,) in zip(asked, found, strict=True)]


def answered(trained: Trained, objective: SequenceToSequence, windows: Windows, number: int = 4) -> list[Sample]:
  """Shows what an encoder-decoder writes for held-out text as its objective gives it to read; for the report."""
  tokenizer: Any = trained.tokenizer
  places = np.unique(np.linspace(0, len(windows) - 1, number).astype(np.int64))
  batch = jax.jit(lambda rows: objective.corrupt(jax.random.key(0), rows, tokenizer.vocab))(windows.read(places))
  between = {*delimiters(tokenizer.vocab)[0], *delimiters(tokenizer.vocab)[1]}
  def texts(tokens, segments):  # the first of each row
    rows = zip(np.asarray(batch[tokens]), np.asarray(batch[segments]), strict=True)
    return [[i for i in row[of == 1].tolist() if i not in between] for row, of in rows]
  asked, truths = texts('tokens', 'segments'), texts('labels', 'decoder_segments')
  room = objective.predictions(batch['tokens'].shape[1])
  found = generate(trained, asked, GenerationConfig(min(64, room - 1)))
  return [Sample(*(with_blanks(tokenizer, ids) for ids in (read, some[0].tokens, truth)))
          for read, some, truth in zip(asked, found, truths, strict=True)]


def with_blanks(tokenizer: Any, ids: Sequence[int]) -> str:
  """Decodes a text in which masks and sentinels can be seen, which `decode` leaves out."""
  def blank(i):
    return i == tokenizer.vocab.mask or '<extra_id_' in tokenizer.pieces[i]
  parts = (map(tokenizer.pieces.__getitem__, some) if seen else [tokenizer.decode(list(some))]
           for seen, some in itertools.groupby(plain(tokenizer.vocab, ids), blank))
  return ' '.join(part.strip('▁ ') for some in parts for part in some)


def continues(trained: Trained) -> bool:
  """Tells whether what is written goes on from the prompt; else it answers it."""
  return trained.model.kind != 'encoder-decoder'


def continuations(
    trained: Trained, prompts: Sequence[Prompt], config: GenerationConfig, seed: int, chunk: int,
) -> Iterator[list[Continuation]]:
  """Yields all rows, after the first token and then after every `chunk` tokens."""
  steps, ids, params, batch, given = prepare(trained, prompts, config)
  given = [prompt for prompt in given for _ in range(config.number)]
  rows: list[Continuation] = [Continuation('', (), '')] * len(given)
  until = 1
  state = engine.initial_state(steps, of_ids(config), ids, params, batch, engine.seed_of(seed))
  while True:
    found = search.result(config, state.search)
    tokens, lengths, going = (np.asarray(x) for x in (found['tokens'], found['lengths'], state.search['going']))
    tokens, lengths = tokens.reshape(len(given), -1), lengths.reshape(-1)
    rows = [row if row.ended else read(trained.tokenizer, given[i], tokens[i, :lengths[i]].tolist(), config, going[i])
            for i, row in enumerate(rows)]
    yield rows
    if all(row.ended for row in rows):
      return
    state.search['going'] = jnp.asarray([not row.ended for row in rows])
    until += chunk
    state = engine.advance(steps, of_ids(config), ids, params, state, until)


def by_beams(trained: Trained, prompts: Sequence[Prompt], config: GenerationConfig) -> list[list[Continuation]]:
  """Searches with beams: the best continuations of each prompt, with their scores."""
  steps, ids, params, batch, given = prepare(trained, prompts, config)
  found = {name: np.asarray(x) for name, x in engine.run(steps, params, batch, of_ids(config), ids).items()}
  def row(prompt, tokens, length, score):
    whole = read(trained.tokenizer, prompt, tokens[:length].tolist(), config, going=False)
    return dataclasses.replace(whole, score=float(score))
  return [[row(prompt, *one) for one in zip(*of_prompt, strict=True)] for prompt, *of_prompt in zip(
      given, found['tokens'], found['lengths'], found['scores'], strict=True)]


def prepare(trained: Trained, prompts: Sequence[Prompt], config: GenerationConfig):
  """Prepares prompts -> (steps, ids, parameters, batch, the ids of each prompt). Raises as `generate`."""
  model, tokenizer = trained.model, trained.tokenizer
  if not trained.writer or not tokenizer:
    lacking = 'tokenizer' if trained.writer else 'language-modelling head'
    raise CheckpointError(f'the model has no {lacking}: text cannot be generated without it')
  check([prompt if isinstance(prompt, str) else '' for prompt in prompts])
  if max(config.forced_first, config.forced_last) >= model.vocab:
    raise ConfigError(f'forced_first and forced_last are ids below {model.vocab:,}, got {config.forced_first} and '
                      f'{config.forced_last}')
  if model.kind == 'infilling':  # a GLM goes on in a blank at the end
    texts = [blanks.continuation(trained, prompt if isinstance(prompt, str) else tokenizer.decode(prompt))
             for prompt in prompts]
    return *blanks.prepare(trained, texts, config), [text.ids for text in texts]
  if not continues(trained):
    return prepare_sources(trained, tokenizer, prompts, config)
  given = [encode(tokenizer, prompt, config.start) for prompt in prompts]
  longest = max(map(len, given))
  if model.max_length and longest + config.max_new > model.max_length:
    raise ConfigError(f'the longest prompt has {longest} tokens, and {config.max_new} are to follow: the model takes '
                      f'{model.max_length} in all. Shorten the prompt or lower max_new')
  tokens, segments = padded(given, engine.bucket(longest, model.max_length), tokenizer.vocab, front=True)
  head = trained.heads[trained.writer]
  steps = RereadingSteps(model, head) if model.kind == 'encoder' else DecoderSteps(model, head)
  batch = {'tokens': tokens, 'segments': segments}
  return steps, answers(tokenizer.vocab, model.vocab), steps.load(trained.params), batch, given


def prepare_sources(trained: Trained, tokenizer: Tokenizer, prompts: Sequence[Prompt], config: GenerationConfig):
  """Prepares as `prepare` does for an encoder-decoder: the encoder reads the prompts, and the decoder has said nothing
  yet."""
  model = trained.model
  try:
    before, behind, start = delimiters(tokenizer.vocab)
  except ValueError as error:
    raise ConfigError(str(error)) from error
  sources = [[*before, *ids_of(tokenizer, prompt, specials=True), *behind] for prompt in prompts]
  longest = max(map(len, sources))
  if model.max_length and max(longest, 1 + config.max_new) > model.max_length:
    raise ConfigError(f'the longest prompt has {longest} tokens, and {config.max_new} are to be written: the model '
                      f'takes {model.max_length} of each. Shorten the prompt or lower max_new')
  source, source_segments = padded(sources, engine.bucket(longest, model.max_length), tokenizer.vocab)
  tokens = jnp.full((len(prompts), 1), start, jnp.int32)
  batch = {'tokens': tokens, 'segments': jnp.ones_like(tokens), 'source': source, 'source_segments': source_segments}
  steps = EncoderDecoderSteps(model, trained.heads['lm'])
  return (steps, answers(tokenizer.vocab, model.vocab), steps.load(trained.params), batch,
          [[] for _ in prompts])


def padded(rows: Sequence[Sequence[int]], length: int, vocab: Vocab, front: bool = False):
  """Pads rows -> tokens, segments [B, length], with padding behind, or in front."""
  tokens = np.full((len(rows), length), max(vocab.pad, 0), np.int32)
  segments = np.zeros_like(tokens)
  for row, some in enumerate(rows):
    begin = (length - len(some)) * front
    tokens[row, begin:begin + len(some)], segments[row, begin:begin + len(some)] = some, 1
  return jnp.asarray(tokens), jnp.asarray(segments)


def answers(vocab: Vocab, rows: int) -> Ids:
  """Returns the ids that an answer can have. rows: of the model's table."""
  end = ends(vocab)
  return Ids(min(vocab.size, rows), end, max(vocab.pad, *end, 0))


def of_ids(config: GenerationConfig) -> GenerationConfig:
  """Returns the options without what is done with the text alone: other stop sequences are no reason to compile
  anew."""
  return dataclasses.replace(config, stop=(), start=True)


def ids_of(tokenizer: Tokenizer, prompt: Prompt, specials: bool = False) -> list[int]:
  """Returns the ids of a prompt that is a text, or that is ids already."""
  return tokenizer.encode(prompt, specials) if isinstance(prompt, str) else list(prompt)


def encode(tokenizer: Tokenizer, prompt: Prompt, start: bool) -> list[int]:
  """Encodes a prompt, behind the start of a text where it is wanted or nothing else is there. Raises ConfigError for an
  empty one without."""
  try:
    first = [boundaries(tokenizer.vocab)[0]]
  except ValueError:
    first = []
  ids = ids_of(tokenizer, prompt)
  if not ids and not first:
    raise ConfigError('the prompt is empty, and the tokenizer has no token that begins a text: give a prompt')
  return first + ids if start or not ids else ids


def ends(vocab: Vocab) -> tuple[int, ...]:
  """Returns the ids that end a text, none where the tokenizer has no such."""
  of_blank = (vocab.eop, end_of_text(vocab)) if vocab.eop >= 0 else ()
  try:
    return *boundaries(vocab)[1:], *of_blank
  except ValueError:
    return of_blank


def read(
    tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int], config: GenerationConfig, going: bool,
) -> Continuation:
  """Decodes ids, up to the first stop sequence."""
  ended = bool(set(tokens[-1:]) & set(ends(tokenizer.vocab)))
  # A tokenizer may leave out the space before a text: the prompt keeps it.
  before, whole = (tokenizer.decode(plain(tokenizer.vocab, some)) for some in (prompt, [*prompt, *tokens]))
  text = whole[len(before):]
  places = [place for stop in config.stop if (place := text.find(stop)) >= 0]
  if places:
    return Continuation(text[:min(places)], tuple(tokens), 'stop')
  return Continuation(text, tuple(tokens), 'end' if ended else '' if going else 'length')


def plain(vocab: Vocab, ids: Sequence[int]) -> list[int]:
  """Drops the tokens that stand between texts."""
  between = {vocab.bos, vocab.eos, vocab.cls, vocab.sep, vocab.pad, vocab.eop, vocab.gmask}
  return [i for i in ids if i not in between]


def stable_prefix(text: str, stops: Sequence[str]) -> str:
  """Returns the part of a text that is the same whatever follows."""
  text = text.rstrip(UNKNOWN)
  held = max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)
  return text[:len(text) - held]


def heldout_beginnings(trained: Trained, folder: epath.PathLike, beginning: int, new: int, number: int):
  """Draws (text of so many tokens, what follows it) from the held-out split."""
  tokenizer: Any = trained.tokenizer
  windows = Windows(folder, 'heldout', beginning + new, 'document')
  if not len(windows):
    return []
  # More than are shown: some cannot be divided.
  read = windows.read(np.unique(np.linspace(0, len(windows) - 1, 4 * number).astype(np.int64)))
  rows = [tokens[segments > 0] for tokens, segments in zip(read['tokens'], read['segments'], strict=True)]
  letters = [piece == '▁' or piece.strip('▁')[:1].isalnum() for piece in tokenizer.pieces]
  # Between Chinese pieces there are no spaces that would tell words.
  chinese = np.array([bool(CHINESE.match(piece.lstrip('▁'))) for piece in tokenizer.pieces])
  cut = [divided((tokenizer.starts_word & letters | chinese)[row], beginning) for row in rows]
  found = [(tokenizer.decode(row[begin:end]), tokenizer.decode(row[end:]))
           for row, (begin, end) in zip(rows, cut, strict=True) if begin < end < len(row)]
  return [found[place] for place in np.unique(np.linspace(0, len(found) - 1, min(number, len(found))).astype(int))]


def divided(starts: np.ndarray, beginning: int) -> tuple[int, int]:
  """Finds, of bool [L], True where a word starts, where the first one does, and the last behind it within `beginning`
  tokens, so that neither a prompt nor what follows it begins inside a word; twice the same where there is none."""
  places = np.flatnonzero(starts)
  places = places[places <= places[:1].sum() + beginning]
  return (int(places[0]), int(places[-1])) if len(places) else (0, 0)
