"""Arms of a comparison at equal training time: how they are trained and evaluated.

An arm is a BERT with some options changed. The seconds per step of all arms are measured alternately and stored. Each
arm gets the number of steps that fit into the given minutes, with a schedule of that length. The runs then have fixed
numbers of steps, so machine load does not change their results: they can be run in any order, several at once, or be
interrupted and resumed. Evaluation, saving and compilation are not part of the time.

Held-out losses are computed on the same text for all arms, in sequences of one document each ([CLS] text [SEP]),
without NSP and with the same masked tokens. No arm was trained on exactly these sequences; fine-tuning uses
sequences of this form.
"""
from collections.abc import Callable, Mapping
import dataclasses
import sys
import time
from typing import Any, NamedTuple

from etils import epath
import jax

from benchmarks import kept, side_by_side
from plm_jax import environment, recipes, sharding, validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.config.run import Phase, PretrainRun, TrainConfig
from plm_jax.layers.dense import count_parameters
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.recipes import scale_presets
from plm_jax.runs import run as runs
from plm_jax.storage import compilation_cache
from plm_jax.training.feed import TextFeed
from plm_jax.training.learner import make_learner
from plm_jax.training.step import jit_train_step, make_sharded_init

REPEATS = 5  # steps per turn


@dataclasses.dataclass(frozen=True)
class Setting:
  """What all arms have in common; options of the command line."""

  text: str
  output: str
  layers: int = 4
  width: int = 256
  vocab: int = 8192
  rows: int = 16
  length: int = 128


class Arm(NamedTuple):
  """One of the compared runs."""

  title: str
  changes: Mapping[str, Any]
  """options that differ from BERT's, by paths such as model.block.norm_at"""
  rate_of: str
  """name of the arm whose learning rate it has, unless it is swept itself"""
  seeds: tuple[int, ...] = (0,)
  usual: bool = True
  """run if the command names no arms"""


class Plan(NamedTuple):
  """Properties of a run that its arm does not determine."""

  steps: int
  peak: float
  seed: int
  folder: str


