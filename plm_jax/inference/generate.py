"""Text generation: continuations of prompts, or the outputs of an encoder-decoder."""
from collections.abc import Iterator, Sequence
import dataclasses
import itertools
from typing import Any, Literal, NamedTuple

from etils import epath
import jax
import numpy as np

from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.data.records import read_meta
from plm_jax.data.windows import Windows
from plm_jax.errors import ConfigError, name_field
from plm_jax.inference import engine, glm_infill, search, unmasking
from plm_jax.inference.decoder_steps import DecoderSteps, EncoderDecoderSteps
from plm_jax.inference.encoder_steps import EncoderSteps
from plm_jax.inference.prompts import (
  Prompt,
  check_text_prompts,
  encode_hole,
  encode_prompt,
  pad_rows,
  prompt_ids,
)
from plm_jax.inference.samples import GenerationSample
from plm_jax.inference.search import OutputVocab
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives.seq2seq import SequenceToSequence
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import Vocab, boundary_ids, delimiters, end_of_text_id
from plm_jax.unicode_words import UNSPACED_LETTER

REPLACEMENT_CHARACTER = '\ufffd'
"""what tokenizers decode bytes to that are not, or not yet, a complete character"""

FinishReason = Literal['end', 'stop', 'length', '']
"""why a text ended: an end token, a stop sequence, max_new tokens; '': it has not ended"""


class TextDelta(NamedTuple):
  """The text that one more token adds to a sequence."""

  text: str
  ended: FinishReason


@dataclasses.dataclass(frozen=True)
class Continuation:
  """A generated text."""

  text: str
  """without the prompt, up to the stop sequence"""
  tokens: tuple[int, ...]
  """all generated ids, including an end token or a stop sequence"""
  ended: FinishReason
  """why the text ended"""
  score: float | None = None
  """score of a beam; None without beam search"""


def generate(
    trained: LoadedModel, prompts: Sequence[Prompt], config: GenerationConfig = GenerationConfig(),
    seed: int = 0,
) -> list[list[Continuation]]:
  """Generate config.number texts for each prompt: continuations, or outputs of an encoder-decoder.

  Prompts of different lengths go through the model together. A masked language model generates by
  iterative unmasking.

  Raises:
    CheckpointError: the model has no language modeling head or no tokenizer.
    ConfigError: a prompt is too long for the model, or empty where the tokenizer has no
      begin-of-text token.
  """
  if unmasking.unmasks(trained, config):
    return unmask(trained, prompts, config, seed)
  if config.beams > 1:
    return beam_search(trained, prompts, config)
  # Stop sequences are found in the decoded text, on the host: check every 16 tokens.
  chunk = 16 if config.stop else config.max_new
  last = list(iterate_continuations(trained, prompts, config, seed, chunk))[-1]
  return [last[i:i + config.number] for i in range(0, len(last), config.number)]


def stream(
    trained: LoadedModel, prompts: Sequence[Prompt], config: GenerationConfig = GenerationConfig(),
    seed: int = 0,
) -> Iterator[list[TextDelta]]:
  """Stream generated text: yield after each token what is new in each sequence.

  There are config.number sequences per prompt, adjacent and in the order of the prompts. All pieces
  of a sequence together are the text of `generate`. Text that may still change is held back:
  incomplete characters and prefixes of stop sequences.

  Raises:
    CheckpointError, ConfigError: as for `generate`; also ConfigError for beam search.
  """
  if config.beams > 1:
    raise ConfigError('beams are compared when they have ended: they cannot be streamed')
  if unmasking.unmasks(trained, config):
    raise ConfigError('a masked language model does not generate from left to right: its text '
                      'cannot be streamed')
  sent = [''] * len(prompts) * config.number
  for rows in iterate_continuations(trained, prompts, config, seed, chunk=1):
    texts = [row.text if row.ended else stable_prefix(row.text, config.stop) for row in rows]
    yield [TextDelta(text[len(before):], row.ended)
           for row, text, before in zip(rows, texts, sent, strict=True)]
    sent = texts


