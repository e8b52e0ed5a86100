"""Write docs/reference/recipes: the families, their sizes, and the pods and memory of each recipe.

    python -m benchmarks.recipe_page

Everything comes from plm_jax/recipes, except memory and step times, which are in
benchmarks/budgets. There is one page per kind of model.
"""
import pathlib
import re
from typing import NamedTuple

from benchmarks import budgets, fits
from plm_jax import recipes
from plm_jax.recipes.recipe_size import RecipeSize

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'docs' / 'reference' / 'recipes'
SIZE_COLUMNS = ('recipe', 'layers', 'parameters', 'batch x length', 'peak LR', 'published run')
POD_COLUMNS = (
    'recipe', 'pod and options', 'GiB per device', 'step bound, ms', 'MFU', 'days', 'chip-hours')


class Page(NamedTuple):
  """A page: the families of one kind of model."""

  title: str
  description: str
  families: tuple[str, ...]


PAGES = {
    'encoders': Page(
        'Encoders: BERT, RoBERTa, ALBERT and others',
        'Recipes of encoders that are pre-trained with masked language modeling.',
        ('bert', 'roberta', 'xlm', 'xlm_r', 'albert', 'spanbert')),
    'chinese_encoders': Page(
        'Chinese encoders: whole-word masking, MacBERT, ERNIE',
        'Recipes of Chinese encoders.', ('bert_wwm', 'ernie')),
    'distilled_encoders': Page(
        'Distilled encoders: DistilBERT, TinyBERT, MiniLM',
        'Recipes of small encoders that are distilled from a teacher.',
        ('distilbert', 'tinybert', 'minilm')),
    'deberta_electra_xlnet': Page(
        'Encoders with other objectives: DeBERTa, ELECTRA, XLNet, ELMo',
        'Recipes with replaced token detection, permutation language modeling, disentangled '
        'attention, and ELMo.',
        ('deberta', 'deberta_v2', 'deberta_v3', 'electra', 'xlnet', 'elmo')),
    'modern_encoders': Page(
        'Recent encoders: ModernBERT, NeoBERT, cramming, BabyLM',
        'Recipes of recent encoders, and of encoders for a small budget.',
        ('modernbert', 'ettin', 'neobert', 'mosaicbert', 'cramming', 'ltg_bert', 'gpt_bert')),
    'decoders': Page(
        'Decoders: GPT, LLaMA, PaLM, GLM',
        'Recipes of decoders, which generate text from left to right.',
        ('gpt', 'gpt2', 'gpt3', 'llama', 'llama2', 'llama3', 'palm', 'glm')),
    'encoder_decoders': Page(
        'Encoder-decoders: T5, BART, UL2, Transformer',
        'Recipes of encoder-decoders, for text-to-text tasks and translation.',
        ('t5', 't5_v1_1', 't5_lm', 't5_tasks', 'mt5', 'byt5', 'ul2', 'bart', 'bart_chinese',
         'bart_translation', 'mbart', 'transformer')),
    'word_vectors': Page(
        'Word vectors: word2vec, GloVe, fastText, C&W',
        'Recipes of static word vectors.', ()),
}
HEAD = """\
---
description: "Published training runs that plm_jax reproduces, by kind of model."
keywords: "recipes, pre-trained models, models, families, list of recipes"
---
# Recipes

A recipe is a published training run. Start it by its name, or by its family with `--size`:

    python -m plm_jax train bert_base --scale=laptop
    python -m plm_jax train bert --size=base --scale=laptop
    python -m plm_jax show bert_base                          # its options, layers and schedule

{everywhere}

{contents}

```{{toctree}}
:hidden:

{names}
```

## How to read the tables

Each family has two tables. The first describes the published run:

- parameters: the count of the publication, or of transformers' class for pre-training. Tied
  embeddings count once.
- batch x length: batch size and sequence length of the last phase.
- peak LR: peak learning rate.
- published run: hardware and time according to the publication.

The second describes the recipe on a TPU pod, as the TPU compiler and data sheets predict it:

- pod and options: the paper's TPU pod, or one with few sequences per device, and the options for
  it. `python -m plm_jax train NAME --mode=compile --topology=POD` compiles the step for any other
  pod.
- GiB per device: memory according to the TPU compiler, one number for each phase.
- step bound: roofline lower bound of the step time, and what limits it.
- MFU: share of the peak FLOPs of the chips at that bound.
- days, chip-hours: duration of all steps at their bounds. Real runs take longer. No recipe has been
  run at this scale.

The numbers and the compiler's versions are in [benchmarks/budgets](../../../benchmarks/budgets).
[benchmarks/RESULTS.md](../../../benchmarks/RESULTS.md) explains why some recipes are below an MFU of
70%.

## Where this page comes from

`python -m benchmarks.recipe_page` writes these pages from the docstrings and tables of
[plm_jax/recipes](../../../plm_jax/recipes). A test compares them.
"""


