"""python -m experiments.modernbert --size=base: the door to plm_jax/recipes/modernbert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('modernbert')
