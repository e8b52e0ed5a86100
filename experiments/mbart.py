"""python -m experiments.mbart --size=large: the door to plm_jax/recipes/mbart.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('mbart')