def main() -> None:
  FOLDER.mkdir(exist_ok=True, parents=True)
  for name, text in pages().items():
    (FOLDER / f'{name}.md').write_text(text)


def pages() -> dict[str, str]:
  """Return all pages by name, in Markdown."""
  covered = [family for page in PAGES.values() for family in page.families]
  assert sorted(covered) == sorted(recipes.FAMILIES), 'a family is on no page, or on two'
  contents = ['| page | families |', '|---|---|']
  for name, page in PAGES.items():
    families = ', '.join(f'`{family}`' for family in page.families or recipes.word_vectors.PUBLISHED)
    contents.append(f'| [{page.title}]({name}.md) | {families} |')
  written = {'index': HEAD.format(
      everywhere=mark_options(recipes.COMMON_HELP), contents='\n'.join(contents), names='\n'.join(PAGES))}
  for name, page in PAGES.items():
    written[name] = format_page(page)
  return written


def format_page(page: Page) -> str:
  """Return the page of one kind of model."""
  names = page.families or tuple(recipes.word_vectors.PUBLISHED)
  head = (f'---\ndescription: "{page.description}"\nkeywords: "{", ".join(names)}"\n---\n'
          f'# {page.title}\n\n{page.description} [Columns of the tables](index.md#how-to-read-the-tables).\n')
  if page.families:
    return '\n'.join([head, *map(format_family, page.families)])
  return '\n'.join([head, *describe(recipes.word_vectors.__doc__ or '')]) + '\n'


def describe(docstring: str) -> list[str]:
  """Return the lines of a docstring as Markdown."""
  title, _, rest = docstring.strip().partition('\n')
  return [title, '', mark_options(rest.strip('\n'))]


def mark_options(text: str) -> str:
  """Mark options such as --scale=test as code, outside of code, and escape angle brackets."""
  lines, code = [], False
  for line in text.splitlines():
    if line.startswith('    '):
      lines.append(line)
      continue
    parts = []
    for number, part in enumerate(line.split('`')):
      code = code != (number > 0)
      if not code:
        part = re.sub(r'(?<![\w-])--[a-z][\w.-]*\w(?:=[\w:.-]*\w)?', r'`\g<0>`', part.replace('<', r'\<'))
      parts.append(part)
    lines.append('`'.join(parts))
  return '\n'.join(lines)


def format_family(family: str) -> str:
  """Return the section of a family: its description and its tables."""
  lines = [f'## {family}', '', *describe(recipes.FAMILIES[family].__doc__ or '')]
  sizes, pods = [], []
  for size in recipes.FAMILIES[family].SIZES:
    recipe = recipes.Recipe(family, size)
    row, phase = recipe.row, recipe().train.phases[-1]
    sizes.append((
        f'`{recipe.name}`', recipes.format_layers(row), f'{row.parameters:,}',
        f'{phase.batch:,} x {phase.length:,}', f'{row.peak:.3g}', row.published_hardware))
    budget = budgets.read(recipe.name)
    costs = fits.figures(recipe.name, budget) if budget else ('',) * 5
    pods.append((
        f'`{recipe.name}`', f'{row.pod}{format_options(row)}', *costs))
  return '\n'.join([*lines, '', *table(SIZE_COLUMNS, sizes), '', 'On a TPU pod:', '',
                    *table(POD_COLUMNS, pods), ''])


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
  """Return the lines of a Markdown table; a column that is empty in all rows is left out."""
  kept = [number for number in range(len(columns)) if any(row[number] for row in rows)]
  lines = [f'| {" | ".join(columns[number] for number in kept)} |', '|---' * len(kept) + '|']
  for row in rows:
    lines.append(f'| {" | ".join(row[number] for number in kept)} |')
  return lines


def format_options(row: RecipeSize) -> str:
  """Return the options of a size on its pod, as code after a space."""
  options = recipes.format_mesh_options(row)
  if row.accumulate > 1:
    options += f' --train.accumulate={row.accumulate}'
  if row.remat != 'none':
    options += f' --model.stack.remat={row.remat}'
  return ''.join(f' `{option}`' for option in options.split())


if __name__ == '__main__':
  main()
