"""python -m experiments.deberta --size=base: the door to plm_jax/recipes/deberta.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('deberta')
