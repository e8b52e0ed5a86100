"""python -m experiments: the recipes, a line each. python -m experiments NAME [OPTIONS] runs one."""
import sys

from plm_jax import errors
from plm_jax.cli import options
from plm_jax.cli.run import main


def listed() -> str:
  """A line for each recipe, and what to type."""
  known = options.recipes()
  lines = [f'  {name:26}{line}' for name, line in known.items()]
  return '\n'.join(['recipes:', *lines, 'run one:  python -m experiments.NAME --scale=laptop    (--help: its options)'])


if __name__ == '__main__':
  args = sys.argv[1:]
  with errors.shown():
    if not args or args[0] in ('-h', '--help'):
      print(listed())
    else:
      main(options.find_recipe(args[0]).recipe, args[1:])
