"""Writes docs/recipes.md: what each family says of itself, its sizes, the pods that they fit and the memory they take.

    python -m benchmarks.recipe_page

Everything is in plm_jax/recipes but for memory and bounds, which are in benchmarks/budgets.
"""
import pathlib

from benchmarks import budgets, fits
from plm_jax import recipes
from plm_jax.recipes.table import Size

COLUMNS = ('recipe', 'layers', 'parameters', 'rows x tokens', 'peak', 'pod', 'GiB a device', 'bound, ms', 'MFU', 'days',
           'chip-hours', 'published run')
ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / 'docs' / 'recipes.md'
HEAD = """\
# Recipes

Written by `python -m benchmarks.recipe_page`: change [plm_jax/recipes](../plm_jax/recipes), not this page.

Each is a run that was published, by its name, or by its family with `--size`:

    python -m plm_jax train bert_base --scale=laptop
    python -m experiments.bert --size=base --scale=laptop    # from a checkout

{everywhere}

Parameters are counted as those who published the model count them, or transformers' class for pre-training, a tied
output matrix once. A pod is the paper's, or one on which a device has few rows; `python -m plm_jax train NAME
--mode=compile --topology=POD` asks the TPU compiler about any other. GiB a device are what it said, a figure for each
phase, and a bound is the time that a step takes there at least, by data sheets, and what takes it; MFU is the share of
the chips' peak that the model's arithmetic has then. Days and chip-hours are those of all steps at their bounds: no run
of this program is shorter, and none has been run ([benchmarks/budgets](../benchmarks/budgets) has the figures and the
compiler's versions, [benchmarks/RESULTS.md](../benchmarks/RESULTS.md) what keeps some recipes below 70%). The last
column is what the publication says of its own run.
"""


def main() -> None:
  PAGE.parent.mkdir(exist_ok=True)
  PAGE.write_text(page())


def page() -> str:
  """Returns the page, in Markdown."""
  return '\n'.join([HEAD.format(everywhere=recipes.EVERYWHERE), *map(section, recipes.FAMILIES)])


def section(family: str) -> str:
  """Returns what there is to say of a family."""
  title, _, rest = (recipes.FAMILIES[family].__doc__ or '').strip().partition('\n')
  said = [line if line.startswith('    ') else line.replace('<', r'\<') for line in rest.strip('\n').splitlines()]
  lines = [f'## {family}', '', title, '', *said, '',
           f'| {" | ".join(COLUMNS)} |', '|---' * len(COLUMNS) + '|']
  for size in recipes.FAMILIES[family].SIZES:
    recipe = recipes.Recipe(family, size)
    row, phase = recipe.row, recipe().train.phases[-1]
    budget = budgets.read(recipe.name)
    said = fits.figures(recipe.name, budget) if budget else ('',) * 5
    cells = (f'`{recipe.name}`', recipes.layers(row), f'{row.parameters:,}', f'{phase.batch:,} x {phase.length:,}',
             f'{row.peak:.3g}', f'{row.pod}{recipes.mesh_options(row)}{saving(row)}', *said, row.took)
    lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join([*lines, ''])


def saving(row: Size) -> str:
  """Returns the options by which a size saves memory on its pod, each behind a space."""
  return (f' --train.accumulate={row.accumulate}' * (row.accumulate > 1)
          + f' --model.stack.remat={row.remat}' * (row.remat != 'none'))


if __name__ == '__main__':
  main()
