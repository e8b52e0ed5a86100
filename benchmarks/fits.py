"""Report for every recipe at the paper's scale whether it fits its TPU pod, its roofline bound, and how long it takes.

    python -m benchmarks.fits
    python -m benchmarks.fits --recipe bert_base bert_large

Needs no TPU. Reads the compiler's reports from benchmarks/budgets, which `python -m benchmarks.budgets --write NAME`
writes. Lists the recipes that have no budget yet. Days and chip-hours assume that every step takes its roofline lower
bound: no run of this program on this pod can be shorter, and none has been run.
"""
import argparse
import sys

from benchmarks import budgets
from plm_jax import recipes
from plm_jax.cli import costs
from plm_jax.compile import report as compiling
from plm_jax.compile.report import CHIPS

HEAD = ('recipe', 'pod and mesh', 'GiB a device', 'bound, ms', 'MFU', 'time', 'chip-hours', 'published run')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
    '--recipe', choices=recipes.all_recipes(), nargs='*', default=list(recipes.all_recipes()), metavar='RECIPE'
  )
  args = parser.parse_args()
  found = {name: budget for name in args.recipe if (budget := budgets.read(name))}
  print('\n'.join(f'| {" | ".join(cells)} |' for cells in (HEAD, ('---',) * len(HEAD))))
  for name, budget in found.items():
    print(f'| {" | ".join(row(name, budget))} |')
  if missing := [name for name in args.recipe if name not in found]:
    print(f'\nnot compiled: {", ".join(missing)}')
  sys.exit(any(not fits(budget) for budget in found.values()))


def fits(budget: budgets.Budget) -> bool:
  """Return whether every phase of a stored budget fits the memory of its chip."""
  return all(phase['HBM, GiB']['total'] <= CHIPS[budget['kind']].hbm_gib for phase in budget['phases'])


def row(name: str, budget: budgets.Budget) -> tuple[str, ...]:
  """Return the cells of a recipe's row; metrics have one value per phase."""
  mesh = budget['mesh']
  split = ''.join(f', {axis} {mesh[axis]}' for axis in ('fsdp', 'tensor') if mesh[axis] > 1)
  steps = f', {budget["micro-steps"]} micro-steps' if budget['micro-steps'] > 1 else ''
  return (
    name,
    f'{budget["topology"]}{split}{steps}',
    *figures(name, budget),
    recipes.find_recipe(name).row.published_hardware,
  )


def figures(name: str, budget: budgets.Budget) -> tuple[str, ...]:
  """Return the cells for memory, roofline bounds, MFU at the bounds, and the time and chip-hours of the run.

  A cell has one line per phase.
  """
  phases, whole = budget['phases'], seconds(name, budget)
  chips = costs.count_chips(budget['kind'], budget['devices'])
  limit = f'{CHIPS[budget["kind"]].hbm_gib:g}'
  return ('<br>'.join(f'{format_number(phase["HBM, GiB"]["total"])} of {limit}' for phase in phases),
          '<br>'.join(f'{format_number(phase["bound, ms"])} ({phase["bound by"]})' for phase in phases),
          '<br>'.join(f'{phase["MFU"]:.0%}' for phase in phases), format_time(whole),
          f'{whole / 3600 * chips:,.0f}')


def format_number(value: float) -> str:
  """Write a number with three digits, and all digits of its whole part."""
  return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def format_time(seconds: float) -> str:
  """Write a duration in minutes, hours or days."""
  for unit, length in (('days', 86_400), ('hours', 3600)):
    if seconds >= length:
      return f'{format_number(seconds / length)} {unit}'
  return f'{seconds / 60:.0f} minutes'


def seconds(name: str, budget: budgets.Budget) -> float:
  """Sum the roofline bounds of all steps of a recipe, in seconds."""
  config = recipes.find_recipe(name)()
  bounds = {phase: figures['bound, ms'] * 1e-3 for phase, figures in
            zip(compiling.extreme_phases(config.train.phases), budget['phases'], strict=True)}
  return costs.run_seconds(config, bounds)


if __name__ == '__main__':
  main()
