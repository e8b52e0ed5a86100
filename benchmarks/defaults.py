"""Compare the default settings of fine-tuning with a sweep and with simple baselines, on four real data sets.

    python -m benchmarks.defaults --data=DIR --english=runs/en --chinese=runs/zh --limit=1500
    python -m benchmarks.defaults --data=DIR --english=runs/en --sets ner similarity --seeds=3 --rates --epochs

DIR contains the files that SETS names, at any depth. `--english` and `--chinese` are runs of an encoder. Every set is
divided into training, development and test examples. The development set selects the checkpoint, and the test set gives
the scores. The sweep tries every learning rate of `--rates` with the default number of epochs and with every number of
`--epochs`, with one seed. All runs share this process. Scores are stored in `scores.jsonl` in the output folder; a
configuration with a stored score is not run again.
"""
import argparse
from collections.abc import Callable, Sequence
import gzip
import hashlib
import json
import pathlib
import random
from typing import Any, NamedTuple

from benchmarks import kept
from benchmarks.side_by_side import machine
from plm_jax import validation
from plm_jax.config.run import FinetuneRun
from plm_jax.loading.loaded_model import read_model_config
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import InitialModel
from plm_jax.runs import run as runs
from plm_jax.tasks import baselines
from plm_jax.tasks.labeled_data import add_class_names, read_examples

EVALUATIONS = 5  # per run: with test sets of this size, one per epoch would take longer than training
PARTS = 'train', 'dev', 'test'


class Table(NamedTuple):
  """The contents of a file: its header line, examples as text, and the separator between examples."""

  head: str
  examples: list[str]
  between: str = '\n'


class Set(NamedTuple):
  """A data set."""

  task: str
  files: tuple[str, ...]
  """one file for each of PARTS, or one file that is divided"""
  ending: str
  changes: dict[str, Any] = {}  # noqa: RUF012
  """changes to the default settings: the evaluation metric"""
  chinese: bool = False
  reader: Callable[[str], Table] | None = None
  """function that parses a file into examples; None: a table with one row per line"""


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder of the files')
  parser.add_argument('--english', help='run of a pre-trained English encoder')
  parser.add_argument('--chinese', help='run of a pre-trained Chinese encoder')
  parser.add_argument('--sets', nargs='*', choices=SETS, default=[*SETS])
  parser.add_argument('--limit', type=int, default=1500, help='training examples')
  parser.add_argument('--seeds', type=int, default=3, help='number of seeds for the defaults')
  parser.add_argument('--rates', nargs='*', type=float, default=[2e-4, 5e-4, 1e-3])
  parser.add_argument('--epochs', nargs='*', type=float, default=[])
  parser.add_argument('--output', default='runs/defaults')
  args = parser.parse_args()
  output = pathlib.Path(args.output)
  output.mkdir(parents=True, exist_ok=True)
  print(machine('jax'))
  print('\n| set | measure | defaults | best of the sweep | baseline |')
  print('|---' * 5 + '|')
  for name in args.sets:
    folder = args.chinese if SETS[name].chinese else args.english
    if not folder:
      continue
    files = divided(SETS[name], args.data, output / name, args.limit)
    config = configured(SETS[name], folder, files)
    scores = [score(output, config, {'seed': seed}) for seed in range(args.seeds)]
    sweep = {(rate, epochs): score(output, config, {'optim.peak': rate} | ({} if epochs is None else {
        'data.epochs': epochs, 'data.least_steps': 0})) for rate in args.rates for epochs in (None, *args.epochs)}
    best = max(sweep, key=lambda point: sweep[point]) if sweep else None
    told = f'{sweep[best]:.1f} (rate {best[0]:g}, epochs {best[1] or "of the defaults"})' if best else '-'
    baseline = baseline_of(config)
    print(f'| {name} | {config.objective.metric_names[0]} | {kept.shown(scores, 1)} | {told} | '
          f'{baseline.scores[config.objective.metric_names[0]]:.1f}, {baseline.name} |', flush=True)


