"""The door to plm_jax/recipes: a file for each family, and for the recipes of the README. `python -m experiments` lists
all; `python -m plm_jax train NAME` runs any of them too."""
import pathlib
import sys

# Python says no more than that there is no such module.
_started = dict(zip(sys.orig_argv, sys.orig_argv[1:], strict=False)).get('-m', '').removeprefix('experiments.')
if f'experiments.{_started}' in sys.orig_argv and not (pathlib.Path(__file__).parent / f'{_started}.py').exists():
  from plm_jax import recipes
  sys.exit(f'error: {recipes.elsewhere(_started)}')
