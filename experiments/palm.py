"""python -m experiments.palm --size=8b: the door to plm_jax/recipes/palm.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('palm')
