"""Stages on Apache Beam, whose runners work on them: on this machine, on Dataflow, Flink or Spark.

Beam is an extra, and imported when it is asked for.
"""
from collections.abc import Callable, Iterable, Sequence
import functools
import logging
from typing import Any

from plm_jax.data.stages import Run, Runner
from plm_jax.errors import Expected, outside

log = logging.getLogger(__name__)


class BeamError(Expected):
  """Beam that is not installed, or a pipeline that came to no end."""


def running(options: Sequence[str]) -> Run:
  """Returns what works on stages with Beam. options: Beam's own, '--runner=DirectRunner'. Raises BeamError where it is
  not installed."""
  try:
    import apache_beam  # pyright: ignore[reportMissingImports]  # noqa: F401
  except ImportError as error:
    raise BeamError('Apache Beam is not installed: pip install "plm_jax[beam]", in an environment of its own '
                    f'({outside(error)})') from error
  return functools.partial(run, options)


def run(options: Sequence[str], describe: Callable[[Runner], None]) -> None:
  """Works on the stages that `describe` describes, and returns when all is done. Raises BeamError."""
  import apache_beam as beam  # pyright: ignore[reportMissingImports]
  from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]
  try:
    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
      describe(Stages(beam, pipeline))
  except Expected:
    raise
  except Exception as error:
    log.debug('the pipeline failed', exc_info=True)
    reason = str(error).strip().splitlines() or [type(error).__name__]
    raise BeamError(f'the pipeline failed, and the same command goes on from what is whole: {reason[-1][:500]}'
                    ) from error


class Stages:
  """A `Runner` that makes a pipeline. Functions travel to the workers with what they are bound to; without annotations,
  which Beam would hold the stages to."""

  def __init__(self, beam: Any, pipeline: Any):
    self.beam, self.pipeline = beam, pipeline

  def of(self, items: Iterable[Any]) -> Any:
    """Makes a collection of the items."""
    return self.spread(self.pipeline | 'begin' >> self.beam.Create(list(items)), 'begin')

  def each(self, function: Callable[[Any], Iterable[Any]], items: Any) -> Any:
    """Calls a function for each item: any worker, for any of them."""
    name = name_of(function)
    return self.spread(items | name >> self.beam.FlatMap(lambda item: function(item)), name)

  def together(self, function: Callable[..., Iterable[Any]], *items: Any) -> Any:
    """Calls a function once, with all items of some collections."""
    name = name_of(function)
    once = self.pipeline | f'once: {name}' >> self.beam.Create([None])
    sides = [self.beam.pvalue.AsIter(some) for some in items]
    return self.spread(once | name >> self.beam.FlatMap(lambda _, *some: function(*some), *sides), name)

  def grouped(self, function: Callable[[int, Iterable[Any]], Iterable[Any]], *items: Any) -> Any:
    """Calls a function for each number, with all items of some collections that have it."""
    name = name_of(function)
    together = items | f'all: {name}' >> self.beam.Flatten() | f'by number: {name}' >> self.beam.GroupByKey()
    return self.spread(together | name >> self.beam.FlatMap(lambda of: function(*of)), name)

  def spread(self, items: Any, name: str) -> Any:
    """Lets other workers go on with the items than those that made them."""
    return items | f'spread: {name}' >> self.beam.Reshuffle()


def name_of(function: Any) -> str:
  """Returns the name of a function, or of the one that a partial is of."""
  return getattr(function, 'func', function).__name__
