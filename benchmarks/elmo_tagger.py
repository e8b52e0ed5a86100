"""Measure the gain of ELMo features over word vectors with BiLSTM-CRF taggers of equal size, with and without features.

    python -m benchmarks.elmo_tagger --elmo=RUN_OR_FOLDER --vectors=VECTORS.txt \\
        --train=train.conll.gz --dev=dev.conll.gz --test=test.conll.gz --seeds=3

Follows Peters et al. 2018, section 4, named entities, at a smaller scale. The tagger has fine-tuned word vectors, with
or without a learned mixture of the layers of a frozen ELMo, then bidirectional LSTMs and a CRF. This is the task that
`python -m plm_jax finetune` uses for an ELMo, with the same training loop. The tagger without features has more LSTM
cells, so that its number of parameters is about the same. Each run keeps the epoch that is best on `dev`; the metric is
entity-level F1 on `test`. --vectors is optional: without it, both taggers start from random word vectors.
"""
import bisect
import dataclasses
import pathlib
import tempfile
from typing import Any

import numpy as np
import tyro

from plm_jax import validation
from plm_jax.config.run import FinetuneRun
from plm_jax.finetuning.setup import dev_set_names, resolve_run
from plm_jax.finetuning.word_vectors import build_word_list, load_vectors_once
from plm_jax.layers.dense import count_parameters
from plm_jax.loading.loaded_model import read_model_config
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import InitialModel
from plm_jax.tasks.sources import read_sources
from plm_jax.training.learner import make_learner, state_shapes
from plm_jax.training.train import train


@dataclasses.dataclass(frozen=True)
class Config:
  """Options of the comparison."""

  elmo: str
  """ELMo: run folder, or folder with options.json and .hdf5"""
  train: str
  """training file in CoNLL format, with words and tags in columns; may be .gz"""
  dev: str
  """development file, whose F1 selects the epoch"""
  test: str
  """test file, on which F1 is reported"""
  vectors: str = ''
  """word vectors in word2vec format; empty: random"""
  seeds: int = 3
  """runs per tagger"""
  epochs: float = 20.0
  """training epochs"""
  cells: int = 64
  """cells of each LSTM of the tagger with features"""
  rows: int = 32
  """batch size in sentences"""
  rate: float = 1e-3
  """peak learning rate of Adam"""


def run_of(config: Config) -> FinetuneRun:
  """Return the run of the tagger with features."""
  run = finetune.recipe('tagging', InitialModel(config.elmo, *read_model_config(config.elmo)), train=(config.train,),
                        dev=(config.dev, config.test))
  width = {'objective.reader.width': load_vectors_once(config.vectors).matrix.shape[1]} if config.vectors else {}
  run = validation.with_paths(run, {
      'objective.reader.vectors': config.vectors, 'objective.reader.layers': 1, 'objective.reader.cells': config.cells,
      'optim.peak': config.rate, 'data.epochs': config.epochs, 'data.by_length': True, **width})
  phase = dataclasses.replace(run.train.phases[0], batch=config.rows)
  return validation.with_paths(run, {'train.phases': (phase,), 'train.keep': 1})


def main(config: Config) -> None:
  """Train both taggers with every seed and print one line per tagger."""
  run = run_of(config)
  task: Any = run.objective
  read = read_sources(
    task.train_format.name, run.data.train, run.data.columns, task.labels, 'predict', run.data.on_error
  ).examples
  tokenizer = build_word_list(task, read)
  plain = resolve_run(run, tokenizer).config  # resolved: the class names determine the size of the head

  def size(features: bool, cells: int) -> int:
    sized = validation.with_paths(plain, {'objective.reader.features': features, 'objective.reader.cells': cells})
    params = state_shapes(sized, make_learner(sized, tokenizer.vocab)).params
    return count_parameters({name: tree for name, tree in params.items() if name != 'backbone'})

  wanted = size(True, config.cells)
  more = bisect.bisect_left(range(100 * config.cells), wanted, config.cells, key=lambda cells: size(False, cells))
  figure = f'{dev_set_names(run.data.dev)[1]}_f1'
  for name, features, cells in (('word vectors', False, more), ('word vectors and ELMo', True, config.cells)):
    arm = validation.with_paths(run, {'objective.reader.features': features, 'objective.reader.cells': cells})
    f1 = []
    for seed in range(config.seeds):
      with tempfile.TemporaryDirectory() as folder:
        ready = resolve_run(dataclasses.replace(arm, seed=seed, output=str(pathlib.Path(folder) / 'run')), tokenizer)
        f1.append(train(ready.config, ready.open_feed, tokenizer).heldout[figure])
    print(f'{name:24} F1 {np.mean(f1):.2f} +- {np.std(f1):.2f} ({", ".join(f"{x:.2f}" for x in f1)}), '
          f'{size(features, cells):,} parameters, {cells} cells', flush=True)


if __name__ == '__main__':
  main(tyro.cli(Config))
