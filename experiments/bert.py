"""python -m experiments.bert --size=base: the door to plm_jax/recipes/bert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('bert')
