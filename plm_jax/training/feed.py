"""Feeds: the batches of a run, of text or of anything else, and its held-out data."""
import abc
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import logging
import types
from typing import Any, NamedTuple

from etils import epath
import jax
import numpy as np

from plm_jax import sharding
from plm_jax.config.resume import completed_phases
from plm_jax.config.run import Phase, PretrainRun
from plm_jax.data import window_counts
from plm_jax.data.mixtures import MixtureSchedule, MixtureShares
from plm_jax.data.pipeline import Pipeline, heldout_batches, open_pipeline
from plm_jax.data.records import read_meta
from plm_jax.data.windows import Windows
from plm_jax.errors import name_field, warn
from plm_jax.sources import text_sources
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.evaluate import make_evaluator
from plm_jax.training.step import Learner

logger = logging.getLogger(__name__)
Evaluate = Callable[[Any, Phase], dict[str, float]]
TokenInfo = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""windows -> windows with what is known of their tokens"""
NameSteps = Callable[
    [PretrainRun, Sequence[epath.Path], Sequence[Pipeline]], Mapping[int, Sequence[str]]]
"""(run, folder of the records of each corpus, windows of each phase) -> `Feed.named_steps`"""


class Feed(abc.ABC):
  """Batches of a run, each a function of the seed and the step alone."""

  named_steps: Mapping[int, Sequence[str]] = types.MappingProxyType({})
  """number of steps -> names of the checkpoints to keep then"""
  token_vectors: Callable[[Tokenizer], Any] | None = None
  """makes auxiliary vectors of the tokens, for a run that starts from a model with another
  tokenizer, which it gets: of FOCUS [V, D], of WECHSEL those of both tokenizers; None: there is no
  text"""

  @abc.abstractmethod
  def first_window(self) -> dict[str, Any]:
    """Return one row of windows of the first batch, from which a model takes its shapes."""

  def prepare_params(self, params: Any) -> Any:
    """Return fresh parameters with what is known of them before a run, such as word vectors."""
    return params

  def on_start(self, learner: Learner, params: Any, mesh) -> None:
    """Receive the parameters with which a run starts or resumes, before its first batch."""
    del learner, params, mesh

  @abc.abstractmethod
  def stream(self, start: int, mesh) -> Iterator[tuple[int, Phase, Any]]:
    """Yield (step, phase, windows on the devices) from step `start` to the end of the run.

    The phase has the batch size and the sequence length of this batch.
    """

  @abc.abstractmethod
  def make_evaluator(self, learner: Learner, mesh) -> Evaluate:
    """Make a function (params, phase) -> metrics of the held-out data.

    The metrics are equal on all processes, which decide from them to stop early.
    """

  @abc.abstractmethod
  def read_batch(self, step: int) -> dict[str, Any]:
    """Read the whole batch of a step, numpy arrays on the host."""

  @abc.abstractmethod
  def describe_batch(self, step: int) -> str:
    """Describe what is in the batch of a step."""

  @abc.abstractmethod
  def record(self) -> dict[str, Any]:
    """Describe the training data in JSON values, for the checkpoint.

    `digests` is name -> digest of the content. The rest is what `resume` needs to continue in the
    same order.
    """

  def resume(self, recorded: Mapping[str, Any]) -> None:
    """Continue in the order of a run whose checkpoint recorded this."""
    del recorded

  @property
  def evaluates_start(self) -> bool:
    """Whether a model that begins without random parts is evaluated before the first step."""
    return False

  @abc.abstractmethod
  def epochs(self, done: int) -> float:
    """Return the mean number of epochs: how often `done` steps read the training data."""


class TextFeed(Feed):
  """Windows of token records, one folder per corpus, all made with `tokenizer`."""

  def __init__(self, config: PretrainRun, records: Sequence[epath.Path], tokenizer: Tokenizer,
               mesh, name_steps: NameSteps | None = None,
               token_vectors: Callable[[Tokenizer], Any] | None = None):
    """Open the records.

    Raises:
      RecordsError: they cannot be read.
      MeshError: the devices cannot share the batches.
      UserError: `name_steps` refuses the run.
    """
    for phase in config.train.phases:
      sharding.check_batch(phase.batch, config.train.accumulate, mesh)
    self.config, self.records, self.tokenizer = config, records, tokenizer
    self.sizes, self.token_vectors = tokenizer.byte_lengths, token_vectors
    self.pipelines = open_phases(config, records, tokenizer)
    if config.data.unimax_epochs and jax.process_index() == 0:
      warn_of_repeats(config, self.pipelines)
    self.add_token_info = make_token_info(config, records, tokenizer)
    if name_steps:
      self.named_steps = name_steps(config, records, self.pipelines)

  def record(self):
    """Record the digest of each corpus, and the batch size of each order, which depends on all
    phases."""
    order = plan_read_order(self.config)
    sizes = {phase_order.name: pipeline.order_batch_size
             for phase_order, pipeline in zip(order, self.pipelines, strict=True)}
    return {'digests': content_digests(self.config, self.records), 'dealt': sizes}

  def resume(self, recorded):
    """Use the recorded batch size of each order, which a phase added since may have raised."""
    sizes = recorded.get('dealt', {})
    own = self.record()['dealt']
    if any(sizes.get(name, rows) != rows for name, rows in own.items()):
      self.pipelines = open_phases(self.config, self.records, self.tokenizer, sizes)

  def first_window(self):
    window = self.pipelines[0].batch(0, slice(1))
    return dict(self.add_token_info(window))

  def stream(self, start, mesh):
    return stream_batches(self.config, self.pipelines, self.add_token_info, start, mesh)

  def make_evaluator(self, learner, mesh):
    evaluate = make_evaluator(learner, self.sizes, corpus_names(self.config))
    return lambda params, phase: evaluate(params, stream_heldout(self, phase, mesh))

  def read_batch(self, step):
    firsts = np.cumsum([0] + [phase.steps for phase in self.config.train.phases])
    number = int(np.searchsorted(firsts, step, 'right')) - 1
    batch = self.pipelines[number].batch(step - int(firsts[number]))
    return dict(self.add_token_info(batch))

  def describe_batch(self, step):
    index = self.read_batch(step)['index']
    numbers = np.array2string(index, max_line_width=100, threshold=32)
    return f'the windows {numbers} of the training split'

  def epochs(self, done):
    return mean_epochs(completed_phases(self.config.train.phases, done) or (), self.pipelines)


def content_digests(config: PretrainRun, records: Sequence[epath.Path]) -> dict[str, str]:
  """Return the digest of the content of each corpus, by its name."""
  folders = zip(corpus_names(config), records, strict=True)
  return {name: read_meta(folder).content_digest for name, folder in folders}


def open_phases(config: PretrainRun, records: Sequence[epath.Path], tokenizer: Tokenizer,
                order_batch_sizes: Mapping[str, int] | None = None) -> list[Pipeline]:
  """Open the windows that a run reads, one pipeline per phase; check for held-out text.

  Args:
    config: the run.
    records: folders of token records, one per corpus.
    tokenizer: that of the records.
    order_batch_sizes: batch size of each order, as the checkpoint of the run recorded it
      (`TextFeed.record`); None: a fresh run.

  Raises:
    RecordsError: records cannot be read.
  """
  for corpus, folder in enumerate(records):  # those of all phases at once
    window_counts.count_missing(folder, read_meta(folder), config.rules(corpus))
  pipelines: list[Pipeline] = []
  orders = plan_read_order(config)
  for number, (phase, order) in enumerate(zip(config.train.phases, orders, strict=True)):
    if order.first < number:
      pipeline = pipelines[order.first].with_batch_size(phase.batch, order.start)
      schedule, earlier = pipeline.schedule, np.zeros_like(pipeline.earlier)
      if phase.mixture != config.train.phases[order.first].mixture:
        weights = mixture_shares(config, phase).compute_weights(pipeline.corpora)
        schedule = MixtureSchedule.from_weights(weights, len(pipeline.corpora))
      for other, other_order, before in zip(config.train.phases, orders, pipelines, strict=False):
        if other_order.name == order.name and other.mixture != phase.mixture:
          earlier = earlier + before.count_windows(other.steps)
      pipelines.append(pipeline.with_mixture(schedule, earlier))
    else:
      rows = (order_batch_sizes or {}).get(order.name, order.order_batch_size)
      pipelines.append(
          open_phase(config, records, tokenizer, phase, number, rows, order.epoch))
  for phase in config.train.phases:
    open_heldout(config, records, phase)  # now, not after days: it may be too short for a window
  return pipelines


class PhaseOrder(NamedTuple):
  """What a phase reads: phases that cut text into the same windows share one order of them."""

  name: str  # of the order
  first: int  # number of the first phase with this order
  start: int  # windows that earlier phases of the same data mixture have read of it
  order_batch_size: int  # largest batch of these phases
  epoch: int  # label of the first epoch of this order


ORDER_LABEL_STEP = 1 << 20
"""Distance between the epoch labels of two orders. Short texts are cut alike at every length:
with the labels of another order they get other masks."""


def plan_read_order(config: PretrainRun) -> list[PhaseOrder]:
  """Plan where in the text each phase continues."""
  names = []
  for phase in config.train.phases:
    rules = [str(config.rule(phase, corpus)) for corpus in range(len(config.data.path))]
    names.append('+'.join(rules))
  orders, windows_read, found = list(dict.fromkeys(names)), collections.Counter(), []
  for phase, name in zip(config.train.phases, names, strict=True):
    same = [other.batch for other, of in zip(config.train.phases, names, strict=True) if of == name]
    epoch = ORDER_LABEL_STEP * orders.index(name)
    mixed = name, phase.mixture
    found.append(PhaseOrder(name, names.index(name), windows_read[mixed], max(same), epoch))
    windows_read[mixed] += phase.steps * phase.batch
  return found


def mean_epochs(phases: Sequence[Phase], pipelines: Sequence[Pipeline]) -> float:
  """Compute how often the phases, the first ones of a run, read the text on average: rows of each
  phase, divided by its windows."""
  return sum((phase.steps * phase.batch / sum(map(len, pipeline.corpora))
              for phase, pipeline in zip(phases, pipelines, strict=False)), 0.0)


def corpus_epochs(phases: Sequence[Phase], pipelines: Sequence[Pipeline]) -> list[float]:
  """Compute how often a run reads each corpus, by its weight in the data mixture."""
  totals = []
  for corpus in range(len(pipelines[0].corpora)):
    total = 0.0
    for phase, pipeline in zip(phases, pipelines, strict=True):
      rows = phase.steps * phase.batch * pipeline.schedule.share(corpus)
      total += rows / len(pipeline.corpora[corpus])
    totals.append(total)
  return totals


def warn_of_repeats(config: PretrainRun, pipelines: Sequence[Pipeline]) -> None:
  """Warn of corpora that a run with UniMax reads more often than it should."""
  most, epochs = config.data.unimax_epochs, corpus_epochs(config.train.phases, pipelines)
  pairs = zip(corpus_names(config), epochs, strict=True)
  repeated = [f'{name} {times:.3g} times' for name, times in pairs if times > 1.01 * most]
  if repeated:
    warn(f'{name_field("data.unimax_epochs")} is {most:g}, and the run reads '
         f'{", ".join(repeated)}: the text is too little for so many steps, or a corpus is so '
         'small that a thousandth of the run repeats it more often')


def open_phase(config, records, tokenizer, phase: Phase, number: int, order_batch_size: int = 0,
               epoch: int = 0) -> Pipeline:
  """Open the pipeline of the first phase with its order of windows.

  order_batch_size, epoch: as for `Pipeline`.
  """
  rules = [config.rule(phase, corpus) for corpus in range(len(records))]
  seed, block = config.seed + number, config.data.block
  pipeline = open_pipeline(
      records, rules, phase.batch, seed, block, mixture_shares(config, phase), tokenizer.hash,
      order_batch_size, epoch)
  if is_continuous(config):
    pipeline = Pipeline(
        pipeline.corpora, None, phase.batch, seed, block, True, order_batch_size, epoch)
  for corpus in pipeline.corpora:
    if corpus.clipped_examples and jax.process_index() == 0:
      targets = f' and targets of {corpus.length - phase.length}' if corpus.target_tokens else ''
      logger.warning(
          '%s: %d of %d examples are too long for rows of %d tokens%s, and lose their ends',
          corpus.folder, corpus.clipped_examples, corpus.documents, phase.length, targets)
  return pipeline


def mixture_shares(config: PretrainRun, phase: Phase) -> MixtureShares:
  """Return the shares of the corpora in a phase."""
  data = config.data
  temperature = data.temperature if phase.temperature is None else phase.temperature
  return MixtureShares(
      phase.weights or data.weights or None, data.cap, temperature, phase.corpora,
      data.unimax_epochs, budget=config.text_tokens // config.rule(phase).length)


def is_continuous(config: PretrainRun) -> bool:
  """Tell whether rows of a batch continue those of the batch before."""
  return config.objective.carry(config.model, 1) is not None


def make_token_info(
    config: PretrainRun, records: Sequence[epath.Path], tokenizer: Tokenizer) -> TokenInfo:
  """Make the function that adds to windows what the tokenizer and the corpora know of their tokens.

  Raises:
    RecordsError: tokens have to be counted, and records cannot be read.
  """
  objective = config.objective
  if not objective.requirements.frequency_ranks:
    return lambda windows: objective.add_token_info(windows, tokenizer)
  ranks = window_counts.frequency_ranks(records)
  def add(windows):
    windows = objective.add_token_info(windows, tokenizer)
    return {**windows, 'frequency_ranks': ranks[windows['tokens']]}
  return add


def stream_batches(config: PretrainRun, pipelines: Sequence[Pipeline], add_token_info: TokenInfo,
                   start: int, mesh) -> Iterator[tuple[int, Phase, Any]]:
  """Yield (step, phase, windows on the devices) from step `start` to the end of the run."""
  first = 0
  for phase, pipeline in zip(config.train.phases, pipelines, strict=True):
    rows = sharding.host_rows(phase.batch, mesh)
    begin = max(start, first)
    stream = pipeline.stream(begin - first, phase.steps, rows)
    for step, windows in enumerate(stream, begin):
      windows = add_token_info(windows)
      yield step, phase, sharding.shard_batch(windows, phase.batch, mesh)
    first += phase.steps


def stream_heldout(feed: TextFeed, phase: Phase, mesh) -> Iterator[Any]:
  """Yield held-out windows on the devices: all of a held-out text of its own, otherwise as many of
  every corpus, about train.eval_batches in all."""
  config, opened = feed.config, open_heldout(feed.config, feed.records, phase)
  rows = sharding.host_rows(phase.batch, mesh)
  share = max(1, config.train.eval_batches // max(1, len(opened)))
  for corpus, windows in opened.items():
    # All of a held-out text of its own.
    most = None if config.mode == 'train' and windows.meta.heldout_path else share
    batches = heldout_batches(
        windows, phase.batch, rows, most, corpus, is_continuous(config))
    for batch in batches:
      batch = feed.add_token_info(batch)
      yield sharding.shard_batch(batch, phase.batch, mesh)


def corpus_names(config: PretrainRun) -> tuple[str, ...]:
  """Return a unique name of each corpus: its language where the objective knows it, else its
  path."""
  objective: Any = config.objective
  pair = getattr(objective, 'pair', None)
  names = getattr(objective, 'languages', ()) or getattr(pair, 'languages', ())
  if len(names) != len(config.data.path):  # the objective does not know them
    names = tuple(map(text_sources.short_name, config.data.path))
  repeats = [names[:number].count(name) for number, name in enumerate(names)]
  return tuple(f'{name}-{number + 1}' if number else name
               for name, number in zip(names, repeats, strict=True))


def open_heldout(config: PretrainRun, records, phase: Phase) -> dict[int, Windows]:
  """Open the held-out windows of each corpus that has any, by its number.

  Of a corpus without held-out text, where a run is only evaluated on it, all windows are opened:
  such text is not held out from anything. Rows have the length of the phase, and the mask rate of
  the last phase, with whose objective a run is evaluated: losses of all phases are comparable.
  """
  opened = {}
  phase = dataclasses.replace(phase, mask_rate=config.train.phases[-1].mask_rate)
  for corpus, folder in enumerate(records):
    rule = config.rule(phase, corpus)
    meta, split = read_meta(folder), 'heldout'
    if config.mode == 'evaluate':
      split = meta.evaluation_split
    elif not meta.heldout:
      continue  # nothing is held out: `preflight.check_heldout` warns
    opened[corpus] = Windows(
        folder, split, rule.length, rule.assembly, rule.target_tokens, rule.separators)
  return opened
