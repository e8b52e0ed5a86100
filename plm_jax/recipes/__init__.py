"""Recipes: the runs that were published, one file a family, in which sizes are rows of a table.

A file has `SIZES`, `recipe(size, scale)`, and a docstring with the commands, the hardware and what to expect.
"""
import dataclasses
import difflib
import types

from plm_jax import checked
from plm_jax.config import Experiment, Scale
from plm_jax.errors import ConfigError
from plm_jax.recipes import (
    albert,
    bart,
    bart_chinese,
    bart_translation,
    bert,
    bert_wwm,
    byt5,
    cramming,
    deberta,
    deberta_v2,
    deberta_v3,
    distilbert,
    electra,
    elmo,
    ernie,
    ettin,
    glm,
    gpt,
    gpt2,
    gpt3,
    gpt_bert,
    llama,
    llama2,
    llama3,
    ltg_bert,
    mbart,
    minilm,
    modernbert,
    mosaicbert,
    mt5,
    neobert,
    palm,
    roberta,
    spanbert,
    t5,
    t5_lm,
    t5_tasks,
    t5_v1_1,
    tinybert,
    transformer,
    ul2,
    word_vectors,
    xlm,
    xlm_r,
    xlnet,
)
from plm_jax.recipes.table import Size

# In the order in which they are listed: encoders, decoders, encoder-decoders.
FAMILIES: dict[str, types.ModuleType] = {module.__name__.rpartition('.')[2]: module for module in (
    bert, bert_wwm, ernie, roberta, xlm, xlm_r, albert, spanbert, distilbert, tinybert, minilm, deberta, deberta_v2,
    deberta_v3, electra, xlnet, elmo, modernbert, ettin, neobert, mosaicbert, cramming, ltg_bert, gpt_bert,
    gpt, gpt2, gpt3, llama, llama2, llama3, palm, glm,
    t5, t5_v1_1, t5_lm, t5_tasks, mt5, byt5, ul2, bart, bart_chinese, bart_translation, mbart,
    transformer)}
EVERYWHERE = """\
Every recipe takes --scale=laptop (minutes on 2 CPU cores), --scale=test (seconds), and the options that its --help
tells. Without --data.path it learns the English documentation in the installed Python packages; records of your own
text come from `python -m plm_jax prepare TEXT RECORDS --for=NAME`. On a pod every worker has to run the command, with
--hosts.distributed=True (see scripts/tpu.sh)."""


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A recipe: a size of a family. Called with a scale, it gives the configuration of the run, at the paper's with the
  mesh that the size has on its pod, as far as the devices there are allow it."""

  family: str
  size: str

  def __call__(self, scale: Scale = 'paper') -> Experiment:
    run = FAMILIES[self.family].recipe(self.size, scale)
    if scale != 'paper' or self.row.mesh == run.mesh:
      return run
    return dataclasses.replace(run, mesh=dataclasses.replace(self.row.mesh, adapts=True))

  @property
  def row(self) -> Size:
    """Looks up what the family's table says of the size."""
    return FAMILIES[self.family].SIZES[self.size]

  @property
  def name(self) -> str:
    """Of the recipe, and of its run."""
    return self.row.name or f'{self.family}_{self.size}'

  @property
  def about(self) -> str:
    """What the family says of itself, its sizes, and what holds for all recipes."""
    return about(self.family)


def every() -> dict[str, Recipe]:
  """Returns all recipes by their names, family by family."""
  found = (Recipe(family, size) for family, module in FAMILIES.items() for size in module.SIZES)
  return {recipe.name: recipe for recipe in found}


def find(name: str, size: str = '') -> Recipe:
  """Returns the recipe of a name, `find('gpt3_13b')`, or of a family and a size, `find('gpt3', '13b')`.

  A family of one size needs no size. Raises ConfigError, which suggests others, for a recipe that there is not.
  """
  recipes = every()
  if not size and name in recipes:
    return recipes[name]
  if name not in FAMILIES:
    raise ConfigError(f'{name} is of one size: leave out --size' if name in recipes else
                      f'there is no recipe {checked.shortened(name)}: {alike(name)}')
  sizes = FAMILIES[name].SIZES
  if size in sizes or (not size and len(sizes) == 1):
    return Recipe(name, size or next(iter(sizes)))
  raise ConfigError(f'{name} comes in {len(sizes)} sizes: --size is {", ".join(sizes)}'
                    + (f', got {checked.shortened(size)}' if size else ''))


def needs_size(name: str, size: str) -> bool:
  """Tells whether a family is named that comes in several sizes, and none of them."""
  return name in FAMILIES and not size and name not in every() and len(FAMILIES[name].SIZES) > 1


def alike(name: str) -> str:
  """Returns what may have been meant, as a sentence."""
  bare = name.removeprefix('experiments.').removesuffix('.py').replace('-', '_')
  near = difflib.get_close_matches(bare, [*every(), *FAMILIES, *word_vectors.PAPER], 3, 0.6)
  return (f'did you mean {" or ".join(near)}? ' if near else '') + '`python -m plm_jax train` lists them'


def elsewhere(name: str) -> str:
  """Returns what to type where there is no file experiments/NAME.py."""
  if recipe := every().get(name):
    return (f'{name} has no file of its own: type `python -m experiments.{recipe.family} --size={recipe.size}`, or '
            f'`python -m plm_jax train {name}`')
  return f'there is no recipe {checked.shortened(name)}: {alike(name)}'


def about(family: str) -> str:
  """Returns what a family says of itself, its table of sizes, and what holds for all recipes."""
  rows = [f'{"--size":16}{"name":26}{"parameters":>18}  {"layers":20}{"rows":>6}{"peak":>10}  pod']
  for size in FAMILIES[family].SIZES:
    recipe = Recipe(family, size)
    row = recipe.row
    rows.append(f'{size:16}{recipe.name:26}{row.parameters:>18,}  {layers(row):20}{row.batch:>6,}{row.peak:>10.3g}  '
                f'{row.pod}{mesh_options(row)}')
  return '\n\n'.join([(FAMILIES[family].__doc__ or '').strip(), '\n'.join(f'    {row}' for row in rows), EVERYWHERE])


def layers(row: Size) -> str:
  """Returns the layers of a model and their width, such as 12 x 768, or 6 + 6 x 512."""
  model = row.model('bfloat16')
  if model.kind == 'recurrent':
    return f'{model.layers} x {model.cells:,}'
  sides = (model.stack, model.decoder) if model.kind == 'encoder-decoder' else (model.stack,)
  return f'{" + ".join(str(side.layers) for side in sides)} x {model.block.width:,}'


def mesh_options(row: Size) -> str:
  """Returns the options of a mesh, each behind a space."""
  return ''.join(f' --mesh.{axis}={number}' for axis in ('fsdp', 'tensor')
                 if (number := getattr(row.mesh, axis)) > 1)


def listed() -> str:
  """Returns a line for each family, with the names of its recipes, and what to type."""
  lines = []
  for family, module in FAMILIES.items():
    lines.append(f'  {(module.__doc__ or "").partition(chr(10))[0]}')
    lines.append('      ' + ' '.join(Recipe(family, size).name for size in module.SIZES))
  lines += [f'  {(word_vectors.__doc__ or "").partition(chr(10))[0]}', '      ' + ' '.join(word_vectors.PAPER)]
  return '\n'.join(['recipes:', *lines,
                    'run one:  python -m plm_jax train NAME --scale=laptop    (--help: what it is, and its options)'])
