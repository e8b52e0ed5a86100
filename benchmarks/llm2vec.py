"""Make a small decoder an encoder of sentences (LLM2Vec), next to an encoder that is trained as one from the start.

    python -m benchmarks.llm2vec --data=DIR --seeds=3 --minutes=60
    python -m benchmarks.llm2vec --table

DIR contains the files TEXT, DEV and TESTS, at any depth. The steps of the chain (CHAIN) start from one another: a
decoder learns causal language modeling on Wikipedia; then masked next-token prediction with bidirectional attention;
then unsupervised SimCSE on sentences of the same text. The encoder has the same layers (LLaMA's, as EuroBERT has
them), learns masked language modeling for as long as the decoder's two steps together take, and the same SimCSE. Its
number of updates follows from the speed that both have reached here; the table prints the seconds. All parameters are
trained in each step. The score is Spearman's correlation on STS-B and SICK, with the mean of the token states as
vector. Each step is a line of figures/llm2vec.jsonl; it is not done again, so that the same command continues after
an interruption. The table is printed from these lines.
"""
import csv
import dataclasses
import gzip
import json
import lzma
import pathlib
import random
import re
import statistics
import time
from typing import Any, NamedTuple

from benchmarks import kept

TABLE = kept.Table('llm2vec', 'benchmarks.llm2vec:measure')
TEXT, DEV = 'enwiki2015_sample.txt.xz', 'stsb_dev.tsv.gz'
TESTS = {'STS-B': ('stsb_test.tsv.gz', 'score'), 'SICK': ('sick_test.tsv.gz', 'relatedness')}
LAYERS, WIDTH, HEADS, VOCAB, LENGTH, BATCH = 2, 128, 2, 4096, 128, 16
SENTENCES = 12_000
SPEED_UPDATES = 60
"""updates of the encoder that measure its speed"""


class Step(NamedTuple):
  """A step of the chain."""

  title: str
  start: str
  """name of the step whose model it starts from"""
  updates: int
  """of pre-training; 0: as many as take the time of the steps in `as_long_as`; -1: SimCSE"""
  as_long_as: tuple[str, ...] = ()


CHAIN = {
    'decoder': Step('causal LM', '', 1100),
    'decoder-simcse': Step('causal LM, SimCSE', 'decoder', -1),
    'mntp': Step('causal LM, masked next tokens', 'decoder', 275),
    'mntp-simcse': Step('causal LM, masked next tokens, SimCSE (LLM2Vec)', 'mntp', -1),
    'speed': Step('', '', SPEED_UPDATES),
    'mlm': Step('masked LM', '', 0, ('decoder', 'mntp')),
    'mlm-simcse': Step('masked LM, SimCSE', 'mlm', -1)}


def main() -> None:
  parser = TABLE.make_parser(__doc__)
  parser.add_argument('--share', type=float, default=1.0, help='share of the updates, for a trial')
  args = parser.parse_args()
  keys = ({'step': name, 'seed': seed, 'share': args.share} for seed in range(args.seeds) for name in CHAIN)
  TABLE.fill(args, keys, lambda key: {'updates': count_updates(key)})
  print_table()


def count_updates(key: dict[str, Any]) -> int:
  """Return the number of updates of a step, from the stored results of earlier ones; -1: one epoch of SimCSE."""
  step = CHAIN[key['step']]
  if step.as_long_as:
    return fit_updates([TABLE.read(**{**key, 'step': other})[0] for other in (*step.as_long_as, 'speed')])
  return max(6, round(step.updates * key['share'])) if step.updates > 0 else step.updates


def fit_updates(results: list[dict[str, Any]]) -> int:
  """Return the updates that take the time of all results but the last at the speed of the last."""
  seconds = sum(found['steps'] * LENGTH * BATCH / found['speed'] for found in results[:-1])
  return max(2, round(seconds * results[-1]['speed'] / (LENGTH * BATCH)))


def measure(given: dict[str, Any]) -> dict[str, Any]:
  """Do one step of the chain, and compare the sentences of TESTS with its model."""
  import plm_jax
  from plm_jax.runs import run as runs

  config = make_run(given)
  began = time.time()
  result = runs.run(config)
  if result is None or not result.finished:
    kept.interrupted(config.folder)
  # Median, because other processes and the compiler disturb some of the intervals.
  speeds = [row['tokens_per_second'] for row in map(json.loads, (
      pathlib.Path(config.folder) / 'metrics.jsonl').read_text().splitlines()) if 'tokens_per_second' in row]
  found = {'steps': result.step, 'seconds': round(time.time() - began), 'training': round(result.seconds),
           'speed': statistics.median(speeds)}
  if given['step'] == 'speed':
    return found
  trained: Any = plm_jax.load(config.folder)
  if trained.task is None:
    trained = as_encoder(trained)
  if given['step'] == 'decoder':
    bidirectional = dataclasses.replace(trained, model=dataclasses.replace(trained.model, causal=False))
    found['untrained'] = score(bidirectional, given['data'], given['share'])
  return {'scores': score(trained, given['data'], given['share']), **found}


def as_encoder(trained: Any) -> Any:
  """Return a pre-trained model as an encoder of texts by the mean of their tokens."""
  from plm_jax.tasks.embedding_losses import InBatch
  from plm_jax.tasks.sentence_embedding import EmbeddingTask
  return dataclasses.replace(trained, task=EmbeddingTask(family=trained.family, vector_loss=InBatch()))


