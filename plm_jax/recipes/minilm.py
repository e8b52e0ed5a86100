"""MiniLM (Wang et al. 2020, section 4.1) and MiniLMv2 (Wang et al. 2021, section 4.1): relations of one layer.

    python -m plm_jax prepare TEXT gs://BUCKET/records --tokenizer=BERT
    python -m plm_jax train minilm_l6_h384 --objective.teacher=BERT --data.path=gs://BUCKET/records
    python -m plm_jax train minilm_l6_h384 --objective.teacher=runs/bert_base-laptop --scale=laptop    # 2 CPU cores
    python -m plm_jax train minilm_l6_h384 --objective.teacher=runs/bert_base-test --scale=test        # seconds

BERT is a folder with bert-base-uncased, or a run of bert_base; of v2_large sizes bert-large-uncased. A student of any
depth and width begins afresh; its last layer learns the distributions of attention, and the relations of values, of its
teacher's last layer. l12_h384 is deep and narrow: as many layers as its teacher's of half the width. Other students are
options: --model.stack.layers=24 --model.block.width=192 --model.block.mlp-dim=768, with 12 heads as all have.

v2 compares queries, keys and values, each with itself, in 48 heads (64 of a large teacher), so that a student has as
many heads as it likes; of a large BERT layer 21 is the teacher. English Wikipedia and BooksCorpus, 400,000 steps of
rows of 512; the paper of the first tells 1,024 rows and 5e-4 of l6_h768, 256 and 3e-4 of the others. Rows and peak of
v2 are as remembered, and so are the values of Adam, 0.9, 0.999 and a decay of 0.01, a warmup of 4,000 steps and a line.
The released l6_h384 and l12_h384 learned of a UniLM v2 that is not public.
"""
import dataclasses

from plm_jax import checked
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config import Experiment, Scale
from plm_jax.models import bert
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.inner import Relations
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

LAYER = 21
"""of BERT large, whose relations are learned (Wang et al. 2021, section 4.4)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiniLMSize(Size):
  """And what it learns of which teacher."""

  steps: int = 400_000
  inner: Relations = Relations()
  large: bool = False
  """whether the teacher is BERT large"""


def narrow(layers: int, width: int = 384):
  """Makes BERT with so many layers of 12 heads, and so narrow."""
  def model(dtype) -> EncoderConfig:
    return checked.replaced(
        bert.base(dtype), {'stack.layers': layers, 'block.width': width, 'block.mlp_dim': 4 * width})
  return model


def second(layers: int, width: int, parameters: int, large: bool = False) -> MiniLMSize:
  """Makes a student of MiniLMv2."""
  inner = Relations(('queries', 'keys', 'values'), 64 if large else 48, LAYER if large else 0)
  return MiniLMSize(model=narrow(layers, width), parameters=parameters, peak=6e-4, batch=256, pod='v3:4x4', inner=inner,
                    large=large)


SIZES = {
    # Parameters by transformers' BertModel; published as 22M, 33M and 66M.
    'l6_h384': MiniLMSize(model=narrow(6), parameters=22_713_216, peak=3e-4, batch=256, pod='v3:4x4'),
    'l12_h384': MiniLMSize(model=narrow(12), parameters=33_360_000, peak=3e-4, batch=256, pod='v3:4x4'),
    'l6_h768': MiniLMSize(model=narrow(6, 768), parameters=66_955_008, peak=5e-4, batch=1024, accumulate=2,
                          pod='v3:4x4'),
    'v2_l6_h384': second(6, 384, 22_713_216), 'v2_l6_h768': second(6, 768, 66_955_008),
    'v2_large_l6_h384': second(6, 384, 22_713_216, large=True),
    'v2_large_l6_h768': second(6, 768, 66_955_008, large=True)}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  teacher = bert.large if row.large else bert.base
  inner = row.inner
  if scale != 'paper':  # whose teacher has two layers
    inner = dataclasses.replace(inner, heads=4 if inner.heads else 0, layer=0)
  objective = Distillation(
      model=teacher('bfloat16') if scale == 'paper' else None, soft=0.0, hard=0.0, cosine=0.0, inner=inner,
      task=MaskedLM(pair=Single(), mask_share=0.0, random_share=0.0), copied=False)
  config = scaled(Experiment(
      f'minilm_{size}', model=row.model('bfloat16'), objective=objective,
      optim=OptimConfig(peak=row.peak, warmup=4000, schedule='linear', bias_correction=True), train=row.train()), scale)
  if scale == 'paper':
    return config
  return dataclasses.replace(config, model=checked.replaced(config.model, {'stack.layers': 1}))  # of two
