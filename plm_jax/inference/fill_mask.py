"""Fills blanks: the quickest look at what an encoder has learned."""
from collections.abc import Sequence
import itertools
from typing import Any

from etils import epath
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.config import ConfigError
from plm_jax.data.windows import Windows
from plm_jax.inference.loading import Trained, shifted
from plm_jax.inference.prompts import check
from plm_jax.inference.samples import Blank
from plm_jax.layers.heads import WithHeads
from plm_jax.objectives.clm import boundaries
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.wordpiece import unspaced
from plm_jax.training.checkpoint import CheckpointError

SENTENCES = 256  # tokens of a window of whole sentences: few are longer
Candidates = list[tuple[str, float]]  # pieces and their probabilities, likeliest first


def fill(trained: Trained, prompts: Sequence[str], top: int = 5) -> list[list[Candidates]]:
  """Prompts with [MASK] -> for each prompt, for each [MASK] in it, the `top` pieces with their probabilities.

  Raises CheckpointError for a model without the masked language model head or a tokenizer with [MASK] and what stands
  around texts, ConfigError for no prompt, and for one without [MASK] or too long for the model.
  """
  config, tokenizer = trained.model, trained.tokenizer
  if 'mlm' not in trained.heads or not tokenizer:
    if 'lm' in trained.heads and tokenizer:
      does = 'answers texts' if trained.model.kind == 'encoder-decoder' else 'goes on with texts'
      raise CheckpointError(f'a {trained.family} has no [MASK] and {does}: `python -m plm_jax generate` has it write')
    lacking = 'tokenizer' if 'mlm' in trained.heads else 'masked language model head'
    raise CheckpointError(f'the model has no {lacking}: blanks cannot be filled without it')
  if lacking := [f'[{role.upper()}]' for role in ('mask', 'cls', 'sep') if getattr(tokenizer.vocab, role) < 0]:
    raise CheckpointError(f'the tokenizer has no {" and no ".join(lacking)}: blanks cannot be filled without it')
  check(prompts, 'give a sentence with a [MASK] where a word is to be guessed')
  if top < 1:
    raise ConfigError(f'top is 1 or more, got {top}')
  rows = [encode(config, tokenizer, prompt) for prompt in prompts]
  # One compiled shape for all prompts of a call: a power of two that holds the longest.
  length = max(16, 1 << (max(map(len, rows)) - 1).bit_length())
  tokens = np.full((len(rows), length), max(tokenizer.vocab.pad, 0), np.int32)
  segments = np.zeros_like(tokens)
  for number, row in enumerate(rows):
    tokens[number, :len(row)], segments[number, :len(row)] = row, 1
  length = min(length, config.max_length or length)
  blanks = [[position for position, token in enumerate(row) if token == tokenizer.vocab.mask] for row in rows]
  most = max(map(len, blanks))
  positions = jnp.array([some + some[:1] * (most - len(some)) for some in blanks], jnp.int32)
  batch = {'tokens': jnp.array(tokens[:, :length]), 'segments': jnp.array(segments[:, :length]),
           'positions': positions - shifted(config)}
  model = WithHeads(config.backbone(), {'mlm': trained.heads['mlm']})
  params = {name: trained.params[name] for name in ('backbone', 'heads_mlm') if name in trained.params}
  outputs: Any = jax.jit(lambda params, batch: model.apply({'params': params}, batch))(params, batch)
  # Rows of the table beyond the tokenizer's last piece are no answers.
  probabilities = np.asarray(jax.nn.softmax(outputs['mlm'][..., :tokenizer.vocab.size]))
  return [[best(probabilities[number, blank], tokenizer, top) for blank in range(len(some))]
          for number, some in enumerate(blanks)]


def examples(
    trained: Trained, prompts: Sequence[str], folder: epath.Path, seed: int = 0, number: int = 6) -> list[Blank]:
  """Shows the prompts, then held-out sentences of the records in `folder` with a hidden word; for the report."""
  asked = [(prompt, None) for prompt in prompts] + heldout_blanks(trained, folder, seed, number)
  answers = fill(trained, [prompt for prompt, _ in asked]) if asked else []
  return [Blank(prompt, filled[0], truth) for (prompt, truth), filled in zip(asked, answers, strict=True)]


