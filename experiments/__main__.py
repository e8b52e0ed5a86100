"""Run a recipe, `python -m experiments NAME [OPTIONS]`, or list all recipes without a name."""
import sys

from plm_jax import recipes
from plm_jax.cli.run import start

if __name__ == '__main__':
  if sys.argv[1:] and sys.argv[1] not in ('-h', '--help'):
    start(sys.argv[1], sys.argv[2:])
  else:
    print(recipes.list_recipes())
