"""Run `python -m experiments.gpt2_small`, a recipe of plm_jax/recipes/gpt.py."""
if __name__ == '__main__':
  from plm_jax.cli.run import start  # here: worker processes import this file, too

  start('gpt2_small')
