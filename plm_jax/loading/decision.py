"""Fields of a task that are chosen after training, such as thresholds: a run's decision.json."""
import dataclasses
import json
from typing import Any

from etils import epath

from plm_jax import storage
from plm_jax.errors import UserError

FILE = 'decision.json'


def write(folder: epath.PathLike, fields: dict[str, Any]) -> None:
  """Write the chosen fields of the task of the run in `folder`."""
  storage.write(storage.resolve_path(folder) / FILE, json.dumps(fields, indent=1) + '\n')


def apply(folder: epath.PathLike, task: Any) -> Any:
  """Return the task of the run in `folder` with its chosen fields, if there are any.

  Raises UserError if the file is damaged.
  """
  path = storage.resolve_path(folder) / FILE
  if not path.exists():
    return task
  try:
    fields = json.loads(path.read_text())
    found = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return dataclasses.replace(task, **found)
  except (ValueError, TypeError, AttributeError) as error:
    raise UserError(f'{path}: expected fields of the task as JSON: {error}. Delete the file to use '
                    'the fields of config.json') from error