def heldout_blanks(trained: Trained, folder: epath.PathLike, seed: int, number: int) -> list[tuple[str, str]]:
  """Draws whole sentences of 8 to 32 tokens from the held-out split, each with one word of one token hidden; those that
  the tokenizer knows all of first."""
  tokenizer: Any = trained.tokenizer
  longest = min(32, (trained.model.max_length or 64) - 2)
  windows = Windows(folder, 'heldout', SENTENCES, 'document')
  if not len(windows):
    return []
  found, random = [], np.random.default_rng(seed)
  for ids, word in whole_sentences(windows, 8 * number, longest, random, tokenizer.vocab.unk):
    whole = np.flatnonzero(np.bincount(word)[word] == 1)
    whole = [place for place in whole if tokenizer.pieces[ids[place]].strip('▁').isalpha()]
    if len(ids) >= 8 and whole and len(found) < number:
      place = int(random.choice(whole))
      before, behind = tokenizer.decode(ids[:place]), tokenizer.decode(ids[place + 1:])
      space = '' if tokenizer.spaced or behind[:1] in set('.,;:!?') else ' '
      text = f'{before} [MASK]{space}{behind}'.strip()
      text = unspaced(text)
      # Counted anew: a decoded text need not come back as the same pieces.
      if len(tokenizer.encode(text, specials=True)) <= longest:
        found.append((text, tokenizer.pieces[ids[place]].strip('▁')))
  return found


def whole_sentences(windows: Windows, most: int, longest: int, random: np.random.Generator, unknown: int
                    ) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns the ids and words of sentences of at most `longest` tokens, one of each of `most` windows, then the others;
  those with an `unknown` token behind all others. None is what is left of a sentence that was cut."""
  numbers = np.unique(np.linspace(0, len(windows) - 1, most).astype(np.int64))
  read, before = windows.read(numbers), windows.read(np.maximum(numbers - 1, 0))
  # A window that is full of one sentence may have its end in the next.
  cut = (before['sentences'] == 1).all(1) & (before['document'] == read['document']) & (numbers > 0)
  sentences: list[list[tuple[np.ndarray, np.ndarray]]] = []
  for tokens, of, words, goes_on in zip(read['tokens'], read['sentences'], read['words'], cut, strict=True):
    some = [of == sentence for sentence in random.permutation(np.arange(1 + goes_on, of.max() + 1))]
    sentences.append([(tokens[inside], words[inside]) for inside in some if inside.sum() <= longest])
  mixed = [one for turn in itertools.zip_longest(*sentences) for one in turn if one]
  return sorted(mixed, key=lambda one: bool((one[0] == unknown).any()))


def encode(config: Any, tokenizer: Tokenizer, prompt: str) -> list[int]:
  """Encodes a prompt with its special tokens. Raises ConfigError for one without [MASK], or that is too long for the
  model."""
  vocab = tokenizer.vocab
  text = tokenizer.encode(prompt.replace('[MASK]', tokenizer.pieces[vocab.mask]), specials=True)
  # XLNet's rows end with [CLS], and GPT-BERT's with nothing.
  ids = [*text, vocab.sep, vocab.cls] if config.cls_last else [vocab.cls, *text, vocab.sep]
  ids = [boundaries(vocab)[0], *text] if shifted(config) else ids
  if vocab.mask not in ids:
    raise ConfigError(f'there is no [MASK] in {prompt!r}: put one where a word is to be guessed')
  if config.max_length and len(ids) > config.max_length:
    raise ConfigError(f'the prompt has {len(ids)} tokens, the model takes {config.max_length}')
  return ids


def best(probabilities: np.ndarray, tokenizer: Tokenizer, top: int) -> Candidates:
  """Returns the `top` likeliest pieces with their probabilities, of those of all [V], best first."""
  order = np.argsort(-probabilities, kind='stable')[:top]
  return [(tokenizer.pieces[i].lstrip('▁'), float(probabilities[i])) for i in order]
