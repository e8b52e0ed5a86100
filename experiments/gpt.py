"""python -m experiments.gpt --size=base: the door to plm_jax/recipes/gpt.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('gpt')
