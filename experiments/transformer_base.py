"""Run `python -m experiments.transformer_base`, a recipe of plm_jax/recipes/transformer.py."""
if __name__ == '__main__':
  from plm_jax.cli.run import start  # here: worker processes import this file, too

  start('transformer_base')
