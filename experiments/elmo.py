"""python -m experiments.elmo --size=small: the door to plm_jax/recipes/elmo.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('elmo')
