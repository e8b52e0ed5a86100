"""T5 on text-to-text tasks: GLUE (Raffel et al. 2020, section 3.1.2).

    python -m plm_jax train t5_small_tasks --warm-start=gs://BUCKET/t5_small  # a TPU host
    python -m plm_jax train t5_small_tasks --warm-start=T5 --data.path \\
        task:squad:train-v1.1.json task:summarize:train.jsonl \\
        task:translate-en-de:train.tsv  # tasks of your own
    python -m plm_jax text-to-text runs/t5_small_tasks task:sst2:tfds:glue/sst2:validation

2^18 steps with batch size 128 at sequence length 512 and a constant learning rate of 0.001.
Sequences are packed with as many examples as fit. Tasks are mixed in proportion to their numbers of
examples; --data.cap and --data.temperature change that (section 3.5.2). The paper fine-tuned its
released models on each task separately: give a single --data.path. T5 is the folder of a run or of
a transformers checkpoint, such as google-t5/t5-small; its tokenizer is used. For other sizes give
--model too, as in the t5 recipes.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import t5
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.recipes.t5 import OPTIM, TEXT

SIZES = {
    # Section 3.1.2: constant learning rate of 0.001, 2^18 steps with batch size 128.
    'small': RecipeSize(
        name='t5_small_tasks', model=t5.small, parameters=60_506_624, peak=1e-3, steps=1 << 18,
        length=512, batch=128, pod='v3:2x2')}
TASKS = ('cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte')


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  path = tuple(f'task:{task}:tfds:glue/{task}' for task in TASKS)
  optim = dataclasses.replace(OPTIM, peak=row.peak, warmup=0, schedule='constant')
  return PretrainRun(
      row.name, family='t5',
      model=row.make_model(dropout=0.1, attention_dropout=0.1, mlp_dropout=0.1),
      objective=TextToText(decoder_length=128, z_loss=1e-4),
      data=DataConfig(path=path, prepare=TEXT, assembly='examples'), optim=optim,
      train=row.make_train_config())


T5_TASKS = RecipeFamily('t5_tasks', __doc__, SIZES, make_run)
