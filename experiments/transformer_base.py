"""Run `python -m experiments.transformer_base`, a recipe of plm_jax/recipes/transformer.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('transformer_base')
