"""TinyBERT, general distillation as published (Jiao et al. 2020, section 4.1) and by the released general_distill.py.

    python -m plm_jax prepare TEXT gs://BUCKET/records --tokenizer=BERT
    python -m plm_jax train tinybert_4l --objective.teacher=BERT --data.path=gs://BUCKET/records
    python -m plm_jax train tinybert_4l --objective.teacher=runs/bert_base-laptop --scale=laptop    # 2 CPU cores
    python -m plm_jax train tinybert_4l --objective.teacher=runs/bert_base-test --scale=test        # seconds

BERT is a folder with bert-base-uncased, or a run of bert_base. A student of 4 layers of width 312, or 6 of 768, begins
afresh and learns the embeddings, hidden states and logits of attention of every third, or every other, layer of its
teacher; there are no logits of words, and no masks (pregenerate_training_data.py, whose share of masks is 0). English
Wikipedia, 2.5 billion words, three times, in rows of 128 tokens and batches of 256: the number of steps is what that
comes to at 1.3 tokens a word. Peak, warmup in the first tenth and line are the released code's. What is done there
with the data of a task, which a fine-tuned teacher teaches, is here a run of fine-tuning without one.
"""
import dataclasses

from plm_jax import checked
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config import Experiment, Scale
from plm_jax.layers.common import Dtype
from plm_jax.models import bert
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.inner import Layerwise
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def four(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes the student of 4 layers of width 312, 14.4M parameters."""
  return checked.replaced(bert.base(dtype), {'stack.layers': 4, 'block.width': 312, 'block.mlp_dim': 1200})


def six(dtype: Dtype = 'float32') -> EncoderConfig:
  """Makes the student of 6 layers of width 768, 67.0M parameters."""
  return checked.replaced(bert.base(dtype), {'stack.layers': 6})


SIZES = {
    # Parameters by transformers' BertModel; published as 14.5M and 67.0M (table 1), of which `fit` is none.
    '4l': Size(model=four, parameters=14_350_248, peak=5e-5, steps=300_000, length=128, batch=256, pod='v3:4x4'),
    '6l': Size(model=six, parameters=66_955_008, peak=5e-5, steps=300_000, length=128, batch=256, pod='v3:4x4',
               mesh=MeshConfig(fsdp=32))}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  objective = Distillation(
      model=bert.base('bfloat16') if scale == 'paper' else None, soft=0.0, hard=0.0, cosine=0.0, inner=Layerwise(),
      task=MaskedLM(pair=Single(), mask_share=0.0, random_share=0.0), copied=False)
  config = scaled(Experiment(
      f'tinybert_{size}', model=row.model('bfloat16'), objective=objective,
      optim=OptimConfig(peak=row.peak, warmup=row.steps // 10, schedule='linear'), train=row.train()), scale)
  if scale == 'paper':
    return config
  # The smaller scales give every model two layers: the student has one of its teacher's two.
  return dataclasses.replace(config, model=checked.replaced(config.model, {'stack.layers': 1}))
