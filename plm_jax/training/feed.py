"""What a run learns from, and what it is held against: text, in windows, or whatever else gives batches."""
import abc
from collections.abc import Callable, Iterator, Sequence
import logging
from typing import Any

from etils import epath
import jax
import numpy as np

from plm_jax import sharding
from plm_jax.config import Experiment, Phase
from plm_jax.data import counts, sources
from plm_jax.data.pipeline import Pipeline, Shares, heldout_batches, open_pipeline
from plm_jax.data.records import read_meta
from plm_jax.data.windows import Windows
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.evaluate import evaluator
from plm_jax.training.step import Learner

logger = logging.getLogger(__name__)
Evaluate = Callable[[Any, Phase], dict[str, float]]


class Feed(abc.ABC):
  """Batches of a run, each a function of the seed and the step alone."""

  @abc.abstractmethod
  def first(self) -> dict[str, Any]:
    """Returns a row of windows of the first batch, from which a model takes its shapes."""

  def fresh(self, params: Any) -> Any:
    """Returns fresh parameters with what is known of them before a run: they are as they are."""
    return params

  def begin(self, learner: Learner, params: Any, mesh) -> None:
    """Is told the parameters that a run begins or goes on with, before its first batch."""
    del learner, params, mesh

  @abc.abstractmethod
  def stream(self, start: int, mesh) -> Iterator[tuple[int, Phase, Any]]:
    """Yields (step, phase with the rows and the length of this batch, windows on the devices) from step `start` to the
    end of the run."""

  @abc.abstractmethod
  def evaluator(self, learner: Learner, mesh) -> Evaluate:
    """Makes a function(params, phase) -> figures of what was held out."""

  @abc.abstractmethod
  def windows(self, step: int) -> dict[str, Any]:
    """Reads the whole batch of a step, numpy arrays on the host."""

  @abc.abstractmethod
  def contents(self, step: int) -> str:
    """Says what is in the batch of a step."""

  @property
  @abc.abstractmethod
  def epochs(self) -> float:
    """How often a whole run reads what it learns from, on average."""


class TextFeed(Feed):
  """Windows of token records, one folder a corpus, all made with `tokenizer`."""

  def __init__(self, config: Experiment, records: Sequence[epath.Path], tokenizer: Tokenizer, mesh):
    """Raises RecordsError, and MeshError for batches that the devices cannot share."""
    for phase in config.train.phases:
      sharding.check_batch(phase.batch, config.train.accumulate, mesh)
    self.config, self.records, self.sizes, self.tokenizer = config, records, tokenizer.sizes, tokenizer
    self.pipelines = open_phases(config, records, tokenizer)

  def first(self):
    """Reads the first window."""
    return dict(self.config.objective.described(self.pipelines[0].batch(0, slice(1)), self.tokenizer))

  def stream(self, start, mesh):
    """Yields the windows of every phase in turn."""
    return batches(self.config, self.pipelines, self.tokenizer, start, mesh)

  def evaluator(self, learner, mesh):
    """Makes the function that measures the losses of held-out text."""
    evaluate = evaluator(learner, self.sizes, corpus_names(self.config))
    return lambda params, phase: evaluate(params, heldout_stream(self, phase, mesh))

  def windows(self, step):
    """Reads the batch from the pipeline of its phase."""
    firsts = np.cumsum([0, *(phase.steps for phase in self.config.train.phases)])
    number = int(np.searchsorted(firsts, step, 'right')) - 1
    batch = self.pipelines[number].batch(step - int(firsts[number]))
    return dict(self.config.objective.described(batch, self.tokenizer))

  def contents(self, step):
    """Names the windows of the batch."""
    index = self.windows(step)['index']
    return f'the windows {np.array2string(index, max_line_width=100, threshold=32)} of the training split'

  @property
  def epochs(self):
    """Divides the rows of each phase by the windows there are."""
    return epochs(self.config.train.phases, self.pipelines)


