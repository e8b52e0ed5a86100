"""DeBERTa (He et al. 2021, sections 5.1 and 5.2, appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=deberta_base
    python -m plm_jax train deberta_base \\
        --data.path=gs://BUCKET/records  # 64 TPU v3 chips (v3-128), or more
    python -m plm_jax train deberta_base --scale=laptop  # 2 CPU cores: 3 minutes
    python -m plm_jax train deberta_base --scale=test    # seconds

Disentangled attention and an enhanced mask decoder: a million steps with batch size 2,048 at
sequence length 512. The paper took 10 days on 64 V100 for base and 20 days on 96 for large. Its
text is Wikipedia, BookCorpus, OpenWebText and Stories, 78 GB. Masking follows the released code:
one n-gram of up to three words in each of successive windows. Sequences are packed full, as in the
released code, but documents in one sequence do not attend to each other here.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import deberta
from plm_jax.objectives.masking import Windowed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

SIZES = {
    # Parameters of transformers' DebertaModel, without a head.
    'base': RecipeSize(
        model=deberta.base, parameters=138_601_728, peak=2e-4, steps=1_000_000, length=512,
        batch=2048, pod='v3:8x8', published_hardware='64 V100, 10 days'),
    'large': RecipeSize(
        model=deberta.large, parameters=405_163_008, peak=2e-4, steps=1_000_000, length=512,
        batch=2048, accumulate=2, pod='v3:8x16', published_hardware='96 V100, 20 days')}
# Shared with version 2.
MASKS = MaskedLM(pair=Single(), masking=Windowed('word', (6 / 11, 3 / 11, 2 / 11)))


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  text = TextConfig(kind='byte-bpe', lowercase=False)
  return PretrainRun(
      row.name, family='deberta', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MASKS, data=DataConfig(prepare=text, assembly='packed'),
      optim=AdamW(peak=row.peak, warmup=10_000, schedule='bert', weight_decay=0.01),
      train=row.make_train_config())


DEBERTA = RecipeFamily('deberta', __doc__, SIZES, make_run)
