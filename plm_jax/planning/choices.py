"""Choose the size of a family for a device, a time and a text: the command `plan`."""
from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import NamedTuple

from plm_jax.config.run import ConfigError, PretrainRun
from plm_jax.planning import fit
from plm_jax.planning.devices import GIB, Device
from plm_jax.planning.timing import estimate_hours
from plm_jax.recipes import FAMILIES, Recipe

# The scaling law for text that is read several times: fitted on decoders and English web text
# (Muennighoff et al. 2023, arXiv:2305.16264, equation 5 and appendix A). It orders sizes here, also
# of other objectives; its values are not predicted losses of these runs.
LAW_E, LAW_A, LAW_B, LAW_POWER = 1.869, 521.0, 1488.0, 0.353
LAW_EPOCHS = 15.39  # R*_D: epochs after which more have lost most of their value
LAW_PARAMETERS = 5.31  # R*_N: the same of parameters
LAW_RATIO = (LAW_A / LAW_B) ** (1 / LAW_POWER)  # parameters per token of the best size
TOLERANCE = 1.005
"""The smallest size is chosen whose loss is within half a percent of the lowest: parameters beyond
those that a text supports hardly lower it, and cost time."""
STATE_BYTES = 12
"""bytes per parameter of parameters and Adam's state, in float32"""


class Choice(NamedTuple):
  """A size of a family, fitted to a device, a time and a text."""

  recipe: Recipe
  config: PretrainRun
  parameters: int
  hours: float
  tokens: int
  """tokens of the text that the run reads"""
  epochs: float
  """0: the size of the text is unknown"""
  gib: float
  """memory of a step on one device"""


def scaling_law(parameters: float, tokens: float, text: float) -> float:
  """Return the loss of the data-constrained scaling law, by which sizes are ordered.

  >>> scaling_law(1e8, 1e9, 1e9) > scaling_law(1e8, 2e9, 2e9) > scaling_law(1e8, 4e9, 4e9)
  True
  >>> scaling_law(1e8, 4e8, 1e8) > scaling_law(1e8, 4e8, 4e8)
  True

  Args:
    parameters: number of parameters.
    tokens: tokens that are read.
    text: tokens of the text.
  """
  def discount(amount: float, unique: float, decay: float) -> float:
    repeats = max(0.0, amount / unique - 1)
    return unique * (1 + decay * (1 - math.exp(-repeats / decay)))

  text = min(text, tokens)
  seen = discount(tokens, text, LAW_EPOCHS)
  size = discount(parameters, min(parameters, text * LAW_RATIO), LAW_PARAMETERS)
  return LAW_E + LAW_A / size ** LAW_POWER + LAW_B / seen ** LAW_POWER


def comparable_sizes(recipe: Recipe) -> list[Recipe]:
  """Return the sizes of a family that can replace a recipe: by parameters, without variants."""
  own, found = recipe.row, {}
  vocab = own.model('bfloat16').vocab
  for size, row in FAMILIES[recipe.family].sizes.items():
    same = row.length == own.length and row.model('bfloat16').vocab == vocab
    if same and (row.parameters not in found or size == recipe.size):
      found[row.parameters] = Recipe(recipe.family, size)
  return [found[number] for number in sorted(found)]


def rank_size(recipe: Recipe, config: PretrainRun, device: Device, hours: float,
              tokens: int) -> float:
  """Return the scaling law's loss of a size; infinity for one that cannot fit the device."""
  parameters = recipe.row.parameters
  if parameters * STATE_BYTES > device.memory * device.count:
    return math.inf
  share = fit.limit_epochs(config, hours / estimate_hours(config, device), tokens)
  read = share * config.text_tokens
  return scaling_law(parameters, read, tokens or read)


