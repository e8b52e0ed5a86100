"""Sphinx configuration of the site. `python docs/build.py site` builds English and Chinese.

English pages are in docs/, Chinese pages in docs/zh/ under the same names. Links between pages work
in a checkout, too. Reference pages and tutorials are generated at every build from the code and the
notebooks (reference_pages.py). A page may begin with front matter:

    description    a sentence for search engines
    keywords       phrases, separated by commas, for which the search shows this page first
    keywords_zh    the same in Chinese, for a page that is not translated
"""
import csv
import os
import pathlib
import re
import shutil
import sys
import urllib.request

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

from docutils import nodes
import reference_pages
from search import Bilingual
from sphinx.search import languages

import plm_jax

# Project.
project = 'plm_jax'
author = 'The plm_jax maintainers'
copyright = 'the plm_jax maintainers, Apache 2.0'
version = release = plm_jax.__version__

# Pages. build.py chooses the language; Chinese builds from a folder in which docs/zh covers docs.
extensions = [
    'myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon', 'sphinx.ext.intersphinx',
    'sphinx.ext.viewcode', 'sphinx_copybutton']
language = 'en'
exclude_patterns = ['_build', 'site', 'zh', '**/.ipynb_checkpoints', '**/runs']
myst_heading_anchors = 4
myst_enable_extensions = ['colon_fence', 'deflist']
smartquotes = False  # would turn --option into a dash
highlight_language = 'text'
suppress_warnings = ['misc.highlighting_failure', 'config.cache']
nb_execution_mode = 'off'  # tests/notebooks executes the notebooks; the site shows stored outputs
nb_merge_streams = True
copybutton_prompt_text = r'\$ |>>> |\.\.\. '
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = '\\'

# Reference of the Python API.
autodoc_default_options = {'member-order': 'bysource'}
autodoc_typehints = 'description'
autodoc_typehints_description_target = 'documented'
autodoc_preserve_defaults = True
default_role = 'code'
toc_object_entries_show_parents = 'hide'
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Appearance.
html_theme = 'sphinx_book_theme'
html_title = f'plm_jax {version}'
html_theme_options = {
    'show_toc_level': 2, 'home_page_in_toc': False, 'use_fullscreen_button': False,
    'navbar_persistent': [], 'use_download_button': False}
if os.environ.get('PLM_JAX_SOURCE', '').startswith('https://'):
  html_theme_options |= {
      'repository_url': os.environ['PLM_JAX_SOURCE'], 'use_repository_button': True}
html_favicon = '_static/favicon.svg'
html_show_sourcelink = False
html_copy_source = False
html_static_path = ['_static']
html_css_files = ['site.css']
html_js_files = ['search_results.js']
html_search_language = Bilingual.lang
languages[Bilingual.lang] = Bilingual

# Files of the repository that are pages of the site, and files that are not.
PAGES = {
    'CHANGELOG.md': 'project/changelog.md', 'CONTRIBUTING.md': 'project/contributing.md',
    'WORKSPACE.md': 'project/architecture.md', 'benchmarks/RESULTS.md': 'project/results.md',
    'notebooks/': 'tutorials/'}
INSIDE = re.compile(r'\]\((?:\.\./)+(' + '|'.join(map(re.escape, PAGES)) + ')')
OUTSIDE = re.compile(r'\[([^\]]+)\]\((?:\.\./)+(?:plm_jax|benchmarks|scripts|experiments|tests)[^)\s]*\)')
# Line breaks of Chinese text, which HTML would show as spaces; front matter and code keep theirs.
CHINESE_BREAK = re.compile(
    r'(?<=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef])\n *(?=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef])'
    r'|(?<=[，。；：、）！？])\n *(?=[A-Za-z`\[(])')
CODE = re.compile(r'(\A---$.*?^---$|^```.*?^```$|^    [^\n]*$)', re.M | re.S)
# Commands with their continuation lines. The site breaks wide ones, so that they fit a phone.
COMMAND = re.compile(
    r'^( *)((?:plm-jax|python -m (?:plm_jax|experiments)|scripts/)(?:[^\n]*\\\n)*[^\n]*)$', re.M)
