"""python -m experiments.distilbert_base: the door to a size in plm_jax/recipes/distilbert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('distilbert_base')
