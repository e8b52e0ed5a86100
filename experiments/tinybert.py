"""python -m experiments.tinybert --size=4l: the door to plm_jax/recipes/tinybert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('tinybert')