def make_samples(
    trained: LoadedModel, prompts: Sequence[str], folder: epath.Path, seed: int = 0,
    number: int = 4,
) -> list[GenerationSample]:
  """Generate sample texts for the report: from the prompts, and from starts of held-out texts.

  Held-out texts are those of the records in `folder`. A model that fills blanks (GLM) has no
  samples here. An encoder-decoder reads the prompts only.
  """
  if trained.model.kind == 'infilling':
    return []
  room = trained.model.max_length or 256
  beginning, new = min(24, room // 4), min(96, room // 2)
  pairs: list[tuple[str, str | None]] = [(prompt, None) for prompt in prompts]
  if continues_prompts(trained):
    pairs += sample_heldout_beginnings(trained, folder, beginning, new, number)
  if not pairs:
    return []
  config = GenerationConfig(new, temperature=1.0, top_p=0.95)
  found = generate(trained, [prompt for prompt, _ in pairs], config, seed)
  return [GenerationSample(prompt, continuation.text, truth)
          for (prompt, truth), (continuation,) in zip(pairs, found, strict=True)]


def make_objective_samples(
    trained: LoadedModel, objective: SequenceToSequence, windows: Windows, number: int = 4,
) -> list[GenerationSample]:
  """Generate sample targets of an encoder-decoder for held-out text, corrupted by its objective."""
  tokenizer: Any = trained.tokenizer
  places = np.unique(np.linspace(0, len(windows) - 1, number).astype(np.int64))
  corrupt = jax.jit(lambda rows: objective.corrupt(jax.random.key(0), rows, tokenizer.vocab))
  batch = corrupt(windows.read(places))
  before, behind, _ = delimiters(tokenizer.vocab)
  between = {*before, *behind}

  def first_texts(tokens, segments):  # the first text of each row
    rows = zip(np.asarray(batch[tokens]), np.asarray(batch[segments]), strict=True)
    return [[i for i in row[of == 1].tolist() if i not in between] for row, of in rows]

  inputs = first_texts('tokens', 'segments')
  targets = first_texts('labels', 'decoder_segments')
  room = objective.max_predictions(batch['tokens'].shape[1])
  found = generate(trained, inputs, GenerationConfig(min(64, room - 1)))
  samples = zip(inputs, [output.tokens for (output,) in found], targets, strict=True)
  return [GenerationSample(*(decode_with_sentinels(tokenizer, ids) for ids in sample))
          for sample in samples]


def decode_with_sentinels(tokenizer: Any, ids: Sequence[int]) -> str:
  """Decode a text with its masks and sentinels visible, which `decode` leaves out."""
  vocab, parts = tokenizer.vocab, []
  between = {vocab.bos, vocab.eos, vocab.cls, vocab.sep, vocab.pad, vocab.eop, vocab.gmask}
  def is_blank(i):
    return i == vocab.mask or '<extra_id_' in tokenizer.pieces[i]
  for blank, some in itertools.groupby((i for i in ids if i not in between), is_blank):
    run = list(some)
    parts += [tokenizer.pieces[i] for i in run] if blank else [tokenizer.decode(run)]
  return ' '.join(part.strip('▁ ') for part in parts)


def continues_prompts(trained: LoadedModel) -> bool:
  """Return whether generated text continues the prompt; an encoder-decoder writes another text."""
  return trained.model.kind != 'encoder-decoder'


def iterate_continuations(
    trained: LoadedModel, prompts: Sequence[Prompt], config: GenerationConfig, seed: int,
    chunk: int,
) -> Iterator[list[Continuation]]:
  """Yield all sequences after the first token, and then after every `chunk` tokens."""
  steps, ids, params, batch, given = prepare_prompts(trained, prompts, config)
  given = list(itertools.chain.from_iterable([prompt] * config.number for prompt in given))
  rows: list[Continuation] = [Continuation('', (), '')] * len(given)
  until = 1
  seed_array = jax.device_put(engine.check_seed(seed))
  state = engine.initial_state(steps, drop_text_options(config), ids, params, batch, seed_array)
  while True:
    found = search.collect_result(config, state.search)
    tokens = np.asarray(found['tokens']).reshape(len(given), -1)
    lengths = np.asarray(found['lengths']).reshape(-1)
    going = np.asarray(state.search['going'])
    rows = list(rows)
    for i, row in enumerate(rows):
      if not row.ended:
        new = tokens[i, :lengths[i]].tolist()
        rows[i] = decode_continuation(
            trained.tokenizer, given[i], new, config, going[i], ids.end_ids)
    yield rows
    if all(row.ended for row in rows):
      return
    # Rows that end with a stop sequence are known to the host only.
    state.search['going'] = jax.device_put(np.array([not row.ended for row in rows]))
    until += chunk
    until_array = jax.device_put(np.int32(until))
    state = engine.advance(steps, drop_text_options(config), ids, params, state, until_array)


def unmask(
    trained: LoadedModel, prompts: Sequence[Prompt], config: GenerationConfig, seed: int,
) -> list[list[Continuation]]:
  """Generate with a masked language model, by iterative unmasking (`unmasking`)."""
  given, found = unmasking.generate_tokens(trained, prompts, config, seed)
  rows = zip(given, found.reshape(len(given), config.number, -1).tolist(), strict=True)
  return [[decode_continuation(trained.tokenizer, prompt, tokens, config, going=False)
           for tokens in several] for prompt, several in rows]


def beam_search(
    trained: LoadedModel, prompts: Sequence[Prompt], config: GenerationConfig,
) -> list[list[Continuation]]:
  """Generate by beam search: the best continuations of each prompt, with their scores."""
  steps, ids, params, batch, given = prepare_prompts(trained, prompts, config)
  found = engine.generate_tokens(steps, params, batch, drop_text_options(config), ids)
  tokens, lengths, scores = (np.asarray(found[name]) for name in ('tokens', 'lengths', 'scores'))
  texts = []
  for i, prompt in enumerate(given):
    beams = []
    for beam, length, score in zip(tokens[i], lengths[i], scores[i], strict=True):
      new = beam[:length].tolist()
      row = decode_continuation(trained.tokenizer, prompt, new, config, False, ids.end_ids)
      beams.append(dataclasses.replace(row, score=float(score)))
    texts.append(beams)
  return texts


def prepare_prompts(trained: LoadedModel, prompts: Sequence[Prompt], config: GenerationConfig):
  """Prepare prompts for the decoding loop. Raises as `generate`.

  Returns:
    (steps, ids of the vocabulary, parameters, batch, token ids of each prompt).
  """
  model, tokenizer = trained.model, trained.tokenizer
  if 'mlm' in trained.heads and not trained.lm_head_name:
    raise CheckpointError(
        'the model has no language model head: text cannot be generated without it. It is a masked '
        f'language model, such as BERT: {name_field("order")}=random fills masks one after '
        'another. Decoders (GPT-2, LLaMA), T5, BART and GLM generate text')
  if not trained.lm_head_name or not tokenizer:
    lacking = 'causal attention' if 'lm' in trained.heads else 'language model head'
    if trained.lm_head_name:
      lacking = 'tokenizer'
    raise CheckpointError(f'the model has no {lacking}: text cannot be generated without it')
  check_text_prompts(prompts)
  if max(config.forced_first, config.forced_last) >= model.vocab:
    raise ConfigError(f'forced_first and forced_last are ids below {model.vocab:,}, got '
                      f'{config.forced_first} and {config.forced_last}')
  if config.hole:
    if model.kind != 'decoder':
      raise ConfigError(f'{name_field("hole")} is for decoders that fill in the middle, and this '
                        'model is none: GLM and masked language models fill blanks (fill_mask)')
    prompts = [encode_hole(tokenizer, prompt, config) for prompt in prompts]
  if model.kind == 'infilling':  # a GLM continues a text in a blank at its end
    whole = [prompt if isinstance(prompt, str) else tokenizer.decode(prompt_ids(tokenizer, prompt))
             for prompt in prompts]
    texts = [glm_infill.make_continuation(trained, text) for text in whole]
    steps, ids, params, batch = glm_infill.prepare_texts(trained, texts, config)
    return steps, ids, params, batch, [text.ids for text in texts]
  if not continues_prompts(trained):
    return prepare_sources(trained, tokenizer, prompts, config)

  given = [encode_prompt(tokenizer, prompt, config.start) for prompt in prompts]
  longest = max(map(len, given))
  if model.max_length and longest + config.max_new > model.max_length:
    raise ConfigError(f'the longest prompt has {longest} tokens, and max_new is {config.max_new}: '
                      f'the model takes {model.max_length} in all. Shorten the prompt or '
                      'lower max_new')
  length = engine.padded_length(longest, model.max_length)
  tokens, segments = pad_rows(given, length, max(tokenizer.vocab.pad, 0), front=True)
  head = trained.heads[trained.lm_head_name]
  steps = (EncoderSteps if model.kind == 'encoder' else DecoderSteps)(model, head)
  batch = jax.device_put({'tokens': tokens, 'segments': segments})
  ids = output_vocab(trained, tokenizer.vocab)
  params = trained.derive_once(steps, steps.load_params)
  return steps, ids, params, batch, given


def prepare_sources(
    trained: LoadedModel, tokenizer: Tokenizer, prompts: Sequence[Prompt], config: GenerationConfig,
):
  """Prepare prompts like `prepare` for an encoder-decoder.

  The encoder reads the prompts, and the decoder starts with its start token.
  """
  model = trained.model
  before, behind, start = delimiters(tokenizer.vocab)
  if trained.generation.start_id >= 0:
    start = trained.generation.start_id
  sources = [[*before, *prompt_ids(tokenizer, prompt, specials=True), *behind]
             for prompt in prompts]
  longest = max(map(len, sources))
  if model.max_length and max(longest, 1 + config.max_new) > model.max_length:
    raise ConfigError(f'the longest prompt has {longest} tokens, and max_new is {config.max_new}: '
                      f'the model takes {model.max_length} of each. Shorten the prompt or '
                      'lower max_new')
  length = engine.padded_length(longest, model.max_length)
  source, source_segments = pad_rows(sources, length, max(tokenizer.vocab.pad, 0))
  shape = (len(prompts), 1)
  batch = jax.device_put({
      'tokens': np.full(shape, start, np.int32), 'segments': np.ones(shape, np.int32),
      'source': source, 'source_segments': source_segments})
  steps = EncoderDecoderSteps(model, trained.heads['lm'])
  ids = output_vocab(trained, tokenizer.vocab)
  params = trained.derive_once(steps, steps.load_params)
  return steps, ids, params, batch, [[] for _ in prompts]


def output_vocab(trained: LoadedModel, vocab: Vocab) -> OutputVocab:
  """Return the ids that may be generated, and those that end a text.

  The generation settings of a checkpoint take precedence over the tokenizer.
  """
  stated = trained.generation
  ends = stated.end_ids or end_ids(vocab)
  end = (*ends, vocab.fim_end) if vocab.fim_end >= 0 else ends
  pad = max(vocab.pad, *end, 0)
  return OutputVocab(min(vocab.size, trained.model.vocab), end, pad, stated.suppressed_ids)


def drop_text_options(config: GenerationConfig) -> GenerationConfig:
  """Reset the options that only the host reads, so that they do not cause another compilation."""
  return dataclasses.replace(config, stop=(), start=True, hole='', hole_order='psm')


def end_ids(vocab: Vocab) -> tuple[int, ...]:
  """Return the ids that end a text; (): the tokenizer has none."""
  blank_ends = (vocab.eop, end_of_text_id(vocab)) if vocab.eop >= 0 else ()
  try:
    return *boundary_ids(vocab)[1:], *blank_ends
  except ValueError:
    return blank_ends


def decode_continuation(
    tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int], config: GenerationConfig,
    going: bool, end: Sequence[int] = (),
) -> Continuation:
  """Decode generated ids up to the first stop sequence.

  Args:
    tokenizer: the tokenizer.
    prompt: ids of the prompt.
    tokens: generated ids.
    config: the generation options.
    going: whether more tokens may follow.
    end: ids that end a text.
  """
  tokens = tuple(tokens)
  # Decode with the prompt: a tokenizer may leave out the space before a text.
  special = {*tokenizer.vocab.specials, *end}
  plain = [i for i in prompt if i not in special]
  before = tokenizer.decode(plain)
  plain += [i for i in tokens if i not in special]
  whole = tokenizer.decode(plain)
  text = whole[len(before):]
  places = [text.find(stop) for stop in config.stop if stop in text]
  if places:
    return Continuation(text[:min(places)], tokens, 'stop')
  if tokens and tokens[-1] in end:
    return Continuation(text, tokens, 'end')
  return Continuation(text, tokens, '' if going else 'length')


