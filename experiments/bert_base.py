"""Run `python -m experiments.bert_base`, a recipe of plm_jax/recipes/bert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('bert_base')
