"""Cramming, BERT in a day on one GPU (Geiping and Goldstein 2023), by the released bert-o4.yaml and crammed-bert.yaml.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=cramming_base
    python -m plm_jax train cramming_base --data.path=gs://BUCKET/records    # 4 TPU v5e chips
    python -m plm_jax train cramming_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train cramming_base --scale=test                       # seconds

Rows of 128 tokens of a part of the Pile, WordPiece of 32,768 pieces; a quarter of the tokens is masked, nothing is
dropped. Batches grow from 128 rows to 8,192 over 60% of the run; the rate rises from a quarter of its peak over three
quarters of the run, and falls to 0. The released run ends with its day, on whatever GPU: here it ends with 600,000 x
128 rows, 9.8 billion tokens, of which it saw fewer or more.
"""
from plm_jax import checked
from plm_jax.config import Experiment, Scale, TrainConfig, ramp
from plm_jax.models import crammed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

TOKENS = 600_000 * 128 * 128
SIZES = {
    # Parameters by the released ScriptableLMForPreTraining; published as 120M.
    'base': Size(model=crammed.base, parameters=119_589_889, peak=1e-3, length=128, batch=8192, accumulate=16,
                 pod='v5e:2x2', mesh=MeshConfig(fsdp=4), took='1 RTX A6000, 24 hours')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  model = checked.replaced(row.model('bfloat16'), {'block.dropout': 0.0, 'block.attention.dropout': 0.0})
  optim = OptimConfig(
      peak=row.peak, clock='tokens', warmup=TOKENS * 3 // 4, warmup_start=0.25, schedule='linear', b2=0.98, eps=1e-12,
      bias_correction=True, clip=0.5)
  return scaled(Experiment(
      f'cramming_{size}', family='crammedBERT', model=model, optim=optim,
      objective=MaskedLM(pair=Single(), rate=0.25),
      train=TrainConfig(phases=ramp(TOKENS, row.length, row.batch, 128, TOKENS * 6 // 10),
                        accumulate=row.accumulate)), scale)
