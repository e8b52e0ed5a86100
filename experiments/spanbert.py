"""python -m experiments.spanbert --size=base: the door to plm_jax/recipes/spanbert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('spanbert')
