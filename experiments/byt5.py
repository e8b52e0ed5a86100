"""python -m experiments.byt5 --size=small: the door to plm_jax/recipes/byt5.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('byt5')