def stable_prefix(text: str, stops: Sequence[str]) -> str:
  """Return the part of a text that later tokens cannot change."""
  text = text.rstrip(REPLACEMENT_CHARACTER)
  held = 0
  for stop in stops:
    for size in range(held + 1, len(stop)):
      if text.endswith(stop[:size]):
        held = size
  return text[:len(text) - held]


def sample_heldout_beginnings(
    trained: LoadedModel, folder: epath.PathLike, beginning: int, new: int, number: int,
) -> list[tuple[str, str]]:
  """Sample held-out texts of up to `beginning` + `new` tokens -> (start, continuation) of each.

  A start has at most `beginning` tokens. Without held-out text, they are of the training text.
  """
  tokenizer: Any = trained.tokenizer
  windows = Windows(folder, read_meta(folder).evaluation_split, beginning + new, 'document')
  if not len(windows):
    return []
  # Read more windows than needed: some cannot be split.
  read = windows.read(np.unique(np.linspace(0, len(windows) - 1, 4 * number).astype(np.int64)))
  # A text may be split before a word. In Chinese, Thai and others no spaces separate words.
  letters = [piece == '▁' or piece.strip('▁')[:1].isalnum() for piece in tokenizer.pieces]
  unspaced = [bool(UNSPACED_LETTER.match(piece.lstrip('▁'))) for piece in tokenizer.pieces]
  splittable = tokenizer.starts_word & letters | np.array(unspaced)
  found = []
  for tokens, segments in zip(read['tokens'], read['segments'], strict=True):
    row = tokens[segments > 0]
    begin, end = find_split(splittable[row], beginning)
    if begin < end < len(row):
      found.append((tokenizer.decode(row[begin:end]), tokenizer.decode(row[end:])))
  places = np.linspace(0, len(found) - 1, min(number, len(found))).astype(int)
  return [found[place] for place in np.unique(places)]


def find_split(starts: np.ndarray, beginning: int) -> tuple[int, int]:
  """Find where a prompt begins and ends, such that neither it nor the rest begins inside a word.

  Args:
    starts: bool [length], True where a word may start.
    beginning: maximum number of tokens of the prompt.

  Returns:
    The first word start, and the last one at most `beginning` tokens later; equal if there is none.
  """
  places = np.flatnonzero(starts)
  if not len(places):
    return 0, 0
  places = places[places <= places[0] + beginning]
  return int(places[0]), int(places[-1])