def score(trained: Any, data: str, share: float) -> dict[str, float]:
  """Compute Spearman's correlation of cosines and labels on each of TESTS, in percent; share: of the pairs."""
  import numpy as np

  import plm_jax
  from plm_jax.metrics.tasks import spearman

  found = {}
  for name, (file, label) in TESTS.items():
    rows = read_table(data, file)
    rows = rows[:max(100, round(len(rows) * share))]
    vectors = plm_jax.encode(trained, [row[side] for side in ('sentence1', 'sentence2') for row in rows])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (vectors[:len(rows)] * vectors[len(rows):]).sum(1)
    found[name] = spearman([float(row[label]) for row in rows], cosines)
  return found


def read_table(data: str, name: str) -> list[dict[str, str]]:
  """Read a file of tab-separated values."""
  lines = gzip.decompress(kept.place(data, name).read_bytes()).decode().splitlines()
  return list(csv.DictReader(lines, delimiter='\t', quoting=csv.QUOTE_NONE))


def make_run(given: dict[str, Any]) -> Any:
  """Build the run of a step."""
  from plm_jax import recipes, validation
  from plm_jax.cli import finetune
  from plm_jax.config.run import Phase
  from plm_jax.objectives.mntp import MaskedNextToken
  from plm_jax.recipes import scale_presets

  step, seed, updates = CHAIN[given['step']], given['seed'], given['updates']
  folder = pathlib.Path(given['output']).expanduser() / str(seed)
  start, output = str(folder / step.start) if step.start else '', str(folder / given['step'])
  if updates < 0:  # SimCSE: two passes with different dropout
    sentences = write_sentences(given['data'], folder.parent, given['share'])
    return finetune.parse('', [
        '--task=embedding', '--loss=in_batch', f'--init={start}', f'--train={sentences}',
        f'--dev={kept.place(given["data"], DEV)}', f'--output={output}', f'--seed={seed}',
        '--model.block.dropout=0.1', '--objective.vector.pooling=mean', '--data.baseline=False', '--data.epochs=1',
        '--train.phases.0.length=32', '--train.phases.0.batch=64', '--optim.peak=3e-4', '--data.evaluations=4',
        '--train.log-every=20'], '')[0]
  is_encoder = given['step'] in ('speed', 'mlm')
  run: Any = scale_presets.resize_run(
      recipes.find_recipe('eurobert_210m' if is_encoder else 'llama2_7b')(), LAYERS, WIDTH, HEADS, VOCAB, LENGTH)
  changes: dict[str, Any] = {
      'data.path': (str(write_text(given['data'], folder.parent)),), 'data.prepare.heldout': 0.01,
      'data.prepare.sample': 10_000_000, 'train.phases': (Phase(updates, LENGTH, BATCH),), 'train.accumulate': 1,
      'train.log_every': max(1, min(20, updates // 3)), 'train.eval_every': updates, 'train.save_every': max(1, updates // 4), 'train.keep': 1,
      'optim.peak': 2e-3, 'optim.warmup': updates // 10, 'optim.schedule': 'linear', 'optim.b2': 0.98,
      'model.block.init.std': 0.04, 'model.stack.scan': False, 'warm_start': start, 'output': output, 'seed': seed}
  if is_encoder:
    changes['objective.mask_rate'] = 0.3
  if given['step'] == 'mntp':  # a tokenizer of Wikipedia has no `_`, which LLM2Vec takes as mask
    changes |= {'model.causal': False, 'optim.peak': 1e-3, 'objective': MaskedNextToken(
        causal=0.0, mask_rate=0.2, final_mask_rate=None, lengths=(1.0,), mask_token='<unk>')}
  return validation.with_paths(run, changes)


def write_text(data: str, folder: pathlib.Path) -> pathlib.Path:
  """Write the text for pre-training, unless it exists."""
  file = folder / 'text.txt'
  if not file.exists():
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix('.part')
    part.write_bytes(lzma.decompress(kept.place(data, TEXT).read_bytes()))
    part.replace(file)
  return file


def write_sentences(data: str, folder: pathlib.Path, share: float) -> pathlib.Path:
  """Write sentences of the text, one per line, unless they exist."""
  file = folder / f'sentences_{share:g}.txt'
  if not file.exists():
    found = re.findall(r'(?<=[.!?] )[A-Z][^.!?\n]{30,200}[.!?](?= )', write_text(data, folder).read_text())
    random.Random(0).shuffle(found)
    file.write_text(''.join(f'{sentence}\n' for sentence in found[:max(128, round(SENTENCES * share))]))
  return file


def print_table() -> None:
  """Print the scores of each step, with the mean and the standard deviation over seeds."""
  print(f'| trained with | {" | ".join(TESTS)} | updates | seconds of training, with the steps before |')
  print('|---' * (3 + len(TESTS)) + '|')
  for name, step in CHAIN.items():
    own = TABLE.read(step=name, share=1.0)
    if not step.title or not own:
      continue
    chain = [name]
    while CHAIN[chain[-1]].start:
      chain.append(CHAIN[chain[-1]].start)
    seconds = sum(statistics.mean(found['training'] for found in TABLE.read(step=one, share=1.0)) for one in chain)
    tail = f'{own[0]["steps"]:,} | {seconds:.0f} |'
    print(f'| {step.title} | {format_scores([found["scores"] for found in own])} | {tail}')
    if 'untrained' in own[0]:
      scores = format_scores([found['untrained'] for found in own])
      print(f'| {step.title}, with bidirectional attention | {scores} | {tail}')


def format_scores(found: list[dict[str, float]]) -> str:
  """Format the scores of all seeds as cells."""
  return ' | '.join(kept.shown([scores[name] for scores in found], 1) for name in TESTS)


if __name__ == '__main__':
  main()
