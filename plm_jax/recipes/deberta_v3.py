"""DeBERTa version 3 (He et al. 2023, sections 3 and 4).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=deberta_v3_base
    python -m plm_jax train deberta_v3_base --data.path=gs://BUCKET/records    # 256 TPU v3 chips (v3-512)
    python -m plm_jax train deberta_v3_base --scale=laptop                     # 2 CPU cores: 4 minutes
    python -m plm_jax train deberta_v3_base --scale=test                       # seconds

Replaced tokens, as in ELECTRA: 500,000 steps of 8,192 rows of 512 tokens. The text is version 2's, 160 GB. The
generator is as wide and half as deep; the two share embeddings with the generator's gradient alone, and a difference of
the discriminator's own. It trains as the released code does (apps/tasks/rtd_task.py): each network has an optimizer,
which clips its gradient by itself, the discriminator's loss has the weight 10, where the paper has 50, and masks are
single tokens, one in each window of six, from the left until they are 15%. Peaks are those of the paper's table of
pre-training, 6e-4 from memory of it; 5e-4 is of its analysis in 125,000 steps, and the released rtd.sh has 1e-4 for 256
rows. The paper gives no schedule for xsmall: it is that of small and base here.

multilingual is mDeBERTa: base with 250,000 pieces on CC100, 2.5 trillion characters in 100 languages, whose shares go
with the power 0.3 of their sizes here, as in XLM-R and mT5 (section 5.4 compares with these and does not tell). Give a
corpus of each language to --data.path.
"""
import dataclasses

from plm_jax.config import Experiment, Scale
from plm_jax.models import deberta_v2
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.recipes.deberta_v2 import TEXT
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' DebertaV2Model, without a head; published as 22M, 44M, 86M, 304M beside the table of
    # tokens, which has 48M, 98M, 98M, 131M (README of microsoft/DeBERTa).
    'xsmall': Size(model=deberta_v2.v3_xsmall, parameters=70_682_112, peak=6e-4, steps=500_000, batch=8192,
                   accumulate=4, pod='v3:8x8'),
    'small': Size(model=deberta_v2.v3_small, parameters=141_304_320, peak=6e-4, steps=500_000, batch=8192,
                  accumulate=4, pod='v3:8x8'),
    'base': Size(model=deberta_v2.v3_base, parameters=183_831_552, peak=6e-4, steps=500_000, batch=8192,
                 pod='v3:16x16'),
    'large': Size(model=deberta_v2.v3_large, parameters=434_012_160, peak=3e-4, steps=500_000, batch=8192,
                  accumulate=4, pod='v4:4x8x8'),
    # Published as 86M beside the 190M of the table of tokens.
    'multilingual': Size(name='mdeberta_v3_base', model=deberta_v2.mdeberta_v3_base, parameters=278_218_752, peak=6e-4,
                         steps=500_000, batch=8192, accumulate=2, pod='v4:4x8x8')}
MASKS = MaskedLM(pair=Single(), choice='windows', mask_share=1.0, random_share=0.0)
OBJECTIVE = ReplacedTokenDetection(
    MASKS, weight=10.0, sharing='disentangled', optimizers='two', width=1.0, depth=0.5, first=True)


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  data = dataclasses.replace(TEXT, temperature=1 / 0.3) if size == 'multilingual' else TEXT
  return scaled(Experiment(
      row.name or f'deberta_v3_{size}', family='deberta-v2', model=row.model('bfloat16'), objective=OBJECTIVE,
      data=data, optim=OptimConfig(peak=row.peak, b2=0.98), train=row.train()), scale)
