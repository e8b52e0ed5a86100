"""DistilBERT, DistilRoBERTa and DistilGPT2 (Sanh et al. 2019, and the released training command).

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
from collections.abc import Callable
import dataclasses
from typing import Any

from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import bert, distilbert, gpt2, roberta
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.masking import Smoothed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize


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


SIZES = {
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


def make_run(row: DistilBERTSize) -> PretrainRun:
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


DISTILBERT = RecipeFamily('distilbert', __doc__, SIZES, make_run)
