"""python -m experiments.llama3 --size=8b: the door to plm_jax/recipes/llama3.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('llama3')
