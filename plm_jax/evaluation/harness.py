"""Adapter for EleutherAI's lm-evaluation-harness (pip install 'plm_jax[lm-eval]').

    import lm_eval
    from plm_jax.evaluation.harness import Harness

    model = Harness('runs/gpt2_small')
    lm_eval.simple_evaluate(model, tasks=['lambada_openai', 'piqa'], num_fewshot=0)
"""
from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import itertools
from typing import Any

import jax
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]

from plm_jax.errors import ConfigError
from plm_jax.evaluation import scoring
from plm_jax.evaluation.scoring import Span, strided_spans
from plm_jax.inference.generate import generate
from plm_jax.loading import loaded_model
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sharding import MeshConfig, make_mesh

LENGTH_OPTIONS = ('max_gen_toks', 'max_new_tokens', 'max_tokens')
"""the harness's names of the maximum number of generated tokens"""


@register_model('plm_jax')
class Harness(LM):
  """A model as lm-evaluation-harness sees it; of its requests only `args` are read."""

  def __init__(
      self, checkpoint: str | LoadedModel, start: bool = True, batch_size: int = 16, fsdp: int = 1,
      tensor: int = 1,
  ):
    """Load the model.

    Args:
      checkpoint: folder of a run or of a transformers checkpoint, or a model loaded on one device.
      start: put the begin-of-text token before each text, as in training; the harness's own results
        for GPT-2 are without it.
      batch_size: number of texts that are generated together.
      fsdp, tensor: number of devices that share the parameters of the model, as in a mesh.

    Raises:
      CheckpointError: the model is no language model.
    """
    super().__init__()
    shares = fsdp * tensor > 1
    self.mesh = make_mesh(MeshConfig(fsdp=fsdp, tensor=tensor)) if shares else None
    if isinstance(checkpoint, LoadedModel):
      self.trained = checkpoint
    else:
      self.trained = loaded_model.load_model(checkpoint, self.mesh)
    self.scorer = scoring.make_scorer(self.trained, start, self.mesh)
    self.batch_size = batch_size

  def loglikelihood(self, requests) -> list[tuple[float, bool]]:
    """Score (context, continuation) requests.

    Returns:
      The natural log-likelihood of each continuation, and whether greedy decoding gives it.
    """
    scores = self.scorer.score([request.args for request in requests])
    return [(score.logprob, score.greedy) for score in scores]

  def loglikelihood_rolling(self, requests) -> list[float]:
    """Score whole texts, one per request (text,) -> natural log-likelihoods.

    Windows do not overlap, except that the last one is filled with context.
    """
    texts = [request.args[0] for request in requests]
    start = self.scorer.start_ids(0)
    windows = [rolling_spans([*start, *ids], self.scorer.length) if ids else []
               for ids in self.scorer.tokenizer.encode_batch(texts)]
    found = iter(self.scorer.predict(list(itertools.chain.from_iterable(windows))))
    return [sum(next(found)[0] for _ in spans) for spans in windows]

  def generate_until(self, requests) -> list[str]:
    """Generate a continuation for each request (context, options).

    A context that is too long is truncated at its beginning.
    """
    asked = [(context, convert_options(options, self.scorer.start))
             for context, options in (request.args for request in requests)]
    encode = self.scorer.tokenizer.encode_batch
    return answer_in_batches(asked, self.batch_size, encode, self.continue_prompts)

  def continue_prompts(self, prompts: list[str], config: GenerationConfig) -> list[str]:
    """Generate the continuation of each prompt.

    If the model has a maximum length, it reads the end of the prompt and writes up to half of that
    length.
    """
    length = self.scorer.length
    if length:
      config = dataclasses.replace(config, max_new=min(config.max_new, max(1, length // 2)))
      room = length - config.max_new - config.start
      prompts = [truncate_left(prompt, room, self.scorer.tokenizer) for prompt in prompts]
    with jax.set_mesh(self.mesh) if self.mesh else contextlib.nullcontext():
      return [texts[0].text for texts in generate(self.trained, prompts, config)]


def rolling_spans(ids: list[int], length: int) -> list[Span]:
  """Cut a text into windows that predict each of ids[1:] once.

  Each token is predicted from at most `length` tokens (0: all) before it.
  """
  room = length + 1 if length else len(ids)
  spans = strided_spans(ids, 1, room, room - 1)
  last = ids[-room:]
  predicted = len(spans[-1].ids) - spans[-1].first
  return [*spans[:-1], Span(last, len(last) - predicted)]


def convert_options(options: Mapping[str, Any], start: bool) -> GenerationConfig:
  """Convert the harness's generation options to `GenerationConfig`.

  Raises:
    ConfigError: an option is not supported.
  """
  options = dict(options)
  until = options.pop('until', [])
  lengths = [options.pop(name) for name in LENGTH_OPTIONS if options.get(name) is not None]
  do_sample = options.pop('do_sample', None)
  temperature = float(options.pop('temperature', None) or 0)
  sampling: dict[str, Any] = {}
  for name, kind in (('top_k', int), ('top_p', float), ('min_p', float)):
    if options.get(name) is not None:
      sampling[name] = kind(options.pop(name))
  if unknown := {name: value for name, value in options.items() if value is not None}:
    raise ConfigError(f'options of generation that are not known here: {unknown}')

  if do_sample is not None:
    if not do_sample:
      temperature = 0.0
    elif not temperature:
      temperature = 1.0
  if not temperature:
    sampling = {}
  if isinstance(until, str):
    until = [until]
  return GenerationConfig(
      max_new=int(lengths[0]) if lengths else 256, temperature=temperature,
      stop=tuple(filter(None, until)), start=start, **sampling)


def answer_in_batches(
    asked: list[tuple[str, GenerationConfig]], size: int,
    encode: Callable[[list[str]], list[list[int]]],
    continued: Callable[[list[str], GenerationConfig], list[str]],
) -> list[str]:
  """Answer prompts in batches of equal options and similar length."""
  prompts = [prompt for prompt, _ in asked]
  lengths = list(map(len, encode(prompts)))
  answers = [''] * len(asked)
  by_config: dict[GenerationConfig, list[int]] = {}
  for i, (_, config) in enumerate(asked):
    by_config.setdefault(config, []).append(i)
  for config, same in by_config.items():
    order = sorted(same, key=lambda i: lengths[i])
    for begin in range(0, len(order), size):
      some = order[begin:begin + size]
      texts = continued([asked[i][0] for i in some], config)
      for i, text in zip(some, texts, strict=True):
        answers[i] = text
  return answers


def truncate_left(prompt: str, room: int, tokenizer: Any) -> str:
  """Truncate a prompt at its beginning to at most `room` tokens."""
  ids = tokenizer.encode(prompt)
  for keep in range(room, 0, -1):
    # A decoded part of a text may be encoded as more tokens.
    if len(tokenizer.encode(prompt)) <= room:
      break
    prompt = tokenizer.decode(ids[-keep:])
  return prompt
