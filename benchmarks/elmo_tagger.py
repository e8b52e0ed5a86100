"""What ELMo's features add to word vectors: a BiLSTM-CRF tagger with and without them, of equal size.

    python -m benchmarks.elmo_tagger --elmo=RUN_OR_FOLDER --vectors=VECTORS.txt \\
        --train=train.conll.gz --dev=dev.conll.gz --test=test.conll.gz --seeds=3

Peters et al. 2018, section 4, named entities, smaller: word vectors that are tuned, beside them (or not) a mixture of
the layers of a frozen ELMo, which the task learns; LSTMs from both sides; a CRF: the task `python -m plm_jax finetune`
has for an ELMo, in its loop. The tagger without features has as many more cells as make its parameters as many. Each
run ends with the epoch that is best on `dev`; figures are F1 of whole entities on `test`. --vectors may be left out:
then both begin with random ones.
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
  """The comparison."""

  elmo: str
  """a run, or a folder with options.json and .hdf5"""
  train: str
  """words and tags in columns, as CoNLL's; .gz or not"""
  dev: str
  """by whose F1 the epoch is chosen"""
  test: str
  """on which figures are"""
  vectors: str = ''
  """word vectors, in word2vec's form"""
  seeds: int = 3
  """runs of each"""
  epochs: float = 20.0
  """times that the training sentences are read"""
  cells: int = 64
  """of each LSTM of the tagger with features"""
  rows: int = 32
  """sentences in an update"""
  rate: float = 1e-3
  """Adam's"""


def run_of(config: Config) -> FinetuneRun:
  """Makes the run of the tagger with features."""
  run = finetune.recipe('tagging', InitialModel(config.elmo, *read_model_config(config.elmo)), train=(config.train,),
                        dev=(config.dev, config.test))
  width = {'objective.reader.width': load_vectors_once(config.vectors).matrix.shape[1]} if config.vectors else {}
  run = validation.with_paths(run, {
      'objective.reader.vectors': config.vectors, 'objective.reader.layers': 1, 'objective.reader.cells': config.cells,
      'optim.peak': config.rate, 'data.epochs': config.epochs, 'data.by_length': True, **width})
  phase = dataclasses.replace(run.train.phases[0], batch=config.rows)
  return validation.with_paths(run, {'train.phases': (phase,), 'train.keep': 1})


def main(config: Config) -> None:
  """Prints a line for each tagger."""
  run = run_of(config)
  task: Any = run.objective
  read = read_sources(
    task.train_format.name, run.data.train, run.data.columns, task.labels, 'predict', run.data.on_error
  ).examples
  tokenizer = build_word_list(task, read)
  plain = resolve_run(run, tokenizer).config  # with names of classes, by which a head has its size

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
