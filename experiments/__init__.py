"""One run a file. `python -m experiments` lists them."""
import pathlib
import sys

# Python says no more than that there is no such module.
_started = dict(zip(sys.orig_argv, sys.orig_argv[1:], strict=False)).get('-m', '').removeprefix('experiments.')
if f'experiments.{_started}' in sys.orig_argv and not (pathlib.Path(__file__).parent / f'{_started}.py').exists():
  from plm_jax.cli import options
  sys.exit(f'error: there is no recipe {_started!r}: {options.alike(_started, options.recipes())}')
