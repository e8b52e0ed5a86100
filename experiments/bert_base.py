"""python -m experiments.bert_base: the door to a size in plm_jax/recipes/bert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('bert_base')
