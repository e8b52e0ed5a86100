"""Recipes: published pre-training runs.

A family of recipes has a table with one row per size, a function that builds the published run of a
row, and a description with the commands, the settings and their sources.

    recipe_size       such a family, and the row of its table
    scale_presets     smaller versions of a run, for --scale=laptop and --scale=test
    finetune          fine-tuning with published hyperparameters
    hyperparameters   these hyperparameters, as data
    sentence_vectors  published sentence embedding tasks
    word_vectors      published word vectors
"""
import dataclasses
import difflib
import textwrap

from plm_jax import validation
from plm_jax.config.run import PretrainRun, PretrainScale
from plm_jax.errors import ConfigError
from plm_jax.recipes import (
  albert,
  bart,
  bert,
  continued,
  cramming,
  deberta,
  distillation,
  electra,
  elmo,
  eurobert,
  glm,
  gpt,
  llama,
  ltg_bert,
  modernbert,
  neobert,
  palm,
  pythia,
  retrieval,
  roberta,
  smollm,
  t5,
  t5gemma,
  transformer,
  word_vectors,
  xlm,
  xlnet,
)
from plm_jax.recipes.recipe_size import RecipeSize
from plm_jax.recipes.scale_presets import apply_scale

# In the order of the listing: encoders, decoders, encoder-decoders.
FAMILIES = {family.name: family for family in (
    bert.BERT, bert.BERT_WWM, bert.ERNIE, roberta.ROBERTA, xlm.XLM, roberta.XLM_R, albert.ALBERT,
    bert.SPANBERT, retrieval.RETROMAE, retrieval.DUPMAE, retrieval.CONDENSER,
    retrieval.COCONDENSER, retrieval.TSDAE, distillation.DISTILBERT,
    distillation.TINYBERT, distillation.MINILM,
    deberta.DEBERTA, deberta.DEBERTA_V2, deberta.DEBERTA_V3, electra.ELECTRA, xlnet.XLNET,
    xlnet.MPNET, elmo.ELMO, modernbert.MODERNBERT, modernbert.ETTIN, modernbert.MMBERT,
    eurobert.EUROBERT, neobert.NEOBERT, modernbert.MOSAICBERT, cramming.CRAMMING,
    ltg_bert.LTG_BERT, ltg_bert.GPT_BERT, ltg_bert.MDLM, gpt.GPT, gpt.GPT2, gpt.GPT3, llama.LLAMA,
    llama.LLAMA2, llama.LLAMA3, pythia.PYTHIA, smollm.SMOLLM2, smollm.SMOLLM3, continued.QWEN3,
    continued.GEMMA3, continued.LLM2VEC, modernbert.ETTIN_DECODER, palm.PALM, glm.GLM, t5.T5,
    t5.T5_V1_1, t5.T5_LM, t5.T5_TASKS, t5.MT5, t5.BYT5, t5.UL2, t5gemma.T5GEMMA, bart.BART,
    bart.BART_CHINESE, bart.BART_TRANSLATION, bart.MBART, transformer.TRANSFORMER)}
COMMON_HELP = """\
Every recipe has four scales: --scale=paper (the default), --scale=gpu --hours=8 (batch, memory and
steps for the GPUs here and for that time), --scale=laptop (minutes on 2 CPU cores; 40 minutes for
decoders) and --scale=test (seconds). --help lists the options of a recipe. Without
--data.path, a recipe trains on the English documentation in the installed Python packages.
`python -m plm_jax prepare TEXT RECORDS --for=NAME` converts your own text to token records. On a
pod, run the command on every worker with --hosts.distributed=True (see scripts/tpu.sh)."""


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A recipe: a size of a family.

  Called with a scale, and the folder that the run starts from, it returns the configuration of the
  run. At the scale of the paper, that has
  the mesh of the size on its pod, adapted to the devices that are present.
  """

  family: str
  size: str

  def __call__(self, scale: PretrainScale = 'paper', start: str = '') -> PretrainRun:
    row, family = self.row, FAMILIES[self.family]
    run = apply_scale(family.make_run(row), scale)
    if start and family.start:
      run = family.start(run, start)
    if scale == 'laptop' and row.laptop_vocab:
      return validation.with_paths(run, {'model.vocab': row.laptop_vocab})
    if scale not in ('paper', 'gpu') or row.mesh == run.mesh:
      return run
    return dataclasses.replace(run, mesh=dataclasses.replace(row.mesh, adapts=True))

  @property
  def row(self) -> RecipeSize:
    """The row of the size in the family's table, with the name of the recipe."""
    row = FAMILIES[self.family].sizes[self.size]
    return dataclasses.replace(row, name=row.name or f'{self.family}_{self.size}')

  @property
  def name(self) -> str:
    """The name of the recipe and of its run."""
    return self.row.name

  @property
  def description(self) -> str:
    """The description of the family, its table of sizes, and notes on all recipes."""
    return describe_family(self.family)


