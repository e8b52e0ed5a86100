"""Blanks of a GLM: what it writes into them, and how likely it finds what somebody else would."""
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures.decoder import empty_cache, extend
from plm_jax.config import ConfigError
from plm_jax.inference import engine
from plm_jax.inference.decoder import DecoderSteps
from plm_jax.inference.fill_mask import heldout_blanks
from plm_jax.inference.loading import Trained
from plm_jax.inference.prompts import check
from plm_jax.inference.samples import Blank
from plm_jax.inference.search import GenerationConfig, Ids
from plm_jax.objectives.glm import end_of_text
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import BLANKS, Vocab
from plm_jax.training.checkpoint import CheckpointError

Arrays = dict[str, jax.Array]


class Text(NamedTuple):
  """Part A of a row, and what fills its blanks so far: (place of the mask, ids) in the order of writing."""

  ids: Sequence[int]
  filled: tuple[tuple[int, Sequence[int]], ...] = ()


def fill(
    trained: Trained, prompts: Sequence[str], config: GenerationConfig | None = None, seed: int = 0,
) -> list[list[str]]:
  """Fills, for each prompt, what goes into its [MASK], [sMASK] and [gMASK], one after another from the left.

  What has been written is read by those that follow. config: None for the likeliest tokens, up to 64 of them. Raises
  CheckpointError for a model that is no GLM or has no tokenizer, ConfigError for a prompt without a blank or too long,
  and for options that one text a blank has no use for.
  """
  vocab = checked(trained).vocab
  check(prompts, 'give a text with a [MASK] where something is to be written')
  config = config or GenerationConfig(max_new=min(64, trained.model.types - 1))
  if config.number > 1 or config.stop:
    raise ConfigError('a blank is filled once, up to its end: leave number and stop out')
  texts = [Text(encode(trained, prompt)) for prompt in prompts]
  blanks = [[at for at, token in enumerate(text.ids) if token in masks(vocab)] for text in texts]
  for prompt, some in zip(prompts, blanks, strict=True):
    if not some:
      raise ConfigError(f'there is no blank in {prompt!r}: put a [MASK] where something is to be written')
  for number in range(max(map(len, blanks))):
    open_ = [row for row, some in enumerate(blanks) if len(some) > number]
    asked = [texts[row]._replace(filled=(*texts[row].filled, (blanks[row][number], ()))) for row in open_]
    steps, ids, params, batch = prepare(trained, asked, config)
    found = jax.device_get(engine.run(steps, params, batch, config, ids, (seed + number) % (1 << 32)))
    for row, tokens, length in zip(open_, found['tokens'][:, 0], found['lengths'][:, 0], strict=True):
      written = [token for token in tokens[:length].tolist() if token not in ids.ends]
      texts[row] = texts[row]._replace(filled=(*texts[row].filled, (blanks[row][number], written)))
  tokenizer: Any = trained.tokenizer
  return [[tokenizer.decode(some).strip() for _, some in text.filled] for text in texts]


def score(trained: Trained, asked: Sequence[tuple[str, str]], rows: int = 64) -> np.ndarray:
  """Returns, of each (prompt with one blank, what may stand there), the log probability [N], nats, of all its tokens
  and the end.

  rows: as many are read together. Raises as `fill`, and ConfigError for a prompt with another number of blanks.
  """
  tokenizer = checked(trained)
  check([text for pair in asked for text in pair], 'give pairs of a prompt and what may stand in its blank')
  if rows < 1:
    raise ConfigError(f'rows are read at least one at a time, got {rows}')
  vocab, space = tokenizer.vocab, ' ' if tokenizer.spaced else ''
  laid = []
  for prompt, words in asked:
    ids = encode(trained, prompt)
    places = [at for at, token in enumerate(ids) if token in masks(vocab)]
    if len(places) != 1:
      raise ConfigError(f'expected one blank in {prompt!r}, got {len(places)}')
    laid.append(lay(Text(ids, ((places[0], tokenizer.encode(space + words)),)), vocab))
  most = max(sum(kind > 0 for kind in row['types']) for row in laid)
  longest = fitting(trained, max(len(row['tokens']) for row in laid), most)
  steps, found = BlankSteps(trained.model, trained.heads['lm']), []
  params = steps.load(trained.params)
  for first in range(0, len(laid), rows):
    some = laid[first:first + rows]
    batch = padded(some + some[:1] * (min(rows, len(laid)) - len(some)), longest, vocab)
    part_b = np.asarray(batch['types'])[:, -most:]
    following = np.roll(np.asarray(batch['tokens'])[:, -most:], -1, 1)
    following[:, -1] = vocab.eop
    positions = jnp.broadcast_to(jnp.arange(longest - most, longest), part_b.shape)
    batch |= {'positions': positions, 'labels': jnp.asarray(following), 'weights': jnp.asarray(part_b > 0)}
    found.append(np.asarray(logprobs(steps, params, batch))[:len(some)])
  return np.concatenate(found)


