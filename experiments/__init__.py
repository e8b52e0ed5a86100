"""Commands of the README that run from a checkout: `python -m experiments.NAME [OPTIONS]`.

A file is here for a recipe of the README, or for a fine-tuning task with results to expect;
`babylm` is an entry to the BabyLM challenge. Any other NAME of a recipe, or of a family with
--size, runs too: it is the same as `python -m plm_jax train NAME`.
`python -m experiments` lists all recipes.
"""
import pathlib
import sys

from plm_jax import errors

_started = dict(zip(sys.orig_argv, sys.orig_argv[1:], strict=False)).get('-m', '')
_started = _started.removeprefix('experiments.')
if f'experiments.{_started}' in sys.orig_argv:
  errors.show_warnings()
  _folder = pathlib.Path(__file__).parent
  if not any((_folder / name).exists() for name in (_started, f'{_started}.py')):
    # Python only reports that there is no such module, so run the recipe here.
    from plm_jax.cli.run import start
    start(_started, sys.argv[1:])
    sys.exit()
