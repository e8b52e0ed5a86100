"""Dispatches `python -m plm_jax COMMAND ...`."""
from plm_jax.cli.commands import main

if __name__ == '__main__':
  main()
