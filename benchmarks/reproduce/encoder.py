"""Two tasks of MTEB with the weights of all-MiniLM-L6-v2.

Sources: embeddings-benchmark/results at 319e81d64298f3bdc5f09c8b6ff91f5015b3664c, folder
results/sentence-transformers__all-MiniLM-L6-v2/8b3219a92973c328a8e22fadcfa821b5dc75636a, has the figures, of mteb 1.12.75,
whose files define the evaluation: mteb/evaluation/evaluators/STSEvaluator.py and ClassificationEvaluator.py,
mteb/abstasks/AbsTask.py and AbsTaskClassification.py. SICK-R is evaluated by mteb itself, Banking77 as these files do.
"""
import collections
import csv
import gzip
import io
import time
from typing import Any

import numpy as np

MODEL = 'sentence-transformers/all-MiniLM-L6-v2'
EXPERIMENTS, SAMPLES, SEED = 10, 8, 42  # AbsTaskClassification.py:47-52, AbsTask.py:57


def sick_r(given: dict[str, Any]) -> dict[str, Any]:
  """Evaluate SICK-R by mteb: correlations of cosines with the relatedness of all pairs; given: data and weights."""
  from plm_jax.api.mteb_adapter import load_for_mteb
  return evaluate_sick_r(given, load_for_mteb(given['weights'], MODEL))


def sick_r_torch(given: dict[str, Any]) -> dict[str, Any]:
  """Evaluate SICK-R by mteb with sentence-transformers; given: see `sick_r`."""
  from sentence_transformers import SentenceTransformer
  return evaluate_sick_r(given, SentenceTransformer(given['weights'], device='cpu'))


def evaluate_sick_r(given: dict[str, Any], model: Any) -> dict[str, Any]:
  """Evaluate a model on mteb's task SICK-R, with the pairs of the folder `data`."""
  import importlib.metadata

  import datasets
  import mteb

  from benchmarks import kept
  rows = []
  for part in ('train', 'dev', 'test'):
    text = gzip.decompress(kept.place(given['data'], f'sick_{part}.tsv.gz').read_bytes()).decode()
    rows += csv.DictReader(io.StringIO(text), delimiter='\t', quoting=csv.QUOTE_NONE)
  columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in ('sentence1', 'sentence2')}
  columns['score'] = [float(row['relatedness']) for row in rows]
  task: Any = mteb.get_task('SICK-R')
  task.dataset, task.data_loaded = {'test': datasets.Dataset.from_dict(columns)}, True
  began = time.time()
  found = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
  scores: Any = found.task_results[0].scores['test'][0]
  return {'score': scores['cosine_spearman'], 'pearson': scores['cosine_pearson'], 'pairs': len(rows),
          'mteb': importlib.metadata.version('mteb'), 'seconds': round(time.time() - began)}


def banking77(given: dict[str, Any]) -> dict[str, Any]:
  """Evaluate Banking77: a logistic regression on the vectors of 8 examples per class, ten times; given: see `sick_r`."""
  import warnings

  from sklearn.exceptions import ConvergenceWarning
  from sklearn.linear_model import LogisticRegression

  from benchmarks import kept
  import plm_jax
  parts = {}
  for part in ('train', 'test'):
    with kept.place(given['data'], f'banking_data/{part}.csv').open(newline='') as file:
      parts[part] = [*csv.DictReader(file)]
  labels = {part: np.array([row['category'] for row in rows]) for part, rows in parts.items()}
  began = time.time()
  encoder = plm_jax.load(given['weights'])
  vectors = {part: plm_jax.encode(encoder, [row['text'] for row in rows]) for part, rows in parts.items()}
  order, accuracies = np.arange(len(parts['train'])), []
  for _ in range(EXPERIMENTS):
    # Evaluator.py:20 sets the seed again for each experiment, and each shuffles the order of the one before.
    np.random.RandomState(SEED).shuffle(order)
    counts, chosen = collections.Counter(), []
    for i in order:
      counts[labels['train'][i]] += 1
      if counts[labels['train'][i]] <= SAMPLES:
        chosen.append(i)
    model = LogisticRegression(random_state=SEED, max_iter=100)
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', ConvergenceWarning)
      model.fit(vectors['train'][chosen], labels['train'][chosen])
    accuracies.append(float(np.mean(model.predict(vectors['test']) == labels['test'])))
  return {'score': float(np.mean(accuracies)), 'experiments': accuracies, 'seconds': round(time.time() - began)}
