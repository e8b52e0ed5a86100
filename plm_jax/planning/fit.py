"""Fit a run to a device, a time and a text, keeping the ratios of the published run.

The model, the objective and the optimizer stay. The batch, gradient accumulation, activation
checkpointing and the vocabulary follow from the memory and the text (`fit_layout`); the number of
steps follows from the time per step and the epochs that help (`fit_steps`). Warmup, phases and
decay keep their shares of the run. The rules and their sources:

- Batch: the published one, at most `MAX_BATCH_TOKENS`; halved while the run would have fewer than
  `MIN_STEPS` updates. The peak learning rate falls with the square root of the batch size.
- Peak of a small model whose published value is that of a larger one: `width_factor`.
- Epochs: `most_epochs`.
- Activation checkpointing: only where a micro-batch would be smaller than `MICRO_TOKENS`.
- Vocabulary of a tokenizer that is trained on the text: `VOCABULARIES`.
"""
from collections.abc import Mapping, Sequence
import dataclasses
import math
import time
from typing import Any

import jax

from plm_jax import sharding, storage, validation
from plm_jax.config.run import ConfigError, Phase, PretrainRun, RunConfig
from plm_jax.distributed import hosts
from plm_jax.errors import name_field, print_line
from plm_jax.loading.loaded_model import read_config
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import Adafactor, Lamb, OptimConfig
from plm_jax.planning.devices import GIB, Device
from plm_jax.planning.memory import StepMemory, estimate_memory
from plm_jax.planning.timing import (
  StepTimes,
  estimate_hours,
  measure_steps,
  phases_to_measure,
  run_seconds,
)
from plm_jax.recipes import FAMILIES, all_recipes
from plm_jax.recipes.scale_presets import scale_ema

MAX_BATCH_TOKENS = 1 << 18
"""Largest batch in tokens. The critical batch size, above which more tokens per update save few
updates (McCandlish et al. 2018, arXiv:1812.06162), is 2e8 tokens x loss^-4.76 for language models
(Kaplan et al. 2020, section 5.1): 272,000 tokens at a loss of 4, which runs of a day reach."""
MIN_BATCH_TOKENS = 1 << 13
MIN_STEPS = 10_000
"""Updates below which the batch is halved: a rule of this project, not a published value."""
MICRO_TOKENS = 1 << 10
"""Tokens of a micro-batch, below which a GPU waits for its memory."""
VOCABULARIES = ((2_000_000, 4096), (30_000_000, 8192), (300_000_000, 16_384))
"""(tokens of text, largest vocabulary of a new tokenizer). GPT-BERT has 8,192 tokens for 10 million
words and 16,384 for 100 million (Charpentier and Samuel 2024, arXiv:2410.24159)."""
STEP_SHARE = 0.95
"""Share of the time for training steps; the rest is for evaluations, checkpoints and the report."""
EVALUATIONS = 20
EVALUATION_SHARE = 0.03
"""Share of the steps' time that evaluations may take; a batch takes a third of a step."""
SAVE_SECONDS = 1800
COMPILATIONS = 4
"""Times of compiling all steps that a run needs after its steps are measured: for the steps, which
it compiles again or reads from JAX's cache, for evaluations, and for the samples of its report."""
MEASURED_SHARE = 0.04
"""Share of the time for which steps are measured, at most a minute."""
LAYOUT_FIELDS = ('model.block.dtype', 'model.vocab', 'model.stack.remat', 'train.accumulate')
STEP_FIELDS = (
    'train.log_every', 'train.eval_every', 'train.eval_batches', 'train.save_every', 'optim.warmup',
    'optim.horizon', 'optim.cooldown', 'optim.ema')
BASE_WIDTH = 768
"""width of the base sizes, for which most published peaks were chosen"""
FITTED = LAYOUT_FIELDS + STEP_FIELDS + ('optim.peak',)
"""fields that a fit sets, next to the phases, unless the user has set them"""


def most_epochs(config: RunConfig) -> int:
  """Return the number of epochs over a text after which more steps help little.

  Decoders: up to 4 epochs are almost as good as new text, and returns are small after about 16
  (Muennighoff et al. 2023, arXiv:2305.16264). Other objectives mask other tokens in each epoch, and
  encoders on small corpora train longer (BabyLM: Warstadt et al. 2023, Samuel et al. 2023).
  """
  return 16 if isinstance(config.objective, CausalLM) else 40


def has_new_tokenizer(config: PretrainRun, records: bool) -> bool:
  """Tell whether a run trains a tokenizer, whose vocabulary size can be chosen.

  Args:
    config: the run.
    records: whether its corpora are finished token records.
  """
  text = config.data.prepare
  own = text.tokenizer or config.warm_start or records or len(config.data.path) > 1
  return not own and text.kind not in ('bytes', 'words', 'words-and-signs')


