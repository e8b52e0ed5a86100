"""SmolLM2 and SmolLM3."""
import dataclasses

from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.layers.rope import Rope
from plm_jax.models import smollm3
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

SMOLLM2_DESCRIPTION = """\
SmolLM2 (Ben Allal et al. 2025, arXiv:2502.02737), by the files of huggingface/smollm.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=smollm2_135m
    python -m plm_jax train smollm2_135m --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train smollm2_135m --scale=laptop                   # 2 CPU cores: 40 minutes
    python -m plm_jax train smollm2_135m --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train smollm2_135m --scale=test                     # seconds

A small LLaMA with grouped keys and values and tied embeddings, which reads 2.1 trillion tokens at
sequence length 2,048. AdamW with betas 0.9 and 0.95, epsilon 1e-8, a weight decay of 0.01 and
gradient clipping at 1. The learning rate warms up for 2,000 updates, stays constant, and falls
linearly to 0 over the last fifth of the run. Settings:
text/pretraining/smollm2/config_smollm2_135M.yaml in huggingface/smollm. All parameters decay, and
initial weights of output projections are divided by sqrt(2 * layers), as in huggingface/nanotron
(helpers.py, scaling/parametrization.py).

Sequences are pieces of the concatenated documents, which attend to each other. The base of the
rotary positions is 10,000. Left out: the mixtures of the stages, for which give --data.path and
--data.weights, and the training on longer sequences that followed, after which the released models
have a base of 100,000 for 8,192 tokens. The models of 360M and 1.7B have no recipe
(plm_jax/models/smollm3.py).

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmolLMSize(RecipeSize):
  """A size with the length of its final decay."""

  cooldown: int
  """updates of the linear decay at the end"""


# Parameters of the released checkpoints: transformers' LlamaForCausalLM.
SMOLLM2_SIZES = {
    '135m': SmolLMSize(
        model=smollm3.smollm2_135m, parameters=134_515_008, peak=3e-3, steps=2_000_000,
        cooldown=400_000, length=2048, batch=512, accumulate=4, pod='v5e:8x8',
        published_hardware='64 GPUs')}
TEXT = TextConfig(kind='byte-bpe', layout='gpt2', lowercase=False, sentences='none')


def make_smollm2_run(row: SmolLMSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=2000, schedule='trapezoid', cooldown=row.cooldown, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.01, exempt=())
  model = validation.with_paths(row.make_model(dropout=0.0, attention_dropout=0.0), {
      'block.attention.position': Rope(10_000.0)})
  return PretrainRun(
      row.name, family='llama', model=model, objective=CausalLM(isolated=False), optim=optim,
      data=DataConfig(prepare=TEXT, assembly='packed'), train=row.make_train_config())


SMOLLM2 = RecipeFamily('smollm2', SMOLLM2_DESCRIPTION, SMOLLM2_SIZES, make_smollm2_run)


SMOLLM3_DESCRIPTION = """\
SmolLM3 (huggingface.co/blog/smollm3), by the files of huggingface/smollm.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=smollm3_3b
    python -m plm_jax train smollm3_3b --data.path=gs://BUCKET/records    # 64 TPU v5e chips
    python -m plm_jax train smollm3_3b --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train smollm3_3b --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train smollm3_3b --scale=test                       # seconds

A LLaMA of 3 billion parameters with grouped keys and values and tied embeddings. Every fourth layer
has no positions (NoPE). It reads 11.1 trillion tokens at sequence length 4,096; documents in one
sequence do not attend to each other. AdamW with betas 0.9 and 0.95, epsilon 1e-8, a weight decay of
0.1 of all parameters except the embeddings, and gradient clipping at 1. The learning rate warms up
for 2,000 updates, stays constant, and falls linearly to 0 over the last 522,000. Settings:
text/pretraining/smollm3/stage1_8T.yaml to stage3_9T_11T.yaml in huggingface/smollm; its three
stages differ in the text only. Initialization as in huggingface/nanotron
(scaling/parametrization.py).

Left out: the mixtures of the stages, for which give --data.path and --data.weights, and the
training on sequences of up to 65,536 tokens that followed (long_context_*.yaml).

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
# Parameters of the released checkpoint: transformers' SmolLM3ForCausalLM.
SMOLLM3_SIZES = {
    '3b': SmolLMSize(
        model=smollm3.smollm3_3b, parameters=3_075_098_624, peak=2e-4, steps=4_720_000,
        cooldown=522_000, length=4096, batch=576, accumulate=9, remat='full', pod='v5e:8x8',
        mesh=MeshConfig(fsdp=16), published_hardware='384 H100, 24 days')}


def make_smollm3_run(row: SmolLMSize) -> PretrainRun:
  """Build the published run of a size."""
  return validation.with_paths(make_smollm2_run(row), {
      'family': 'smollm3', 'objective.isolated': True, 'optim.weight_decay': 0.1,
      'optim.exempt': ('tokens',), 'model.block.attention.position': Rope(50_000.0)})


SMOLLM3 = RecipeFamily('smollm3', SMOLLM3_DESCRIPTION, SMOLLM3_SIZES, make_smollm3_run)
