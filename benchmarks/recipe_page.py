"""Write docs/reference/recipes, one page per kind of model, and the table of tasks in tasks.md.

    python -m benchmarks.recipe_page

Everything comes from plm_jax/recipes and plm_jax/tasks, except memory and step times, which are in
benchmarks/budgets, and the contents of tasks, which are in benchmarks/task_descriptions.tsv.
"""
import csv
import pathlib
import re
from typing import NamedTuple

from benchmarks import budgets, fits
from plm_jax import recipes
from plm_jax.recipes.recipe_size import RecipeSize
from plm_jax.tasks.registry import EMBEDDED, TASKS

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'docs' / 'reference' / 'recipes'
SIZE_COLUMNS = ('recipe', 'layers', 'parameters', 'batch x length', 'peak LR', 'published run')
POD_COLUMNS = (
    'recipe', 'pod and options', 'GiB per device', 'step time bound, ms', 'MFU bound', 'time',
    'chip-hours')
DESCRIPTIONS = pathlib.Path(__file__).with_name('task_descriptions.tsv')
TASK_COLUMNS = {
    ROOT / 'docs' / 'reference' / 'tasks.md': (
        'task', 'language', 'contents', 'kind', 'metrics', 'source'),
    ROOT / 'docs' / 'zh' / 'reference' / 'tasks.md': (
        '任务', '语言', '内容', '种类', '指标', '来源')}
"""Pages with the table of tasks, and its columns."""


class Page(NamedTuple):
  """A page: the families of one kind of model."""

  title: str
  description: str
  families: tuple[str, ...]


PAGES = {
    'encoders': Page(
        'Encoders: BERT, RoBERTa, ALBERT and others',
        'These encoders are pre-trained with masked language modeling.',
        ('bert', 'roberta', 'xlm', 'xlm_r', 'albert', 'spanbert')),
    'retrieval_encoders': Page(
        'Encoders for retrieval: RetroMAE, Condenser, TSDAE',
        'These encoders are pre-trained for a vector of the whole text.',
        ('retromae', 'dupmae', 'condenser', 'cocondenser', 'tsdae')),
    'chinese_encoders': Page(
        'Chinese encoders: whole-word masking, MacBERT, ERNIE',
        'These encoders are pre-trained on Chinese text.', ('bert_wwm', 'ernie')),
    'distilled_encoders': Page(
        'Distilled encoders: DistilBERT, TinyBERT, MiniLM',
        'These small encoders are distilled from a larger teacher model.',
        ('distilbert', 'tinybert', 'minilm')),
    'deberta_electra_xlnet': Page(
        'Encoders with other objectives: DeBERTa, ELECTRA, XLNet, MPNet, ELMo',
        'These encoders use replaced token detection, permutation language modeling (XLNet, MPNet), '
        'disentangled attention, or two recurrent language models (ELMo).',
        ('deberta', 'deberta_v2', 'deberta_v3', 'electra', 'xlnet', 'mpnet', 'elmo')),
    'modern_encoders': Page(
        'Recent encoders: ModernBERT, mmBERT, EuroBERT, NeoBERT, cramming, BabyLM',
        'These encoders have recent architectures or are made for a small compute budget.',
        ('modernbert', 'ettin', 'mmbert', 'eurobert', 'neobert', 'mosaicbert', 'cramming',
         'ltg_bert', 'gpt_bert', 'mdlm')),
    'decoders': Page(
        'Decoders: GPT, LLaMA, PaLM, GLM',
        'These decoders generate text from left to right.',
        ('gpt', 'gpt2', 'gpt3', 'llama', 'llama2', 'llama3', 'palm', 'glm')),
    'small_decoders': Page(
        'Small decoders: Pythia, SmolLM, Qwen3, Gemma 3, Ettin, LLM2Vec',
        'These decoders are small enough for research with few devices. The last one becomes an '
        'encoder.',
        ('pythia', 'smollm2', 'smollm3', 'qwen3', 'gemma3', 'ettin_decoder', 'llm2vec')),
    'encoder_decoders': Page(
        'Encoder-decoders: T5, BART, UL2, T5Gemma, Transformer',
        'These encoder-decoders are made for text-to-text tasks and translation.',
        ('t5', 't5_v1_1', 't5_lm', 't5_tasks', 'mt5', 'byt5', 'ul2', 't5gemma', 'bart',
         'bart_chinese', 'bart_translation', 'mbart', 'transformer')),
    'word_vectors': Page(
        'Word vectors: word2vec, GloVe, fastText, C&W',
        'These models give each word one vector, whatever its context.', ()),
}
HEAD = """\
---
description: "Published training runs that plm_jax reproduces, by kind of model."
keywords: "recipes, models, families, list of recipes"
---
# Recipes

A recipe is the configuration of a published training run. **No recipe has been run at paper
scale.** The step times and the memory on TPUs are predictions. Start a recipe by its name, or by its
family with `--size`:

    python -m plm_jax train bert_base --scale=laptop
    python -m plm_jax train bert --size=base --scale=laptop
    python -m plm_jax show bert_base                          # parameters, schedule, options

{everywhere}

{contents}

```{{toctree}}
:hidden:

{names}
```

## How to read the tables

Each family has two tables. The first describes the published run:

- parameters: as published, otherwise the count of the pre-training class in transformers. Tied
  embeddings count once.
- batch x length: batch size and sequence length of the last phase.
- peak LR: peak learning rate.
- published run: hardware and time according to the publication.

The second describes the recipe on a TPU pod, as predicted from the TPU compiler and data sheets. If
a recipe has several phases, each has a line.

- pod and options: the paper's TPU pod, or a pod that we chose for few sequences per device, and the
  options for it. `v2:4x4` is a grid of 4 x 4 chips of TPU v2. Google Cloud counts cores for TPU v2 and
  v3, two per chip, and calls this pod v2-32. `python -m plm_jax train NAME --mode=compile
  --topology=POD` compiles the step for any other pod.
- GiB per device: memory according to the TPU compiler, of the memory that the device has. On TPU v2
  and v3, a device is a core.
- step time bound: roofline lower bound of the step time, and what limits it.
- MFU bound: model FLOPs utilization at that lower bound, so an upper bound of the real MFU.
- time, chip-hours: duration of all steps at their lower bounds. Real runs take longer.

The numbers and the compiler's versions are in [benchmarks/budgets](../../../benchmarks/budgets).
[benchmarks/RESULTS.md](../../../benchmarks/RESULTS.md) explains why the bound of some
recipes is below an MFU of 70%.

## How these pages are generated

`python -m benchmarks.recipe_page` writes these pages from the descriptions and size tables in
[plm_jax/recipes](../../../plm_jax/recipes). A test checks that they are up to date.
"""


