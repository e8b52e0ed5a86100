"""EleutherAI's lm-evaluation-harness, driving models of this house (pip install 'plm_jax[lm-eval]').

    import lm_eval
    from plm_jax.evaluation.harness import Harness

    lm_eval.simple_evaluate(Harness('runs/gpt2_small'), tasks=['lambada_openai', 'piqa'], num_fewshot=0)
"""
from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import itertools
from typing import Any

import jax
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]

from plm_jax.config import ConfigError
from plm_jax.evaluation import scoring
from plm_jax.evaluation.scoring import Span, strided
from plm_jax.inference import loading
from plm_jax.inference.generate import generate
from plm_jax.inference.loading import Trained
from plm_jax.inference.search import GenerationConfig
from plm_jax.sharding import MeshConfig, make_mesh

LENGTHS = ('max_gen_toks', 'max_new_tokens', 'max_tokens')  # the same by other names


@register_model('plm_jax')
class Harness(LM):
  """A trained model as the harness sees it. Requests are its Instances, of which `args` alone are read."""

  def __init__(
      self, checkpoint: str | Trained, start: bool = True, batch_size: int = 16, fsdp: int = 1, tensor: int = 1):
    """checkpoint: folder of a run, or of a checkpoint of transformers; or what `loading.load` gave, on one device.

    fsdp, tensor: devices that share one copy of the model in the folder, as in a mesh.
    start: a text begins with the token that begins texts in training; the harness's own figures for GPT-2 are without.
    batch_size: texts that are generated together. Raises CheckpointError for a model that is no language model.
    """
    super().__init__()
    self.mesh = make_mesh(MeshConfig(fsdp=fsdp, tensor=tensor)) if fsdp * tensor > 1 else None
    self.trained = checkpoint if isinstance(checkpoint, Trained) else loading.load(checkpoint, self.mesh)
    self.scorer = scoring.of(self.trained, start, self.mesh)
    self.batch_size = batch_size

  def loglikelihood(self, requests) -> list[tuple[float, bool]]:
    """Returns, of each (context, continuation), the natural logarithm of its probability, and whether it is what greedy
    decoding gives."""
    return [(score.logprob, score.greedy) for score in self.scorer.score([request.args for request in requests])]

  def loglikelihood_rolling(self, requests) -> list[float]:
    """Returns, of each (text,), the natural logarithm of its probability, by windows without overlap, but that the last
    one is full."""
    texts = [request.args[0] for request in requests]
    rows = [rolling([*self.scorer.start_ids(0), *ids], self.scorer.length) if ids else []
            for ids in self.scorer.tokenizer.encode_batch(texts)]
    found = iter(self.scorer.predict(list(itertools.chain.from_iterable(rows))))
    return [sum(next(found)[0] for _ in some) for some in rows]

  def generate_until(self, requests) -> list[str]:
    """Returns what follows each (context, options). A context that is too long loses its beginning."""
    asked = [(context, generation(options, self.scorer.start)) for context, options in (x.args for x in requests)]
    return batched(asked, self.batch_size, self.scorer.tokenizer.encode_batch, self.continued)

  def continued(self, prompts: list[str], config: GenerationConfig) -> list[str]:
    """Returns the continuation of each prompt. A model of limited length reads the prompt's end, and writes half a row
    at most."""
    length = self.scorer.length
    if length:
      config = dataclasses.replace(config, max_new=min(config.max_new, max(1, length // 2)))
      prompts = [shorten(prompt, length - config.max_new - config.start, self.scorer.tokenizer) for prompt in prompts]
    with jax.set_mesh(self.mesh) if self.mesh else contextlib.nullcontext():
      return [some[0].text for some in generate(self.trained, prompts, config)]


def rolling(ids: list[int], length: int) -> list[Span]:
  """Cuts a text into spans, in which ids[1:] are predicted once, each from at most `length` tokens (0: all) before
  it."""
  room = length + 1 if length else len(ids)
  spans = strided(ids, 1, room, room - 1)
  last = ids[-room:]
  predicted = len(spans[-1].ids) - spans[-1].first
  return [*spans[:-1], Span(last, len(last) - predicted)]


def generation(options: Mapping[str, Any], start: bool) -> GenerationConfig:
  """Translates the harness's options to ours. Raises ConfigError for one that is not known."""
  options = dict(options)
  until = options.pop('until', [])
  lengths = [options.pop(name) for name in LENGTHS if options.get(name) is not None]
  sampled = options.pop('do_sample', None)
  temperature = float(options.pop('temperature', None) or 0)
  kinds = {'top_k': int, 'top_p': float, 'min_p': float}
  drawn: dict[str, Any] = {
      name: kind(options.pop(name)) for name, kind in kinds.items() if options.get(name) is not None}
  if unknown := {name: value for name, value in options.items() if value is not None}:
    raise ConfigError(f'options of generation that are not known here: {unknown}')
  if sampled is not None:
    temperature = (temperature or 1.0) if sampled else 0.0
  return GenerationConfig(
      max_new=int(lengths[0]) if lengths else 256, temperature=temperature, **(drawn if temperature else {}),
      stop=tuple(x for x in ([until] if isinstance(until, str) else until) if x), start=start)


def batched(asked: list[tuple[str, GenerationConfig]], size: int, encode: Callable[[list[str]], list[list[int]]],
            continued: Callable[[list[str], GenerationConfig], list[str]]) -> list[str]:
  """Answers prompts, with those together that are asked for in one way and of like length."""
  lengths = list(map(len, encode([prompt for prompt, _ in asked])))
  answers = [''] * len(asked)
  for config in dict.fromkeys(config for _, config in asked):
    order = sorted((i for i, (_, other) in enumerate(asked) if other == config), key=lengths.__getitem__)
    for begin in range(0, len(order), size):
      some = order[begin:begin + size]
      for i, text in zip(some, continued([asked[i][0] for i in some], config), strict=True):
        answers[i] = text
  return answers


def shorten(prompt: str, room: int, tokenizer: Any) -> str:
  """Returns the end of a prompt that has no more than `room` tokens."""
  ids = tokenizer.encode(prompt)
  for keep in range(room, 0, -1):
    # A decoded piece of text need not have as many tokens again.
    if len(tokenizer.encode(prompt)) <= room:
      break
    prompt = tokenizer.decode(ids[-keep:])
  return prompt
