"""python -m experiments.ernie --size=base: the door to plm_jax/recipes/ernie.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('ernie')
