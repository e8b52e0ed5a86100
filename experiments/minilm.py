"""python -m experiments.minilm --size=l6_h384: the door to plm_jax/recipes/minilm.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('minilm')
