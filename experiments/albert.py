"""python -m experiments.albert --size=base: the door to plm_jax/recipes/albert.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('albert')
