"""docs/reference/recipes and the table of tasks are generated from the code."""
import pytest

from benchmarks import budgets, recipe_page
from plm_jax import recipes
from plm_jax.tasks.registry import EMBEDDED, TASKS


def rows(text):
  """Return the rows of tables whose first cell is a recipe, in the order of the page."""
  return [line for line in text.splitlines() if line.startswith('| `')]


def test_the_pages_are_up_to_date():
  written = {path.stem: path.read_text() for path in recipe_page.FOLDER.glob('*.md')}
  assert written == recipe_page.pages(), 'python -m benchmarks.recipe_page writes them'


@pytest.mark.parametrize('path', recipe_page.TASK_COLUMNS, ids=['English', 'Chinese'])
def test_the_table_of_tasks_is_up_to_date(path):
  text = path.read_text()
  assert text == recipe_page.task_page(path), 'python -m benchmarks.recipe_page writes the table'
  for name in TASKS:
    assert (f'| `{name}` |' in text) == (name not in EMBEDDED), name


def test_names_of_sizes_are_code():
  text = ('BERT.\n\ntiny, mini and base are\nbase models. large: a base model.\n\n'
          '- small is base.\n- tiny_other')
  assert recipe_page.mark_sizes(text, 'bert') == (
      'BERT.\n\n`tiny`, `mini` and `base` are\nbase models. `large`: a base model.\n\n- `small` is '
      'base.\n- tiny_other')


def test_every_recipe_has_a_budget_for_its_mesh():
  """A recipe whose mesh, micro-steps or pod have changed has to be compiled again."""
  for name in recipes.all_recipes():
    row, budget = recipes.find_recipe(name).row, budgets.read(name)
    assert budget, f'python -m benchmarks.budgets --write {name}'
    mesh = budget['mesh']
    assert (budget['topology'], mesh['fsdp'], mesh['tensor'], budget['micro-steps']) == (
        row.pod, row.mesh.fsdp, row.mesh.tensor, row.accumulate), name


def test_the_pages_have_every_recipe(monkeypatch):
  monkeypatch.setattr(recipe_page.budgets, 'read', lambda name: None)
  pages = recipe_page.pages()
  found = rows('\n'.join(pages[name] for name, page in recipe_page.PAGES.items() if page.families))
  names = [line.split('`')[1] for line in found]
  assert sorted(names) == sorted([*recipes.all_recipes()] * 2)  # a table of sizes, one of pods
  llama = [line for line in found if line.startswith('| `llama_7b`')]
  assert llama == [
      '| `llama_7b` | 32 x 4,096 | 6,738,415,616 | 2,048 x 2,048 | 0.0003 | 82,432 hours of an '
      'A100 |',
      '| `llama_7b` | v4:4x4x4 `--mesh.fsdp=64` `--train.accumulate=16` `--model.stack.remat=dots` '
      '|']


def test_figures_of_a_budget(monkeypatch):
  phase = {'HBM, GiB': {'total': 2.5}, 'bound, ms': 24.32, 'bound by': 'compute', 'MFU': 0.976}
  monkeypatch.setattr(recipe_page.budgets, 'read', lambda name: {
      'kind': 'TPU v2', 'devices': 32, 'phases': [phase] * 2} if name == 'bert_base' else None)
  sizes, pod = [line for line in rows(recipe_page.pages()['encoders'])
                if line.startswith('| `bert_base`')]
  assert sizes.endswith('| 16 TPU chips, 4 days |')
  # A million steps of 24.32 ms, on 16 chips.
  assert ('| 2.5 of 8<br>2.5 of 8 | 24.3 (compute)<br>24.3 (compute) | 98%<br>98% '
          '| 6.76 hours | 108 |') in pod
