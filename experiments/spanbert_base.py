"""Run `python -m experiments.spanbert_base`, a recipe of plm_jax/recipes/spanbert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('spanbert_base')
