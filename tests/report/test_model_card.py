"""The README.md of an exported model."""
import contextlib
import dataclasses
import math
import types

from plm_jax import recipes
from plm_jax.report import model_card
from plm_jax.report.history import History
from plm_jax.report.model_card import ExportedModel


def test_a_card_describes_the_training_of_a_model(tmp_path):
  bert = recipes.find_recipe('bert_base')('laptop')
  bert = dataclasses.replace(bert, data=dataclasses.replace(
      bert.data, path=('/home/someone/texts/mine.txt', 'gs://b/more/')))
  told = model_card.render_card(bert, {'mlm': 2.5, 'mlm_accuracy': 0.5},
                                ExportedModel('bert', ('encode', 'fill_mask'), 1_234_567))
  front, _, text = told.removeprefix('---\n').partition('---\n')
  assert front == 'library_name: transformers\npipeline_tag: fill-mask\ntags:\n- plm_jax\n'
  assert '\n# bert_base-laptop\n' in text and 'the recipe `bert_base` of\nplm_jax ' in text
  assert ' at the laptop scale.\n' in text and '`plm_jax.load` loads it.' in text
  assert (
      'A `bert` model with 1,234,567 parameters (2 layers, hidden size 128), pre-trained with '
      'the recipe ') in text
  assert 'completed' not in text and 'author' not in text  # nothing is left if nobody edits it
  for line in ('| Steps | 2,000 |', '| Tokens read | 4,096,000 |', '| Text | `mine.txt`, `more` |',
               '| Objectives | MLM, NSP |', '| Held-out MLM loss | 2.500 |',
               '| Held-out MLM accuracy | 50.0% |'):
    assert line in text.splitlines()
  assert 'someone' not in told
  assert model_card.run_card(str(tmp_path), ExportedModel('bert', (), 0)) == ''


def test_the_card_of_sentence_vectors():
  run = recipes.find_recipe('bert_base')('test')
  model = ExportedModel('bert', ('encode', 'similar', 'search', 'fill_mask'), 1)
  told = model_card.render_card(run, {}, model)
  assert told.startswith(
      '---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\n')


def test_steps_and_metrics_match_the_exported_weights(tmp_path, monkeypatch):
  run = recipes.find_recipe('bert_base')('test')
  curves = {'mlm': {'heldout': [(4, 3.0), (8, 2.0)], 'train': [(8, 1.0)]},
            'mlm_accuracy': {'heldout': [(4, math.nan)]}}
  monkeypatch.setattr(model_card, 'history', lambda folder: History(folder, run, curves))
  @contextlib.contextmanager
  def checkpoint(folder, step, meta):
    yield types.SimpleNamespace(meta=lambda number: {step: meta}[number]), step
  def told(step, meta):
    monkeypatch.setattr(model_card, 'open_newest', lambda folder: checkpoint(folder, step, meta))
    return model_card.run_card(str(tmp_path), ExportedModel('bert', (), 1)).splitlines()
  first = told(4, {})
  assert '| Steps | 4 of 8 planned |' in first and '| Tokens read | 1,024 |' in first
  assert '| Held-out MLM loss | 3.000 |' in first
  assert '| Held-out MLM loss | 2.000 |' in told(8, {}) and '| Steps | 8 |' in told(8, {})
  assert '| Held-out MLM loss | 2.500 |' in told(8, {'heldout': {'mlm': 2.5}})
