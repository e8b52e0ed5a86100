"""python -m experiments.mt5 --size=small: the door to plm_jax/recipes/mt5.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('mt5')
