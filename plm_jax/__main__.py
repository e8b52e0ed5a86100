"""Run `python -m plm_jax COMMAND ...`."""
from plm_jax.cli.main import main

if __name__ == '__main__':
  main()
