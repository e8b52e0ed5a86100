"""ByT5 (Xue et al. 2022).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=byt5_small
    python -m plm_jax train byt5_small --data.path=gs://BUCKET/records     # 256 TPU v3 chips
    python -m plm_jax train byt5_small --scale=laptop                      # 2 CPU cores: 12 minutes
    python -m plm_jax train byt5_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train byt5_small --scale=test                        # seconds

An encoder-decoder on bytes, whose encoder has three times as many layers as its decoder, on mC4: a
million steps with batch size 1,024 and sequences of 1,024 bytes. Spans of twenty bytes on average,
15% of the text, are removed and form the target (section 3.1; README of google-research/byt5:
1,048,576 tokens per batch, rsqrt_no_ramp_down). Languages are sampled as in mT5.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import t5
from plm_jax.objectives.span_corruption import MixtureOfDenoisers, SpanCorruption
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.mt5 import MT5Size
from plm_jax.recipes.recipe_size import RecipeFamily
from plm_jax.recipes.t5 import OPTIM
from plm_jax.sharding import MeshConfig

SIZES = {
    # Parameters of transformers' T5ForConditionalGeneration; published as 300M, 582M, 1.23B, 3.74B,
    # 12.9B (table 1).
    'small': MT5Size(model=t5.byt5_small, parameters=299_637_760, pod='v3:16x16'),
    'base': MT5Size(
        model=t5.byt5_base, parameters=581_653_248, pod='v3:16x32', mesh=MeshConfig(fsdp=32)),
    'large': MT5Size(model=t5.byt5_large, parameters=1_228_183_552, pod='v4:8x8x8'),
    'xl': MT5Size(
        model=t5.byt5_xl, parameters=3_737_801_728, pod='v4:8x8x8', mesh=MeshConfig(fsdp=32)),
    'xxl': MT5Size(
        model=t5.byt5_xxl, parameters=12_906_899_328, pod='v4:8x8x16',
        mesh=MeshConfig(fsdp=32, tensor=4))}


def make_run(row: MT5Size) -> PretrainRun:
  """Build the published run of a size."""
  objective = MixtureOfDenoisers(z_loss=1e-4, denoisers=(SpanCorruption(mean_span_length=20.0),))
  text = TextConfig(kind='bytes', sentences='none')
  return PretrainRun(
      row.name, family='t5', model=row.make_model(dropout=0.0, attention_dropout=0.0),
      objective=objective, data=DataConfig(prepare=text, assembly='packed', temperature=1 / 0.3),
      optim=OPTIM, train=row.make_train_config())


BYT5 = RecipeFamily('byt5', __doc__, SIZES, make_run)
