"""The same recipe, smaller: what --scale=laptop and --scale=test make of a paper's run."""
import dataclasses
from typing import Any, TypeVar

from plm_jax import checked
from plm_jax.config import Experiment, Phase, Run, Scale, TrainConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.objectives.bilm import BidirectionalLM
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.objectives.seq2seq import SequenceToSequence
from plm_jax.training.optim import OptimConfig

Size = TypeVar('Size', bound=Run)
# What 1,000 steps of the laptop's scale took on two CPU cores, in minutes, by objective. Of others nothing is said.
MINUTES = {CausalLM: 6.7, DenoisingAutoencoder: 5.7, SequenceToSequence: 3.1, BidirectionalLM: 4.0}
SHORT = 5  # minutes: what is called a short run


def scaled(paper: Experiment, scale: Scale) -> Experiment:
  """Returns `paper` as it is, in minutes on two cores, or in seconds. Family, objective and data stay the same."""
  if scale == 'laptop':
    return laptop(paper)
  return test(paper) if scale == 'test' else paper


def laptop(paper: Experiment) -> Experiment:
  """Makes a run of minutes on two cores, tokenizer and records included, that learns to fill blanks, or to go on."""
  text = dataclasses.replace(paper.data.prepare, sample=10_000_000)
  if isinstance(getattr(paper.objective, 'task', paper.objective), CausalLM):  # a student's task
    # Large enough to say more of a text than a compressor that has all of the training text at hand.
    small = resized(paper, layers=4, width=256, heads=4, vocab=4096, max_length=256)
    optim, phase = dict(peak=2e-3, warmup=200, b2=0.98), Phase(6000, 256, 8)
    init_std = 0.04
  elif isinstance(paper.objective, SequenceToSequence):
    # Of a row little is predicted: many rows, of a small model.
    text_to_text = paper.objective.target_budget is not None
    small = resized(paper, layers=2, width=128, heads=4, vocab=4096, max_length=128 if text_to_text else 64)
    optim = dict(peak=2e-3, warmup=100, b2=0.98)
    phase = Phase(2000, 128, 32) if text_to_text else Phase(4000, 64, 64)
    init_std = 0.08
  else:
    # A paper's run spends its first thousands of steps on a plateau, where it knows the frequencies of words and
    # nothing of their order. Short rows, weights whose products keep their size at this width, a high peak and no
    # dropout in a run of one epoch get over it in hundreds.
    small = resized(paper, layers=2, width=128, heads=2, vocab=4096, max_length=32)
    optim, phase = dict(peak=2e-3, warmup=60, b2=0.98), Phase(2000, 32, 64)
    init_std = 0.08
  if paper.optim.kind == 'adafactor':  # which measures its rate by the parameters
    optim = dict(peak=0.01 if paper.optim.schedule == 'constant' else 0.03, warmup=100)
  if paper.optim.kind == 'lamb':  # which does, too
    optim['peak'] = max(optim['peak'], paper.optim.peak)
  model: Any = small.model
  block = checked.replaced(model.block, {'dropout': 0.0, 'attention.dropout': 0.0, 'attention.out_dropout': 0.0,
                                         'mlp.dropout': 0.0})
  if block.init.fan == 'none':
    block = checked.replaced(block, {'init.std': init_std})
  if block.init.out_std:
    block = checked.replaced(block, {'init.out_std': init_std * (2 * model.stack.layers) ** -0.5})
  model = written_out(dataclasses.replace(model, block=block))
  return dataclasses.replace(
      small, scale='laptop', model=model,
      data=dataclasses.replace(small.data, prepare=text),
      optim=dataclasses.replace(
          small.optim, clock='steps', horizon=0, cooldown=cooldown(small.optim, phase.steps),
          ema=mean(paper, phase.steps), **optim),
      train=TrainConfig(phases=(phase,), log_every=20, eval_every=phase.steps // 8,
                        eval_batches=16, save_every=phase.steps // 8))


def written_out(model: Any) -> Any:
  """Returns a model whose layers are compiled one behind another: of few layers a sixth of a step less on a CPU than a
  loop over them, for seconds of compilation."""
  return checked.replaced(model, {f'{part.name}.scan': False for part in dataclasses.fields(model)
                                  if isinstance(getattr(model, part.name), StackConfig)})


def duration(run: Experiment) -> str:
  """Says how long a run of the laptop's scale takes where that is not short, and which one is; '' of others."""
  pace = next((minutes for kind, minutes in MINUTES.items() if isinstance(run.objective, kind)), 0)
  whole, short = pace * run.train.steps / 1000, int(SHORT / pace * 10) * 100 if pace else 0
  if run.scale != 'laptop' or run.objective.target_budget or len(run.train.phases) != 1 or whole < 2 * SHORT:
    return ''
  return (f'about {whole:.0f} minutes on two CPU cores; a run of {SHORT}, from which less can be expected: '
          f'--train.phases.0.steps={short} --output={run.folder}-short')


def test(paper: Experiment) -> Experiment:
  """Makes a run of seconds, for tests: too short to learn anything."""
  tiny = resized(paper, layers=2, width=32, heads=2, vocab=2048, max_length=64)
  return dataclasses.replace(
      tiny, scale='test', optim=dataclasses.replace(tiny.optim, peak=1e-3, warmup=2, clock='steps', horizon=0,
                                                      cooldown=cooldown(tiny.optim, 8), ema=mean(paper, 8)),
      train=TrainConfig(
          phases=(Phase(6, 32, 8), Phase(2, 64, 8)), log_every=2, eval_every=4, eval_batches=2, save_every=4))


def cooldown(optim: OptimConfig, steps: int) -> int:
  """Returns the steps at the end over which the rate falls: a fifth, of a schedule that falls at the end."""
  return steps // 5 if optim.schedule in ('wsd', 'trapezoid') else 0


def mean(paper: Experiment, steps: int) -> float:
  """Returns the decay by which a mean of parameters covers the same share of so many steps."""
  return max(0.0, 1 - (1 - paper.optim.ema) * paper.train.steps / steps) if paper.optim.ema else 0.0


def resized(paper: Size, layers: int, width: int, heads: int, vocab: int, max_length: int) -> Size:
  """Returns the same wiring in another size, in float32, which a CPU multiplies as fast. It has to be one of blocks."""
  model: Any = paper.model
  block = model.block
  block = dataclasses.replace(block, width=width, heads=heads, head_size=None,
                              kv_heads=block.kv_heads and min(block.kv_heads, heads),
                              mlp_dim=4 * width, dtype='float32')
  if block.init.out_std:  # init_std over the root of twice the layers
    block = checked.replaced(block, {'init.out_std': block.init.std * (2 * layers) ** -0.5})
  model = model.resized(block, layers, vocab, max_length)
  objective = paper.objective
  if getattr(objective, 'decoder_length', 0) > max_length // 2:
    objective = dataclasses.replace(objective, decoder_length=max_length // 2)
  return dataclasses.replace(paper, model=model, objective=objective)
