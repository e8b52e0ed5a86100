"""Public API for serving: compile a model's programs before the first request arrives.

See `plm_jax.api.models` for what all functions share.
"""
from collections.abc import Iterator, Sequence
import time
from typing import Any, NamedTuple

from plm_jax.api import similarity, transfer
from plm_jax.api.models import fill_mask, generate
from plm_jax.data.bucketing import bucket_length, next_power_of_two
from plm_jax.errors import ConfigError
from plm_jax.inference.engine import padded_length
from plm_jax.loading.generation_config import GenerationConfig, resolve_generation_config
from plm_jax.loading.loaded_model import LoadedModel

WORDS = ('a', 'the', 'to', '1', '的', 'ا', 'и')
"""words that texts of a given length are made of; most tokenizers have one of them as a token"""
FUNCTIONS = ('encode', 'fill_mask', 'generate', 'predict', 'answer', 'tag')


class WarmUpCall(NamedTuple):
  """A warm-up call that was made."""

  function: str
  texts: int
  """number of texts in the call"""
  length: int
  """sequence length that the texts were padded to"""
  seconds: float
  """duration, mostly of compilation"""


def warm_up(
    model: LoadedModel, length: int = 128, batch: int = 1, functions: Sequence[str] = (),
    config: GenerationConfig | None = None, **options: Any) -> list[WarmUpCall]:
  """Compile the programs that a service needs, by calls with texts of every padded length.

  Texts are padded to one of a few lengths, and their number to a power of two, so there are few
  programs. Up to 128 tokens the lengths are 16, 24, 32, 48, 64, 96 and 128; for `fill_mask` and
  `generate` they are 16, 32, 64 and 128. `generate` has one program per number of prompts. The
  prompts here have one mask for `fill_mask`, and the inputs of `predict` have one text.

  >>> bert = plm_jax.load('runs/bert_base-laptop')
  >>> calls = plm_jax.warm_up(bert, length=32, functions=['fill_mask'])
  >>> [(call.texts, call.length) for call in calls]
  [(1, 16), (1, 32)]

  Args:
    model: a model from `load` or `finetune`
    length: tokens of the longest text, special tokens included; at most as many as the model reads
    batch: largest number of texts per call
    functions: names of the functions that will be called; none: all that the model supports.
      `similar` and `search` use the programs of `encode`, and `stream` those of `generate` for one
      prompt
    config: settings of `generate`: max_new, beams and sampling options are part of a program; None:
      those of the checkpoint
    **options: fields of `config` to override

  Returns:
    The calls, with the seconds that each took.

  Raises:
    ConfigError: a function that the model does not support or that needs no warm-up, or a length
      that leaves no room for text.
  """
  config = resolve_generation_config(model.generation, config, options)
  able = [name for name in FUNCTIONS if name in model.capabilities and has_program(model, name)]
  if unknown := [name for name in functions if name not in able]:
    raise ConfigError(f'{", ".join(unknown)} cannot be warmed up: of this model '
                      f'{", ".join(able) or "nothing"} can')
  if length < 8 or batch < 1:
    raise ConfigError(f'length is 8 or more and batch 1 or more, got {length} and {batch}')
  found = []
  for name in functions or able:
    longest = longest_row(model, name, config)
    most = min(length, longest or length)
    for tokens in padded_lengths(name, most, longest):
      for texts in batch_sizes(name, batch):
        begun = time.monotonic()
        call_function(model, name, tokens, texts, config)
        found.append(WarmUpCall(name, texts, tokens, time.monotonic() - begun))
  return found


def has_program(trained: LoadedModel, name: str) -> bool:
  """Return whether a function has compiled programs that no other function has.

  `predict` shares those of `tag` and of `answer`, and a GLM fills a blank as it generates.
  """
  if name == 'fill_mask':
    return trained.model.kind != 'infilling'
  return name != 'predict' or trained.task.example_format.function == 'predict'


def longest_row(trained: LoadedModel, name: str, config: GenerationConfig) -> int:
  """Return the largest number of tokens in a text; 0: no limit."""
  longest = trained.model.max_length
  if name in ('predict', 'answer', 'tag') or (name == 'encode' and trained.length):
    longest = trained.length or longest
  if name == 'generate' and longest and trained.model.kind != 'encoder-decoder':
    longest -= config.max_new
    if longest < 8:
      raise ConfigError(f'max_new {config.max_new} leaves no room for a prompt: the model takes '
                        f'{trained.model.max_length} tokens in all')
  return longest


def padded_lengths(name: str, most: int, longest: int) -> list[int]:
  """List the sequence lengths that texts of up to `most` tokens are padded to.

  `fill_mask` and `generate` pad to powers of two, and each length represents its power.
  """
  if name not in ('fill_mask', 'generate'):
    return sorted({bucket_length(size, longest) for size in range(1, most + 1)})
  return sorted({padded_length(size, longest) for size in range(1, most + 1)})


def batch_sizes(name: str, batch: int) -> Iterator[int]:
  """Yield the numbers of texts per call that have separate programs."""
  if name == 'generate':
    yield from range(1, batch + 1)
  else:
    for power in range(next_power_of_two(batch).bit_length()):
      yield 1 << power


def call_function(
    trained: LoadedModel, name: str, tokens: int, texts: int, config: GenerationConfig) -> None:
  """Call a function of the public API with texts that are padded to `tokens` tokens."""
  text = make_text(trained, tokens - 4)  # leaves room for special tokens
  shorter = make_text(trained, tokens - 6)  # leaves room for a mask or a question as well
  batch = next_power_of_two(texts)
  if name == 'encode':
    similarity.encode(trained, [text] * texts)
  elif name == 'fill_mask':
    fill_mask(trained, [f'{shorter} [MASK]'] * texts)
  elif name == 'generate':
    generate(trained, [text] * texts, config)
  elif name == 'predict':
    example: Any = trained.task.example_format.sample_input(text)
    transfer.predict(trained, [example] * texts, batch=batch)
  elif name == 'tag':
    transfer.tag(trained, [text.split()] * texts, batch=batch)
  else:
    transfer.answer(trained, [text.split()[0]] * texts, shorter, batch=batch)


def make_text(trained: LoadedModel, tokens: int) -> str:
  """Make a text of nearly `tokens` tokens, and no more, by repeating a word."""
  tokenizer: Any = trained.tokenizer

  def count_tokens(word: str) -> float:
    return len(tokenizer.encode(' '.join([word] * 8))) / 8

  word = min(WORDS, key=count_tokens)
  return ' '.join([word] * max(1, int(tokens / count_tokens(word))))
