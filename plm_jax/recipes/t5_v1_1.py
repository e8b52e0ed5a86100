"""T5 version 1.1 (Raffel et al. 2020, as released afterwards).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5_v1_1_base
    python -m plm_jax train t5_v1_1_base --data.path=gs://BUCKET/records   # 256 TPU v3 chips
    python -m plm_jax train t5_v1_1_xxl --data.path=gs://BUCKET/records    # 1,024 TPU v4 chips
    python -m plm_jax train t5_v1_1_small --scale=laptop                   # 2 CPU cores: 12 minutes
    python -m plm_jax train t5_v1_1_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train t5_v1_1_small --scale=test                     # seconds

T5 with gated feed-forward networks, untied embeddings, and no dropout in pre-training, on C4 alone:
a million steps with batch size 2,048 at sequence length 512. Spans of three tokens on average, 15%
of the text, are removed and form the target. The optimizer is Adafactor at the learning rate
1/sqrt(max(step, 10^4)). The z loss has the coefficient 1e-4, as in the released code.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import t5
from plm_jax.objectives.span_corruption import MixtureOfDenoisers
from plm_jax.recipes.recipe_size import RecipeFamily
from plm_jax.recipes.t5 import OPTIM, TEXT, T5Size
from plm_jax.sharding import MeshConfig

# Parameters of transformers' T5ForConditionalGeneration.
SIZES = {
    'small': T5Size(model=t5.v1_1_small, parameters=76_961_152, pod='v3:8x8'),
    'base': T5Size(
        model=t5.v1_1_base, parameters=247_577_856, pod='v3:16x16', mesh=MeshConfig(fsdp=32)),
    'large': T5Size(
        model=t5.v1_1_large, parameters=783_150_080, pod='v3:16x32', mesh=MeshConfig(fsdp=32)),
    'xl': T5Size(
        model=t5.v1_1_xl, parameters=2_849_757_184, pod='v4:8x8x8', mesh=MeshConfig(fsdp=16)),
    'xxl': T5Size(
        model=t5.v1_1_xxl, parameters=11_135_332_352, pod='v4:8x8x16',
        mesh=MeshConfig(fsdp=32, tensor=4))}


def make_run(row: T5Size) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='t5', model=row.make_model(dropout=0.0, attention_dropout=0.0),
      objective=MixtureOfDenoisers(z_loss=1e-4), data=DataConfig(prepare=TEXT, assembly='packed'),
      optim=OPTIM, train=row.make_train_config())


T5_V1_1 = RecipeFamily('t5_v1_1', __doc__, SIZES, make_run)
