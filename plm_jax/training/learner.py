"""From a run's configuration to what learns."""
import jax

from plm_jax.config import ConfigError, Run
from plm_jax.errors import Expected, outside
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.optim import make_optimizer
from plm_jax.training.selection import Selection
from plm_jax.training.step import Learner, init_state
from plm_jax.training.tuning import shortened


def make_learner(config: Run, vocab: Vocab) -> Learner:
  """Raises ConfigError for a tokenizer that the model has no room for."""
  padding = config.model.padding
  if padding not in (-1, vocab.pad):
    raise ConfigError(
        f'the model knows padding by the id {padding} and gives it no position, the tokenizer pads with {vocab.pad}: '
        f'give --model.padding {vocab.pad}')
  if vocab.size > config.model.vocab:
    raise ConfigError(
        f'the tokenizer has {vocab.size} pieces, the model has room for {config.model.vocab}: '
        f'give --model.vocab {vocab.size} or more')
  objective = config.objective
  if lacking := [name for name in objective.required_specials if getattr(vocab, name) < 0]:
    raise ConfigError(
        f'the objective needs special tokens that the tokenizer does not have: {", ".join(lacking)}. One that is '
        'trained for GLM or T5 has theirs: --data.prepare.layout glm or t5')
  try:
    backbone = config.model if objective.moves_inputs else shortened(config.model, config.tuning.top)
    model = objective.build(backbone, packed=config.data.packed)
  except ValueError as error:
    raise ConfigError(str(error)) from error
  except (AttributeError, TypeError) as error:  # of a file: the command line has recipes whose parts go together
    raise ConfigError(f'{type(objective).__name__} is not for {type(config.model).__name__}: {error}') from error
  select = selection(config)
  optimizer = make_optimizer(
      config.optim, config.train.steps, pace=config.train.pace, parts=objective.parts, select=select)
  carry = objective.carry(config.model, config.train.phases[0].batch)
  return Learner(model, objective, optimizer, vocab, config.seed, config.train.accumulate,
                 select, config.tuning.adapter, config.train.steps, carry, config.optim.ema)


def selection(config: Run) -> Selection:
  """Says which parameters of a run are trained."""
  tuning = config.tuning
  frozen = config.objective.frozen + getattr(config.model, 'frozen', ())
  return Selection(config.optim.only, frozen, tuning.adapter.kind != 'none', tuning.top)


def shapes(config: Run, learner: Learner, rows: int = 2):
  """Returns the shapes of a run's state, with their logical axes. Raises ConfigError where the options make no
  model."""
  try:
    windows = config.objective.shapes(rows, config.train.phases[0].length)
    return jax.eval_shape(lambda w: init_state(learner, w), windows)
  except Expected:
    raise
  except Exception as error:  # whatever modules and JAX say to sizes that do not go together
    raise ConfigError(
        f'the options of {config.name} do not make a model that can be built: {outside(error)}') from error


def stand_in(config: Run) -> Vocab:
  """Makes a vocabulary for shapes alone: ids of special tokens change none."""
  size = config.model.vocab
  return Vocab(size, max(config.model.padding, 0), unk=1, cls=2, sep=3, mask=4, bos=5, eos=6, sop=7, eop=8, gmask=9,
               smask=10, sentinel=size - 1, sentinels=getattr(config.objective, 'sentinels', 1000), language=11)