def all_recipes() -> dict[str, Recipe]:
  """Return all recipes by name, family by family."""
  found = [Recipe(name, size) for name, family in FAMILIES.items() for size in family.sizes]
  return {recipe.name: recipe for recipe in found}


def find_recipe(name: str, size: str = '') -> Recipe:
  """Find a recipe by its name, `gpt3_13b`, or by family and size, `gpt3` and `13b`.

  A family with one size needs no size.

  Raises:
    ConfigError: there is no such recipe; the message suggests similar names.
  """
  recipes = all_recipes()
  if name in recipes and not size:
    return recipes[name]
  if name not in FAMILIES and name in recipes:
    raise ConfigError(f'{name} is of one size: leave out --size')
  if name not in FAMILIES:
    raise ConfigError(f'there is no recipe {validation.short_repr(name)}: {suggest_recipes(name)}')
  sizes = FAMILIES[name].sizes
  if not size and len(sizes) == 1:
    size, = sizes
  if size in sizes:
    return Recipe(name, size)
  message = f'{name} comes in {len(sizes)} sizes: --size is {", ".join(sizes)}'
  if size:
    message += f', got {validation.short_repr(size)}'
  raise ConfigError(message)


def needs_size(name: str, size: str) -> bool:
  """Return whether `name` is a family with several sizes and `size` is missing."""
  if size or name not in FAMILIES or name in all_recipes():
    return False
  return len(FAMILIES[name].sizes) > 1


def suggest_recipes(name: str) -> str:
  """Suggest similar names of recipes, as a sentence."""
  bare = name.removeprefix('experiments.').removesuffix('.py').replace('-', '_')
  names = [*all_recipes(), *FAMILIES, *word_vectors.PUBLISHED]
  near = difflib.get_close_matches(bare, names, 3, 0.6)
  listing = '`python -m plm_jax train` lists them'
  return f'did you mean {" or ".join(near)}? {listing}' if near else listing


def describe_family(family: str) -> str:
  """Describe a family: its description, its table of sizes, and notes on all recipes."""
  lines = [f'{"--size":16}{"name":26}{"parameters":>18}  {"layers":20}{"batch":>6}'
           f'{"peak LR":>10}  pod']
  for size in FAMILIES[family].sizes:
    recipe = Recipe(family, size)
    row = recipe.row
    lines.append(f'{size:16}{recipe.name:26}{row.parameters:>18,}  {format_layers(row):20}'
                 f'{row.batch:>6,}{row.peak:>10.3g}  {row.pod}{format_mesh_options(row)}')
  description = (FAMILIES[family].description or '').strip()
  table = '\n'.join(f'    {line}' for line in lines)
  return '\n\n'.join([description, table, COMMON_HELP])


def format_layers(row: RecipeSize) -> str:
  """Format the number of layers and the width of a model, such as 12 x 768 or 6 + 6 x 512."""
  model = row.model('bfloat16')
  if model.kind == 'recurrent':
    return f'{model.layers} x {model.cells:,}'
  number = f'{model.stack.layers}'
  if model.kind == 'encoder-decoder':
    number += f' + {model.decoder.layers}'
  return f'{number} x {model.block.width:,}'


def format_mesh_options(row: RecipeSize) -> str:
  """Format the mesh options of a size, each after a space."""
  sizes = {axis: getattr(row.mesh, axis) for axis in ('fsdp', 'tensor')}
  return ''.join(f' --mesh.{axis}={size}' for axis, size in sizes.items() if size > 1)


def list_recipes() -> str:
  """List the families with the names of their recipes, and the command to run one."""
  lines = ['recipes:']
  for name, family in FAMILIES.items():
    names = ' '.join(Recipe(name, size).name for size in family.sizes)
    lines += [f'  {title(family.description)}', textwrap.indent(textwrap.fill(names, 74), ' ' * 6)]
  lines += [f'  {title(word_vectors.__doc__)}', f'      {" ".join(word_vectors.PUBLISHED)}']
  lines.append('new here? python -m plm_jax train bert_base --scale=laptop')
  lines.append('run one:  python -m plm_jax train NAME --scale=laptop    '
               '(--help: its description and options)')
  return '\n'.join(lines)


def title(description: str | None) -> str:
  """Return the first line of a description."""
  return (description or '').partition('\n')[0]