def examples(
    trained: Trained, prompts: Sequence[str], folder: epath.Path, seed: int = 0, number: int = 6) -> list[Blank]:
  """Shows what goes into the prompts, and for a hidden word into held-out sentences of the records in `folder`, with
  its probability; for the report. One that has no room for a blank of 8 tokens is left out."""
  config = GenerationConfig(max_new=8)
  asked = [(prompt, None) for prompt in prompts] + heldout_blanks(trained, folder, seed, number)
  # In the row the blank has a start token, and its end is the label behind it.
  asked = [(prompt, truth) for prompt, truth in asked
           if len(encode(trained, prompt)) + 1 + config.max_new <= trained.model.max_length]
  if not asked:
    return []
  written = [words[0] for words in fill(trained, [prompt for prompt, _ in asked], config)]
  one = [(prompt, words) for (prompt, _), words in zip(asked, written, strict=True)]
  return [Blank(prompt, [(words, math.exp(logprob))], truth)
          for (prompt, truth), words, logprob in zip(asked, written, score(trained, one).tolist(), strict=True)]


@dataclasses.dataclass(frozen=True)
class BlankSteps(DecoderSteps):
  """`engine.Steps` of a GLM. Prompts end with the start token of the blank that is written; batches say all of it."""

  def start(self, params, batch, slots):
    """Reads the rows, with part A and what is written of a blank -> logits [B, V] behind them, and the cache."""
    output = self.apply(params, batch, remember=True)
    cache = extend(empty_cache(self.model, len(batch['tokens']), slots), output.keys, batch)
    return self.logits(params, output), cache

  def next(self, params, tokens, cache):
    """Reads one more token of the blank, at the place of its mask, with the next rank -> logits [B, V], and the
    cache."""
    def last(name):
      return jax.lax.dynamic_slice_in_dim(cache[name], cache['length'] - 1, 1, axis=1)
    written = (cache['places'] == last('places')) & (cache['ranks'] > 0) & (cache['segments'] > 0)
    batch = {'tokens': tokens[:, None], 'segments': jnp.ones_like(tokens)[:, None], 'place': last('places'),
             'ranks': last('ranks') + 1, 'types': written.sum(1, keepdims=True).astype(jnp.int32) + 1}
    output = self.apply(params, batch, cache=cache, remember=True)
    return self.logits(params, output), extend(cache, output.keys, batch)


@functools.partial(jax.jit, static_argnames='steps')
def logprobs(steps: BlankSteps, params, batch):
  """Returns log probabilities [B], of the labels [B, M] where weights are not 0."""
  output = steps.apply(params, batch)
  logits: Any = steps.head.apply({'params': params.get('heads_lm', {})}, output, batch)
  scores = jnp.take_along_axis(jax.nn.log_softmax(logits), batch['labels'][..., None], -1)[..., 0]
  return (scores * batch['weights']).sum(-1)


def prepare(trained: Trained, texts: Sequence[Text], config: GenerationConfig):
  """Prepares texts, of which the last blank in `filled` is to be written or gone on with -> (steps, ids, parameters,
  batch)."""
  vocab = checked(trained).vocab
  laid = [lay(text, vocab) for text in texts]
  most = max(len(text.filled[-1][1]) for text in texts) + config.max_new
  length = engine.bucket(fitting(trained, max(len(row['tokens']) for row in laid), most), trained.model.max_length)
  steps, ends = BlankSteps(trained.model, trained.heads['lm']), (vocab.eop, end_of_text(vocab))
  ids = Ids(min(vocab.size, trained.model.vocab), ends, max(vocab.pad, 0))
  return steps, ids, steps.load(trained.params), padded(laid, length, vocab)


