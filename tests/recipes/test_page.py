"""docs/recipes.md is what the recipes say."""
from benchmarks import recipe_page
from plm_jax import recipes


def test_the_page_is_up_to_date():
  assert recipe_page.PAGE.read_text() == recipe_page.page(), 'python -m benchmarks.recipe_page writes it'


def test_the_page_has_every_recipe_and_its_memory(monkeypatch):
  monkeypatch.setattr(recipe_page.budgets, 'read', lambda name: None)
  monkeypatch.setattr(recipe_page, 'compiled', lambda results: {'llama_7b': '8.092 of 32'})
  text = recipe_page.page()
  rows = {line.split('`')[1]: line for line in text.splitlines() if line.startswith('| `')}
  assert {*rows} == {*recipes.every()}
  assert rows['llama_7b'] == (
      '| `llama_7b` | 32 x 4,096 | 6,738,415,616 | 2,048 x 2,048 | 0.0003 | v4:4x4x4 --mesh.fsdp=64 '
      '--train.accumulate=16 --model.stack.remat=dots | 8.092 of 32 |  |  |  |  | 82,432 hours of an A100 |')


def test_memory_is_read_from_the_results():
  table = ('## Which pod a recipe fits\n| recipe | pod | devices | HBM |\n|---|---|---|---|\n'
           '| bert_base | v2:4x4 | 32 x TPU v2 | 2.343 of 8; 4.314 of 8 |\n'
           '| glm_large_doc, glm_large_sentence | v3:8x8 | 128 x TPU v3 | 12.661 of 16 |\n'
           '| ul2_20b, fsdp 128 | v4:8x8x8 | 512 x TPU v4 | 25.718 of 32 * |\n'
           '| bart_translation_source, bart_translation | v3:4x4 | 32 x TPU v3 | 7.902; 10.639 of 16 |\n'
           '## Next\n| gpt_base | v3:4x4 | 32 | 1 of 2 |\n')
  assert recipe_page.compiled(table) == {
      'bert_base': '2.343 of 8; 4.314 of 8', 'glm_large_doc': '12.661 of 16', 'glm_large_sentence': '12.661 of 16',
      'ul2_20b': '25.718 of 32', 'bart_translation_source': '7.902 of 16', 'bart_translation': '10.639 of 16'}


def test_what_a_budget_says_comes_first(monkeypatch):
  phase = {'HBM, GiB': {'total': 2.5}, 'bound, ms': 24.32, 'bound by': 'compute', 'MFU': 0.976}
  monkeypatch.setattr(recipe_page.budgets, 'read', lambda name: {
      'kind': 'TPU v2', 'devices': 32, 'phases': [phase] * 2} if name == 'bert_base' else None)
  line = next(line for line in recipe_page.page().splitlines() if line.startswith('| `bert_base`'))
  # A million steps of 24.32 ms, on 16 chips.
  assert '| 2.5; 2.5 of 8 | 24.32 (compute); 24.32 (compute) | 98%; 98% | 0.28 | 108 | 16 TPU chips' in line
