"""DistilBERT, as published (Sanh et al. 2019) and by the training command released with it; RoBERTa and GPT-2 likewise.

    python -m plm_jax prepare TEXT gs://BUCKET/records --tokenizer=BERT
    python -m plm_jax train distilbert_base --objective.teacher=BERT --data.path=gs://BUCKET/records
    python -m plm_jax train distilbert_base --objective.teacher=runs/bert_base-laptop --scale=laptop    # 2 CPU cores
    python -m plm_jax train distilbert_base --objective.teacher=runs/bert_base-test --scale=test        # seconds

BERT is a folder with bert-base-uncased, or a run of bert_base. The student has half of its layers and begins with every
other one. The text has to be of the teacher's tokenizer: the corpus is that of BERT; at the smaller scales it is what
the teacher learned from. The paper gives 8 V100 for 90 hours, batches of up to 4,000 rows, dynamic masks, no next
sentence prediction; the released code 3 epochs with linear decay, peak 5e-4, warmup in the first 5%, Adam with 0.98, no
weight decay, and a table of positions that stays the teacher's. The number of steps is what three epochs of BERT's
corpus come to in rows of 512.

distilroberta_base and distilgpt2 are half of RoBERTa base and of GPT-2 small, as the model cards of these names tell:
OpenWebText, the teacher's tokenizer, the procedure of DistilBERT. Neither tells its settings, which are DistilBERT's
here; three epochs of OpenWebText, 9 billion tokens, are the number of steps. distilgpt2 goes on with texts instead of
filling in blanks, and its teacher tells for every token which comes next:

    python -m plm_jax train distilgpt2 --objective.teacher=GPT2 --data.path=gs://BUCKET/records
    python -m plm_jax train distilgpt2 --objective.teacher=runs/gpt2_small-laptop --scale=laptop        # 2 CPU cores
"""
import dataclasses

from plm_jax import checked
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import bert, distilbert, gpt2, roberta
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.distillation import Distillation
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def half(teacher):
  """Makes the student of a teacher: every other layer of it."""
  def model(dtype):
    config = teacher(dtype)
    return checked.replaced(config, {'stack.layers': config.stack.layers // 2})
  return model


SIZES = {
    # Parameters by transformers' DistilBertForMaskedLM, RobertaForMaskedLM and GPT2LMHeadModel; published as 66M (table
    # 3), 82M and 82M.
    'base': Size(model=distilbert.base, parameters=66_985_530, peak=5e-4, steps=6000, batch=4096, accumulate=16,
                 pod='v3:4x4', took='8 V100, 90 hours'),
    'roberta': Size(name='distilroberta_base', model=half(roberta.base), parameters=82_170_201, peak=5e-4, steps=13_000,
                    batch=4096, accumulate=16, pod='v3:4x4'),
    'gpt2': Size(name='distilgpt2', model=half(gpt2.small), parameters=81_912_576, peak=5e-4, steps=13_000, length=1024,
                 batch=2048, accumulate=16, pod='v3:4x4', took='8 V100, 1 week')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  teacher = {'base': bert.base, 'roberta': roberta.base, 'gpt2': gpt2.small}[size]
  objective = Distillation(model=teacher('bfloat16') if scale == 'paper' else None)
  family, data = 'distilbert', DataConfig()
  if size == 'base':
    objective = dataclasses.replace(objective, positions='fixed')
  elif size == 'roberta':
    family, data = 'roberta', DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False))
  else:
    objective = dataclasses.replace(objective, task=CausalLM(isolated=False))
    family = 'gpt2'
    data = DataConfig(prepare=TextConfig(kind='byte-bpe', layout='gpt2', newlines=True), assembly='packed')
  config = scaled(Experiment(
      row.name or f'distilbert_{size}', family=family, model=row.model('bfloat16'), objective=objective, data=data,
      optim=OptimConfig(peak=row.peak, warmup=row.steps // 20, schedule='linear', b2=0.98, bias_correction=True,
                        weight_decay=0.0, clip=5.0),
      train=dataclasses.replace(row.train(), eval_every=500, save_every=250)), scale)
  if scale == 'paper':
    return config
  # The smaller scales give every model as many layers: the student has half of its teacher's.
  return dataclasses.replace(config, model=half(lambda dtype: config.model)('float32'))
