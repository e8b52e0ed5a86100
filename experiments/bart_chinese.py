"""python -m experiments.bart_chinese --size=base: the door to plm_jax/recipes/bart_chinese.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('bart_chinese')
