"""Every command and Python block of the site's pages runs as written, with --scale=test; required
pages exist in both languages; search finds words of both.

tests/test_readme.py runs the README's commands, and tests/notebooks runs the notebooks.
"""
import csv
import importlib
import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from templates import message_templates
import tiny
from typed import ELSEWHERE, ROOT, World, shown

import plm_jax
from plm_jax.cli.run import parse
from plm_jax.recipes import FAMILIES, find_recipe, word_vectors

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
OURS = re.compile(r'(plm-jax|python -m (plm_jax|experiments)|scripts/)')


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
  for section, at_least in (('start', 4), ('howto', 24), ('explanation', 8), ('migration', 5)):
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


def test_the_site_breaks_wide_commands_at_their_options(monkeypatch):
  """Words and comments are kept, and quoted commands stay as they are."""
  pytest.importorskip('sphinx')
  monkeypatch.syspath_prepend(str(DOCS))
  def refuse(*args, **kwargs):
    raise OSError
  monkeypatch.setattr('urllib.request.urlopen', refuse)
  conf = importlib.import_module('conf')
  for path in PAGES:
    text = path.read_text(encoding='utf-8')
    broken = conf.COMMAND.sub(conf.break_command, text)
    assert [' '.join(line.split()) for line in shown(broken)] == [
        ' '.join(line.split()) for line in shown(text)], path
  line = "    plm-jax train bert_base --scale=laptop --output=runs/b   # minutes"
  assert conf.COMMAND.sub(conf.break_command, line) == (
      '    # minutes\n    plm-jax train bert_base \\\n        --scale=laptop \\\n'
      '        --output=runs/b')
  short = '    plm-jax train bert_base --scale=laptop'
  assert conf.COMMAND.sub(conf.break_command, short) == short


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
  long = [path for path in PAGES if len(path.read_text(encoding='utf-8').split('\n')) >= 120
          and path.name not in ('adding.md', 'batch.md', 'index.md')]
  assert not long


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
      command, found, rest = line.partition('plm-jax train ')
      if found and not command and '...' not in rest:
        name, *options = shlex.split(rest.partition(' > ')[0].partition(' | ')[0], comments=True)
        if name in word_vectors.PUBLISHED:
          continue
        recipe = find_recipe(name)
        # Some recipes have the model of their warm start, which is not there.
        if not (FAMILIES[recipe.family].start and '--warm-start' in rest):
          modes.add(parse(recipe, options).mode)
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


@pytest.mark.parametrize('language', ['', 'zh/'])
def test_figures_of_the_performance_page_are_measured(language):
  """Every decimal number of the page is in the tables of results."""
  results = [*(ROOT / 'benchmarks/results').glob('*.md'),
             *(ROOT / 'benchmarks').glob('*/README.md')]
  measured = {figure for path in results
              for figure in re.findall(r'\d[\d,]*\.?\d*', path.read_text(encoding='utf-8'))}
  page = (DOCS / language / 'howto/performance.md').read_text(encoding='utf-8')
  rows = re.findall(r'^(?:\||- ).*$', page, re.M)
  figures = [figure for row in rows for figure in re.findall(r'\d+\.\d+', row)]
  assert len(figures) > 20
  assert set(figures) <= measured


# What readers search for, and the page that they need first.
QUERIES = {
    'en': {
        'start/install': 'install, requirements', 'start/quickstart': 'quickstart',
        'start/models': 'which model', 'howto/own_corpus': 'from scratch, custom dataset',
        'howto/clean': 'deduplication', 'howto/low_resource': 'low resource, small corpus',
        'howto/vocabulary': 'tokenizer, vocabulary, vocabulary size',
        'howto/gpu': 'GPU, CUDA, multi-GPU, slurm, T4', 'howto/tpu': 'TPU',
        'howto/pods': 'Kubernetes',
        'howto/hyperparameters': 'learning rate, batch size, gradient accumulation, '
                                 'early stopping, mask rate',
        'howto/resume': 'resume, checkpoint', 'howto/costs': 'cost, training time',
        'howto/domain': 'continued pre-training', 'howto/distillation': 'distillation',
        'howto/monitoring': 'TensorBoard', 'howto/babylm': 'BabyLM',
        'howto/finetuning': 'fine-tune, LoRA, NER, text classification',
        'howto/multilabel': 'imbalanced', 'howto/documents': 'long documents',
        'howto/predictions': 'overconfident, calibration',
        'howto/embeddings': 'embeddings, semantic search', 'howto/retrieval': 'reranking',
        'howto/sparse_retrieval': 'SPLADE, sparse retrieval',
        'howto/generation': 'generate text', 'howto/text_to_text': 'translation',
        'howto/evaluation': 'perplexity', 'howto/exporting': 'export', 'howto/deploying': 'ONNX',
        'howto/troubleshooting': 'error, GPU out of memory, loss is NaN',
        'explanation/precision': 'mixed precision, bfloat16',
        'explanation/attention': 'sliding window, KV cache',
        'migration/transformers': 'Trainer', 'reference/environment': 'environment variables',
        'start/comparison': 'comparison, alternatives, MaxText, nanoGPT',
        'start/faq': 'FAQ, license',
        'howto/performance': 'performance, faster training, tokens per second',
        'howto/datasets': 'datasets, evaluation sets, XNLI',
        'reference/checkpoints': 'checkpoint formats',
        'reference/model_families': 'pretrained models, pre-trained models, released checkpoints'},
    'zh': {
        'start/install': '安装', 'start/quickstart': '快速入门', 'start/models': '选择模型',
        'howto/own_corpus': '从头训练, 自定义数据集', 'howto/clean': '去重',
        'howto/low_resource': '低资源, 小语料', 'howto/vocabulary': '分词器, 词表, 词表大小',
        'howto/gpu': 'GPU, 显卡, 多 GPU, slurm, 集群', 'howto/tpu': 'TPU',
        'howto/hyperparameters': '学习率, 批大小, 梯度累积, 早停, 掩码比例',
        'howto/resume': '断点续训, 检查点', 'howto/costs': '成本, 训练时间',
        'howto/domain': '继续预训练', 'howto/distillation': '蒸馏', 'howto/monitoring': '监控',
        'howto/finetuning': '微调, LoRA, 命名实体识别, 文本分类', 'howto/chinese': '中文',
        'howto/multilabel': '类别不平衡', 'howto/documents': '长文档',
        'howto/predictions': '过度自信, 校准', 'howto/embeddings': '句向量, 语义检索',
        'howto/retrieval': '重排序', 'howto/sparse_retrieval': '稀疏检索',
        'howto/generation': '文本生成', 'howto/text_to_text': '翻译',
        'howto/evaluation': '困惑度, 评测', 'howto/exporting': '导出', 'howto/deploying': '部署, ONNX',
        'howto/word_vectors': '词向量', 'howto/troubleshooting': '报错, 显存不足',
        'explanation/precision': '混合精度', 'explanation/attention': '滑动窗口, KV 缓存',
        'reference/environment': '环境变量', 'reference/checkpoints': '检查点格式',
        'start/comparison': '对比, 同类项目', 'start/faq': '常见问题, 商用',
        'howto/performance': '性能, 加速', 'howto/datasets': '数据集, 评测集',
        'reference/model_families': '预训练模型'}}


