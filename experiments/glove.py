"""python -m experiments.glove: the door to plm_jax/recipes/word_vectors.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('glove')
