"""python -m experiments.roberta --size=base: the door to plm_jax/recipes/roberta.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('roberta')