def first_pages(entries: dict[str, set[str]], query: str) -> set[str]:
  """Return the pages that the search shows first: those with the best main index entry.

  Sphinx ranks an entry by the share of it that the query is, and above titles and text.
  """
  query, scores = query.lower(), {}
  for entry, pages in entries.items():
    if query in entry and len(query) >= len(entry) / 2:
      for page in pages:
        scores[page] = max(scores.get(page, 0), round(100 * len(query) / len(entry)))
  best = max(scores.values(), default=0)
  return {page for page, score in scores.items() if score == best}


def misled_queries(language: str, entries: dict[str, set[str]]) -> list[str]:
  """List the queries for which the search shows another page first, or one more."""
  queries = [(page, query) for page, line in QUERIES[language].items()
             for query in line.split(', ')]
  assert len(queries) >= 40
  return [f'{query}: {sorted(first_pages(entries, query))}, not {page}' for page, query in queries
          if first_pages(entries, query) != {page}]


@pytest.mark.parametrize('language', ['en', 'zh'])
def test_search_finds_the_page_that_a_reader_needs_first(language):
  """By the keywords of the pages in the repository."""
  entries: dict[str, set[str]] = {}
  for path in DOCS.rglob('*.md'):
    name = path.relative_to(DOCS).with_suffix('').as_posix()
    if name.startswith('zh/') != (language == 'zh'):
      continue
    line = re.search(r'^keywords: *(.*)$', path.read_text(encoding='utf-8'), re.M)
    for word in line[1].strip('"').lower().split(',') if line else ():
      entries.setdefault(word.strip(), set()).add(name.removeprefix('zh/'))
  assert not misled_queries(language, entries)


def read_index(site: pathlib.Path) -> dict:
  """Read the search index of a site."""
  text = (site / 'searchindex.js').read_text(encoding='utf-8')
  return json.loads(text.removeprefix('Search.setIndex(').rstrip().removesuffix(')'))


def main_entries(index: dict) -> dict[str, set[str]]:
  """Return the main index entries of a site, and the pages of each."""
  return {entry: {index['docnames'][page] for page, _, main in places if main}
          for entry, places in index['indexentries'].items()}


def test_every_public_function_has_a_page(monkeypatch):
  monkeypatch.syspath_prepend(str(DOCS))
  pages = importlib.import_module('reference_pages').api_pages()
  assert 'plm_jax.rerank' in pages['reference/api/embeddings']


def test_generated_pages_have_chinese_titles(monkeypatch):
  monkeypatch.syspath_prepend(str(DOCS))
  pages = importlib.import_module('reference_pages')
  configuration = {f'reference/configuration/{name}' for name in pages.option_pages()}
  names = {*pages.api_pages(), *configuration}
  names |= {f'reference/recipes/{path.stem}' for path in (DOCS / 'reference/recipes').glob('*.md')
            if path.stem != 'index'}
  with (DOCS / 'generated_zh.tsv').open(encoding='utf-8') as file:
    rows = {row['page']: row for row in csv.DictReader(file, delimiter='\t')}
  assert rows.keys() == names
  assert all(re.search('[\u4e00-\u9fff]', row['introduction']) for row in rows.values())


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
  assert not misled_queries('en', main_entries(english))
  assert not misled_queries('zh', main_entries(chinese))
