"""ELECTRA (Clark et al. 2020, section 3 and table 6).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=electra_base
    python -m plm_jax train electra_base --data.path=gs://BUCKET/records  # 16 TPU v3 chips (v3-32)
    python -m plm_jax train electra_base --scale=laptop                   # 2 CPU cores: 3 minutes
    python -m plm_jax train electra_base --scale=test                     # seconds

Replaced token detection: a generator fills masks, and the discriminator predicts which tokens were
replaced.

- small: a million steps with batch size 128 at sequence length 128; 4 days on one V100 in the
  paper.
- base: 766,000 steps with batch size 256 at sequence length 512; 4 days on 16 TPU v3 chips.
- large: 400,000 steps with batch size 2,048 (ELECTRA-400K).
- chinese: base with 21,128 tokens, most of them single characters, for a million steps
  (ymcui/Chinese-ELECTRA).

The text of small and base is BERT's, Wikipedia and BooksCorpus. The text of large is XLNet's, which
adds ClueWeb, CommonCrawl and Gigaword.

Details of the released code: of the tokens to predict, 85% are masked and the rest are kept. They
are sampled with replacement. Pairs are cut at half of the sequence length, and a tenth of the
sequences is a single text. As in BERT, the linear decay of the learning rate starts at step 0;
unlike in BERT, it also multiplies the warmup (`schedule='electra'`).
"""
import dataclasses

from plm_jax.config.run import PretrainRun
from plm_jax.models import electra
from plm_jax.objectives.masking import Repeated
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Consecutive
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.bert import set_chinese_vocab
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ELECTRASize(RecipeSize):
  """A size with its mask rate and generator."""

  rate: float = 0.15
  """share of the tokens that the generator predicts (85% of them are masked)"""
  width: float
  """width of the generator, as a share of the discriminator's"""


SIZES = {
    # Parameters of the discriminators, by transformers' ElectraForPreTraining; published as 14M,
    # 110M, 335M (table 1).
    'small': ELECTRASize(
        model=electra.small, parameters=13_549_057, peak=5e-4, steps=1_000_000, length=128,
        batch=128, width=1 / 4, pod='v3:2x2', published_hardware='1 V100, 4 days'),
    'base': ELECTRASize(
        model=electra.base, parameters=109_483_009, peak=2e-4, steps=766_000, length=512, batch=256,
        width=1 / 3, pod='v3:4x4', mesh=MeshConfig(fsdp=32),
        published_hardware='16 TPU v3 chips, 4 days'),
    'large': ELECTRASize(
        model=electra.large, parameters=335_142_913, peak=2e-4, steps=400_000, length=512,
        batch=2048, rate=0.25, width=1 / 4, accumulate=2, pod='v3:8x16'),
    'chinese': ELECTRASize(
        model=set_chinese_vocab(electra.base), parameters=102_268_417, peak=2e-4, steps=1_000_000,
        length=512, batch=256, width=1 / 3, pod='v3:4x4', laptop_vocab=8000)}


def make_run(row: ELECTRASize) -> PretrainRun:
  """Build the published run of a size."""
  mlm = MaskedLM(
      pair=Consecutive(cut='half', whole=0.1), mask_rate=row.rate, masking=Repeated(),
      mask_share=0.85, random_share=0.0)
  return PretrainRun(
      row.name, family='electra', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=ReplacedTokenDetection(mlm=mlm, width=row.width),
      optim=AdamW(peak=row.peak, warmup=10_000, schedule='electra', weight_decay=0.01),
      train=row.make_train_config())


ELECTRA = RecipeFamily('electra', __doc__, SIZES, make_run)
