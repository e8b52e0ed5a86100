"""The site: `python -m sphinx -W docs site` builds it, with `pip install '.[docs]'`.

Pages are English; those in zh/ Chinese. The reference, the figures and the tutorials are made here, at every build,
from the code and from the notebooks: see made.py and figures.py.
"""
import os
import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import figures
import made
from search import Bilingual
from sphinx.search import languages

project = 'plm_jax'
copyright = 'the plm_jax maintainers, Apache 2.0'
author = 'The plm_jax maintainers'
extensions = ['myst_nb']
exclude_patterns = ['_build', 'site', '**/.ipynb_checkpoints', '**/runs']
html_theme = 'sphinx_book_theme'
html_title = 'plm_jax'
html_theme_options = {'show_toc_level': 2, 'home_page_in_toc': False, 'use_fullscreen_button': False,
                      'navbar_persistent': []}
html_show_sourcelink = False
html_static_path = ['_static']
html_css_files = ['site.css']
nb_execution_mode = 'off'  # notebooks are executed by tests/notebooks, and shown with the outputs that they come with
nb_merge_streams = True
myst_heading_anchors = 4
myst_enable_extensions = ['colon_fence']
highlight_language = 'text'
suppress_warnings = ['misc.highlighting_failure', 'config.cache']
html_search_language = Bilingual.lang
languages[Bilingual.lang] = Bilingual

OUTSIDE = re.compile(r'\[([^\]]+)\]\(\.\./[^)\s]+\)')  # of docs/: files of the checkout, which are no pages


def adapted(app, name, source):
  """Makes plain text of links that only a checkout has, and says where a page is in the other language."""
  text = OUTSIDE.sub(r'\1', source[0]) if '/' not in name else source[0]
  other = name.removeprefix('zh/') if name.startswith('zh/') else f'zh/{name}'
  if (HERE / f'{other}.md').exists() and not name.startswith('tutorials/'):
    words = 'English' if name.startswith('zh/') else '中文'
    text = f'[{words}](/{other}.md)\n\n{text}'
  source[0] = text


def make(app):
  """Writes the pages and figures that come from the code, and brings the notebooks."""
  made.write(HERE / 'reference')
  figures.write(HERE / 'figures')
  for notebook in sorted((HERE.parent / 'notebooks').glob('[0-9]_*.ipynb')):
    target = HERE / 'tutorials' / notebook.name
    if not target.exists() or target.read_bytes() != notebook.read_bytes():
      shutil.copyfile(notebook, target)


def setup(app):
  app.connect('builder-inited', make)
  app.connect('source-read', adapted)
