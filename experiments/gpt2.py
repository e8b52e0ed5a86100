"""python -m experiments.gpt2 --size=small: the door to plm_jax/recipes/gpt2.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('gpt2')
