"""python -m experiments.neobert --size=base: the door to plm_jax/recipes/neobert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('neobert')
