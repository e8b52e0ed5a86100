"""Pre-train a small encoder, then make it a retriever in several ways, next to BM25.

    python -m benchmarks.search_chain --data=DIR --seeds=3 --minutes=60
    python -m benchmarks.search_chain --table

DIR contains the files TEXT, TRAIN and TEST, at any depth. The steps of the chain (CHAIN) start from one another:
masked LM on Wikipedia; then more of it, or RetroMAE; then contrastive training of dense vectors, SPLADE or ColBERT on
the questions and paragraphs of TRAIN (SQuAD, 4,370 questions). The score is nDCG@10: each question of TEST (the first
half of SQuAD's development set, 24 articles) retrieves its paragraph among all 1,048 of TEST. Neither Wikipedia's
sample nor TRAIN has an article of TEST. Steps that are compared train for about the same time; the table prints the
seconds of CPU time, which other programs change little. Each step is a line of figures/search_chain.jsonl; it is not
done again, so that the same command continues after an interruption. The table is printed from these lines.
"""
import dataclasses
import gzip
import json
import lzma
import pathlib
import statistics
import time
from typing import Any, NamedTuple

from benchmarks import kept

TABLE = kept.Table('search_chain', 'benchmarks.search_chain:measure')
TEXT, TRAIN, TEST = 'enwiki2015_sample.txt.xz', 'squad_v1.1_train_part.json.gz', 'squad_v1.1_devA.json.gz'
LAYERS, WIDTH, HEADS, VOCAB, LENGTH, BATCH = 2, 192, 3, 4096, 192, 10


class Step(NamedTuple):
  """A step of the chain."""

  title: str
  start: str
  """name of the step whose model it starts from"""
  amount: int
  """updates of pre-training; epochs of fine-tuning"""
  options: tuple[str, ...] = ()
  """of fine-tuning"""


DENSE = '--task=embedding', '--loss=in_batch', '--objective.vector.pooling=first'
SPLADE, COLBERT = ('--task=splade', '--loss=in_batch'), ('--task=colbert', '--scale=laptop')
CHAIN = {
    'mlm': Step('masked LM', '', 3000),
    'more': Step('more masked LM', 'mlm', 1500),
    'retro': Step('RetroMAE', 'mlm', 540),
    'more-dense': Step('more masked LM, dense vectors', 'more', 2, DENSE),
    'retro-dense': Step('RetroMAE, dense vectors', 'retro', 2, DENSE),
    'retro-splade': Step('RetroMAE, SPLADE', 'retro', 1, SPLADE),
    'retro-colbert': Step('RetroMAE, ColBERT', 'retro', 2, COLBERT)}


def main() -> None:
  parser = TABLE.make_parser(__doc__)
  parser.add_argument('--share', type=float, default=1.0, help='share of the updates and epochs, for a trial')
  args = parser.parse_args()
  TABLE.fill(args, ({'step': name, 'seed': seed, 'share': args.share} for seed in range(args.seeds)
                    for name in ['bm25'] * (not seed) + list(CHAIN)))
  print_table()


def measure(given: dict[str, Any]) -> dict[str, Any]:
  """Do one step of the chain, and retrieve with its model."""
  import plm_jax
  from plm_jax.api import retrieval
  from plm_jax.runs import run as runs

  data = read_questions(given['data'], TEST)
  if given['step'] == 'bm25':
    return {'scores': retrieval.score_retrieval(data, retrieval.retrieve('bm25', data))}
  config = make_run(given)
  began = time.process_time()
  result = runs.run(config)
  if result is None or not result.finished:
    kept.interrupted(config.folder)
  seconds = round(time.process_time() - began)
  trained = plm_jax.load(config.folder)
  if not CHAIN[given['step']].options:  # [CLS], as the fine-tuned dense vectors
    trained = as_encoder(trained)
  numbers: dict[str, float] = {}
  scores = retrieval.score_retrieval(data, retrieval.retrieve(trained, data, statistics=numbers))
  return {'scores': scores | numbers, 'steps': result.step, 'cpu_seconds': seconds}


def as_encoder(trained: Any) -> Any:
  """Return a pre-trained model as an encoder of texts by the vector of their first token."""
  from plm_jax.layers.pooling import VectorConfig
  from plm_jax.tasks.sentence_embedding import EmbeddingTask
  task = EmbeddingTask(family=trained.family, vector=VectorConfig(('first',)))
  return dataclasses.replace(trained, task=task)