COMMAND_WIDTH = 48
API_TYPES = {'Model', 'Path', 'Candidates', 'Dtype', 'Scale'}
"""types that the index of the API explains"""
LONG_WORD = 40
"""characters of a word of code above which narrow pages break it"""
with (HERE / 'generated_zh.tsv').open(encoding='utf-8') as table:
  CHINESE_TITLES = {row['page']: row for row in csv.DictReader(table, delimiter='\t')}
NOT_TRANSLATED = '\n\n```{note}\n本页还没有中文版，以下是英文版。\n```'


def find_inventories() -> dict[str, tuple[str, None]]:
  """Find the documentation of other projects that can be linked to.

  Without a network there are no such links, and the build still succeeds.
  """
  found = {}
  for name, address in (('python', 'https://docs.python.org/3/'),
                        ('numpy', 'https://numpy.org/doc/stable/'),
                        ('jax', 'https://docs.jax.dev/en/latest/')):
    try:
      urllib.request.urlopen(f'{address}objects.inv', timeout=5).close()
    except OSError:
      break
    found[name] = (address, None)
  return found


intersphinx_mapping = find_inventories()


def generate_pages(app) -> None:
  """Write the pages that come from the code, and copy the notebooks."""
  folder = pathlib.Path(app.srcdir)
  reference_pages.write(folder)
  for figure in (HERE.parent / 'benchmarks/figures').glob('*.svg'):
    shutil.copyfile(figure, folder / 'figures' / figure.name)
  for notebook in sorted((HERE.parent / 'notebooks').glob('[0-9]_*.ipynb')):
    target = folder / 'tutorials' / notebook.name
    if not target.exists() or target.read_bytes() != notebook.read_bytes():
      shutil.copyfile(notebook, target)


def adapt_source(app, name: str, source: list[str]) -> None:
  """Adapt links to files outside of the site, and mark pages that are not translated."""
  root = '../' * name.count('/')
  text = INSIDE.sub(lambda link: f']({root}{PAGES[link[1]]}', source[0])
  text = OUTSIDE.sub(r'\1', text)
  chinese = app.config.language.startswith('zh')
  generated = name.startswith(('reference/', 'tutorials/', 'project/'))
  if chinese and (HERE / 'zh' / f'{name}.md').exists():
    # English pages are in the folder above docs/zh, and on the site in the same folder.
    text = join_chinese_lines(text.replace(f'](../{root}', f']({root}'))
  elif chinese and not generated:
    text = re.sub(r'(?m)^# .*$', lambda title: title[0] + NOT_TRANSLATED, text, count=1)
  if chinese and name in CHINESE_TITLES:
    row = CHINESE_TITLES[name]
    text = re.sub(r'(?m)^# .*$', lambda _: f'# {row["title"]}\n\n{row["introduction"]}', text, count=1)
  if chinese and name.startswith('reference/recipes/'):
    text = text.replace('index.md#how-to-read-the-tables', 'index.md#怎样读表')
  if name.startswith('reference/recipes/'):  # from descriptions, which a checkout prints too
    text = text.replace('python -m plm_jax ', 'plm-jax ')
  text = COMMAND.sub(break_command, text)
  text += reference_pages.APPENDED.get(name, lambda: '')()
  source[0] = insert_index_entries(text, chinese)


def break_command(match: re.Match) -> str:
  """Break a wide command before each of its options. A comment gets a line above it."""
  indent, whole = match[1], re.sub(r'\s*\\\n\s*', ' ', match[2])
  command, _, comment = re.sub(r' {2,}# ', '\0', whole).partition('\0')
  if len(whole) <= COMMAND_WIDTH or re.search(r"'[^']* --[^']*'", whole):
    return match[0]
  broken = f'{indent}{command.rstrip()}'
  if len(broken) > COMMAND_WIDTH:
    broken = indent + re.sub(r' (?=--\w)', f' \\\\\n{indent}    ', command.rstrip())
  return f'{indent}# {comment}\n{broken}' if comment else broken


