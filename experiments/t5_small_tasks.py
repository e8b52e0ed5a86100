"""Run `python -m experiments.t5_small_tasks`, a recipe of plm_jax/recipes/t5_tasks.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('t5_small_tasks')