def make_run(given: dict[str, Any]) -> Any:
  """Build the run of a step."""
  from benchmarks import modern
  from plm_jax import recipes, validation
  from plm_jax.cli import finetune
  from plm_jax.config.run import Phase
  from plm_jax.objectives.masking import Distinct
  from plm_jax.objectives.mlm import MaskedLM
  from plm_jax.objectives.row_builders import Single
  from plm_jax.recipes import scale_presets

  step, seed = CHAIN[given['step']], given['seed']
  folder = pathlib.Path(given['output']).expanduser() / str(seed)
  start, output = str(folder / step.start) if step.start else '', str(folder / given['step'])
  amount = max(1, round(step.amount * given['share']))
  if step.options:
    pairs = write_pairs(given['data'], folder.parent)
    return finetune.parse('', [
        f'--init={start}', f'--train={pairs}', f'--output={output}', f'--seed={seed}', '--data.baseline=False',
        f'--data.epochs={amount}', f'--train.phases.0.length={LENGTH}', '--train.phases.0.batch=32',
        '--optim.peak=5e-4', *step.options], '')[0]
  run: Any = scale_presets.resize_run(
      recipes.find_recipe('retromae_base')(), LAYERS, WIDTH, HEADS, VOCAB, LENGTH)
  # With learned positions and post-norm, a model of this size learns nothing but word frequencies in these times
  # ("Modern changes to BERT" in results/quality.md).
  changes: dict[str, Any] = {
      **modern.pre_norm(WIDTH), **modern.rotary(),
      'data.path': (str(write_text(given['data'], folder.parent)),), 'data.prepare.heldout': 0.01,
      'data.prepare.sample': 10_000_000, 'train.phases': (Phase(amount, LENGTH, BATCH),), 'train.eval_every': amount,
      'train.save_every': max(1, amount // 4), 'train.keep': 1, 'optim.peak': 1e-3, 'optim.warmup': amount // 10,
      'warm_start': start, 'output': output, 'seed': seed}
  if given['step'] != 'retro':
    changes['objective'] = MaskedLM(pair=Single(), masking=Distinct(unit='word'))
  return validation.with_paths(run, changes)


def write_text(data: str, folder: pathlib.Path) -> pathlib.Path:
  """Write the text for pre-training."""
  return write(folder / 'text.txt', lambda: lzma.decompress(kept.place(data, TEXT).read_bytes()).decode())


def write_pairs(data: str, folder: pathlib.Path) -> pathlib.Path:
  """Write questions and their paragraphs as training pairs."""
  def make() -> str:
    found = read_questions(data, TRAIN)
    rows = ({'query': text, 'positive': found.documents[next(iter(found.relevance[key]))]}
            for key, text in found.queries.items())
    return ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
  return write(folder / 'pairs.jsonl', make)


def write(file: pathlib.Path, make: Any) -> pathlib.Path:
  """Write a file with what `make` returns, unless it exists."""
  if not file.exists():
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix('.part')
    part.write_text(make())
    part.replace(file)
  return file


def read_questions(data: str, name: str) -> Any:
  """Read a file of SQuAD as retrieval data: each question has one relevant paragraph."""
  from plm_jax.evaluation.retrieval import RetrievalData

  documents, queries, relevance = {}, {}, {}
  for article in json.loads(gzip.decompress(kept.place(data, name).read_bytes()))['data']:
    for paragraph in article['paragraphs']:
      document = f'd{len(documents)}'
      documents[document] = paragraph['context']
      for question in paragraph['qas']:
        queries[question['id']] = question['question'].strip()
        relevance[question['id']] = {document: 1.0}
  return RetrievalData(documents, queries, relevance)


def print_table() -> None:
  """Print the scores of each step, with the mean and the standard deviation over seeds."""
  print('| step | nDCG@10 | recall of the first 100 | updates | CPU seconds |')
  print('|---' * 5 + '|')
  for name, title in {'bm25': 'BM25', **{name: step.title for name, step in CHAIN.items()}}.items():
    own = TABLE.read(step=name, share=1.0)
    cells = [kept.shown([found['scores'][metric] for found in own], 1) for metric in ('ndcg_10', 'recall')]
    if own and 'steps' in own[0]:
      cells += [f'{own[0]["steps"]:,}', f'{statistics.mean(found["cpu_seconds"] for found in own):.0f}']
    print(f'| {title} | {" | ".join([*cells, "", ""][:4])} |')


if __name__ == '__main__':
  main()
