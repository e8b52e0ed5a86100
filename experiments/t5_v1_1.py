"""python -m experiments.t5_v1_1 --size=small: the door to plm_jax/recipes/t5_v1_1.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('t5_v1_1')
