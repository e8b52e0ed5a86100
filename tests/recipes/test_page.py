"""docs/recipes.md is what the recipes say."""
from benchmarks import budgets, recipe_page
from plm_jax import recipes


def test_the_page_is_up_to_date():
  assert recipe_page.PAGE.read_text() == recipe_page.page(), 'python -m benchmarks.recipe_page writes it'


def test_every_recipe_has_a_budget_of_its_own_mesh():
  """A recipe whose mesh, micro-steps or pod have changed has to be compiled again."""
  for name in recipes.every():
    row, budget = recipes.find(name).row, budgets.read(name)
    assert budget, f'python -m benchmarks.budgets --write {name}'
    mesh = budget['mesh']
    assert (budget['topology'], mesh['fsdp'], mesh['tensor'], budget['micro-steps']) == (
        row.pod, row.mesh.fsdp, row.mesh.tensor, row.accumulate), name


def test_the_page_has_every_recipe(monkeypatch):
  monkeypatch.setattr(recipe_page.budgets, 'read', lambda name: None)
  text = recipe_page.page()
  rows = {line.split('`')[1]: line for line in text.splitlines() if line.startswith('| `')}
  assert {*rows} == {*recipes.every()}
  assert rows['llama_7b'] == (
      '| `llama_7b` | 32 x 4,096 | 6,738,415,616 | 2,048 x 2,048 | 0.0003 | v4:4x4x4 --mesh.fsdp=64 '
      '--train.accumulate=16 --model.stack.remat=dots |  |  |  |  |  | 82,432 hours of an A100 |')


def test_what_a_budget_says(monkeypatch):
  phase = {'HBM, GiB': {'total': 2.5}, 'bound, ms': 24.32, 'bound by': 'compute', 'MFU': 0.976}
  monkeypatch.setattr(recipe_page.budgets, 'read', lambda name: {
      'kind': 'TPU v2', 'devices': 32, 'phases': [phase] * 2} if name == 'bert_base' else None)
  line = next(line for line in recipe_page.page().splitlines() if line.startswith('| `bert_base`'))
  # A million steps of 24.32 ms, on 16 chips.
  assert '| 2.5; 2.5 of 8 | 24.32 (compute); 24.32 (compute) | 98%; 98% | 0.28 | 108 | 16 TPU chips' in line