def open_phases(config: Experiment, records: Sequence[epath.Path], tokenizer: Tokenizer) -> list[Pipeline]:
  """Opens the windows that a run reads, a pipeline a phase, and those that are held out. Raises RecordsError."""
  for corpus, folder in enumerate(records):  # those of all phases at once
    counts.complete(folder, read_meta(folder), config.rules(corpus))
  pipelines = [open_phase(config, records, tokenizer, phase, number)
               for number, phase in enumerate(config.train.phases)]
  for phase in config.train.phases:
    open_heldout(config, records, phase)  # now, not after days: there may be no held-out text
  return pipelines


def epochs(phases: Sequence[Phase], pipelines: Sequence[Pipeline]) -> float:
  """Divides the rows of each phase by the windows there are, and adds up."""
  return sum(phase.steps * phase.batch / sum(map(len, pipeline.corpora))
             for phase, pipeline in zip(phases, pipelines, strict=True))


def open_phase(config, records, tokenizer, phase: Phase, number: int) -> Pipeline:
  """Opens the pipeline of a phase, each of which has an order of its own."""
  data = config.data
  rules = [config.rule(phase, corpus) for corpus in range(len(records))]
  pipeline = open_pipeline(records, rules, phase.batch, config.seed + number, data.block,
                           Shares(data.weights or None, data.cap, data.temperature), tokenizer.hash)
  if continuous(config):
    pipeline = Pipeline(pipeline.corpora, None, phase.batch, config.seed + number, data.block, ordered=True)
  for corpus in pipeline.corpora:
    if corpus.clipped and jax.process_index() == 0:
      targets = f' and targets of {corpus.length - phase.length}' if corpus.target_budget else ''
      logger.warning('%s: %d of %d examples are too long for rows of %d tokens%s, and lose their ends',
                     corpus.folder, corpus.clipped, corpus.documents, phase.length, targets)
  return pipeline


def continuous(config: Experiment) -> bool:
  """Tells whether rows of a batch go on where those of the batch before ended."""
  return config.objective.carry(config.model, 1) is not None


def batches(config: Experiment, pipelines: Sequence[Pipeline], tokenizer: Tokenizer, start: int, mesh
            ) -> Iterator[tuple[int, Phase, Any]]:
  """Yields (step, phase, windows on the devices) from step `start` to the end of the run."""
  first = 0
  for phase, pipeline in zip(config.train.phases, pipelines, strict=True):
    rows = sharding.host_rows(phase.batch, mesh)
    begin = max(start, first)
    for step, windows in enumerate(pipeline.stream(begin - first, phase.steps, rows), begin):
      yield step, phase, sharding.to_devices(config.objective.described(windows, tokenizer), phase.batch, mesh)
    first += phase.steps


def heldout_stream(feed: TextFeed, phase: Phase, mesh) -> Iterator[Any]:
  """Yields held-out windows on the devices, of every corpus in turn and alike; about train.eval_batches in all."""
  config, records = feed.config, feed.records
  rows, share = sharding.host_rows(phase.batch, mesh), max(1, config.train.eval_batches // len(records))
  for corpus, windows in enumerate(open_heldout(config, records, phase)):
    for batch in heldout_batches(windows, phase.batch, rows, share, corpus, continuous(config)):
      yield sharding.to_devices(config.objective.described(batch, feed.tokenizer), phase.batch, mesh)


def corpus_names(config: Experiment) -> tuple[str, ...]:
  """Names the corpora of a run, each otherwise: by their languages where the objective knows them, else by their
  paths."""
  objective: Any = config.objective
  names = getattr(objective, 'languages', ()) or getattr(getattr(objective, 'pair', None), 'languages', ())
  if len(names) != len(config.data.path):
    names = tuple(map(sources.called, config.data.path))
  return tuple(f'{name}-{names[:number].count(name) + 1}' if name in names[:number] else name
               for number, name in enumerate(names))


def open_heldout(config: Experiment, records, phase: Phase) -> list[Windows]:
  """Opens the held-out windows of each corpus; of one that has none, where a run is only evaluated on it, all of it."""
  # Text that somebody wants a run evaluated on is not held out from anything.
  whole = [config.mode == 'evaluate' and not read_meta(folder).heldout for folder in records]
  rules = [config.rule(phase, corpus) for corpus in range(len(records))]
  return [Windows(folder, 'train' if all_of_it else 'heldout', rule.length, rule.assembly, rule.target_budget)
          for folder, all_of_it, rule in zip(records, whole, rules, strict=True)]
