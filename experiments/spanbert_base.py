"""Run `python -m experiments.spanbert_base`, a recipe of plm_jax/recipes/bert.py."""
if __name__ == '__main__':
  from plm_jax.cli.run import start  # here: worker processes import this file, too

  start('spanbert_base')
