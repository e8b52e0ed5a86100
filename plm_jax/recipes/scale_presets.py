"""Scale presets: the same recipe smaller, for --scale=laptop and --scale=test."""
from collections.abc import Sequence
import dataclasses
import math
from typing import Any, TypeVar

from plm_jax import validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.config.run import (
  Phase,
  PretrainRun,
  PretrainScale,
  RunConfig,
  TrainConfig,
  phase_objective,
)
from plm_jax.layers.stack import StackConfig
from plm_jax.models import elmo
from plm_jax.objectives.bilm import BidirectionalLM
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.layer_distillation import Relations
from plm_jax.objectives.seq2seq import SequenceToSequence
from plm_jax.optim.optimizers import Adafactor, Lamb, OptimConfig
from plm_jax.preparation.prepare_config import TextConfig

Size = TypeVar('Size', bound=RunConfig)
MINUTES_PER_1000_STEPS = {
    CausalLM: 6.7, DenoisingAutoencoder: 5.7, SequenceToSequence: 3.1, BidirectionalLM: 4.0}
"""Minutes that 1,000 steps of the laptop scale took on two CPU cores, by objective; others: not
known."""
SHORT_MINUTES = 5
"""Duration of a short run."""
MIN_POSITIONS = 128
"""Minimum number of positions of a model of the laptop scale. It is pre-trained on shorter
sequences; fine-tuning trains the position embeddings that pre-training did not reach. On reviews
of 128 tokens, at a learning rate of 3e-4, this was no worse than pre-training the last quarter,
or all of the steps, on sequences of 128 tokens (benchmarks/RESULTS.md)."""


def apply_scale(paper: PretrainRun, scale: PretrainScale) -> PretrainRun:
  """Return a recipe at a scale: as published (also for `gpu`), minutes on two cores, or seconds.

  Family, objective and data stay the same, but words are segmented only if an option says so.
  """
  if scale in ('paper', 'gpu'):  # the latter is fitted when the devices and the text are known
    return dataclasses.replace(paper, scale=scale)
  if isinstance(paper.objective, BidirectionalLM):
    return make_elmo_run(paper, scale)
  run = make_laptop_run(paper) if scale == 'laptop' else make_test_run(paper)
  run = validation.with_paths(run, {'data.prepare.segmenter': 'none'})
  return shrink_student(run) if isinstance(run.objective, Distillation) else run


def make_laptop_run(paper: PretrainRun) -> PretrainRun:
  """Make a run of minutes on two cores, tokenizer and records included, that learns something."""
  # Size of the model, steps and learning rate, by objective.
  text = dataclasses.replace(paper.data.prepare, sample=10_000_000)
  task = getattr(paper.objective, 'task', paper.objective)  # of a student
  is_bidirectional = isinstance(paper.model, DecoderConfig) and not paper.model.causal
  if isinstance(task, CausalLM) or is_bidirectional:
    # Large enough to predict a text better than a compressor that has all of the training text at
    # hand.
    small = resize_run(paper, layers=4, width=256, heads=4, vocab=4096, max_length=256)
    optim, phase = dict(peak=2e-3, warmup=200, b2=0.98), Phase(6000, 256, 8)
    if is_bidirectional:  # it starts from a trained decoder
      phase = Phase(1000, 256, 8)
    init_std = 0.04
  elif isinstance(paper.objective, SequenceToSequence):
    # Little of a sequence is predicted: many sequences, of a small model.
    text_to_text = paper.objective.layout.target_tokens is not None
    phase = Phase(2000, 128, 32) if text_to_text else Phase(4000, 64, 64)
    small = resize_run(paper, layers=2, width=128, heads=4, vocab=4096, max_length=phase.length)
    optim = dict(peak=2e-3, warmup=100, b2=0.98)
    init_std = 0.08
  else:
    # A paper's run spends its first thousands of steps on a plateau, where it knows the
    # frequencies of words and nothing of their order. Short sequences, weights whose products keep
    # their size at this width, a high peak and no dropout in a run of one epoch get over it in
    # hundreds.
    small = resize_run(paper, layers=2, width=128, heads=2, vocab=4096, max_length=32)
    optim, phase = dict(peak=2e-3, warmup=60, b2=0.98), Phase(2000, 32, 64)
    init_std = 0.08
  if isinstance(paper.optim, Adafactor):  # whose learning rate is relative to the parameters
    peak = 0.01 if paper.optim.schedule == 'constant' else 0.03
    optim = dict(peak=peak, warmup=100)
  if isinstance(paper.optim, Lamb):  # this one, too
    optim['peak'] = max(optim['peak'], paper.optim.peak)

  # No dropout, and initialization for this width.
  model: Any = small.model
  block = validation.with_paths(model.block, {
      'dropout': 0.0, 'attention.dropout': 0.0, 'attention.out_dropout': 0.0, 'mlp.dropout': 0.0})
  if block.init.fan == 'none':
    block = validation.with_paths(block, {'init.std': init_std})
  if block.init.out_std:
    out_std = init_std * (2 * model.stack.layers) ** -0.5
    block = validation.with_paths(block, {'init.out_std': out_std})
  if model.max_length:
    model = dataclasses.replace(model, max_length=max(MIN_POSITIONS, model.max_length))
  model = unroll_layers(dataclasses.replace(model, block=block))

  every = phase.steps // 8
  return dataclasses.replace(
      small, scale='laptop', model=model,
      data=dataclasses.replace(small.data, prepare=text),
      optim=dataclasses.replace(
          small.optim, clock='steps', horizon=0, cooldown=scale_cooldown(small.optim, phase.steps),
          ema=scale_ema(paper, phase.steps), **optim),
      train=TrainConfig(
          phases=(phase,), log_every=20, eval_every=every, eval_batches=16, save_every=every))


