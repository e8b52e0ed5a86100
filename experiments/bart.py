"""python -m experiments.bart --size=base: the door to plm_jax/recipes/bart.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('bart')