def main() -> None:
  FOLDER.mkdir(exist_ok=True, parents=True)
  for name, text in pages().items():
    (FOLDER / f'{name}.md').write_text(text)
  for path in TASK_COLUMNS:
    path.write_text(task_page(path))


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
          f'# {page.title}\n\n{page.description} See [how to read the '
          'tables](index.md#how-to-read-the-tables).\n')
  if page.families:
    return '\n'.join([head, *map(format_family, page.families)])
  return '\n'.join([head, *describe(recipes.word_vectors.__doc__ or '')]) + '\n'


def describe(description: str) -> list[str]:
  """Return the lines of a description as Markdown."""
  title, _, rest = description.strip().partition('\n')
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


def mark_sizes(text: str, family: str) -> str:
  """Mark the names of a family's sizes as code where a sentence or a list item begins with them."""
  size = rf'(?:{"|".join(map(re.escape, recipes.FAMILIES[family].sizes))})(?!\w)'
  separator = r'(?:,\s|\sand\s)'
  pattern = rf'(\n\n|\n- |[.:]\s)({size}(?:{separator}{size})*)(?=\s|:)'

  def mark(match: re.Match) -> str:
    return match[1] + re.sub(size, r'`\g<0>`', match[2])

  return re.sub(pattern, mark, text)


def format_family(family: str) -> str:
  """Return the section of a family: its description and its tables."""
  description = mark_sizes(recipes.FAMILIES[family].description or '', family)
  lines = [f'## {family}', '', *describe(description)]
  sizes, pods = [], []
  for size in recipes.FAMILIES[family].sizes:
    recipe = recipes.Recipe(family, size)
    row, phase = recipe.row, recipe().train.phases[-1]
    sizes.append((
        f'`{recipe.name}`', recipes.format_layers(row), f'{row.parameters:,}',
        f'{phase.batch:,} x {phase.length:,}', f'{row.peak:.3g}', row.published_hardware))
    budget = budgets.read(recipe.name)
    costs = fits.figures(recipe.name, budget) if budget else ('',) * 5
    pods.append((
        f'`{recipe.name}`', f'{row.pod}{format_options(row)}', *costs))
  return '\n'.join([*lines, '', *table(SIZE_COLUMNS, sizes), '',
                    '<details><summary>On a TPU pod</summary>', '',
                    *table(POD_COLUMNS, pods), '', '</details>', ''])


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
  """Return the lines of a Markdown table; a column that is empty in all rows is left out."""
  kept = [number for number in range(len(columns)) if any(row[number] for row in rows)]
  lines = [f'| {" | ".join(columns[number] for number in kept)} |', '|---' * len(kept) + '|']
  for row in rows:
    lines.append(f'| {" | ".join(row[number] for number in kept)} |')
  return lines


def task_page(path: pathlib.Path) -> str:
  """Return the page at `path` with an up-to-date table of the published tasks."""
  columns = TASK_COLUMNS[path]
  with DESCRIPTIONS.open(encoding='utf-8') as file:
    described = {row['name']: row for row in csv.DictReader(file, delimiter='\t')}
  rows = []
  for name, spec in TASKS.items():
    if name not in EMBEDDED:
      contents = described[name]['Chinese' if 'zh' in path.parts else 'English']
      rows.append((f'`{name}`', described[name]['language'], contents, spec.kind,
                   mark_names(spec.measures), mark_names(spec.data)))
  head = re.escape(f'| {" | ".join(columns)} |')
  lines = '\n'.join(table(columns, rows))
  text, count = re.subn(rf'(?m)^{head}\n(?:\|.*\n)*', lambda _: f'{lines}\n', path.read_text())
  assert count == 1, f'{path} has {count} tables with the head {columns}'
  return text


def mark_names(names: tuple[str, ...]) -> str:
  """Return names as code, separated by commas."""
  return ', '.join(f'`{name}`' for name in names)


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
