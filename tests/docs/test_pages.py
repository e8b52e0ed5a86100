"""Every command and Python block of the site's pages runs as written, with --scale=test; required
pages exist in both languages; search finds words of both.

tests/test_readme.py runs the README's commands, and tests/notebooks runs the notebooks.
"""
import ast
import importlib
import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import tiny
from typed import ELSEWHERE, ROOT, World, shown

import plm_jax
from plm_jax.cli.run import parse
from plm_jax.recipes import find_recipe, word_vectors

DOCS = ROOT / 'docs'
# These are generated, or have commands that need a cluster or that others run: see their tests.
OTHERS = {'reference', 'project', 'howto/beam', 'howto/pods'}
# Their blocks run in tests/docs/test_batch.py and tests/api/test_api.py.
BLOCKS_ELSEWHERE = {'batch.md', 'python.md'}


def is_tested(path: pathlib.Path) -> bool:
  """Tell whether the commands and Python blocks of a page run here."""
  name = path.relative_to(DOCS).with_suffix('').as_posix().removeprefix('zh/')
  return name not in OTHERS and name.partition('/')[0] not in OTHERS


PAGES = [path for path in sorted(DOCS.rglob('*.md')) if is_tested(path)]
OURS = re.compile(r'(python -m (plm_jax|experiments)|scripts/)')


def commands_of(path: pathlib.Path) -> list[str]:
  """Return the commands of a page that run plm_jax; pages also show commands of other
  projects."""
  return [line for line in shown(path.read_text(encoding='utf-8')) if OURS.match(line)]


def blocks_of(path: pathlib.Path) -> list[str]:
  """Returns the Python blocks of a page."""
  return re.findall(r'^```python\n(.*?)^```', path.read_text(encoding='utf-8'), re.M | re.S)


def test_there_are_pages_and_commands():
  assert sum(len(commands_of(path)) for path in PAGES) > 60
  assert sum(len(blocks_of(path)) for path in PAGES) >= 4
  for section, at_least in (('start', 4), ('howto', 24), ('explanation', 8), ('coming', 5)):
    english = {path.name for path in (DOCS / section).glob('*.md')}
    chinese = {path.name for path in (DOCS / 'zh' / section).glob('*.md')}
    assert chinese == english and len(english) >= at_least


def test_chinese_pages_show_figures_with_chinese_text():
  figures = []
  for path in (DOCS / 'zh').rglob('*.md'):
    figures += re.findall(r'\(\.\./figures/(\w+)\.svg\)', path.read_text(encoding='utf-8'))
  assert len(figures) >= 5 and all(name.endswith('_zh') for name in figures), figures


def test_commands_fit_the_width_of_a_page():
  for path in PAGES:
    lines = [line for line in path.read_text(encoding='utf-8').split('\n')
             if OURS.match(line.strip())]
    wide = [line for line in lines if line.startswith('    ') and len(line) > 104]
    assert not wide, f'{path}: {wide}'


def test_table_rows_have_as_many_cells_as_the_header():
  pages = [*DOCS.rglob('*.md'), *(ROOT / 'benchmarks').rglob('*.md'), *ROOT.glob('*.md')]
  wrong = []
  for path in pages:
    head = 0
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
      cells = re.sub(r'`[^`]*`', '',
                     line).replace('\\|', '').count('|') if line.startswith('|') else 0
      head = cells and (head or cells)
      if cells != head:
        wrong.append(f'{path.relative_to(ROOT)}:{number}')
  assert len(pages) > 100 and not wrong


def test_pages_are_short():
  for path in PAGES:
    assert path.name in ('adding.md',
                         'batch.md') or len(
                             path.read_text(encoding='utf-8').split('\n')) < 120, path