def fit_layout(config: PretrainRun, device: Device, hours: float, tokens: int,
               new_tokenizer: bool = False, kept: Sequence[str] = ()) -> PretrainRun:
  """Fit dtype, vocabulary, batch, gradient accumulation and checkpointing to a device.

  The number of steps stays the published one; `fit_steps` changes it.

  Args:
    config: the published run, with options.
    device: the kind of device, and how many there are.
    hours: time of the run.
    tokens: tokens of text; 0: unknown.
    new_tokenizer: whether the vocabulary can be chosen.
    kept: fields that the user has set; 'train.phases' for the batch.

  Raises:
    ConfigError: not even one sequence fits the memory.
  """
  changes: dict[str, Any] = {}
  if hasattr(config.model, 'block') and 'model.block.dtype' not in kept:
    changes['model.block.dtype'] = device.dtype
  if new_tokenizer and 'model.vocab' not in kept:
    most = next((size for limit, size in VOCABULARIES if 0 < tokens < limit), config.model.vocab)
    changes['model.vocab'] = min(config.model.vocab, most)
  fitted: Any = validation.with_paths(config, changes)
  shrink = 1.0 if 'train.phases' in kept else batch_factor(fitted, device, hours, tokens)
  fitted = scale_batch(fitted, shrink, 'optim.peak' not in kept)
  if 'optim.peak' not in kept:
    peak = float(f'{fitted.optim.peak * width_factor(fitted):.3g}')
    fitted = validation.with_paths(fitted, {'optim.peak': peak})
  policy = fitted.model.stack.remat if hasattr(fitted.model, 'stack') else ''
  policies = [policy] if not policy or 'model.stack.remat' in kept else ['none', 'full']
  found = None
  for policy in policies:
    if policy:
      fitted = validation.with_paths(fitted, {'model.stack.remat': policy})
    found = split_batch(fitted, device, kept) or found
    if found and has_large_steps(found, device):
      break
  if found is None:
    raise ConfigError(
        f'{config.name} does not fit {device.memory / GIB:.1f} GiB of {device.name}, even with one '
        'sequence at a time and activation checkpointing: choose a smaller size')
  if found.optim.clock == 'tokens':  # the schedule follows the batch
    ratio = found.text_tokens / config.text_tokens
    changes = {name: value for name, value in scale_schedule(found.optim, ratio).items()
               if name not in kept}
    found = validation.with_paths(found, changes)
  return found


def scale_schedule(optim: OptimConfig, ratio: float) -> dict[str, Any]:
  """Return the fields of a schedule for a run that is longer by a ratio, in steps or tokens."""
  changes: dict[str, Any] = {f'optim.{name}': round(getattr(optim, name) * ratio)
                             for name in ('warmup', 'horizon', 'cooldown')}
  if optim.warmup:
    changes['optim.warmup'] = max(1, changes['optim.warmup'])
  return changes


def width_factor(config: PretrainRun) -> float:
  """Return the factor on a published peak that was chosen for a wider model.

  BERT's small sizes, for example, have the peak of base. With Adam the best peak is proportional to
  1 / width (Yang et al. 2022, arXiv:2203.03466). Long runs forgive a peak that is too low;
  runs of hours do not.
  """
  recipe, block = all_recipes().get(config.name), getattr(config.model, 'block', None)
  if recipe is None or block is None or isinstance(config.optim, (Adafactor, Lamb)):
    return 1.0
  widths = [row.model('float32').block.width for row in FAMILIES[recipe.family].sizes.values()
            if row.peak == recipe.row.peak]
  return max(1.0, min(BASE_WIDTH, max(widths)) / block.width)


def has_large_steps(config: RunConfig, device: Device) -> bool:
  """Tell whether all micro-batches keep a device busy, or are the whole batch."""
  parts = device.count * config.train.accumulate
  return config.train.accumulate == 1 or all(
      phase.batch * phase.length >= MICRO_TOKENS * parts for phase in config.train.phases)


def batch_factor(config: PretrainRun, device: Device, hours: float, tokens: int) -> float:
  """Return the factor on the published batch: 1 or a half, a quarter, ... (`MIN_STEPS`)."""
  batch = max(phase.batch * phase.length for phase in config.train.phases)
  share = hours * STEP_SHARE / estimate_hours(config, device)
  if tokens:
    share = min(share, most_epochs(config) * tokens / config.text_tokens)
  factor = 1.0
  while batch * factor > MAX_BATCH_TOKENS or (
      config.train.steps * share / factor < MIN_STEPS and batch * factor > MIN_BATCH_TOKENS):
    factor /= 2
  return factor


