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
import dataclasses

from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun, Scale
from plm_jax.models import bert, distilbert, gpt2, roberta
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.masking import Smoothed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeSize
from plm_jax.recipes.scale_presets import apply_scale


def halve_layers(teacher):
  """Return a model function with half of a teacher's layers."""
  def model(dtype):
    config = teacher(dtype)
    return validation.with_paths(config, {'stack.layers': config.stack.layers // 2})
  return model


SIZES = {
    # Parameters of transformers' DistilBertForMaskedLM, RobertaForMaskedLM and GPT2LMHeadModel;
    # published as 66M (table 3), 82M and 82M.
    'base': RecipeSize(
        model=distilbert.base, parameters=66_985_530, peak=5e-4, steps=6000, length=512, batch=4096,
        accumulate=16, pod='v3:4x4', published_hardware='8 V100, 90 hours'),
    'roberta': RecipeSize(
        name='distilroberta_base', model=halve_layers(roberta.base), parameters=82_170_201,
        peak=5e-4, steps=13_000, length=512, batch=4096, accumulate=16, pod='v3:4x4'),
    'gpt2': RecipeSize(
        name='distilgpt2', model=halve_layers(gpt2.small), parameters=81_912_576, peak=5e-4,
        steps=13_000, length=1024, batch=2048, accumulate=16, pod='v3:4x4',
        published_hardware='8 V100, 1 week')}
MASKS = MaskedLM(pair=Single(), masking=Smoothed(0.7))
"""masks rare tokens more often: mlm_smoothing of train.py"""


def recipe(size: str, scale: Scale) -> PretrainRun:
  """Build the run of a size."""
  row = SIZES[size]
  teacher = {'base': bert.base, 'roberta': roberta.base, 'gpt2': gpt2.small}[size]
  teacher_model = teacher('bfloat16') if scale == 'paper' else None
  objective = Distillation(model=teacher_model)
  family, data = 'distilbert', DataConfig()
  if size == 'base':
    objective = dataclasses.replace(objective, positions='fixed', task=MASKS)
  elif size == 'roberta':
    objective = dataclasses.replace(objective, task=MASKS)
    family, data = 'roberta', DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False))
  else:
    objective = dataclasses.replace(objective, task=CausalLM(isolated=False))
    text = TextConfig(kind='byte-bpe', layout='gpt2', sentences='none')
    family, data = 'gpt2', DataConfig(prepare=text, assembly='packed')
  optim = AdamW(
      peak=row.peak, warmup=row.steps // 20, schedule='linear', b2=0.98, bias_correction=True,
      weight_decay=0.0, clip=5.0)
  run = apply_scale(PretrainRun(
      row.name or f'distilbert_{size}', family=family,
      model=row.make_model(dropout=0.1, attention_dropout=0.1), objective=objective, data=data,
      optim=optim,
      train=dataclasses.replace(row.make_train_config(), eval_every=500, save_every=250)), scale)
  if scale == 'paper':
    return run
  # The smaller scales give every model the same layers: the student has half of its teacher's.
  return dataclasses.replace(run, model=halve_layers(lambda dtype: run.model)('float32'))
