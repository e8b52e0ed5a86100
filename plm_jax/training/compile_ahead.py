"""Compile the programs of a run in a background thread, while its text is prepared.

Programs depend on the configuration and on the vocabulary. Its size and its special tokens are
known before a tokenizer is trained, except where the text is too small for the size.
"""
from collections.abc import Callable
import contextlib
import threading
from typing import Any, NamedTuple

import jax

from plm_jax import sharding
from plm_jax.checkpoints.checkpoint import sharded_shapes
from plm_jax.config.run import Phase, RunConfig, phase_objective
from plm_jax.data.pipeline import import_tensorflow
from plm_jax.tokenizers import Vocab
from plm_jax.training.evaluate import jit_evaluation
from plm_jax.training.learner import make_learner, make_updates
from plm_jax.training.step import Learner, make_sharded_init


class Programs(NamedTuple):
  """Programs of a run, with the learner that they belong to."""

  learner: Learner
  make_state: Callable[[], Any]
  """makes the fresh training state"""
  shapes: Any
  """of the training state"""
  layout: Any
  """its shardings"""
  update: Callable[[Phase], Callable[..., Any]]
  """from a phase to its training step"""


class CompileAhead:
  """A thread that compiles initialization, training step and evaluation step of the first phase.

  JAX keeps a program with the jitted function, so that a call with the same shapes finds it. For
  other shapes or another vocabulary the run compiles its programs as usual.
  """

  def __init__(self, config: RunConfig, vocab: Vocab):
    self.config, self.vocab = config, vocab
    self.programs: Programs | None = None
    self.cancelled = threading.Event()
    self.thread = threading.Thread(target=self.compile, name='compile-ahead')
    self.thread.start()

  def compile(self) -> None:
    """Compile the programs; the work of the thread."""
    with contextlib.suppress(Exception):  # which the run will raise itself
      import_tensorflow()  # takes seconds, and the run's log for TensorBoard needs it
      mesh, phase = sharding.make_mesh(self.config.mesh), self.config.train.phases[0]
      learner = make_learner(self.config, self.vocab)
      objective = phase_objective(self.config, phase)
      window = objective.shapes(1, phase.length)
      windows = objective.shapes(phase.batch, phase.length, sharding.batch_sharding(mesh))
      with jax.set_mesh(mesh):
        make_state, shapes, layout = make_sharded_init(learner, window, mesh)
        state = sharded_shapes(shapes, layout)
        updates = make_updates(self.config, learner, layout)
        update = updates(phase)
        evaluation = jit_evaluation(learner)
        self.programs = Programs(learner, make_state, shapes, layout, updates)
        for function, arguments in (
            (make_state, ()), (update, (state, windows)), (evaluation, (state.params, windows))):
          if self.cancelled.is_set():
            return
          function.lower(*arguments).compile()

  def cancel(self) -> None:
    """Stop after the program that is being compiled; does not wait for it."""
    self.cancelled.set()

  def finish(self, vocab: Vocab) -> Programs | None:
    """Wait for the programs and return them; return None if they are of another vocabulary."""
    if vocab != self.vocab:
      self.cancel()
      return None
    self.thread.join()
    return self.programs
