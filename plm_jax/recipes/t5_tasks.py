"""T5 on tasks as text to text: GLUE (Raffel et al. 2020, section 3.1.2).

    python -m plm_jax train t5_small_tasks --warm-start=gs://BUCKET/t5_small    # a TPU host
    python -m plm_jax train t5_small_tasks --warm-start=T5 --data.path task:squad:train-v1.1.json \\
        task:summarize:train.jsonl task:translate-en-de:train.tsv               # tasks of your own
    python -m plm_jax text-to-text runs/t5_small_tasks task:sst2:tfds:glue/sst2:validation

2^18 steps of 128 rows of 512 tokens, which hold as many examples as fit, with a constant rate of 0.001. Tasks are read
in proportion to their numbers of examples; --data.cap and --data.temperature change that (section 3.5.2). The paper
fine-tuned its released models on each task alone: give one --data.path. T5 is the folder of a run or of a checkpoint
of transformers, such as google-t5/t5-small has; its tokenizer comes with it. For other sizes give --model too, as t5
has them.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.models import t5
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.recipes.t5 import OPTIM, TEXT
from plm_jax.recipes.table import Size
from plm_jax.training.scales import scaled

SIZES = {
    # Section 3.1.2: a constant rate of 0.001, 2^18 steps of 128 rows.
    'small': Size(name='t5_small_tasks', model=t5.small, parameters=60_506_624, peak=1e-3, steps=1 << 18, batch=128,
                  pod='v3:2x2')}
TASKS = ('cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte')


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  return scaled(Experiment(
      row.name, family='t5', model=row.model('bfloat16'), objective=TextToText(decoder_length=128, z_loss=1e-4),
      data=DataConfig(path=tuple(f'task:{task}:tfds:glue/{task}' for task in TASKS), prepare=TEXT, assembly='examples'),
      optim=dataclasses.replace(OPTIM, peak=row.peak, warmup=0, schedule='constant'),
      train=row.train()), scale)
