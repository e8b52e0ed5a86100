"""python -m experiments.bart_translation --size=source: the door to plm_jax/recipes/bart_translation.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('bart_translation')