def list_choices(recipe: Recipe, make_run: Callable[[Recipe], PretrainRun], device: Device,
                 hours: float, tokens: int, new_tokenizer: bool) -> tuple[list[Choice], int]:
  """Return the best size of a family with the next smaller and larger one, and its index.

  A family of one size gives that size for the whole time and for half of it.

  Args:
    recipe: a size of the family.
    make_run: makes the published run of a size, with the options of the user.
    device: the device.
    hours: time of the run.
    tokens: tokens of text; 0: unknown.
    new_tokenizer: whether the vocabulary can be chosen.

  Raises:
    ConfigError: no size fits the device.
  """
  sizes = comparable_sizes(recipe)
  losses = [rank_size(size, make_run(size), device, hours, tokens) for size in sizes]
  best = next(number for number, loss in enumerate(losses) if loss <= TOLERANCE * min(losses))
  plans = [(size, hours) for size in sizes[max(0, best - 1):best + 2]]
  if len(plans) == 1:
    plans.append((sizes[best], hours / 2))
  choices = []
  for size, time in plans:
    try:
      choices.append(make_choice(size, make_run(size), device, time, tokens, new_tokenizer))
    except ConfigError:
      if size == sizes[best]:
        raise
  return choices, [choice.recipe for choice in choices].index(sizes[best])


def make_choice(recipe: Recipe, config: PretrainRun, device: Device, hours: float, tokens: int,
                new_tokenizer: bool) -> Choice:
  """Fit a size to a device, a time and a text."""
  kept = fit.given_fields(dataclasses.replace(config, scale='gpu'))
  planned = fit.plan_run(config, device, hours, tokens, new_tokenizer, kept)
  read = planned.text_tokens
  lost = (config.model.vocab - planned.model.vocab) * getattr(
      getattr(planned.model, 'block', None), 'width', 0)
  return Choice(
      recipe, planned, recipe.row.parameters - lost, estimate_hours(planned, device), read,
      read / tokens if tokens else 0.0, fit.step_bytes(planned, device) / GIB)


def explain_choice(choices: Sequence[Choice], best: int, number: int, hours: float) -> str:
  """Explain in a sentence why a choice is recommended, or why it is not."""
  choice, chosen = choices[number], choices[best]
  size = f'{choice.parameters / 1e6:,.0f} million parameters'
  if number == best:
    limit = ''
    if choice.hours < 0.8 * hours:
      limit = (f' It ends after {choice.hours:.3g} of {hours:g} hours, because more than '
               f'{fit.most_epochs(choice.config)} epochs help little: more text would help.')
    return (f'{choice.recipe.name}: recommended, because for {choice.tokens / 1e6:,.0f} million '
            f'tokens {size} are as good as any size by the scaling law for repeated text.{limit}')
  if choice.recipe == chosen.recipe:
    return f'{choice.recipe.name} in half the time: a test of the settings before the whole run.'
  if choice.parameters < chosen.parameters:
    return (f'{choice.recipe.name}: {size} learn less from the same time, but fine-tuning and '
            'inference are faster.')
  return (f'{choice.recipe.name}: {size} would need more time or text than this: '
          f'{choice.tokens / 1e6:,.0f} million tokens are too few for them.')


COLUMNS = ('', 'recipe', 'parameters', 'vocabulary', 'batch x length', 'accum.', 'remat', 'steps',
           'tokens', 'epochs', 'GiB', 'hours')


def describe_choices(
    choices: Sequence[Choice], best: int, device: Device, hours: float) -> list[str]:
  """Return the table of the choices, the reason for each, and where the numbers come from."""
  rows: list[tuple[str, ...]] = [COLUMNS]
  for number, choice in enumerate(choices):
    train, model = choice.config.train, choice.config.model
    shapes = list(dict.fromkeys(f'{phase.batch}x{phase.length}' for phase in train.phases))
    rows.append((
        '*' * (number == best), choice.recipe.name, f'{choice.parameters / 1e6:,.0f}M',
        f'{model.vocab:,}', '...'.join([shapes[0], shapes[-1]][:len(shapes)]),
        str(train.accumulate), getattr(getattr(model, 'stack', None), 'remat', ''),
        f'{train.steps:,}', f'{choice.tokens / 1e6:,.0f}M',
        f'{choice.epochs:.2g}' if choice.epochs else '?', f'{choice.gib:.1f}',
        f'{choice.hours:.3g}'))
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ['  '.join(f'{cell:>{width}}' for cell, width in zip(row, widths, strict=True)).rstrip()
           for row in rows]
  lines.append('')
  lines += (explain_choice(choices, best, number, hours) for number in range(len(choices)))
  lines += [f'{device.note}.'] * bool(device.note)
  utilization = device.utilization(choices[best].config.model)
  return lines + [
      'Memory and hours are estimates: of the traced step, and of data sheets with a model FLOPs '
      f'utilization of {utilization:.0%}.',
      'Held-out loss: unknown, since no stored run has this size, text and time.']
