"""Blank infilling by a GLM: fill blanks, score given fillings, and continue texts."""
from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures.decoder import empty_cache, extend_cache
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.errors import ConfigError, check_finite
from plm_jax.inference import engine
from plm_jax.inference.decoder_steps import DecoderSteps, get_last
from plm_jax.inference.fill_mask import sample_heldout_blanks
from plm_jax.inference.prompts import check_prompts, pad_rows, require_tokens
from plm_jax.inference.samples import FillMaskSample
from plm_jax.inference.search import OutputVocab
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import GLM_TOKENS, Vocab, end_of_text_id

Arrays = dict[str, jax.Array]


class InfillingText(NamedTuple):
  """A text with blanks (part A), and the fillings so far (part B), in the order of writing."""

  ids: Sequence[int]
  filled: tuple[tuple[int, Sequence[int]], ...] = ()
  """(position of the mask, ids of its filling)"""

  def append(self, place: int, ids: Sequence[int]) -> 'InfillingText':
    """Return the text with one more filling."""
    return self._replace(filled=(*self.filled, (place, ids)))


def fill_blanks(
    trained: LoadedModel, prompts: Sequence[str], config: GenerationConfig | None = None,
    seed: int = 0,
) -> list[list[str]]:
  """Fill the [MASK], [sMASK] and [gMASK] blanks of each prompt, from left to right.

  Later fillings are conditioned on earlier ones.

  Args:
    trained: a GLM.
    prompts: texts with blanks.
    config: the generation options; None: greedy search, up to 64 tokens per blank.
    seed: random seed of sampling.

  Returns:
    The fillings of each prompt.

  Raises:
    CheckpointError: the model is no GLM or has no tokenizer.
    ConfigError: a prompt has no blank or is too long, or an option does not apply to blanks.
  """
  vocab = require_glm_tokenizer(trained).vocab
  check_prompts(prompts, 'give a text with a [MASK] in place of the text to generate')
  config = config or GenerationConfig(max_new=min(64, trained.model.types - 1))
  if config.number > 1 or config.stop:
    raise ConfigError('a blank is filled once, up to its end: leave number and stop out')
  texts = [InfillingText(encode_prompt(trained, prompt)) for prompt in prompts]
  blanks = [mask_places(text.ids, vocab) for text in texts]
  for prompt, places in zip(prompts, blanks, strict=True):
    if not places:
      raise ConfigError(f'there is no blank in {prompt!r}: put a [MASK] in place of the text '
                        'to generate')
  for number in range(max(map(len, blanks))):
    # Generate the fillings of blank `number` for all texts that have one.
    rows = [row for row, places in enumerate(blanks) if len(places) > number]
    unfinished = [texts[row].append(blanks[row][number], ()) for row in rows]
    steps, ids, params, batch = prepare_texts(trained, unfinished, config)
    blank_seed = (seed + number) % (1 << 32)
    found = jax.device_get(engine.generate_tokens(steps, params, batch, config, ids, blank_seed))
    for row, tokens, length in zip(
        rows, found['tokens'][:, 0], found['lengths'][:, 0], strict=True):
      written = [token for token in tokens[:length].tolist() if token not in ids.end_ids]
      texts[row] = texts[row].append(blanks[row][number], written)
  tokenizer: Any = trained.tokenizer
  return [[tokenizer.decode(ids).strip() for _, ids in text.filled] for text in texts]


def score_blanks(
    trained: LoadedModel, asked: Sequence[tuple[str, str]], rows: int = 64) -> np.ndarray:
  """Compute log probabilities [pairs], in nats, of given fillings, end token included.

  Args:
    trained: a GLM.
    asked: pairs of a prompt with one blank, and the text to score in that blank.
    rows: batch size.

  Raises:
    CheckpointError, ConfigError: as for `fill`; also ConfigError for a prompt with several blanks.
  """
  tokenizer = require_glm_tokenizer(trained)
  texts = list(itertools.chain.from_iterable(asked))
  check_prompts(texts, 'give pairs of a prompt and what may stand in its blank')
  if rows < 1:
    raise ConfigError(f'rows are read at least one at a time, got {rows}')
  vocab, space = tokenizer.vocab, ' ' if tokenizer.keeps_leading_space else ''
  laid, most, longest = [], 0, 0  # most: tokens in part B of the longest filling
  for prompt, words in asked:
    ids = encode_prompt(trained, prompt)
    places = mask_places(ids, vocab)
    if len(places) != 1:
      raise ConfigError(f'expected one blank in {prompt!r}, got {len(places)}')
    text = InfillingText(ids).append(places[0], tokenizer.encode(space + words))
    row = build_row(text, vocab)
    laid.append(row)
    most = max(most, sum(kind > 0 for kind in row['types']))
    longest = max(longest, len(row['tokens']))

  # Rows are padded in front, so part B is at the end of each.
  longest = check_row_length(trained, longest, most)
  steps, found = InfillingSteps(trained.model, trained.heads['lm']), []
  params = trained.derive_once(steps, steps.load_params)
  for first in range(0, len(laid), rows):
    some = laid[first:first + rows]
    missing = min(rows, len(laid)) - len(some)
    batch = left_pad_rows(some + some[:1] * missing, longest, vocab)
    part_b = np.asarray(batch['types'])[:, -most:]
    labels = np.roll(np.asarray(batch['tokens'])[:, -most:], -1, 1)
    labels[:, -1] = vocab.eop
    places = np.arange(longest - most, longest, dtype=np.int32)
    batch |= jax.device_put({
        'positions': np.broadcast_to(places, part_b.shape), 'labels': labels,
        'weights': part_b > 0})
    found.append(check_finite(np.asarray(compute_logprobs(steps, params, batch))[:len(some)]))
  return np.concatenate(found)


