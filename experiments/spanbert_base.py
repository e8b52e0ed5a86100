"""python -m experiments.spanbert_base: the door to a size in plm_jax/recipes/spanbert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('spanbert_base')
