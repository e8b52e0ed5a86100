"""python -m experiments.transformer --size=base: the door to plm_jax/recipes/transformer.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('transformer')