def make_samples(
    trained: LoadedModel, prompts: Sequence[str], folder: epath.Path, seed: int = 0,
    number: int = 6,
) -> list[FillMaskSample]:
  """Fill the prompts, and held-out sentences of the records in `folder`; for the report.

  Each sample has the probability of its filling. Prompts without room for a blank of 8 tokens are
  left out.
  """
  config = GenerationConfig(max_new=8)
  room = trained.model.max_length - config.max_new - 1  # 1: the start token of the blank
  candidates = [(prompt, None) for prompt in prompts]
  candidates += sample_heldout_blanks(trained, folder, seed, number)
  pairs = [(prompt, truth) for prompt, truth in candidates
           if len(encode_prompt(trained, prompt)) <= room]
  if not pairs:
    return []
  prompts = [prompt for prompt, _ in pairs]
  written = fill_blanks(trained, prompts, config)
  fillings = [(prompt, words[0]) for prompt, words in zip(prompts, written, strict=True)]
  logprobs = score_blanks(trained, fillings).tolist()
  return [FillMaskSample(prompt, [(words, math.exp(logprob))], truth) for
          (prompt, truth), (_, words), logprob in zip(pairs, fillings, logprobs, strict=True)]


@dataclasses.dataclass(frozen=True)
class InfillingSteps(DecoderSteps):
  """The steps (`engine.Steps`) of a GLM. A prompt ends with the start token of its last blank."""

  def prefill(self, params, batch, slots):
    """Prefill: read part A and earlier fillings -> (logits [rows, vocab], cache)."""
    output = self.apply(params, batch, remember=True)
    cache = extend_cache(empty_cache(self.model, len(batch['tokens']), slots), output.keys, batch)
    return self.logits(params, output), cache

  def next_inputs(self, tokens, cache):
    """Return the inputs of one more token of the blank per row.

    Its first position is that of the mask, and its second position counts the tokens of the blank.
    """
    place = get_last(cache, 'place')
    written = (cache['place'] == place) & (cache['ranks'] > 0) & (cache['segments'] > 0)
    return {'tokens': tokens, 'segments': jnp.ones_like(tokens), 'place': place,
            'ranks': get_last(cache, 'ranks') + 1,
            'types': written.sum(1, keepdims=True).astype(jnp.int32) + 1}


@functools.partial(jax.jit, static_argnames='steps')
def compute_logprobs(steps: InfillingSteps, params, batch):
  """Compute log probabilities [rows] of the `labels` [rows, positions] with nonzero `weights`."""
  output = steps.apply(params, batch)
  logits: Any = steps.head.apply({'params': params.get('heads_lm', {})}, output, batch)
  labels = batch['labels'][..., None]
  scores = jnp.take_along_axis(jax.nn.log_softmax(logits), labels, -1)[..., 0]
  return (scores * batch['weights']).sum(-1)


def prepare_texts(trained: LoadedModel, texts: Sequence[InfillingText], config: GenerationConfig):
  """Prepare texts whose last filling is to be written or continued.

  Returns:
    (steps, ids of the vocabulary, parameters, batch).
  """
  vocab, model = require_glm_tokenizer(trained).vocab, trained.model
  laid = [build_row(text, vocab) for text in texts]
  most = max(len(text.filled[-1][1]) for text in texts) + config.max_new
  longest = check_row_length(trained, max(len(row['tokens']) for row in laid), most)
  length = engine.padded_length(longest, model.max_length)
  steps, ends = InfillingSteps(model, trained.heads['lm']), (vocab.eop, end_of_text_id(vocab))
  ids = OutputVocab(min(vocab.size, model.vocab), ends, max(vocab.pad, 0))
  params = trained.derive_once(steps, steps.load_params)
  return steps, ids, params, left_pad_rows(laid, length, vocab)


