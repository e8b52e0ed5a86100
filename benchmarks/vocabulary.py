"""Compare ways to continue a model in another language, at equal training time.

    python -m benchmarks.vocabulary --data=DIR --minutes=60
    python -m benchmarks.vocabulary --table

DIR contains the files that TEXTS names, at any depth. A GPT-2 of the laptop's size learns English with a byte-level
BPE. Then it continues on another language, with the same number of steps in each way (WAYS). All vocabularies have
the same size, so a step takes the same time in all ways. FOCUS trains fastText vectors first; the seconds of a run,
which are also printed, contain that. The score is the number of bits per byte of held-out text, which does not depend
on the tokenizer. Each run is a line of figures/vocabulary.jsonl; it is not done again, so that the same command
continues after an interruption. The table is printed from these lines.
"""
import dataclasses
import gzip
import itertools
import lzma
import pathlib
import statistics
import time
from typing import Any

from benchmarks import kept

TABLE = kept.Table('vocabulary', 'benchmarks.vocabulary:measure')
TEXTS = {'en': 'enwiki2015_sample.txt.xz', 'zh': 'zhwiki_sample.txt.xz', 'de': 'multi30k_de-en_train.tsv.gz'}
WAYS = {
    'scratch': 'from scratch, new vocabulary', 'old': 'continued, old vocabulary',
    'mean': 'continued, new vocabulary, mean of the old tokens', 'focus': 'continued, new vocabulary, FOCUS'}
VOCAB = 4096


def main() -> None:
  parser = TABLE.make_parser(__doc__)
  parser.add_argument('--languages', nargs='*', choices=TEXTS, default=['zh', 'de'])
  parser.add_argument('--ways', nargs='*', choices=WAYS, default=[*WAYS])
  parser.add_argument('--base', type=int, default=1000, help='steps of the English model')
  parser.add_argument('--steps', nargs='*', type=int, default=[300], help='numbers of steps in the other language')
  args = parser.parse_args()
  orders = itertools.product(range(args.seeds), args.steps, args.languages, args.ways)
  TABLE.fill(args, ({'language': language, 'way': way, 'base': args.base, 'steps': steps, 'seed': seed}
                    for seed, steps, language, way in orders))
  print_table()


def measure(given: dict[str, Any]) -> dict[str, Any]:
  """Train the English model if there is none, and one run from it."""
  from plm_jax import recipes, validation
  from plm_jax.config.run import Phase
  from plm_jax.recipes import scale_presets
  from plm_jax.runs import run as runs
  from plm_jax.runs.pretrain import prepare_corpora

  folder = pathlib.Path(given['output']).expanduser()
  small: Any = scale_presets.resize_run(recipes.find_recipe('gpt2_small')(), 4, 128, 4, VOCAB, 128)

  def make_run(name: str, language: str, steps: int, changes: dict[str, Any]) -> Any:
    """Build a run; its learning rate is that of a small model, and its warmup a tenth of the steps."""
    text = write_text(given['data'], language, folder)
    return validation.with_paths(small, {
        'data.path': (str(text),), 'data.prepare.heldout': 0.01, 'data.prepare.sample': 10_000_000,
        'train.phases': (Phase(steps, 128, 16),), 'train.eval_batches': 10_000, 'train.eval_every': steps,
        'train.save_every': max(1, steps // 4), 'train.keep': 1, 'optim.peak': 2e-3, 'optim.warmup': steps // 10,
        'output': str(folder / name), **changes})

  base = make_run(f'en-{given["base"]}', 'en', given['base'], {})
  result = runs.run(base)
  if result is None or not result.finished:
    kept.interrupted(base.folder)
  name = '-'.join(map(str, [given['language'], given['way'], given['steps'], given['seed']]))
  changes: dict[str, Any] = {'seed': given['seed']}
  if given['way'] != 'scratch':
    changes['warm_start'] = base.folder
  fresh = make_run(name, given['language'], given['steps'], changes)
  if given['way'] != 'old':  # records with a tokenizer of the language
    folders, _ = prepare_corpora(dataclasses.replace(fresh, warm_start=''))
    changes['data.path'] = (str(folders[0]),)
  if given['way'] in ('mean', 'focus'):
    changes['tuning.vocabulary'] = given['way']
  config = make_run(name, given['language'], given['steps'], changes)
  began = time.time()
  result = runs.run(config)
  if result is None or not result.finished:
    kept.interrupted(config.folder)
  return {'bits_per_byte': result.heldout['bits_per_byte'], 'seconds': round(time.time() - began),
          'training': round(result.seconds)}


def write_text(data: str, language: str, folder: pathlib.Path) -> pathlib.Path:
  """Write the text of a language in documents; German sentences are documents of 20."""
  file = folder / f'{language}.txt'
  if file.exists():
    return file
  content = kept.place(data, TEXTS[language]).read_bytes()
  if language == 'de':
    rows = gzip.decompress(content).decode().removesuffix('\n').split('\n')
    column = rows[0].split('\t').index('de')
    sentences = [row.split('\t')[column] for row in rows[1:]]
    text = '\n\n'.join('\n'.join(sentences[n:n + 20]) for n in range(0, len(sentences), 20)) + '\n'
  else:
    text = lzma.decompress(content).decode()
  folder.mkdir(parents=True, exist_ok=True)
  part = file.with_suffix('.part')
  part.write_text(text)
  part.replace(file)
  return file


def print_table() -> None:
  """Print the bits per byte of each way, with the mean and the standard deviation over seeds."""
  settings = sorted({(found['language'], found['base'], found['steps']) for found in TABLE.read()})
  print('| way |' + ''.join(f' {language}, {steps:,} steps |' for language, _, steps in settings))
  print('|---' * (len(settings) + 1) + '|')
  for way, title in WAYS.items():
    cells = []
    for language, base, steps in settings:
      own = TABLE.read(language=language, base=base, steps=steps, way=way)
      seconds = f' ({statistics.mean(found["seconds"] for found in own):.0f} s)' if own else ''
      cells.append(kept.shown([found['bits_per_byte'] for found in own], digits=3) + seconds)
    print(f'| {title} | ' + ' | '.join(cells) + ' |')


if __name__ == '__main__':
  main()
