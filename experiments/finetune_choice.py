"""Fine-tune on multiple choice, SWAG: `python -m experiments.finetune_choice --init=FOLDER`.

Data is given as --train=train.csv --dev=val.csv. Other tasks are --task=race, dream, c3,
commonsenseqa, piqa and copa; RACE, PIQA and COPA come from TFDS. The model reads one sequence per
choice, gives one score per choice, and takes a softmax over them. Where a sequence is too long, the
context is truncated.

    python -m experiments.finetune_choice --init=FOLDER --train=train.csv --dev=val.csv
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('swag', about=__doc__ or '')
