"""Texts in the source of plm_jax, to compare pages and stored outputs with them."""
import ast
import re

from typed import ROOT


def message_templates(package: str = 'plm_jax') -> list[str]:
  """List the text constants of a package, f-strings with a NUL in place of each value."""
  found = []
  for path in sorted((ROOT / package).rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      parts = node.values if isinstance(node, ast.JoinedStr) else [node]
      texts = [part.value if isinstance(part, ast.Constant) else '\0' for part in parts
               if isinstance(part, ast.Constant | ast.FormattedValue)]
      if all(isinstance(text, str) for text in texts):
        found.append(''.join(texts))
  return [text for text in found if ' ' in text]


def template_pattern(template: str) -> re.Pattern:
  """Return a pattern of the texts that a template can become."""
  return re.compile('.*'.join(map(re.escape, template.strip('\n').split('\0'))), re.S)
