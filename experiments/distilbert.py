"""python -m experiments.distilbert --size=base: the door to plm_jax/recipes/distilbert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('distilbert')
