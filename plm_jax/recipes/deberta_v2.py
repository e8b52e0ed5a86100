"""DeBERTa version 2 (released with He et al. 2021; section 5.3 and appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=deberta_v2_xlarge
    python -m plm_jax train deberta_v2_xlarge --data.path=gs://BUCKET/records  # 128 TPU v4 chips
    python -m plm_jax train deberta_v2_xxlarge --data.path=gs://BUCKET/records  # 256 TPU v4 chips
    python -m plm_jax train deberta_v2_xlarge --scale=laptop                # 2 CPU cores: 4 minutes
    python -m plm_jax train deberta_v2_xlarge --scale=test                  # seconds

Adds shared projections, logarithmic buckets of relative positions and a convolution to version 1: a
million steps with batch size 2,048 at sequence length 512. The paper took 30 days on 256 V100 for
xxlarge. It gives no schedule for xlarge; this recipe uses that of xxlarge. The text is version 1's
and CC-News, 160 GB. Masking and packing follow version 1.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import deberta_v2
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.deberta import MASKS
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

SIZES = {
    # Parameters of transformers' DebertaV2Model, without a head; published as 900M and 1.5B.
    'xlarge': RecipeSize(
        model=deberta_v2.xlarge, parameters=884_593_152, peak=1.5e-4, steps=1_000_000, length=512,
        batch=2048, accumulate=4, pod='v4:4x4x8'),
    'xxlarge': RecipeSize(
        model=deberta_v2.xxlarge, parameters=1_564_549_632, peak=1.5e-4, steps=1_000_000,
        length=512, batch=2048, accumulate=2, pod='v4:4x8x8',
        published_hardware='256 V100, 30 days')}
# Shared with version 3.
TEXT = DataConfig(
    prepare=TextConfig(kind='sentencepiece-unigram', layout='deberta', lowercase=False),
    assembly='packed')


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='deberta-v2',
      model=row.make_model(dropout=0.1, attention_dropout=0.1), objective=MASKS, data=TEXT,
      optim=AdamW(peak=row.peak, warmup=10_000, schedule='bert', weight_decay=0.01),
      train=row.make_train_config())


DEBERTA_V2 = RecipeFamily('deberta_v2', __doc__, SIZES, make_run)
