"""Write help.json, the options of all commands: `python -m plm_jax.cli.write_help`.

To be run after a change of options, of their descriptions or of recipes; a test checks that the
file is current.
"""
import json
from typing import Any

from plm_jax import recipes
from plm_jax.cli import catalog, finetune, signatures
from plm_jax.recipes import word_vectors
from plm_jax.tasks import kinds


def collect() -> dict[str, Any]:
  """Collect what help.json contains."""
  found: dict[str, Any] = {}
  for command in (*catalog.COMMANDS.values(), *catalog.VECTORS.values()):
    if command.function:
      function = catalog.import_function(command.function)
      found[command.function] = list(signatures.command_arguments(function))
    if command.config:
      config = catalog.import_name(command.config)(name='')
      found[command.config] = list(signatures.config_options(config))
  titles = {name: recipe.description for name, recipe in recipes.all_recipes().items()}
  titles |= dict.fromkeys(word_vectors.PUBLISHED, word_vectors.__doc__ or '')
  found['recipes'] = [(name, text.strip().partition('\n')[0]) for name, text in titles.items()]
  words = {'kind': kinds.describe_kinds()}
  for fields in finetune.NAMED_VALUES.values():
    words |= {field: ', '.join(values) for field, values in fields.items()}
  found['words'] = list(words.items())
  return found


def write_file() -> None:
  """Write help.json, one option per line."""
  parts = []
  for name, rows in collect().items():
    lines = ',\n'.join(json.dumps(row, ensure_ascii=False) for row in rows)
    parts.append(f'{json.dumps(name)}: [\n{lines}]')
  signatures.FILE.write_text('{' + ',\n'.join(parts) + '}\n', 'utf-8')


if __name__ == '__main__':
  write_file()
