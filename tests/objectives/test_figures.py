import pytest

from plm_jax.objectives import figures
from plm_jax.objectives.mlm import MaskedLM

VALUES = {'mlm': 2.5, 'nsp': 0.25, 'mlm_accuracy': 0.5, 'nsp_accuracy': 0.75, 'mlm_baseline': 0.125, 'z': 1.0}


def test_figures_of_a_question_stand_together():
  told = figures.line(VALUES, MaskedLM().shown)
  assert told == ('masked-token loss 2.500, accuracy 50.0% (always the most frequent: 12.5%); '
                  'next-sentence loss 0.250, accuracy 75.0%; softmax-denominator loss 1.000')


@pytest.mark.parametrize(('figure', 'called'), [
    ('mlm', 'masked-token loss'), ('clm_accuracy', 'next-token accuracy'), ('bits_per_byte', 'bits per byte'),
    ('nsp_baseline', 'next-sentence accuracy of always the most frequent answer'), ('loss', 'loss'),
    ('my_own', 'my own loss'), ('matthews', 'matthews')])
def test_names(figure, called):
  assert figures.called(figure, {'my_own_accuracy'}) == called
