"""T5 (Raffel et al. 2020).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5_base
    python -m plm_jax train t5_base --data.path=gs://BUCKET/records      # 256 TPU v3 chips, or more
    python -m plm_jax train t5_11b --data.path=gs://BUCKET/records       # 1,024 TPU v4 chips
    python -m plm_jax train t5_small --scale=laptop                      # 2 CPU cores: 12 minutes
    python -m plm_jax train t5_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train t5_small --scale=test                        # seconds

An encoder-decoder that learns span corruption on C4, 750 GB of English web pages: spans of three
tokens on average, 15% of the text, are removed and form the target. The paper's baseline read 2^35
tokens in 2^19 steps with batch size 128 at sequence length 512 (section 3.1.2). The released
models, like this recipe, read 2^40 tokens in a million steps with batch size 2^11 (section 3.7).
They mixed in supervised tasks; here those come after pre-training, in t5_small_tasks.

The optimizer is Adafactor at the learning rate 1/sqrt(max(step, 10^4)), which factors the attention
kernels with their heads joined. The z loss has the coefficient 1e-4, as in T5X's base.gin and in
every descendant.

T5's SentencePiece normalizes text (NFKC) and makes one space of any white space, as published. So
line breaks and indentation are left out. byt5_small and others learn them.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import t5
from plm_jax.objectives.span_corruption import MixtureOfDenoisers
from plm_jax.optim.optimizers import Adafactor
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Size(RecipeSize):
  """A size; all train for a million steps with batch size 2^11 (section 3.7)."""

  peak: float = 0.01
  steps: int = 1_000_000
  length: int = 512
  batch: int = 2048


# Parameters of transformers' T5ForConditionalGeneration; published as 60M, 220M, 770M, 3B, 11B
# (section 3.7).
SIZES = {
    'small': T5Size(model=t5.small, parameters=60_506_624, pod='v3:8x8'),
    'base': T5Size(
        model=t5.base, parameters=222_903_552, pod='v3:16x16', mesh=MeshConfig(fsdp=32)),
    'large': T5Size(
        model=t5.large, parameters=737_668_096, pod='v3:16x32', mesh=MeshConfig(fsdp=32)),
    '3b': T5Size(model=t5.t5_3b, parameters=2_851_598_336, pod='v4:8x8x8'),
    '11b': T5Size(
        model=t5.t5_11b, parameters=11_307_321_344, pod='v4:8x8x16',
        mesh=MeshConfig(fsdp=32, tensor=4))}
# Shared with the descendants of T5.
TEXT = TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False)
OPTIM = Adafactor(
    peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0,
    heads='joined')


def make_run(row: T5Size) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='t5',
      model=row.make_model(dropout=0.1, attention_dropout=0.1, mlp_dropout=0.1),
      objective=MixtureOfDenoisers(z_loss=1e-4),  # span corruption alone, the default denoiser
      data=DataConfig(prepare=TEXT, assembly='packed'),
      optim=OPTIM, train=row.make_train_config())


T5 = RecipeFamily('t5', __doc__, SIZES, make_run)
