"""Commands of the README and the site's pages, run as written, with --scale=test.

A run has two steps, which tests trace (`tiny.traced_step`). The inputs of a command are made before
it: the text, and checkpoints from the runs of earlier commands.
"""
import dataclasses
import json
import lzma
import pathlib
import re
import shlex
import shutil

import tiny
import tuned

from experiments.babylm.__main__ import main
import plm_jax
from plm_jax import recipes
from plm_jax.cli import commands, vectors
from plm_jax.cli.main import answer
from plm_jax.cli.run import parse
from plm_jax.config.run import Phase, TrainConfig
from plm_jax.runs.run import run

ROOT = pathlib.Path(__file__).parents[2]
# Beginnings of commands, and why they are not run here.
ELSEWHERE = {
    'scripts/': 'they make and ask machines that are paid for',
    '--scale=gpu': 'it measures the time of steps: tests/planning/test_gpu_scale.py',
    '--mode=compile': 'the TPU compiler is asked by tests/compile/test_compile.py',
    '-m pytest': 'it is what runs this',
    '--beam': 'Beam is not in the environment of the tests, whose test_(clean_)parallel.py have '
              'its stages',
    '--task=sst2': 'its data is downloaded',
    'hf://': 'the same', 'Qwen/': 'the same', 'google/gemma': 'the same',
    't5gemma_9b_2b --warm': 'it starts from a run of such a model',
    ' push ': 'a model is uploaded', 'YOU/NAME': 'it was uploaded',
    ' mteb ': 'the same; its tests are in tests/api/test_mteb_adapter.py',
    '--fast=': 'the models here are too small for a million words: '
               'tests/experiments/test_word_checkpoints.py',
    'experiments.babylm export': 'the same',
    'experiments.babylm push': 'the same',
    '--hosts.distributed': 'several processes are those of tests/distributed/test_distributed.py'}
# Options that reduce vocabulary or work for the smallest models.
ROOM = {'finetune': ['--scale=test'], 'inspect': ['--scale=test'], 'prepare': ['--vocab=2048'],
        'generate': ['--max-new=8']}
SMALLER = {'--length=128': '--length=32', '--stride=64': '--stride=16',
           '--max-new=64': '--max-new=8',
           '--workers=16': '--workers=1', '--beams=4': '--beams=2',
           '--optim.warmup=1000': '--optim.warmup=1', '--optim.warmup=500': '--optim.warmup=1'}


def shown(text: str) -> list[str]:
  """Return the commands of a page: indented lines that call Python or a script, with continuation
  lines joined."""
  text = text.replace('\\\n', ' ')
  lines = [line.partition('   #')[0].strip() for line in re.findall(r'^    (\S.*)$', text, re.M)]
  return [line for line in lines if re.match(r'(\S*python3? |plm-jax |scripts/)', line)]


