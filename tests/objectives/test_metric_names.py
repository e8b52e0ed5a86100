import pytest

from plm_jax.objectives import metric_names
from plm_jax.objectives.mlm import MaskedLM

VALUES = {'mlm': 2.5, 'nsp': 0.25, 'mlm_accuracy': 0.5, 'nsp_accuracy': 0.75, 'mlm_baseline': 0.125,
          'z': 1.0}


def test_figures_of_a_question_stand_together():
  told = metric_names.format_line(VALUES, MaskedLM().reporting.format_metric)
  assert told == ('MLM loss 2.500, accuracy 50.0% (baseline 12.5%); '
                  'NSP loss 0.250, accuracy 75.0%')  # without z, which only regularizes


def test_figures_of_corpora_stand_behind_those_of_all():
  values = {'mlm': 2.5, 'mlm_accuracy': 0.5, 'mlm/de': 2.0, 'mlm_accuracy/de': 0.75, 'mlm/sw': 3.0}
  assert metric_names.format_line(values, MaskedLM().reporting.format_metric) == (
      'MLM loss 2.500, accuracy 50.0%; by corpus: de 2.000, sw 3.000')
  assert metric_names.split_by_corpus(values) == (
      {'mlm': 2.5, 'mlm_accuracy': 0.5},
      {'de': {'mlm': 2.0, 'mlm_accuracy': 0.75}, 'sw': {'mlm': 3.0}})


@pytest.mark.parametrize(('figure', 'called'), [
    ('mlm', 'MLM loss'), ('clm_accuracy', 'next-token accuracy'),
    ('bits_per_byte', 'bits per byte'),
    ('nsp_baseline', 'NSP majority-class baseline'), ('loss', 'loss'),
    ('my_own', 'my own loss'), ('mlm_accuracy/zh', 'MLM accuracy, zh'), ('matthews', 'matthews')])
def test_names(figure, called):
  assert metric_names.display_name(figure, {'my_own_accuracy'}) == called
