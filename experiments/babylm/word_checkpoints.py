"""Checkpoints of a run of a BabyLM track, which are named by the words that the model has read."""
from collections.abc import Mapping, Sequence
import logging
import os
from typing import NamedTuple

from etils import epath
import jax

from experiments.babylm import tracks
from experiments.babylm.tracks import MAX_EPOCHS, TOLERANCE, TrackConfig
from plm_jax import storage
from plm_jax.config.run import Phase, PretrainRun
from plm_jax.data.pipeline import Pipeline
from plm_jax.data.records import read_meta
from plm_jax.errors import ConfigError

LOG = logging.getLogger('plm_jax.babylm')


class WordPlan(NamedTuple):
  """Schedule of the named checkpoints of a run, by the words that it has read."""

  names: Mapping[int, Sequence[str]]
  """number of steps -> names of the checkpoints to keep then"""
  words: float
  """words that the whole run reads"""


def name_steps(
    track: TrackConfig, config: PretrainRun, records: Sequence[epath.Path],
    pipelines: Sequence[Pipeline]) -> Mapping[int, Sequence[str]]:
  """Check a run against the rules of its track, and name the steps whose checkpoints are kept.

  `functools.partial(name_steps, track)` is an argument of `runs.run.run`.

  A window has on average the words of its corpus divided by the number of windows: all windows are
  read in random order, each once per epoch. Text that is held out counts as text, but is not read.

  Args:
    track: the track.
    config: the run.
    records: folders of token records, one per corpus.
    pipelines: windows of each phase.

  Returns:
    Number of steps -> names of the checkpoints.

  Raises:
    ConfigError: the text is larger than the budget of the track, is read too often, or its words
      cannot be counted.
  """
  words, shares = [], []
  for corpus, (source, folder) in enumerate(zip(config.data.path, records, strict=True)):
    meta = read_meta(folder)
    size = tracks.read_text_size(folder, meta.content_digest)
    if not size and folder == storage.resolve_path(source):
      raise ConfigError(
          f'the words of the records in {folder} have not been counted, and a run of a BabyLM '
          'track needs their number: give the text itself as --data.path')
    if not size:
      text = source if '://' in source else os.path.expanduser(source)
      size = tracks.count_text(
          text, config.data.prepare.read_config, folder, meta.content_digest)
    words.append(track.count_words(size, corpus))
    counted = meta.tokens('train')
    if not meta.heldout_path:  # the held-out documents are of the text
      counted += meta.tokens('heldout')
    shares.append(meta.tokens('train') / counted)
  warning = tracks.check_budget(track, words)
  if warning and jax.process_index() == 0:
    LOG.warning('%s', warning)
  read = [word * share for word, share in zip(words, shares, strict=True)]
  check_epochs(config, pipelines)
  rates = [words_per_step(phase, pipeline, read)
           for phase, pipeline in zip(config.train.phases, pipelines, strict=True)]
  return plan_checkpoints(track, config.train.phases, rates).names


def check_epochs(config: PretrainRun, pipelines: Sequence[Pipeline]) -> None:
  """Check how often a run reads each corpus. The last epoch may end within a batch.

  Raises:
    ConfigError: it reads one more often than the challenge allows; it names how many steps are
      possible.
  """
  phases = config.train.phases
  for corpus, path in enumerate(config.data.path):
    epochs = batch_share = 0.0
    for phase, pipeline in zip(phases, pipelines, strict=True):
      rows = phase.batch * pipeline.schedule.share(corpus)
      batch_share = rows / len(pipeline.corpora[corpus])
      epochs += phase.steps * batch_share
    if epochs < MAX_EPOCHS + batch_share:
      continue
    advice = []
    for number, phase in enumerate(phases):
      steps = max(1, int(phase.steps * MAX_EPOCHS / epochs))
      advice.append(f'--train.phases.{number}.steps={steps}')
    raise ConfigError(
        f'the run reads {path} {epochs:.4g} times, and BabyLM allows {MAX_EPOCHS} epochs: give '
        f'{" ".join(advice)} or fewer')


def words_per_step(phase: Phase, pipeline: Pipeline, words: Sequence[float]) -> float:
  """Return the mean number of words per step of a phase. words: those of each corpus."""
  total = 0.0
  for corpus, windows in enumerate(pipeline.corpora):
    rows = phase.batch * pipeline.schedule.share(corpus)
    total += rows * words[corpus] / len(windows)
  return total


def plan_checkpoints(
    track: TrackConfig, phases: Sequence[Phase], rates: Sequence[float]) -> WordPlan:
  """Find the first step after which the model has read the words of each checkpoint.

  The end of the run has the name of the next checkpoint if it misses its words by no more than the
  tolerance of the challenge's corpora.

  rates: words per step of each phase.
  """
  names: dict[int, list[str]] = {}
  pending = list(track.checkpoint_words().items())
  first, words = 0, 0.0
  for phase, rate in zip(phases, rates, strict=True):
    end = words + phase.steps * rate
    while pending and pending[0][1] <= end:
      name, wanted = pending.pop(0)
      # The number of steps of the phase, rounded up.
      steps = -int(-(wanted - words) // rate)
      names.setdefault(first + min(steps, phase.steps), []).append(name)
    first, words = first + phase.steps, end
  if pending and words >= pending[0][1] * (1 - TOLERANCE):
    names.setdefault(first, []).append(pending[0][0])
  return WordPlan(names, words)
