"""python -m experiments.cramming --size=base: the door to plm_jax/recipes/cramming.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('cramming')
