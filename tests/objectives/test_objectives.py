"""Rows of short and odd lengths, for every objective: how long they are, and that what is told of
them holds."""
import jax
import pytest
import tiny

from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.objectives.glm import MULTIPLE, BlankInfilling
from plm_jax.objectives.masking import Everywhere, Repeated, Windowed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.plm import PermutationLM
from plm_jax.objectives.row_builders import FullSentences, SentenceOrder
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.objectives.span_corruption import MixtureOfDenoisers
from plm_jax.tokenizers.contract import Vocab

VOCAB = Vocab(200, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=6, sop=7, eop=8, sentinel=199)


@pytest.mark.parametrize('objective', [
    MaskedLM(), MaskedLM(pair=FullSentences()), MaskedLM(pair=SentenceOrder()), PermutationLM(),
    SpanBoundary(),
    ReplacedTokenDetection(), CausalLM(), BlankInfilling(), MixtureOfDenoisers(),
    DenoisingAutoencoder(),
    DenoisingAutoencoder(reserve=2), MaskedLM(masking=Repeated()), MaskedLM(masking=Everywhere()),
    MaskedLM(masking=Windowed())],
    ids=['nsp', 'full', 'sop', 'plm', 'sbo', 'rtd', 'clm', 'glm', 't5', 'bart', 'mbart', 'electra',
         'roberta',
         'deberta'])
def test_rows_are_as_long_as_asked_for_and_have_the_predictions_that_are_told(objective):
  for length in (8, 13):
    windows = tiny.windows(2, objective.text_length(length))
    batch = jax.eval_shape(lambda w: objective.corrupt(jax.random.key(0), w, VOCAB), windows)
    unit = MULTIPLE if isinstance(objective, BlankInfilling) else 1
    assert batch['tokens'].shape == (2, length // unit * unit)
    assert batch['weights'].shape == batch['labels'].shape == (2, objective.max_predictions(length))
