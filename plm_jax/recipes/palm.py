"""PaLM, as published (Chowdhery et al. 2022, sections 2 and 5).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=palm_8b
    python -m plm_jax train palm_8b --data.path=gs://BUCKET/records            # 128 TPU v4 chips
    python -m plm_jax train palm_8b --scale=laptop                             # 46 minutes
    python -m plm_jax train palm_8b --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train palm_8b --scale=test                               # seconds

A causal language model with parallel layers and multi-query attention: 780 billion tokens at
sequence length 2,048. The batch size of 540b is 512, then 1,024, then 2,048; of 62b 512, then
1,024; of 8b 256, then 512 (table 1 and section 5). Here gradients are accumulated over
micro-batches. The paper does not state when the smaller models change; here after 52 billion
tokens, as in the largest. The paper used two pods of 3,072 TPU v4 chips for the largest.

The optimizer is Adafactor without factoring, with momentum on its updates. The weight decay is
multiplied by the square of the learning rate. The z loss has the coefficient 1e-4: it penalizes the
squared logarithm of the softmax denominator. Adafactor's update clipping and parameter scaling,
layer by layer, follow T5. The vocabulary has 256,000 tokens.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
import dataclasses

from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import palm
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import Adafactor
from plm_jax.recipes.llama import TEXT
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaLMSize(RecipeSize):
  """A size with its batch size schedule."""

  length: int = 2048
  phases: tuple[tuple[int, int], ...]
  """(updates, batch size) of each phase"""


# Parameters of table 1: 8.63B, 62.50B, 540.35B. Batch sizes: section 5.
SIZES = {
    '8b': PaLMSize(
        model=palm.palm_8b, parameters=8_632_012_800, peak=1e-2, batch=512, accumulate=4,
        remat='dots', phases=((100_000, 256), (690_000, 512)), pod='v4:4x4x8',
        mesh=MeshConfig(fsdp=32, tensor=4)),
    '62b': PaLMSize(
        model=palm.palm_62b, parameters=62_495_662_080, peak=1e-2, batch=1024, accumulate=4,
        remat='dots', phases=((50_000, 512), (345_000, 1024)), pod='v4:8x8x8',
        mesh=MeshConfig(fsdp=128, tensor=4)),
    '540b': PaLMSize(
        model=palm.palm_540b, parameters=540_356_474_880, peak=1e-2, batch=2048, accumulate=4,
        remat='full', phases=((50_000, 512), (65_000, 1024), (140_000, 2048)), pod='v4:8x16x16',
        mesh=MeshConfig(fsdp=128, tensor=16),
        published_hardware='6,144 TPU v4 chips, 1,200 hours and 3,072, 336 hours')}


def make_run(row: PaLMSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = Adafactor(
      peak=row.peak, warmup=10_000, schedule='t5', weight_decay=1.0,
      decay_power=2.0, factored=0, momentum=0.9)
  phases = tuple(Phase(steps, row.length, batch) for steps, batch in row.phases)
  return PretrainRun(
      row.name, family='cohere', objective=CausalLM(isolated=False, z_loss=1e-4), optim=optim,
      model=row.make_model(dropout=0.0, attention_dropout=0.0),
      data=DataConfig(prepare=TEXT, assembly='packed'),
      train=TrainConfig(phases=phases, accumulate=row.accumulate))


PALM = RecipeFamily('palm', __doc__, SIZES, make_run)
