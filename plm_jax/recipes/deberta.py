"""DeBERTa (He et al. 2021, sections 5.1 and 5.2, appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=deberta_base
    python -m plm_jax train deberta_base --data.path=gs://BUCKET/records    # 64 TPU v3 chips (v3-128), or more
    python -m plm_jax train deberta_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train deberta_base --scale=test                       # seconds

Disentangled attention, and a decoder of masks: a million steps of 2,048 rows of 512 tokens, 10 days on 64 V100 for base
and 20 days on 96 for large in the paper. Its text is Wikipedia, BookCorpus, OpenWebText and Stories, 78 GB. Masks are
the released code's: one n-gram of up to three words in each of successive windows. Rows are packed full there too, but
here documents in one row do not see each other.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import deberta
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' DebertaModel, without a head.
    'base': Size(model=deberta.base, parameters=138_601_728, peak=2e-4, steps=1_000_000, batch=2048, pod='v3:8x8',
                 took='64 V100, 10 days'),
    'large': Size(model=deberta.large, parameters=405_163_008, peak=2e-4, steps=1_000_000, batch=2048, accumulate=2,
                  pod='v3:8x16', took='96 V100, 20 days')}
# What version 2 has too.
MASKS = MaskedLM(pair=Single(), unit='word', lengths=(6 / 11, 3 / 11, 2 / 11), choice='windows')


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size. Adam and its schedule are BERT's, but for the peak."""
  row = SIZES[size]
  text = DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False), assembly='packed')
  return scaled(Experiment(
      f'deberta_{size}', family='deberta', model=row.model('bfloat16'), objective=MASKS, data=text,
      optim=OptimConfig(peak=row.peak), train=row.train()), scale)