class World:
  """The folder in which commands run."""

  def __init__(self):
    self.text = tiny.text()
    lines = [line for line in self.text.splitlines() if line]
    pathlib.Path('corpus.txt.xz').write_bytes(lzma.compress(self.text.encode()))
    pathlib.Path('zhwiki.txt.xz').write_bytes(lzma.compress('\n\n'.join(
        f'数组的第{number}个值是数组的和。\n返回数组的形状和名字。' for number in range(999)).encode()))
    for name in ('other.txt', 'held_out.txt'):
      pathlib.Path(name).write_text(self.text[:20_000])
    pathlib.Path('BUCKET/text').mkdir(parents=True)
    self.rows('BUCKET/text/all.jsonl', [{'text': document} for document in self.text.split('\n\n')])
    asked = [{'goal': one, 'sol1': two, 'sol2': three, 'label': 0}
             for one, two, three in zip(lines[::3], lines[1::3], lines[2::3], strict=False)][:8]
    pathlib.Path('piqa').mkdir()
    self.rows('piqa/valid.jsonl', asked[:4])
    self.rows('piqa/train.jsonl', asked)
    pathlib.Path('lambada').mkdir()
    self.rows('lambada/test.jsonl', [{'text': line} for line in lines[:4]])
    told = [{'dialogue': line, 'document': line, 'summary': line.split()[0]}
            for line in lines[:400]]
    self.rows('dialogues.jsonl', told)
    self.rows('held_out.jsonl', told[:4])
    self.table('sst2.tsv', 'sentence\tlabel',
               [f'{line}\t{n % 2}' for n, line in enumerate(lines[:400])])
    for name in ('reviews.tsv', 'dev.tsv', 'more.tsv'):
      self.table(name, 'text\tlabel',
                 [f'{line}\t{("bad", "good")[n % 2]}' for n, line in enumerate(lines[:32])])
    for name in ('context.txt', 'texts.txt'):
      pathlib.Path(name).write_text('\n'.join(lines[:8]) + '\n')
    scored = [f'{one}\t{lines[n // 2]}\t{n % 5}' for n, one in enumerate(lines[:8])]
    self.table('sts.tsv', 'sentence1\tsentence2\tscore', scored)
    pathlib.Path('blimp').mkdir()
    pathlib.Path('blimp/pairs.jsonl').write_text((ROOT / 'tests/fixtures/blimp.jsonl').read_text())
    for name in ('train.conll', 'dev.conll'):
      pathlib.Path(name).write_text('Ana B-PER\ncame O\n\nRome B-LOC\nwaits O\n')
    pathlib.Path('glove.txt').write_text('ana 1 2 3\nrome 3 2 1\n')
    for name in ('en', 'de', 'zh'):
      pathlib.Path(f'{name}.vec').write_text('array 1 2\nvalue 2 1\n')
      pathlib.Path(f'en-{name}.txt').write_text('array\tvalue\n')
    for name, kind in (('names', 'tagging'), ('answers', 'answers')):
      plm_jax.export(tuned.trained(kind), f'runs/{name}')
    for folder in ('train_10M', 'glue'):
      pathlib.Path(folder).mkdir()
    pathlib.Path('train_10M/books.train').write_text(self.text)
    for part in ('train', 'dev'):
      self.table(f'glue/cola_{part}.tsv', 'sentence\tlabel',
                 [f'{line}\t{n % 2}' for n, line in enumerate(lines[:32])])
    pathlib.Path('evaluation_data/full_eval/supplement_filtered').mkdir(parents=True)
    self.rows('evaluation_data/full_eval/supplement_filtered/turn_taking.jsonl', [
        {'sentence_good': lines[n][:20], 'sentence_bad': lines[n + 1][:20]} for n in range(2)])
    self.rows('pairs.jsonl', [{'query': line.split()[0], 'positive': line} for line in lines[:40]])
    pathlib.Path('documents.txt').write_text('\n'.join(lines[:60]) + '\n')
    judged = [f'{line.split()[0]}\t{other}\t{int(line is other)}' for line in lines[:8]
              for other in lines[:4]]
    self.table('judged.tsv', 'query\tdocument\trelevance', judged)
    self.rows('tickets.jsonl', [{'text': line, 'labels': ['new', 'urgent', 'billing'][:n % 4]}
                                for n, line in enumerate(lines[:40])])
    pathlib.Path('scifact/qrels').mkdir(parents=True)
    self.rows('scifact/corpus.jsonl',
              [{'_id': str(n), 'title': '', 'text': line} for n, line in enumerate(lines[:30])])
    self.rows('scifact/queries.jsonl',
              [{'_id': f'q{n}', 'text': line.split()[0]} for n, line in enumerate(lines[:5])])
    self.table('scifact/qrels/test.tsv', 'query-id\tcorpus-id\tscore',
               [f'q{n}\t{n}\t1' for n in range(5)])
    self.table('pairs.tsv', 'en\tde', [f'{line}\t{line}' for line in lines])
    for name in ('multi30k.tsv', 'multi30k_dev.tsv'):
      self.table(name, 'de\ten', [f'{line}\t{line}' for line in lines])

  def rows(self, name: str, values: list[dict]) -> None:
    pathlib.Path(name).write_text(''.join(json.dumps(value) + '\n' for value in values))

  def table(self, name: str, columns: str, lines: list[str]) -> None:
    pathlib.Path(name).write_text('\n'.join([columns, *lines]) + '\n')

  def provide(self, line: str) -> None:
    """Create the inputs of the command that no earlier command has created."""
    # Names of the hub that are local folders here.
    for name, run_of in (('google-bert/bert-base-uncased', 'bert_base-laptop'),
                         ('bert-base-cased/', 'bert_base-laptop'),
                         ('openai-community/gpt2', 'gpt2_small-laptop'),
                         ('google-t5/t5-small', 't5_small')):
      if name in line and not pathlib.Path(name).exists():
        if name == 'google-t5/t5-small':
          self.train('t5_small', ['--data.path=corpus.txt.xz', '--output=runs/t5_small'])
        plm_jax.export(f'runs/{run_of}', name)
    if 'runs/other' in line:
      shutil.copytree('runs/bert_base-laptop', 'runs/other', dirs_exist_ok=True)
    if 'RECORDS' in line and not pathlib.Path('RECORDS').exists():
      plm_jax.prepare('corpus.txt.xz', 'RECORDS', tokenizer='runs/bert_base-laptop/tokenizer')

  def type(self, line: str, monkeypatch) -> None:
    """Runs a command in this process."""
    line = line.rpartition('&& ')[2].replace('gs://BUCKET', 'BUCKET').replace('.jsonl.gz', '.jsonl')
    line = re.sub('^plm-jax ', 'python -m plm_jax ', line)
    self.provide(line)
    words = [SMALLER.get(word, word) for word in shlex.split(line)]
    module, args = words[2], words[3:]
    if module == 'experiments.babylm':
      brief = ['--mesh.data=1', '--data.prepare.heldout=0.1', '--train.phases.0.steps=2']
      main([*(arg for arg in args if not arg.startswith('--scale')), '--scale=test',
            *([] if any(arg.startswith('--model=') for arg in args) else brief)])
      return
    # train alone lists the recipes
    if module == 'plm_jax' and (args[0] != 'train' or len(args) == 1):
      monkeypatch.setattr('sys.argv', ['plm_jax', *args, *ROOM.get(args[0], [])])
      if not answer(args):
        commands.main()
      return
    name, args = (args[1], args[2:]) if module == 'plm_jax' else (
        module.removeprefix('experiments.'), args)
    assert module == 'plm_jax' or (ROOT / 'experiments' / f'{name}.py').exists()
    if name in recipes.word_vectors.PUBLISHED:
      # words with vectors
      pathlib.Path('words.txt').write_text('an array of arrays\nthe value of values\n' * 200)
      smaller = [arg for arg in args if not arg.startswith(('--scale', '--data.path'))]
      vectors.start(name, [*smaller, '--scale=test', '--data.path=words.txt',
                           f'--output=runs/{name}-laptop'])
      return
    size = next((arg.partition('=')[2] for arg in args if arg.startswith('--size=')), '')
    self.train(recipes.find_recipe(name, size).name,
               [arg for arg in args if not arg.startswith('--size=')])

  def train(self, name: str, args: list[str]) -> None:
    """The run of a command: its options are understood, and two steps are made."""
    suffix = next((f'-{arg.partition("=")[2]}' for arg in args if arg.startswith('--scale=')), '')
    args = [arg for arg in args if not arg.startswith('--scale=')]
    args += ['--scale=test', '--mesh.data=1']
    if not any(arg.startswith('--data.heldout-path') for arg in args):
      args.append('--data.prepare.heldout=0.1')
    if not any(arg.startswith('--output=') for arg in args):
      folder = pathlib.Path(f'runs/{name}{suffix}')
      # concurrent commands, where a reader types one of them
      others = len([*folder.parent.glob(f'{folder.name}*')])
      args.append(f'--output={folder}' + (f'-{others}' if folder.exists() else ''))
    if not any(arg.startswith('--data.path') for arg in args):
      # the built-in corpus has separate tests
      args.append('--data.path=corpus.txt.xz')
    config = parse(recipes.find_recipe(name), args)
    brief = TrainConfig((Phase(2, 32, 8),), log_every=1, eval_every=2, eval_batches=1, save_every=2)
    result = run(dataclasses.replace(config, train=brief))
    assert result and result.finished
