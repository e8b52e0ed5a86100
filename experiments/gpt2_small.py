"""Run `python -m experiments.gpt2_small`, a recipe of plm_jax/recipes/gpt2.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('gpt2_small')