def continuation(trained: Trained, prompt: str) -> Text:
  """Makes a text whose rest is the blank, which it may end with."""
  vocab = checked(trained).vocab
  check([prompt])
  ids = encode(trained, prompt, ended=False)
  if ids[-1] not in masks(vocab):
    ids.append(vocab.mask if vocab.gmask < 0 else vocab.gmask)
  return Text(ids, ((len(ids) - 1, ()),))


def encode(trained: Trained, prompt: str, ended: bool = True) -> list[int]:
  """Encodes a prompt: [CLS] and the text; behind it its end, but for one that ends with a blank."""
  tokenizer: Any = trained.tokenizer
  vocab = tokenizer.vocab
  named = prompt.replace('[MASK]', tokenizer.pieces[vocab.mask])
  ids = [vocab.cls, *tokenizer.encode(named, specials=True)]
  return [*ids, end_of_text(vocab)] if ended and ids[-1] not in masks(vocab) else ids


def lay(text: Text, vocab: Vocab) -> dict[str, list[int]]:
  """Makes the row, without padding: `BlankInfilling` says what is in it."""
  row = {'tokens': list(text.ids), 'place': list(range(len(text.ids))), 'types': [0] * len(text.ids)}
  for place, ids in text.filled:
    row['tokens'] += [vocab.sop, *ids]
    row['place'] += [place] * (1 + len(ids))
    row['types'] += range(1, 2 + len(ids))
  size = len(row['tokens'])
  return row | {'segments': [1] * size, 'ranks': [max(0, at - len(text.ids) + 1) for at in range(size)]}


def padded(rows: Iterable[dict[str, list[int]]], length: int, vocab: Vocab) -> Arrays:
  """Pads rows in front -> [B, length]."""
  empty = {'tokens': max(vocab.pad, 0)}
  names = ('tokens', 'segments', 'place', 'types', 'ranks')
  return {name: jnp.array([[empty.get(name, 0)] * (length - len(row[name])) + row[name] for row in rows], jnp.int32)
          for name in names}


def masks(vocab: Vocab) -> set[int]:
  """Returns the ids of the masks that the tokenizer has."""
  return {vocab.mask, vocab.smask, vocab.gmask} - {-1}


def fitting(trained: Trained, length: int, blank: int) -> int:
  """Returns `length`, if the model takes rows of so many tokens, with blanks of so many. Raises ConfigError."""
  model = trained.model
  if length > model.max_length or blank >= model.types:
    raise ConfigError(f'rows of {length} tokens with blanks of up to {blank} do not fit: the model takes '
                      f'{model.max_length} tokens, and {model.types - 1} in a blank. Shorten the text or lower max_new')
  return length


def checked(trained: Trained) -> Tokenizer:
  """Returns the model's tokenizer. Raises CheckpointError for a model that is no GLM, or has not the tokens of one."""
  if 'lm' not in trained.heads or trained.model.kind != 'infilling':
    does = 'answers' if trained.model.kind == 'encoder-decoder' else 'continues'
    raise CheckpointError('the model is no GLM: ' + (
        f'it {does} texts, by `python -m plm_jax generate`, and fills no blanks' if 'lm' in trained.heads else
        'it has no language-modelling head'))
  if not trained.tokenizer:
    raise CheckpointError('the model has no tokenizer: blanks cannot be filled without it')
  needed = {'[CLS]': 'cls', '[MASK]': 'mask', **{name: role for name, role in BLANKS.items() if role in ('sop', 'eop')}}
  if lacking := [name for name, role in needed.items() if getattr(trained.tokenizer.vocab, role) < 0]:
    raise CheckpointError(f'the tokenizer has no {" and no ".join(lacking)}: it is not that of a GLM')
  return trained.tokenizer
