"""UL2 (Tay et al. 2023).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ul2_20b
    python -m plm_jax train ul2_20b --data.path=gs://BUCKET/records    # 512 TPU v4 chips
    python -m plm_jax train ul2_20b --scale=laptop                                     # 2 CPU cores: 12 minutes
    python -m plm_jax train ul2_20b --scale=laptop --train.phases.0.steps=1600         # 5 minutes
    python -m plm_jax train ul2_20b --scale=test                                       # seconds

32 + 32 layers of 4,096 with SwiGLU, on C4: two million steps of 1,024 rows of 512 tokens. Of a row one of seven
denoisers is asked: spans of 3 or 8 tokens on average, 15% of the text; the end of the text; spans as many as half of
the text, or of 64 tokens. A token in front says which of the three kinds (section 3.1). Half of a text in spans of
three is more of them than T5's tokenizer has sentinels. Adafactor, at a rate of 1/sqrt(max(step, 10^4)), and a z loss
of 1e-4, as in T5's released code; no dropout.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.models import t5
from plm_jax.objectives.spans import UL2, MixtureOfDenoisers
from plm_jax.recipes.t5 import OPTIM, TEXT
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters of one table for tokens, which is the output's too; published as 19.5B (with a second
    # one, as in T5 v1.1, there would be 19.59B).
    '20b': Size(model=t5.ul2_20b, parameters=19_459_613_696, peak=0.01, steps=2_000_000, batch=1024, pod='v4:8x8x8',
                mesh=MeshConfig(fsdp=128))}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  text = DataConfig(prepare=dataclasses.replace(TEXT, sentinels=160), assembly='packed')
  return scaled(Experiment(
      f'ul2_{size}', family='t5', model=row.model('bfloat16'),
      objective=MixtureOfDenoisers(UL2, sentinels=160, z_loss=1e-4), data=text, optim=OPTIM, train=row.train()), scale)
