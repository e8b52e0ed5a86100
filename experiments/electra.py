"""python -m experiments.electra --size=small: the door to plm_jax/recipes/electra.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('electra')
