"""python -m experiments.mosaicbert --size=base: the door to plm_jax/recipes/mosaicbert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('mosaicbert')
