"""python -m experiments.gpt3 --size=small: the door to plm_jax/recipes/gpt3.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('gpt3')
