"""DeBERTa version 2 (released with He et al. 2021; section 5.3 and appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=deberta_v2_xlarge
    python -m plm_jax train deberta_v2_xlarge --data.path=gs://BUCKET/records                   # 128 TPU v4 chips
    python -m plm_jax train deberta_v2_xxlarge --data.path=gs://BUCKET/records    # 256 TPU v4 chips
    python -m plm_jax train deberta_v2_xlarge --scale=laptop                                    # 2 CPU cores: 4 minutes
    python -m plm_jax train deberta_v2_xlarge --scale=test                                      # seconds

Shared projections, distances in logarithmic buckets and a convolution beside version 1's: a million steps of 2,048 rows
of 512 tokens, 30 days on 256 V100 for xxlarge in the paper, which gives no schedule for xlarge: it is that of xxlarge
here. The text is version 1's and CC-News, 160 GB. Masks and rows are version 1's.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import deberta_v2
from plm_jax.recipes.deberta import MASKS
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' DebertaV2Model, without a head; published as 900M and 1.5B.
    'xlarge': Size(model=deberta_v2.xlarge, parameters=884_593_152, peak=1.5e-4, steps=1_000_000, batch=2048,
                   accumulate=4, pod='v4:4x4x8'),
    'xxlarge': Size(model=deberta_v2.xxlarge, parameters=1_564_549_632, peak=1.5e-4, steps=1_000_000, batch=2048,
                    accumulate=2, pod='v4:4x8x8', took='256 V100, 30 days')}
# What version 3 has too.
TEXT = DataConfig(
    prepare=TextConfig(kind='sentencepiece-unigram', layout='deberta', lowercase=False), assembly='packed')


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size. Adam and its schedule are BERT's, but for the peak."""
  row = SIZES[size]
  return scaled(Experiment(
      f'deberta_v2_{size}', family='deberta-v2', model=row.model('bfloat16'), objective=MASKS, data=TEXT,
      optim=OptimConfig(peak=row.peak), train=row.train()), scale)
