"""ELECTRA (Clark et al. 2020, section 3 and table 6).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=electra_base
    python -m plm_jax train electra_base --data.path=gs://BUCKET/records    # 16 TPU v3 chips (v3-32)
    python -m plm_jax train electra_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train electra_base --scale=test                       # seconds

A generator fills blanks, and the model tells which words it replaced. small: a million steps of 128 rows of 128 tokens,
4 days on one V100 in the paper. base: 766,000 steps of 256 rows of 512, 4 days on 16 TPU v3 chips. large: 400,000 steps
of 2,048 rows (ELECTRA-400K). Text of small and base is BERT's, Wikipedia and BooksCorpus; of large XLNet's: ClueWeb,
CommonCrawl and Gigaword beside it. As in the released code, of the tokens to predict 85% are masked and the rest kept,
they are drawn with replacement, pairs are cut at half of the length, a tenth of the rows is one text, and the line of
the rate falls from the first step on, in the warmup too.

chinese is base of 21,128 pieces, characters most of them, in a million steps (ymcui/Chinese-ELECTRA).
"""
import dataclasses

from plm_jax.config import Experiment, Scale
from plm_jax.models import electra
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Consecutive
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.recipes.bert import chinese, in_chinese
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


@dataclasses.dataclass(frozen=True, kw_only=True)
class ELECTRASize(Size):
  """And what its generator is."""

  rate: float = 0.15
  """share of tokens that are predicted"""
  width: float
  """the generator's, as a share of the model's"""


SIZES = {
    # Parameters of discriminators by transformers' ElectraForPreTraining; published as 14M, 110M, 335M (table 1).
    'small': ELECTRASize(model=electra.small, parameters=13_549_057, peak=5e-4, steps=1_000_000, length=128, batch=128,
                         width=1 / 4, pod='v3:2x2', took='1 V100, 4 days'),
    'base': ELECTRASize(model=electra.base, parameters=109_483_009, peak=2e-4, steps=766_000, batch=256, width=1 / 3,
                        pod='v3:4x4', mesh=MeshConfig(fsdp=32), took='16 TPU v3 chips, 4 days'),
    'large': ELECTRASize(model=electra.large, parameters=335_142_913, peak=2e-4, steps=400_000, batch=2048, rate=0.25,
                         width=1 / 4, accumulate=2, pod='v3:8x16'),
    'chinese': ELECTRASize(model=chinese(electra.base), parameters=102_268_417, peak=2e-4, steps=1_000_000, batch=256,
                           width=1 / 3, pod='v3:4x4')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  mlm = MaskedLM(pair=Consecutive(cut='half', whole=0.1), rate=row.rate, choice='repeated', mask_share=0.85,
                 random_share=0.0)
  run = scaled(Experiment(
      f'electra_{size}', family='electra', model=row.model('bfloat16'),
      objective=ReplacedTokenDetection(mlm=mlm, width=row.width), optim=OptimConfig(peak=row.peak, schedule='electra'),
      train=row.train()), scale)
  return in_chinese(run) if size == 'chinese' else run
