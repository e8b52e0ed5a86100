"""Run `python -m experiments.distilbert_base`, a recipe of plm_jax/recipes/distilbert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('distilbert_base')