def divided(of: Set, data: str, folder: pathlib.Path, limit: int) -> list[str]:
  """Write training, development and test examples, and return their files.

  There are `limit` training examples, a fifth as many development examples and two fifths as many test examples (each
  at least 200). Parts that share a file get disjoint examples. If a file has too few, each part gets fewer.
  """
  sizes = limit, max(200, limit // 5), max(200, 2 * limit // 5)
  folder.mkdir(parents=True, exist_ok=True)
  tables: dict[str, Table] = {}
  for name in dict.fromkeys(of.files):
    tables[name] = (of.reader or lines)(gzip.decompress(kept.place(data, name).read_bytes()).decode())
    random.Random(0).shuffle(tables[name].examples)
  written, taken = [], dict.fromkeys(tables, 0)
  names = of.files if len(of.files) > 1 else of.files * len(PARTS)
  for part, name, size in zip(PARTS, names, sizes, strict=True):
    table, shared = tables[name], sum(other for other, place in zip(sizes, names, strict=True) if place == name)
    size = min(size, len(table.examples) * size // shared)
    some = table.examples[taken[name]:taken[name] + size]
    taken[name] += size
    file = folder / f'{part}.{of.ending}'
    file.write_text(table.between.join([table.head] * bool(table.head) + some) + '\n')
    written.append(str(file))
  return written


def lines(text: str) -> Table:
  """Read a table with one row per line. The first line has the column names."""
  head, *examples = text.rstrip('\n').split('\n')
  return Table(head, examples)


def sentences(text: str) -> Table:
  """Read sentences that have one word per line and are separated by empty lines."""
  return Table('', text.strip('\n').split('\n\n'), '\n\n')


def questions(text: str) -> Table:
  """Make pairs of a question and the paragraph with its answer from SQuAD's JSON."""
  plain = lambda value: ' '.join(value.split())
  return Table('anchor\tpositive', [
      f'{plain(asked["question"])}\t{plain(paragraph["context"])}' for article in json.loads(text)['data']
      for paragraph in article['paragraphs'] for asked in paragraph['qas']])


def configured(of: Set, folder: str, files: Sequence[str]) -> FinetuneRun:
  """Configure a run with the default settings. The second development set is the test set."""
  start = InitialModel(folder, *read_model_config(folder))
  return validation.with_paths(finetune.recipe(of.task, start, None, (files[0],), (files[1], files[2])), of.changes)


def score(output: pathlib.Path, config: FinetuneRun, changes: dict[str, Any]) -> float:
  """Fine-tune, unless a score is stored, and return the main metric on the test set."""
  kept_file = output / 'scores.jsonl'
  key = {'train': config.data.train[0], 'start': config.warm_start, **changes}
  for line in kept_file.read_text().splitlines() if kept_file.exists() else ():
    found = json.loads(line)
    if found['key'] == key:
      return found['score']
  folder = output / 'runs' / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
  config = validation.with_paths(config, {'output': str(folder), **changes, 'data.baseline': False})
  examples = len(read_examples(config.objective, config.data.train, 'train', config.data).examples)
  batches = -(-examples // config.train.phases[0].batch)
  epochs = max(config.data.epochs, config.data.least_steps / batches)
  result = runs.run(validation.with_paths(config, {'data.evaluations': min(1.0, EVALUATIONS / epochs)}))
  if result is None or not result.finished:
    kept.interrupted(str(output))
  value = result.heldout[f'test_{config.objective.metric_names[0]}']
  with kept_file.open('a') as file:
    file.write(json.dumps({'key': key, 'score': value, 'steps': result.step, 'best': result.best}) + '\n')
  return value


def baseline_of(config: FinetuneRun) -> baselines.Baseline:
  """Evaluate the simple baseline on the test set."""
  found = read_examples(config.objective, config.data.train, 'train', config.data)
  task: Any = add_class_names(config.objective, found)
  test = read_examples(task, [config.data.dev[1]], 'dev', config.data)
  baseline = baselines.simple_baseline(task, found.examples, test.examples)
  assert baseline, 'every set has a simple baseline'
  return baseline


SETS = {
    'reviews': Set('chnsenticorp', tuple(f'chnsenticorp_{part}.tsv.gz' for part in PARTS), 'tsv', chinese=True),
    'ner': Set('wikigold', ('wikigold.conll.gz',), 'conll', reader=sentences),
    'similarity': Set('stsb', tuple(f'stsb_{part}.tsv.gz' for part in PARTS), 'tsv',
                      {'objective.measures': ('spearman', 'pearson')}),
    'retrieval': Set('embedding', ('squad_v1.1_train_part.json.gz', *['squad_v1.1_devA.json.gz'] * 2), 'tsv',
                     {'objective.measured_by': 'retrieval'}, reader=questions)}

if __name__ == '__main__':
  main()