def scale_batch(config: PretrainRun, factor: float, scales_peak: bool) -> PretrainRun:
  """Scale the batch of all phases, and the peak learning rate with its square root.

  Adaptive optimizers follow a square-root rule (Malladi et al. 2022, arXiv:2205.10287).
  Adafactor's updates, which are relative to the parameters, stay.
  """
  phases = tuple(dataclasses.replace(phase, batch=max(1, round(phase.batch * factor)))
                 for phase in config.train.phases)
  scales_peak = scales_peak and not isinstance(config.optim, Adafactor)
  peak = float(f'{config.optim.peak * math.sqrt(factor):.3g}') if scales_peak and factor < 1 else (
      config.optim.peak)
  return validation.with_paths(config, {'train.phases': phases, 'optim.peak': peak})


def memory_of_phases(config: PretrainRun, device: Device) -> list[StepMemory]:
  """Estimate the memory of the step of each phase."""
  return [estimate_memory(config, phase, device) for phase in config.train.phases]


def count_shards(config: RunConfig, device: Device) -> tuple[int, int]:
  """Return the number of devices that share the state, and of those that share the batch."""
  mesh = sharding.fit_mesh(config.mesh, device.count)
  return mesh.fsdp * mesh.tensor, max(1, device.count // mesh.tensor)


def split_batch(
    config: PretrainRun, device: Device, kept: Sequence[str] = ()) -> PretrainRun | None:
  """Split the batch into micro-batches that fit the memory; None if not even one sequence does."""
  shards, copies = count_shards(config, device)
  accumulate = config.train.accumulate if 'train.accumulate' in kept else 1
  for phase, memory in zip(config.train.phases, memory_of_phases(config, device), strict=True):
    per_device = -(-phase.batch // copies)
    rows = memory.most_rows(device.memory, accumulate, shards)
    if per_device > rows * accumulate and 'train.accumulate' not in kept:
      rows = memory.most_rows(device.memory, 2, shards)
      if not rows:
        return None
      accumulate = max(accumulate, -(-per_device // rows))
  if 'train.accumulate' not in kept:  # batches stay as they are if up to twice as many divide them
    divides = (number for number in range(accumulate, 2 * accumulate) if all(
        phase.batch % (number * copies) == 0 for phase in config.train.phases))
    accumulate = next(divides, accumulate)
  return set_accumulation(config, accumulate, copies)


def set_accumulation(config: PretrainRun, accumulate: int, copies: int) -> PretrainRun:
  """Set gradient accumulation; batches become the next multiple of its micro-batches."""
  unit = accumulate * copies
  phases = tuple(dataclasses.replace(phase, batch=-(-phase.batch // unit) * unit)
                 for phase in config.train.phases)
  return validation.with_paths(
      config, {'train.accumulate': accumulate, 'train.phases': phases})


def step_bytes(config: PretrainRun, device: Device) -> float:
  """Estimate the bytes that the largest step of a run needs on one device."""
  shards, copies = count_shards(config, device)
  accumulate = config.train.accumulate
  return max(memory.total(phase.batch // copies // accumulate, accumulate, shards)
             for phase, memory in zip(
                 config.train.phases, memory_of_phases(config, device), strict=True))


def fit_steps(config: PretrainRun, share: float, seconds: float,
              kept: Sequence[str] = ()) -> PretrainRun:
  """Scale the steps of a run, and what follows from them.

  Args:
    config: the run with the published number of steps.
    share: steps of the new run per published step.
    seconds: mean time of a step.
    kept: fields that the user has set.
  """
  phases = tuple(dataclasses.replace(phase, steps=max(1, round(phase.steps * share)))
                 for phase in config.train.phases)
  steps = sum(phase.steps for phase in phases)
  ratio = steps / config.train.steps
  if config.optim.clock == 'tokens':
    after = sum(phase.steps * phase.batch * phase.length for phase in phases)
    ratio = after / sum(number * size for number, size in config.train.steps_and_tokens)
  every = max(1, steps // EVALUATIONS)
  changes = scale_schedule(config.optim, ratio) | {
      'optim.ema': float(f'{scale_ema(config, steps):.6g}'),
      'train.log_every': min(100, max(1, steps // 200)),
      'train.eval_every': every,
      'train.eval_batches': min(64, max(1, int(3 * EVALUATION_SHARE * every))),
      'train.save_every': max(1, min(every, int(SAVE_SECONDS / seconds)))}
  changes = {name: value for name, value in changes.items() if name not in kept}
  return validation.with_paths(config, changes | {'train.phases': phases})


def plan_run(config: PretrainRun, device: Device, hours: float, tokens: int,
             new_tokenizer: bool = False, kept: Sequence[str] = ()) -> PretrainRun:
  """Fit a run to a device that need not be present, with an estimated time per step.

  See `fit_layout`.
  """
  layout = fit_layout(config, device, hours, tokens, new_tokenizer, kept)
  whole = estimate_hours(layout, device)
  share = limit_epochs(layout, hours * STEP_SHARE / whole, tokens)
  return fit_steps(layout, share, 3600 * whole / layout.train.steps, kept)


def limit_epochs(config: PretrainRun, share: float, tokens: int) -> float:
  """Limit the steps of a run per published step by the epochs that help (`most_epochs`)."""
  return min(share, most_epochs(config) * tokens / config.text_tokens) if tokens else share


# A run with --scale=gpu, on the devices that are present.


def fitted_before(config: RunConfig) -> PretrainRun | None:
  """Return the configuration of the run in config.folder if it was fitted; None if there is none.

  A run that resumes has its batch and steps, and is not measured again.
  """
  if not (storage.resolve_path(config.folder) / 'config.json').exists():
    return None
  before = read_config(config.folder)
  return before if isinstance(before, PretrainRun) and before.scale == 'gpu' else None


def given_fields(config: PretrainRun) -> list[str]:
  """List the fields that a fit would set, and that differ from those of the run's recipe."""
  recipe = all_recipes().get(config.name)
  if recipe is None:
    return []
  default = recipe('gpu')
  found = [name for name in FITTED
           if validation.get_field(config, name) != validation.get_field(default, name)]
  return found + ['train.phases'] * (config.train.phases != default.train.phases)


def start_fit(config: PretrainRun, device: Device, tokens: int, new_tokenizer: bool) -> PretrainRun:
  """Fit the layout of a new run to the devices here, or take that of the run that resumes."""
  kept = given_fields(config)
  if before := fitted_before(config):
    taken = {name: value for name in FITTED if name not in kept
             and (value := validation.get_field(before, name)) is not None}
    return validation.with_paths(config, taken | {'train.phases': before.train.phases})
  return fit_layout(config, device, config.hours, tokens, new_tokenizer, kept)


def finish_fit(config: PretrainRun, tokens: int, elapsed: float) -> PretrainRun:
  """Measure the steps of a run whose layout is fitted, and choose their number.

  Args:
    config: the run, with the published number of steps.
    tokens: tokens of the prepared text.
    elapsed: seconds that have passed since the command began.

  Raises:
    ConfigError: the time is over before the first step.
  """
  begun = time.monotonic() - elapsed
  measured = measure_run(config)
  whole = run_seconds(config, {phase: times.step for phase, times in measured.items()})
  compiling = COMPILATIONS * sum(times.first - times.step for times in measured.values())
  elapsed = time.monotonic() - begun
  whole, left = hosts.broadcast(
      [whole, config.hours * 3600 - elapsed - compiling], 'time of training steps')
  if left <= 0:
    raise ConfigError(
        f'{name_field("hours")}={config.hours:g} are over before the first step: text and '
        f'compilation took {elapsed:,.0f} s. Give more hours, or prepare the text first')
  time_share = left * STEP_SHARE / whole
  share = limit_epochs(config, time_share, tokens)
  kept = [name for name in given_fields(config) if name in STEP_FIELDS]
  fitted = fit_steps(config, share, whole / config.train.steps, kept)
  if jax.process_index() == 0:
    print_line(describe_fit(fitted, measured, tokens, share < time_share))
  return fitted


def measure_run(config: PretrainRun) -> dict[Phase, StepTimes]:
  """Measure the steps of each sequence length of a run."""
  mesh, phases = sharding.make_mesh(config.mesh), phases_to_measure(config.train.phases)
  seconds = min(60.0, MEASURED_SHARE * config.hours * 3600) / len(phases)
  return {phase: measure_steps(config, mesh, phase, seconds=seconds) for phase in phases}


def describe_fit(config: PretrainRun, measured: Mapping[Phase, StepTimes], tokens: int,
                 is_text_used_up: bool) -> str:
  """Describe the choice for a run in a line."""
  times = ', '.join(f'{times.step:.3g} s per step of {phase.batch} x {phase.length} tokens'
                    for phase, times in measured.items())
  epochs = f', {config.text_tokens / tokens:,.3g} epochs' if tokens else ''
  batch = max(phase.batch * phase.length for phase in config.train.phases)
  end = ''
  if is_text_used_up:
    end = f'; it ends before {config.hours:g} hours, since more epochs help little'
  return (f'measured {times}; chosen for {config.hours:g} hours: {config.train.steps:,} steps of '
          f'{batch:,} tokens{epochs}, warmup {config.optim.warmup:,}, peak learning rate '
          f'{config.optim.peak:g}, gradient accumulation {config.train.accumulate}{end}')
