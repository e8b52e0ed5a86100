"""python -m experiments.glm --size=base: the door to plm_jax/recipes/glm.py."""
from plm_jax.cli.run import start

if __name__ == '__main__':
  start('glm')
