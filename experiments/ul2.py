"""python -m experiments.ul2 --size=20b: the door to plm_jax/recipes/ul2.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('ul2')
