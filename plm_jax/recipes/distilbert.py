"""DistilBERT, as published (Sanh et al. 2019) and by the training command released with it.

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
"""
import dataclasses

from plm_jax import checked
from plm_jax.config import Experiment, Scale
from plm_jax.models import bert, distilbert
from plm_jax.objectives.distillation import Distillation
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' DistilBertForMaskedLM; published as 66M (table 3).
    'base': Size(model=distilbert.base, parameters=66_985_530, peak=5e-4, steps=6000, batch=4096, accumulate=16,
                 pod='v3:4x4', took='8 V100, 90 hours')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  config = scaled(Experiment(
      f'distilbert_{size}', family='distilbert', model=row.model('bfloat16'),
      objective=Distillation(positions='fixed', model=bert.base('bfloat16') if scale == 'paper' else None),
      optim=OptimConfig(peak=row.peak, warmup=300, schedule='linear', b2=0.98, bias_correction=True, weight_decay=0.0,
                        clip=5.0),
      train=dataclasses.replace(row.train(), eval_every=500, save_every=250)), scale)
  if scale == 'paper':
    return config
  # The smaller scales give every model two layers: the student has one of its teacher's two.
  return dataclasses.replace(config, model=checked.replaced(config.model, {'stack.layers': 1}))
