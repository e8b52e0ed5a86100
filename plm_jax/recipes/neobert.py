"""NeoBERT, as published (Le Breton et al. 2025, section 3 and table 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=neobert_base
    python -m plm_jax train neobert_base --data.path=gs://BUCKET/records    # 64 TPU v5e chips
    python -m plm_jax train neobert_base_long --warm-start=RUN --data.path=gs://BUCKET/records
    python -m plm_jax train neobert_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train neobert_base --scale=test                       # seconds

Two runs, one from where the other ended. base: a million updates of 2.1 million tokens of RefinedWeb, in rows of
1,024; a fifth of the tokens is masked, and all of these become [MASK]; AdamW, whose rate rises for 2,000 updates, falls
along a cosine to a tenth over 900,000, and stays. long: 50,000 updates in rows of 4,096, at the rate at which base
ended; rate and rows of long are an assumption. Rows are of one document, the vocabulary is BERT's.
"""
import dataclasses

from plm_jax.config import Experiment, Scale
from plm_jax.models import neobert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by the released NeoBERTLMHead; published as 250M.
    'base': Size(model=neobert.base, parameters=245_136_954, peak=1e-4, steps=1_000_000, length=1024, batch=2048,
                 accumulate=4, pod='v5e:8x8'),
    'base_long': Size(model=neobert.base, parameters=245_136_954, peak=1e-5, steps=50_000, length=4096, batch=512,
                      accumulate=8, pod='v5e:8x8')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  model = row.backbone()
  optim = OptimConfig(
      peak=row.peak, warmup=2000, horizon=900_000, floor=0.1, schedule='cosine', b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.01)
  if size == 'base_long':
    optim = dataclasses.replace(optim, warmup=0, horizon=0, floor=0.0, schedule='constant')
  return scaled(Experiment(
      f'neobert_{size}', family='neobert', model=model, optim=optim,
      objective=MaskedLM(pair=Single(), rate=0.2, mask_share=1.0, random_share=0.0), train=row.train()), scale)
