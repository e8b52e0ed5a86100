"""Students of BERT, RoBERTa and GPT-2: DistilBERT, TinyBERT, MiniLM."""
from collections.abc import Callable
import dataclasses
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import bert, distilbert, gpt2, roberta
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.layer_distillation import Layerwise, Relations
from plm_jax.objectives.masking import Smoothed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

DISTILBERT_DESCRIPTION = """\
DistilBERT, DistilRoBERTa and DistilGPT2 (Sanh et al. 2019, and the released training command).

    python -m plm_jax prepare TEXT gs://BUCKET/records --tokenizer=BERT
    python -m plm_jax train distilbert_base --objective.teacher=BERT --data.path=gs://BUCKET/records
    python -m plm_jax train distilbert_base --objective.teacher=runs/bert_base-laptop \\
        --scale=laptop  # 2 CPU cores
    python -m plm_jax train distilbert_base --objective.teacher=runs/bert_base-test \\
        --scale=test  # seconds

BERT is a folder with bert-base-uncased, or a run of bert_base. The student has half of the
teacher's layers and is initialized from every other one. The text has to be tokenized by the
teacher's tokenizer. The corpus is BERT's; at the smaller scales it is the corpus of the teacher.

- From the paper: 8 V100 GPUs for 90 hours, batch sizes of up to 4,000, dynamic masking, no next
  sentence prediction.
- From the released code: 3 epochs with linear decay, peak learning rate 5e-4, warmup in the first
  5%, Adam with a second beta of 0.98, no weight decay. Masked tokens are sampled by frequency to
  the power -0.7 (train.py, mlm_smoothing); here frequencies are counted in each batch. The position
  embeddings stay those of the teacher.

The number of steps is three epochs of BERT's corpus at sequence length 512.

distilroberta_base and distilgpt2 are half of RoBERTa base and of GPT-2 small, as described by their
model cards: OpenWebText, the teacher's tokenizer, and the procedure of DistilBERT (README of
transformers' examples/research_projects/distillation). Their settings are not published: those of
DistilBERT are an assumption. The number of steps is three epochs of OpenWebText, 9 billion tokens.
distilgpt2 is a decoder. Its teacher gives the distribution of the next token at every position:

    python -m plm_jax train distilgpt2 --objective.teacher=GPT2 --data.path=gs://BUCKET/records
    python -m plm_jax train distilgpt2 --objective.teacher=runs/gpt2_small-laptop \\
        --scale=laptop  # 2 CPU cores

For distilgpt2, documents keep their blank lines, indentation and line ends
(--data.prepare.sentences=none), and a file of plain text is one document.
"""


