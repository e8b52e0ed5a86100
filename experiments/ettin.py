"""python -m experiments.ettin --size=150m: the door to plm_jax/recipes/ettin.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('ettin')
