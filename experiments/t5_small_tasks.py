"""Run `python -m experiments.t5_small_tasks`, a recipe of plm_jax/recipes/t5.py."""
if __name__ == '__main__':
  from plm_jax.cli.run import start  # here: worker processes import this file, too

  start('t5_small_tasks')