def halve_layers(teacher):
  """Return a model function with half of a teacher's layers."""
  def model(dtype):
    config = teacher(dtype)
    return validation.with_paths(config, {'stack.layers': config.stack.layers // 2})
  return model


MASKS = MaskedLM(pair=Single(), masking=Smoothed(0.7))
"""masks rare tokens more often: mlm_smoothing of train.py"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilBERTSize(RecipeSize):
  """A student with its teacher, family and data."""

  teacher: Callable[..., Any]
  family: str
  task: MaskedLM | CausalLM = MASKS
  data: DataConfig = DataConfig()


DISTILBERT_SIZES = {
    # Parameters of transformers' DistilBertForMaskedLM, RobertaForMaskedLM and GPT2LMHeadModel;
    # published as 66M (table 3), 82M and 82M.
    'base': DistilBERTSize(
        model=distilbert.base, parameters=66_985_530, peak=5e-4, steps=6000, length=512, batch=4096,
        accumulate=16, pod='v3:4x4', published_hardware='8 V100, 90 hours', teacher=bert.base,
        family='distilbert'),
    'roberta': DistilBERTSize(
        name='distilroberta_base', model=halve_layers(roberta.base), parameters=82_170_201,
        peak=5e-4, steps=13_000, length=512, batch=4096, accumulate=16, pod='v3:4x4',
        teacher=roberta.base, family='roberta',
        data=DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False))),
    'gpt2': DistilBERTSize(
        name='distilgpt2', model=halve_layers(gpt2.small), parameters=81_912_576, peak=5e-4,
        steps=13_000, length=1024, batch=2048, accumulate=16, pod='v3:4x4',
        published_hardware='8 V100, 1 week', teacher=gpt2.small, family='gpt2',
        task=CausalLM(isolated=False),
        data=DataConfig(
            prepare=TextConfig(kind='byte-bpe', layout='gpt2', sentences='none'),
            assembly='packed'))}


def make_distilbert_run(row: DistilBERTSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=row.steps // 20, schedule='linear', b2=0.98, bias_correction=True,
      weight_decay=0.0, clip=5.0)
  return PretrainRun(
      row.name, family=row.family, model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=Distillation(
          model=row.teacher('bfloat16'), task=row.task,
          positions='fixed' if row.family == 'distilbert' else 'trained'),
      data=row.data, optim=optim,
      train=dataclasses.replace(row.make_train_config(), eval_every=500, save_every=250))


DISTILBERT = RecipeFamily(
    'distilbert', DISTILBERT_DESCRIPTION, DISTILBERT_SIZES, make_distilbert_run)


TINYBERT_DESCRIPTION = """\
TinyBERT, general distillation (Jiao et al. 2020, section 4.1; released general_distill.py).

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


def make_student(layers: int, width: int = 384, mlp_dim: int = 0):
  """Return a model function of BERT with 12 heads and this number of layers and width.

  mlp_dim: width of the feed-forward network; 0: four times the width.
  """
  sizes = {'stack.layers': layers, 'block.width': width, 'block.mlp_dim': mlp_dim or 4 * width}
  def model(dtype) -> EncoderConfig:
    return validation.with_paths(bert.base(dtype), sizes)
  return model


def make_layer_run(
    row: RecipeSize, teacher: Callable[..., EncoderConfig], inner: Layerwise | Relations,
    optim: AdamW) -> PretrainRun:
  """Build the run of a student that learns from the layers of its teacher alone."""
  objective = Distillation(
      model=teacher('bfloat16'), soft=0.0, hard=0.0, cosine=0.0, inner=inner,
      task=MaskedLM(pair=Single(), mask_share=0.0, random_share=0.0), copied=False)
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1), objective=objective,
      optim=optim, train=row.make_train_config())


TINYBERT_SIZES = {
    # Parameters of transformers' BertModel; published as 14.5M and 67.0M (table 1), without the
    # projections `fit`.
    '4l': RecipeSize(
        model=make_student(4, 312, 1200), parameters=14_350_248, peak=5e-5, steps=300_000,
        length=128, batch=256, pod='v3:4x4'),
    '6l': RecipeSize(
        model=make_student(6, 768), parameters=66_955_008, peak=5e-5, steps=300_000,
        length=128, batch=256, pod='v3:4x4', mesh=MeshConfig(fsdp=32))}


def make_tinybert_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=row.steps // 10, schedule='linear', weight_decay=0.01,
      clip_by='parameter')
  return make_layer_run(row, bert.base, Layerwise(), optim)


TINYBERT = RecipeFamily('tinybert', TINYBERT_DESCRIPTION, TINYBERT_SIZES, make_tinybert_run)


MINILM_DESCRIPTION = """\
MiniLM (Wang et al. 2020, section 4.1) and MiniLMv2 (Wang et al. 2021, section 4.1).

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
TEACHER_LAYER = 21
"""layer of BERT large whose relations are distilled (Wang et al. 2021, section 4.4)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiniLMSize(RecipeSize):
  """A size with its distilled relations and its teacher."""

  steps: int = 400_000
  length: int = 512
  inner: Relations = Relations()
  teacher: Callable[..., EncoderConfig] = bert.base


def make_v2_size(width: int, parameters: int, large: bool = False) -> MiniLMSize:
  """Make a student of MiniLMv2 with 6 layers. large: the teacher is BERT large."""
  relations = ('queries', 'keys', 'values')
  inner = Relations(relations, 64, TEACHER_LAYER) if large else Relations(relations, 48, 0)
  return MiniLMSize(
      model=make_student(6, width), parameters=parameters, peak=6e-4, batch=256, pod='v3:4x4',
      inner=inner, teacher=bert.large if large else bert.base)


MINILM_SIZES = {
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


def make_minilm_run(row: MiniLMSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=4000, schedule='linear', weight_decay=0.01, bias_correction=True)
  return make_layer_run(row, row.teacher, row.inner, optim)


MINILM = RecipeFamily('minilm', MINILM_DESCRIPTION, MINILM_SIZES, make_minilm_run)
