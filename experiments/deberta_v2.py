"""python -m experiments.deberta_v2 --size=xlarge: the door to plm_jax/recipes/deberta_v2.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('deberta_v2')