def encoder(setting: Setting) -> PretrainRun:
  """Return BERT's run at a small size, as published except for two options that suit small models and short runs.

  The initial weights are larger (0.08 at a width of 128, as at the laptop's scale), with which small models learn more
  than word frequencies sooner, and Adam averages squared gradients over 50 steps (b2 0.98) instead of 1,000.
  """
  small = scale_presets.resize_run(
    recipes.find_recipe('bert_base')(),
    setting.layers,
    setting.width,
    max(1, setting.width // 64),
    setting.vocab,
    setting.length,
  )
  text = dataclasses.replace(small.data.prepare, sample=10_000_000, heldout=0.02)
  return dataclasses.replace(
      small, model=scale_presets.unroll_layers(validation.with_paths(
          small.model, {'block.init.std': round(0.08 * (128 / setting.width) ** 0.5, 4)})),
      data=dataclasses.replace(small.data, path=(setting.text,), prepare=text),
      optim=dataclasses.replace(small.optim, b2=0.98),
      train=TrainConfig(phases=(Phase(1_000_000, setting.length, setting.rows),)))


def planned(config: PretrainRun, plan: Plan) -> PretrainRun:
  """Return the run of an arm with its steps, learning rate, seed and folder.

  The warmup is a twentieth of the steps, but at least 60: with fewer, a post-norm model diverges at learning rates
  that suit a whole run. A cooldown is a fifth of the steps.
  """
  steps, phase = plan.steps, config.train.phases[0]
  optim = dataclasses.replace(config.optim, peak=plan.peak, warmup=min(max(steps // 20, 60), steps // 2),
                              cooldown=scale_presets.scale_cooldown(config.optim, steps))
  train = TrainConfig(phases=(dataclasses.replace(phase, steps=steps),), log_every=20, eval_every=max(1, steps // 4),
                      eval_batches=64, save_every=max(1, steps // 20), keep=1)
  return dataclasses.replace(config, optim=optim, train=train, seed=plan.seed, output=plan.folder)


def steps_in(minutes: float, seconds: float) -> int:
  """Count the steps that fit into some minutes; seconds: of a step.

  >>> steps_in(0.5, 0.25)
  120
  """
  return max(1, round(60 * minutes / seconds))


def timed(config: PretrainRun) -> None:
  """Time training steps, input pipeline included, in turns that the parent process starts."""
  environment.keep_memory()
  compilation_cache.use_compilation_cache()
  out, sys.stdout = sys.stdout, sys.stderr  # of which the parent reads figures alone
  records, tokenizer = runs.prepare_corpora(config)
  mesh = sharding.make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    feed, learner = TextFeed(config, records, tokenizer, mesh), make_learner(config, tokenizer.vocab)
    make, _, layout = make_sharded_init(learner, feed.first_window(), mesh)
    update, stream, state = jit_train_step(learner, layout), feed.stream(0, mesh), make()
    def work():
      nonlocal state
      state, numbers = update(state, next(stream)[-1])
      jax.block_until_ready(numbers)
    work()
    sys.stdout = out
    side_by_side.contest({}, work, REPEATS)


def pretrained(config: PretrainRun, judges: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Train a run, and evaluate it on held-out text.

  Args:
    config: the run.
    judges: title of each evaluation by masked tokens -> fields of its `MaskedLM`. A decoder has none.

  Returns:
    Its metrics: `loss` is the held-out loss of its own objective, and `judged` has the metrics of each evaluation.
  """
  began = time.perf_counter()
  result = runs.run(config)
  if result is None or not result.finished:
    kept.interrupted(config.folder)
  seconds = time.perf_counter() - began
  if isinstance(config.model, DecoderConfig):
    judges = {}
  return {
    'parameters': count_parameters(result.params),
    'steps': config.train.steps,
    'seconds': seconds,
    'filled': filled(config),
    'own': result.heldout,
    'loss': result.heldout[next(iter(config.objective.terms))],
    'judged': {name: judged(config, result.params, changes) for name, changes in judges.items()},
  }


def judged(config: PretrainRun, params: Any, changes: Mapping[str, Any]) -> dict[str, float]:
  """Evaluate parameters on all held-out text, in sequences of one document each.

  The masks depend on the text and on the seed, which is 0 for all arms.
  """
  config = dataclasses.replace(
      config, seed=0, objective=dataclasses.replace(MaskedLM(pair=Single()), **changes),
      data=dataclasses.replace(config.data, assembly='document'),
      train=dataclasses.replace(config.train, eval_batches=1_000_000))
  return with_feed(
    config, lambda feed, learner, mesh: feed.make_evaluator(learner, mesh)(params, config.train.phases[0])
  )


def filled(config: PretrainRun, batches: int = 8) -> float:
  """Return the share of tokens that are not padding, in the first batches of a run."""
  def share(feed, learner, mesh):
    del mesh
    segments = jax.jit(lambda windows: learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)['segments'])
    steps = range(min(batches, config.train.steps))
    return sum(float((segments(feed.read_batch(step)) > 0).mean()) for step in steps) / len(steps)
  return with_feed(config, share)


def records_of(config: PretrainRun) -> epath.Path:
  """Return the folder of the records of a run, after making them if they are missing."""
  return runs.prepare_corpora(config)[0][0]


def with_feed(config: PretrainRun, ask: Callable[[Any, Any, Any], Any]) -> Any:
  """Open the data of a run and make its learner -> `ask(feed, learner, mesh)`."""
  records, tokenizer = runs.prepare_corpora(config)
  mesh = sharding.make_mesh(config.mesh)
  with jax.set_mesh(mesh):
    return ask(TextFeed(config, records, tokenizer, mesh), make_learner(config, tokenizer.vocab), mesh)
