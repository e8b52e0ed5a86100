"""Dispatches `python -m plm_jax COMMAND ...`."""
from plm_jax import errors, versions

if __name__ == '__main__':
  with errors.shown():
    versions.check_importable()  # JAX would say it with a traceback
  from plm_jax.cli.commands import main
  main()