def unroll_layers(model: Any) -> Any:
  """Return a model whose layers are compiled one after another, instead of a loop over them.

  With few layers this saves a sixth of a step on a CPU, for seconds of compilation.
  """
  stacks = [field.name for field in dataclasses.fields(model)
            if isinstance(getattr(model, field.name), StackConfig)]
  return validation.with_paths(model, {f'{name}.scan': False for name in stacks})


def describe_duration(run: PretrainRun) -> str:
  """Describe how long a run of the laptop scale takes where that is not short; '' of others.

  It names the options of a short run.
  """
  minutes = next((value for kind, value in MINUTES_PER_1000_STEPS.items()
                  if isinstance(run.objective, kind)), 0)
  whole = minutes * run.train.steps / 1000
  if run.scale != 'laptop' or run.objective.layout.target_tokens or len(run.train.phases) != 1:
    return ''
  if whole < 2 * SHORT_MINUTES:
    return ''
  short = int(SHORT_MINUTES / minutes * 10) * 100
  return (f'about {whole:.0f} minutes on two CPU cores; a run of {SHORT_MINUTES}, from which '
          f'less can be expected: --train.phases.0.steps={short} --output={run.folder}-short')


def count_flops(run: RunConfig, phases: Sequence[Phase]) -> float:
  """Return the model FLOPs of all steps of some phases of a run."""
  return sum(phase.steps * phase.batch * phase_objective(run, phase).step_flops(
      run.model, phase.length) for phase in phases)


def make_test_run(paper: PretrainRun) -> PretrainRun:
  """Make a run of seconds, for tests: too short to learn anything."""
  tiny = resize_run(paper, layers=2, width=32, heads=2, vocab=2048, max_length=64)
  optim = dataclasses.replace(
      tiny.optim, peak=1e-3, warmup=2, clock='steps', horizon=0,
      cooldown=scale_cooldown(tiny.optim, 8), ema=scale_ema(paper, 8))
  train = TrainConfig(
      phases=(Phase(6, 32, 8), Phase(2, 64, 8)), log_every=2, eval_every=4, eval_batches=2,
      save_every=4)
  return dataclasses.replace(tiny, scale='test', optim=optim, train=train)


def make_elmo_run(paper: PretrainRun, scale: PretrainScale) -> PretrainRun:
  """Make a smaller run of ELMo, which splits plain text into words itself."""
  text = TextConfig(kind='words-and-signs', lowercase=False, sample=10_000_000)
  data = dataclasses.replace(paper.data, prepare=text)
  model: Any = paper.model
  objective: Any = paper.objective
  if scale == 'laptop':
    model = elmo.shrink_config(model, width=64, cells=512, words=8000, filters=64)
    objective = dataclasses.replace(objective, samples=1024, fresh=0.05)
    train = TrainConfig(
        phases=(Phase(4000, 20, 32),), log_every=20, eval_every=500, eval_batches=16,
        save_every=500)
  else:
    model = elmo.shrink_config(model, width=16, cells=24, words=1000, filters=8)
    objective = dataclasses.replace(objective, samples=64)
    train = TrainConfig(
        phases=(Phase(6, 20, 8), Phase(2, 30, 8)), log_every=2, eval_every=4, eval_batches=2,
        save_every=4)
  return dataclasses.replace(
      paper, scale=scale, model=model, data=data, objective=objective, train=train)


def shrink_student(run: PretrainRun) -> PretrainRun:
  """Give a student half of the layers of its teacher, which has this scale, too."""
  model: Any = run.model
  objective: Any = run.objective
  inner = objective.inner
  if isinstance(inner, Relations):
    inner = dataclasses.replace(inner, layer=0, heads=min(inner.heads, 4))
  return validation.with_paths(run, {
      'objective': dataclasses.replace(objective, model=None, inner=inner),
      'model.stack.layers': model.stack.layers // 2})


def scale_cooldown(optim: OptimConfig, steps: int) -> int:
  """Return the steps of the final decay: a fifth of the run, for a schedule that has one."""
  return steps // 5 if optim.schedule in ('wsd', 'trapezoid') else 0


def scale_ema(paper: PretrainRun, steps: int) -> float:
  """Return the EMA decay rate that covers the same fraction of so many steps."""
  if not paper.optim.ema:
    return 0.0
  return max(0.0, 1 - (1 - paper.optim.ema) * paper.train.steps / steps)


def resize_run(
    paper: Size, layers: int, width: int, heads: int, vocab: int, max_length: int) -> Size:
  """Return a run with the same architecture in another size, in float32, which is as fast on a CPU.

  The model has to be one of blocks.
  """
  model: Any = paper.model
  block = model.block
  block = dataclasses.replace(
      block, width=width, heads=heads, head_size=None,
      kv_heads=block.kv_heads and math.gcd(block.kv_heads, heads), mlp_dim=4 * width,
      dtype='float32')
  if block.init.out_std:  # std over the root of twice the layers
    out_std = block.init.std * (2 * layers) ** -0.5
    block = validation.with_paths(block, {'init.out_std': out_std})
  model = model.resize(block, layers, vocab, max_length)
  objective = paper.objective
  if getattr(objective, 'decoder_length', 0) > max_length // 2:
    objective = dataclasses.replace(objective, decoder_length=max_length // 2)
  if isinstance(objective, DenoisingAutoencoder):  # a short sequence holds few sentences
    objective = dataclasses.replace(objective, reserve=min(objective.reserve, 4))
  return dataclasses.replace(paper, model=model, objective=objective)