def make_continuation(trained: LoadedModel, prompt: str) -> InfillingText:
  """Make a text that is continued in a blank at its end; the prompt may end with that blank."""
  vocab = require_glm_tokenizer(trained).vocab
  check_prompts([prompt])
  ids = encode_prompt(trained, prompt, ended=False)
  if ids[-1] not in mask_ids(vocab):
    ids.append(vocab.gmask if vocab.gmask >= 0 else vocab.mask)
  return InfillingText(ids).append(len(ids) - 1, ())


def encode_prompt(trained: LoadedModel, prompt: str, ended: bool = True) -> list[int]:
  """Encode a prompt after [CLS]. ended: append the end-of-text token, unless a blank is last."""
  tokenizer: Any = trained.tokenizer
  vocab = tokenizer.vocab
  text = prompt.replace('[MASK]', tokenizer.pieces[vocab.mask])
  ids = [vocab.cls, *tokenizer.encode(text, specials=True)]
  if ended and ids[-1] not in mask_ids(vocab):
    ids.append(end_of_text_id(vocab))
  return ids


def build_row(text: InfillingText, vocab: Vocab) -> dict[str, list[int]]:
  """Build the inputs of one text, without padding; see `objectives.glm` for their meaning."""
  size_a = len(text.ids)
  row = {'tokens': list(text.ids), 'place': list(range(size_a)), 'types': [0] * size_a}
  for place, ids in text.filled:
    row['tokens'] += [vocab.sop, *ids]
    row['place'] += [place] * (1 + len(ids))
    row['types'] += range(1, 2 + len(ids))
  size = len(row['tokens'])
  row['segments'] = [1] * size
  row['ranks'] = [max(0, place - size_a + 1) for place in range(size)]
  return row


def left_pad_rows(rows: Sequence[dict[str, list[int]]], length: int, vocab: Vocab) -> Arrays:
  """Pad the inputs of texts on the left -> arrays [rows, length]."""
  arrays = {}
  for name in ('tokens', 'segments', 'place', 'types', 'ranks'):
    empty = max(vocab.pad, 0) if name == 'tokens' else 0
    arrays[name] = pad_rows([row[name] for row in rows], length, empty, front=True)[0]
  return jax.device_put(arrays)


def mask_ids(vocab: Vocab) -> set[int]:
  """Return the ids of the mask tokens that the vocabulary has."""
  return {vocab.mask, vocab.smask, vocab.gmask} - {-1}


def mask_places(ids: Sequence[int], vocab: Vocab) -> list[int]:
  """Return the positions of the blanks in a text."""
  return [place for place, token in enumerate(ids) if token in mask_ids(vocab)]


def check_row_length(trained: LoadedModel, length: int, blank: int) -> int:
  """Check that the model reads `length` tokens with blanks of `blank` tokens; return `length`.

  Raises:
    ConfigError: they do not fit.
  """
  model = trained.model
  if length > model.max_length or blank >= model.types:
    raise ConfigError(f'rows of {length} tokens with blanks of up to {blank} do not fit: the model '
                      f'takes {model.max_length} tokens, and {model.types - 1} in a blank. Shorten '
                      'the text or lower max_new')
  return length


def require_glm_tokenizer(trained: LoadedModel) -> Tokenizer:
  """Return the tokenizer of a GLM.

  Raises:
    CheckpointError: the model is no GLM, or its tokenizer lacks the special tokens of one.
  """
  if 'lm' not in trained.heads:
    raise CheckpointError('the model is no GLM: it has no language model head')
  if trained.model.kind != 'infilling':
    does = 'generates' if trained.model.kind == 'encoder-decoder' else 'continues'
    raise CheckpointError(f'the model is no GLM: it {does} texts, by `python -m plm_jax generate`, '
                          'and fills no blanks')
  if not trained.tokenizer:
    raise CheckpointError('the model has no tokenizer: blanks cannot be filled without it')
  roles = {'[CLS]': 'cls', '[MASK]': 'mask'}
  roles |= {name: role for name, role in GLM_TOKENS.items() if role in ('sop', 'eop')}
  require_tokens(trained.tokenizer.vocab, roles, 'it is not that of a GLM')
  return trained.tokenizer
