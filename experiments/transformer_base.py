"""python -m experiments.transformer_base: the door to a size in plm_jax/recipes/transformer.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('transformer_base')
