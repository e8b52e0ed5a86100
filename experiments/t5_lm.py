"""python -m experiments.t5_lm --size=base: the door to plm_jax/recipes/t5_lm.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('t5_lm')
