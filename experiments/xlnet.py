"""python -m experiments.xlnet --size=base: the door to plm_jax/recipes/xlnet.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('xlnet')
