"""python -m experiments.xlm_r --size=base: the door to plm_jax/recipes/xlm_r.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('xlm_r')
