"""python -m experiments.llama2 --size=7b: the door to plm_jax/recipes/llama2.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('llama2')
