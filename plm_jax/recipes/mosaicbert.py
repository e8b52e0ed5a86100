"""MosaicBERT, as published (Portes et al. 2023) and by the released yamls/main/mosaic-bert-base-uncased.yaml.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mosaicbert_base
    python -m plm_jax train mosaicbert_base --data.path=gs://BUCKET/records    # 16 TPU v5e chips
    python -m plm_jax train mosaicbert_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train mosaicbert_base --scale=test                       # seconds

70,000 updates of 4,096 rows of 128 tokens of C4; 30% of tokens are masked, 15% in evaluation. AdamW, whose decay is
1e-5 of the parameter at the peak, not times the rate, of all parameters; a rate that rises over 6% of the run and falls
along a line to 2% of the peak; gradients are not clipped. Released rows are the first 128 tokens of a document each;
here they are all of its windows. The paper has GLUE at 79.6 after 1.13 hours. Rows may be longer later: positions are
distances.
"""
from plm_jax.config import Experiment, Scale
from plm_jax.models import mosaicbert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

DECAY = 1e-5
"""share of a parameter that is subtracted in a step at the peak"""
SIZES = {
    # Parameters by the released BertForMaskedLM; published as 137M.
    'base': Size(model=mosaicbert.base, parameters=137_400_384, peak=5e-4, steps=70_000, length=128, batch=4096,
                 accumulate=4, pod='v5e:4x4', took='8 A100-80, 1.13 hours')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=row.steps * 6 // 100, floor=0.02, schedule='linear', b2=0.98, eps=1e-6,
      bias_correction=True, weight_decay=DECAY / row.peak, exempt=(), clip=0.0)
  return scaled(Experiment(
      f'mosaicbert_{size}', family='mosaicbert', model=row.model('bfloat16'), optim=optim,
      objective=MaskedLM(pair=Single(), rate=0.3, held_out_rate=0.15), train=row.train()), scale)