def message_templates() -> list[str]:
  """List the text constants of plm_jax, f-strings with a NUL in place of each value."""
  found = []
  for path in sorted((ROOT / 'plm_jax').rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      parts = node.values if isinstance(node, ast.JoinedStr) else [node]
      texts = [part.value if isinstance(part, ast.Constant) else '\0' for part in parts
               if isinstance(part, ast.Constant | ast.FormattedValue)]
      if all(isinstance(text, str) for text in texts):
        found.append(''.join(texts))
  return [text for text in found if ' ' in text]


@pytest.mark.parametrize('language', ['', 'zh/'])
def test_messages_on_the_troubleshooting_page_are_in_the_code(language):
  text = (DOCS / language / 'howto/troubleshooting.md').read_text(encoding='utf-8')
  cells = [line.split(' | ')[0] for line in text.split('\n') if line.startswith('| ')]
  messages = [quoted for cell in cells for quoted in re.findall('`(.+?)`', cell) if ' ' in quoted]
  templates = message_templates()
  assert len(messages) >= 12
  for message in messages:
    pattern = re.compile('.+'.join(map(re.escape, message.split('...'))), re.S)
    assert any(map(pattern.search, templates)), message


# All pages run before a release: that takes a quarter of an hour. Chinese pages have the same
# commands and blocks as the English ones, with other names and texts.
LANGUAGES = pytest.mark.parametrize('language', ['en', 'zh'])


def pages_of(language: str) -> list[pathlib.Path]:
  """Return the pages in a language. The quick start is first."""
  pages = [path for path in PAGES if (DOCS / 'zh' in path.parents) == (language == 'zh')]
  return sorted(pages, key=lambda path: path.name != 'quickstart.md')


@pytest.mark.slow
@pytest.mark.release
@LANGUAGES
def test_every_command_runs(tmp_path, monkeypatch, language):
  """In one folder, page by page; a run that a page before has made is gone on with."""
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  monkeypatch.chdir(tmp_path)
  world, failed, done = World(), [], set()
  for path in pages_of(language):
    for line in commands_of(path):
      if line in done or (any(word in line for word in ELSEWHERE)
                          and not line.startswith('scripts/')):
        continue
      done.add(line)
      try:
        if line.startswith('scripts/'):
          rehearsed(line)
        else:
          world.type(line, monkeypatch)
      except (Exception, SystemExit) as error:
        failed.append(f'{path.relative_to(DOCS)}: {line}\n    {type(error).__name__}: {error}')
  assert not failed, '\n'.join(failed)


def rehearsed(line: str) -> None:
  """Run a script in dry-run mode, and parse the run's options in its output."""
  assert '--dry-run' in line, 'a page shows what is paid for without --dry-run'
  done = subprocess.run([ROOT / line.split()[0], *shlex.split(line)[1:]], capture_output=True,
                        text=True)
  assert done.returncode == 0, done.stderr
  if '-m plm_jax train' in line:
    name, *options = shlex.split(line.partition('-m plm_jax train ')[2])
    parse(find_recipe(name), options)


@pytest.mark.slow
def test_commands_of_training_are_understood():
  """Of all pages; all their commands run before a release."""
  modes = set()
  for path in PAGES:
    for line in commands_of(path):
      command, found, rest = line.partition('-m plm_jax train ')
      if found and not command.startswith('scripts/') and '...' not in rest:
        name, *options = shlex.split(rest.partition(' > ')[0].partition(' | ')[0], comments=True)
        if name not in word_vectors.PUBLISHED:
          modes.add(parse(find_recipe(name), options).mode)
  assert {'train', 'compile'} <= modes


@pytest.mark.slow
@pytest.mark.release
@LANGUAGES
def test_every_python_block_runs(tmp_path, monkeypatch, language):
  """The blocks of a page run one after another in a folder of the page, with runs of the smallest
  scale."""
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  real = plm_jax.recipe
  for path in pages_of(language):
    if not blocks_of(path) or path.name in BLOCKS_ELSEWHERE:
      continue
    folder = tmp_path / '-'.join(path.relative_to(DOCS).with_suffix('').parts)
    folder.mkdir()
    monkeypatch.chdir(folder)
    World()
    pathlib.Path('corpus.txt').write_text(tiny.text())
    names: dict = {}
    for block in blocks_of(path):
      exec(compile(block.replace("'laptop'", "'test'"), str(path), 'exec'), names)
  assert plm_jax.recipe is real


# What readers search for, and the page that they need first, in English and Chinese.
QUERIES = {
    'start/install': ('install', '安装'), 'start/quickstart': ('quickstart', '快速入门'),
    'howto/gpu': ('GPU', 'GPU'), 'howto/tpu': ('TPU', 'TPU'),
    'explanation/precision': ('mixed precision', '混合精度'),
    'howto/hyperparameters': (
        'learning rate', 'batch size', 'gradient accumulation', 'early stopping', 'mask rate',
        '学习率', '批大小', '梯度累积', '早停'),
    'howto/resume': ('resume', 'checkpoint', '断点续训', '检查点'),
    'howto/vocabulary': ('tokenizer', 'vocabulary', '分词器', '词表'),
    'howto/finetuning': ('fine-tune', '微调'), 'howto/exporting': ('export', '导出'),
    'howto/embeddings': ('embeddings', '句向量'),
    'explanation/attention': ('sliding window', 'KV cache', '滑动窗口', 'KV 缓存'),
    'howto/costs': ('cost', '成本'), 'howto/low_resource': ('low resource',),
    'howto/predictions': ('overconfident',),
    'howto/troubleshooting': ('error', 'GPU out of memory', '报错')}


def first_pages(index: dict, query: str) -> set[str]:
  """Return the pages that the search shows first: those with the best main index entry.

  Sphinx ranks an entry by the share of it that the query is, and above titles and text.
  """
  query, scores = query.lower(), {}
  for entry, places in index['indexentries'].items():
    if query in entry and len(query) >= len(entry) / 2:
      for page, _, main in places:
        if main:
          scores[page] = max(scores.get(page, 0), round(100 * len(query) / len(entry)))
  best = max(scores.values(), default=0)
  return {index['docnames'][page] for page, score in scores.items() if score == best}


def read_index(site: pathlib.Path) -> dict:
  """Read the search index of a site."""
  text = (site / 'searchindex.js').read_text(encoding='utf-8')
  return json.loads(text.removeprefix('Search.setIndex(').rstrip().removesuffix(')'))


def test_every_public_function_has_a_page(monkeypatch):
  monkeypatch.syspath_prepend(str(DOCS))
  pages = importlib.import_module('reference_pages').api_pages()
  assert 'plm_jax.rerank' in pages['reference/api/embeddings']


@pytest.mark.release
@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
  """Build both languages: dead links are warnings. The search finds the right page first."""
  built = subprocess.run([sys.executable, DOCS / 'build.py', tmp_path / 'site'],
                         capture_output=True, text=True)
  assert built.returncode == 0, built.stderr
  english, chinese = read_index(tmp_path / 'site'), read_index(tmp_path / 'site/zh')
  assert {'whole', 'word', 'mask'} <= {*english['terms']} | {*english['titleterms']}
  assert {'全词', '词掩', '掩码'} <= {*chinese['terms']} | {*chinese['titleterms']}
  for page, queries in QUERIES.items():
    for query in queries:
      index = english if query.isascii() else chinese
      assert first_pages(index, query) == {page}, query