def join_chinese_lines(text: str) -> str:
  """Join the lines of Chinese paragraphs, outside of front matter and code."""
  parts = CODE.split(text)
  parts[::2] = [CHINESE_BREAK.sub('', part) for part in parts[::2]]
  return ''.join(parts)


def insert_index_entries(text: str, chinese: bool) -> str:
  """Insert the keywords of a page's front matter as index entries after its title.

  The search ranks them above all other matches.
  """
  front = re.match(r'---\n(.*?)\n---\n', text, re.S)
  if not front:
    return text
  words = []
  for name in ('keywords', 'keywords_zh') if chinese else ('keywords',):
    line = re.search(rf'^{name}: *(.*)$', front[1], re.M)
    if line:
      words += [word.strip() for word in re.split('[,，]', line[1].strip('"\' ')) if word.strip()]
  entries = '\n'.join(f'   ! single: {word}' for word in words)
  if not entries:
    return text
  directive = f'\n\n```{{eval-rst}}\n.. index::\n{entries}\n```'
  return re.sub(r'(?m)^# .*$', lambda title: title[0] + directive, text, count=1)


def adapt_code(app, document: nodes.document) -> None:
  """Mark long words of inline code, and put colons after the parameters of functions."""
  for literal in document.findall(nodes.literal):
    if any(len(word) > LONG_WORD for word in literal.astext().split()):
      literal['classes'].append('long')
  for field in document.findall(nodes.field):
    for text in [*field.findall(nodes.Text)]:
      if text == ' -- ':
        text.parent.replace(text, nodes.Text(': '))


def link_type(app, env, node, contents) -> nodes.reference | None:
  """Link a type of the API's signatures that has no page to the table of such types."""
  if node.get('refdomain') != 'py' or node.get('reftarget') not in API_TYPES:
    return None
  index = app.builder.get_relative_uri(node['refdoc'], 'reference/api/index')
  return nodes.reference('', '', contents, refuri=f'{index}#types', internal=True)


def group_titles(name: str, chinese: bool) -> str:
  """Return the style that shows the groups of the how-to guides in the sidebar of a page.

  The sidebar has no captions inside of a section, so the first page of each group gets one.
  """
  index = HERE / ('zh' if chinese else '.') / 'howto/index.md'
  rules = []
  for title, first in re.findall(
      r'^## (.+?)\n.*?toctree}\n:hidden:\n\n(\w+)', index.read_text(encoding='utf-8'), re.M | re.S):
    link = 'a.current[href="#"]' if name == f'howto/{first}' else f'a[href$="{first}.html"]'
    rules.append(f'.bd-sidebar-primary .toctree-l2:has(> {link})::before {{ content: "{title}"; }}')
  return f'<style>{" ".join(rules)}</style>'


def add_context(app, name: str, template: str, context: dict, document) -> None:
  """Add the description of a page, and the button that leads to the other language."""
  fields = app.env.metadata.get(name, {})
  description = fields.get('description')
  if description:
    escaped = str(description).replace('&', '&amp;').replace('"', '&quot;')
    context['metatags'] = context.get('metatags', '') + f'<meta name="description" content="{escaped}">'
  chinese = app.config.language.startswith('zh')
  if name.startswith('howto/'):
    context['metatags'] = context.get('metatags', '') + group_titles(name, chinese)
  if 'header_buttons' not in context:
    return
  up = '../' * name.count('/')
  if chinese:
    target, label, tooltip = f'{up}../{name}.html', 'English', 'This page in English'
  else:
    target, label, tooltip = f'{up}zh/{name}.html', '中文', '本页的中文版'
  context['header_buttons'].insert(0, {
      'type': 'link', 'url': target, 'tooltip': tooltip, 'text': label, 'label': 'language',
      'icon': 'fas fa-language'})


def setup(app) -> None:
  app.connect('builder-inited', generate_pages)
  app.connect('env-get-outdated', lambda *_: [*reference_pages.APPENDED])
  app.connect('source-read', adapt_source)
  app.connect('doctree-read', adapt_code)
  app.connect('missing-reference', link_type)
  app.connect('html-page-context', add_context, priority=501)
