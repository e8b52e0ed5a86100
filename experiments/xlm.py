"""python -m experiments.xlm --size=xnli15: the door to plm_jax/recipes/xlm.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('xlm')
