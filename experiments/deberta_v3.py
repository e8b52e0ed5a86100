"""python -m experiments.deberta_v3 --size=xsmall: the door to plm_jax/recipes/deberta_v3.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('deberta_v3')
