"""Run `python -m experiments.distilbert_base`, a recipe of plm_jax/recipes/distillation.py."""
if __name__ == '__main__':
  from plm_jax.cli.run import start  # here: worker processes import this file, too

  start('distilbert_base')
