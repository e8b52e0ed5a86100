"""TinyBERT, general distillation (Jiao et al. 2020, section 4.1; released general_distill.py).

    python -m plm_jax prepare TEXT gs://BUCKET/records --tokenizer=BERT
    python -m plm_jax train tinybert_4l --objective.teacher=BERT --data.path=gs://BUCKET/records
    python -m plm_jax train tinybert_4l --objective.teacher=runs/bert_base-laptop \\
        --scale=laptop  # 2 CPU cores
    python -m plm_jax train tinybert_4l --objective.teacher=runs/bert_base-test \\
        --scale=test  # seconds

BERT is a folder with bert-base-uncased, or a run of bert_base. The student has 4 layers of width
312, or 6 of width 768, and starts from scratch. It learns the embeddings, hidden states and
attention logits of every third or every second layer of its teacher. It learns no token logits, and
nothing is masked (pregenerate_training_data.py uses a mask share of 0).

The text is English Wikipedia, 2.5 billion words, for three epochs at sequence length 128 and batch
size 256. The number of steps assumes 1.3 tokens per word. The peak learning rate, the warmup in the
first tenth, the linear decay, and gradient clipping at 1 for each parameter separately follow the
released code (transformer/optimization.py, BertAdam). The second stage, distillation on the data of
a task from a fine-tuned teacher, is replaced by fine-tuning without a teacher.
"""

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import PretrainRun
from plm_jax.layers.common import Dtype
from plm_jax.models import bert
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.layer_distillation import Layerwise
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig


def four_layers(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make the student of 4 layers of width 312, 14.4M parameters."""
  sizes = {'stack.layers': 4, 'block.width': 312, 'block.mlp_dim': 1200}
  return validation.with_paths(bert.base(dtype), sizes)


def six_layers(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make the student of 6 layers of width 768, 67.0M parameters."""
  return validation.with_paths(bert.base(dtype), {'stack.layers': 6})


SIZES = {
    # Parameters of transformers' BertModel; published as 14.5M and 67.0M (table 1), without the
    # projections `fit`.
    '4l': RecipeSize(
        model=four_layers, parameters=14_350_248, peak=5e-5, steps=300_000, length=128, batch=256,
        pod='v3:4x4'),
    '6l': RecipeSize(
        model=six_layers, parameters=66_955_008, peak=5e-5, steps=300_000, length=128, batch=256,
        pod='v3:4x4', mesh=MeshConfig(fsdp=32))}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  objective = Distillation(
      model=bert.base('bfloat16'), soft=0.0, hard=0.0, cosine=0.0,
      inner=Layerwise(), task=MaskedLM(pair=Single(), mask_share=0.0, random_share=0.0),
      copied=False)
  optim = AdamW(
      peak=row.peak, warmup=row.steps // 10, schedule='linear', weight_decay=0.01,
      clip_by='parameter')
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=objective, optim=optim, train=row.make_train_config())


TINYBERT = RecipeFamily('tinybert', __doc__, SIZES, make_run)
