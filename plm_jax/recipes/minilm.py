"""MiniLM (Wang et al. 2020, section 4.1) and MiniLMv2 (Wang et al. 2021, section 4.1).

    python -m plm_jax prepare TEXT gs://BUCKET/records --tokenizer=BERT
    python -m plm_jax train minilm_l6_h384 --objective.teacher=BERT --data.path=gs://BUCKET/records
    python -m plm_jax train minilm_l6_h384 --objective.teacher=runs/bert_base-laptop \\
        --scale=laptop  # 2 CPU cores
    python -m plm_jax train minilm_l6_h384 --objective.teacher=runs/bert_base-test \\
        --scale=test  # seconds

BERT is a folder with bert-base-uncased, or a run of bert_base; v2_large sizes use
bert-large-uncased. Both distill the self-attention of one layer. A student of any depth and width
starts from scratch. Its last layer learns the attention distributions and the value relations of
its teacher's last layer. l12_h384 has as many layers as its teacher and half of its width. Other
students are options: --model.stack.layers=24 --model.block.width=192 --model.block.mlp-dim=768. All
have 12 heads.

v2 distills the relations of queries, of keys and of values, in 48 relation heads (64 for a large
teacher), so the student may have any number of heads. For BERT large the teacher layer is 21.

The text is English Wikipedia and BooksCorpus, for 400,000 steps at sequence length 512. The first
paper gives batch size 1,024 and learning rate 5e-4 for l6_h768, and 256 and 3e-4 for the others.
The batch size and peak learning rate of v2 are an assumption. So are Adam's betas of 0.9 and 0.999,
a weight decay of 0.01, a warmup of 4,000 steps and linear decay: no training code was released. The
released l6_h384 and l12_h384 were distilled from a UniLM v2 that is not public.
"""
from collections.abc import Callable
import dataclasses

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import PretrainRun
from plm_jax.models import bert
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.layer_distillation import Relations
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

TEACHER_LAYER = 21
"""layer of BERT large whose relations are distilled (Wang et al. 2021, section 4.4)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiniLMSize(RecipeSize):
  """A size with its distilled relations and its teacher."""

  steps: int = 400_000
  length: int = 512
  inner: Relations = Relations()
  teacher: Callable[..., EncoderConfig] = bert.base


def make_student(layers: int, width: int = 384):
  """Return a model function of BERT with 12 heads and this number of layers and width."""
  sizes = {'stack.layers': layers, 'block.width': width, 'block.mlp_dim': 4 * width}
  def model(dtype) -> EncoderConfig:
    return validation.with_paths(bert.base(dtype), sizes)
  return model


def make_v2_size(width: int, parameters: int, large: bool = False) -> MiniLMSize:
  """Make a student of MiniLMv2 with 6 layers. large: the teacher is BERT large."""
  relations = ('queries', 'keys', 'values')
  inner = Relations(relations, 64, TEACHER_LAYER) if large else Relations(relations, 48, 0)
  return MiniLMSize(
      model=make_student(6, width), parameters=parameters, peak=6e-4, batch=256, pod='v3:4x4',
      inner=inner, teacher=bert.large if large else bert.base)


SIZES = {
    # Parameters of transformers' BertModel; published as 22M, 33M and 66M.
    'l6_h384': MiniLMSize(
        model=make_student(6), parameters=22_713_216, peak=3e-4, batch=256, pod='v3:4x4'),
    'l12_h384': MiniLMSize(
        model=make_student(12), parameters=33_360_000, peak=3e-4, batch=256, pod='v3:4x4'),
    'l6_h768': MiniLMSize(
        model=make_student(6, 768), parameters=66_955_008, peak=5e-4, batch=1024, accumulate=2,
        pod='v3:4x4'),
    'v2_l6_h384': make_v2_size(384, 22_713_216),
    'v2_l6_h768': make_v2_size(768, 66_955_008),
    'v2_large_l6_h384': make_v2_size(384, 22_713_216, large=True),
    'v2_large_l6_h768': make_v2_size(768, 66_955_008, large=True)}


def make_run(row: MiniLMSize) -> PretrainRun:
  """Build the published run of a size."""
  objective = Distillation(
      model=row.teacher('bfloat16'), soft=0.0, hard=0.0, cosine=0.0, inner=row.inner,
      task=MaskedLM(pair=Single(), mask_share=0.0, random_share=0.0), copied=False)
  optim = AdamW(
      peak=row.peak, warmup=4000, schedule='linear', weight_decay=0.01, bias_correction=True)
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=objective, optim=optim, train=row.make_train_config())


MINILM = RecipeFamily('minilm', __doc__, SIZES, make_run)
