"""Apache Beam as a `Runner` of parallel stages: on this machine, Dataflow, Flink or Spark.

Beam is an optional extra, imported only when it is used.
"""
from collections.abc import Callable, Iterable, Sequence
import functools
import logging
from typing import Any

from plm_jax.errors import UserError, describe_error
from plm_jax.preparation.parallel_stages import Runner, RunStages

log = logging.getLogger(__name__)


class BeamError(UserError):
  """Beam that is not installed, or a pipeline that failed."""


def make_runner(options: Sequence[str]) -> RunStages:
  """Return a function that runs stages with Beam.

  Args:
    options: Beam's own, such as '--runner=DirectRunner'.

  Raises:
    BeamError: Beam is not installed.
  """
  try:
    import apache_beam  # pyright: ignore[reportMissingImports]  # noqa: F401
  except ImportError as error:
    raise BeamError('Apache Beam is not installed: pip install "plm_jax[beam]", in an environment '
                    f'of its own ({describe_error(error)})') from error
  return functools.partial(run_pipeline, options)


def run_pipeline(options: Sequence[str], describe: Callable[[Runner], None]) -> None:
  """Run the stages that `describe` adds, and return when all are done. Raises BeamError."""
  import apache_beam as beam  # pyright: ignore[reportMissingImports]
  from apache_beam.options.pipeline_options import (  # pyright: ignore[reportMissingImports]
    PipelineOptions,
  )
  try:
    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
      describe(BeamRunner(beam, pipeline))
  except UserError:
    raise
  except Exception as error:
    log.debug('the pipeline failed', exc_info=True)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    raise BeamError('the pipeline failed, and the same command resumes from the finished parts: '
                    f'{lines[-1][:500]}') from error


class BeamRunner:
  """A `Runner` that builds a Beam pipeline.

  Functions are sent to the workers with their bound arguments, and without annotations, which Beam
  would enforce as types.
  """

  def __init__(self, beam: Any, pipeline: Any):
    self.beam, self.pipeline = beam, pipeline

  def create(self, items: Iterable[Any]) -> Any:
    """Create a collection of the items."""
    return self.reshuffle(self.pipeline | 'begin' >> self.beam.Create(list(items)), 'begin')

  def flat_map(self, function: Callable[[Any], Iterable[Any]], items: Any) -> Any:
    """Call a function for each item, on any worker."""
    name = function_name(function)
    mapped = items | name >> self.beam.FlatMap(lambda item: function(item))
    return self.reshuffle(mapped, name)

  def call_once(self, function: Callable[..., Iterable[Any]], *items: Any) -> Any:
    """Call a function once, with all items of some collections."""
    name = function_name(function)
    once = self.pipeline | f'once: {name}' >> self.beam.Create([None])
    sides = [self.beam.pvalue.AsIter(some) for some in items]
    called = once | name >> self.beam.FlatMap(lambda _, *some: function(*some), *sides)
    return self.reshuffle(called, name)

  def group_by_key(self, function: Callable[[int, Iterable[Any]], Iterable[Any]], *items: Any
                   ) -> Any:
    """Call a function for each key, with all items of some collections that have it."""
    name = function_name(function)
    flat = items | f'all: {name}' >> self.beam.Flatten()
    grouped = flat | f'by number: {name}' >> self.beam.GroupByKey()
    mapped = grouped | name >> self.beam.FlatMap(lambda group: function(*group))
    return self.reshuffle(mapped, name)

  def reshuffle(self, items: Any, name: str) -> Any:
    """Allow other workers than those that made the items to continue with them."""
    return items | f'spread: {name}' >> self.beam.Reshuffle()


def function_name(function: Any) -> str:
  """Return the name of a function, or of the function inside a partial."""
  return getattr(function, 'func', function).__name__
