"""python -m experiments.finetune_choice --init=FOLDER --train=train.csv --dev=val.csv: one of several texts, SWAG.

--task=race, dream, c3, commonsenseqa, piqa and copa are others; RACE, PIQA and COPA come from TFDS. A row for each
choice, a score each, a softmax over them; where a row is too long it is the context that loses its end.
"""
from plm_jax.cli.finetune import start

if __name__ == '__main__':
  start('swag', about=__doc__ or '')
