"""Objectives: each turns windows of text into a learning problem, and outputs into losses.

An objective is a frozen dataclass; its fields are its hyper-parameters. What it does to text is pure JAX inside the
jitted step, keyed by example, so it is the same on one CPU and on a pod, after a restart and under any batch split.
"""
import abc
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax import sharding
from plm_jax.checked import Checked
from plm_jax.layers.heads import WithHeads

Arrays = dict[str, jax.Array]
# name -> (sum, weight), to be divided once over the whole batch; of a continuous objective also CARRY -> what is next
Losses = dict[str, Any]
CARRY = 'carry'
PROGRESS = 'progress'  # of windows in training: which share of the run's steps is done, []


@dataclasses.dataclass(frozen=True, eq=False)
class Passes:
  """A model with its parameters, which an objective asks for the outputs of a batch, once or more often."""

  model: nn.Module
  params: Any
  rows: jax.Array
  """number of each row in the whole batch [B]"""
  key: jax.Array
  """of dropout in this step"""
  parts: int = 1
  """parts of a batch that go through the model one after another, and again for their gradient: no more than one part's
  states are in memory (gradient caching, Gao et al. 2021, section 3)"""

  def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Any:
    """Returns the outputs by name, with dropout by `key`, that of the step where there is none."""
    rngs = {'dropout': self.key if key is None else key}
    def outputs(part):
      return self.model.apply({'params': self.params}, *part, rngs=rngs)
    if self.parts == 1:
      return outputs((batch, self.rows))
    found = jax.lax.map(jax.checkpoint(outputs), sharding.split((batch, self.rows), self.parts))
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), found)

  @property
  def width(self) -> int:
    """E, width of token vectors: of `noise` and `perturbation` in a batch."""
    paths = jax.tree_util.tree_flatten_with_path(self.params['backbone'])[0]
    return next(x.shape[-1] for path, x in paths if path[-1].key == 'tokens')


@dataclasses.dataclass(frozen=True)
class Objective(Checked, abc.ABC):
  """The contract; `plm_jax/data/windows.py` specifies the windows. `model` is the configuration of the backbone."""

  @property
  @abc.abstractmethod
  def terms(self) -> Mapping[str, float]:
    """The losses that training minimises, with their factors; other names that `loss` returns are only reported."""

  @abc.abstractmethod
  def window(self, length: int) -> int:
    """Returns the tokens of raw text to cut for rows of `length` tokens."""

  @abc.abstractmethod
  def corrupt(self, key: jax.Array, windows: Arrays, vocab: Any) -> Arrays:
    """Turns windows into a batch, of static shapes; `vocab` is the tokenizer's `Vocab`."""

  @abc.abstractmethod
  def heads(self, model: Any) -> dict[str, nn.Module]:
    """Returns the modules that `loss` reads, by name."""

  @abc.abstractmethod
  def loss(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Returns (sum, weight) pairs by name. A weight depends on the batch alone; a row with nothing to predict weighs
    0."""

  @property
  def whole(self) -> bool:
    """Whether a row's loss depends on the other rows of its batch: micro-steps then share one loss (`Passes.parts`)."""
    return False

  @property
  def paced(self) -> bool:
    """Whether what it does to text depends on how far the run is: windows then have PROGRESS, but in evaluation."""
    return False

  @property
  def moves_inputs(self) -> bool:
    """Whether `losses` asks for gradients of token vectors, so that none may be cut off above them."""
    return False

  def carry(self, model: Any, rows: int) -> Any:
    """Returns the shapes of what each batch hands to the next, with a row each; None: nothing.

    Then the objective is continuous: rows go on where those of the batch before ended, through windows in the order of
    the text, and in `behind_NAME` through those of the same text from its end (`data.pipeline`). What is handed over is
    zeros at first, comes to `corrupt` as windows['carry'], and is returned by `loss` and `losses` under CARRY.
    """
    del model, rows

  def described(self, windows: Mapping[str, Any], tokenizer: Any) -> Mapping[str, Any]:
    """Returns windows, numpy arrays on the host, with what only the tokenizer knows of them: most need no more than
    ids."""
    del tokenizer
    return windows

  def losses(self, passes: Passes, batch: Arrays) -> Losses:
    """Returns (sum, weight) pairs of a training step: those of `loss`, or what takes other passes through the model
    besides. The weights of `terms` are those of `loss`."""
    return self.loss(passes(batch), batch)

  def answers(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Returns what NAME_accuracy is held against: NAME -> (the true classes [...], what each weighs in the accuracy
    [...]).

    From these, evaluation counts how often it would be right to give the most frequent answer to everything.
    """
    del outputs, batch
    return {}

  def larger(self, figure: str) -> bool:
    """Tells whether a held-out figure is better where it is larger: an accuracy is, a loss is not."""
    return figure.partition('/')[0].endswith('accuracy')

  def shown(self, figure: str, value: float, digits: int = 3) -> str:
    """Writes the value of a held-out figure for people. digits: behind the point, of a loss."""
    share = figure.partition('/')[0].endswith(('accuracy', 'baseline'))
    return f'{value:.{digits - 2}%}' if share else f'{value:.{digits}f}'

  @abc.abstractmethod
  def predictions(self, length: int) -> int:
    """Returns M, the most positions predicted in a row of `length` tokens."""

  @property
  def target_budget(self) -> tuple[int, int] | None:
    """(tokens of a window that are kept for targets, special tokens of each text) where windows are of examples, each a
    target and its inputs; None: they are not."""
    return None

  @property
  def one_document(self) -> bool:
    """Whether rows are made of sentences of one document, so that windows must not cross from one to the next."""
    return False

  def of_pairs(self, corpus: int) -> bool:
    """Tells whether documents of a corpus are two texts each, which are in one row: windows are cut as 'pairs'."""
    del corpus
    return False

  def unfit(self, corpora: Sequence[str], model: Any) -> str | None:
    """Says which corpora, or what of the model, it cannot learn with; None: nothing."""
    del corpora, model

  @property
  def required_specials(self) -> tuple[str, ...]:
    """Special tokens of the tokenizer without which it cannot be, as fields of its `Vocab`."""
    return ()

  @property
  def own_words(self) -> bool:
    """Whether the tokenizer is a list of words of the objective's own, whose ids mean nothing to the backbone."""
    return False

  @property
  def frozen(self) -> tuple[str, ...]:
    """Parameters that are not trained, a teacher's, by the patterns of `selection.matching`."""
    return ()

  @property
  def parts(self) -> tuple[tuple[str, ...], ...]:
    """Names of parameters, at the top of their tree, that have an optimizer of their own (`optim.clipping`); none: all
    have one together."""
    return ()

  def blanks(self, model: Any) -> tuple[str, ...]:
    """Returns what stands in a text for words that the model fills in; none: it fills in nothing."""
    return ('[MASK]',) if 'mlm' in self.heads(model) else ()

  def build(self, model: Any, packed: bool) -> nn.Module:
    """Builds the module of batch, rows -> outputs by name; overridden where one backbone is not enough."""
    return WithHeads(model.backbone(packed), self.heads(model))

  def step_flops(self, model: Any, length: int) -> int:
    """Counts the floating point operations of the matrix products of one training step for one row: forward, and twice
    that."""
    return 3 * model.forward_flops(length, self.predictions(length))

  def shapes(self, rows: int, length: int, layout: Any = None) -> Any:
    """Returns windows without their content, as they are for rows of `length` tokens; layout: their sharding."""
    return window_shapes(rows, self.window(length), layout)

  def with_teacher(self, describe: Callable[[str], Any]) -> 'Objective':
    """Returns the objective with all that it has to know of other models before a run; ValueError where it cannot.

    describe: a folder of a run or of another library's checkpoint -> configuration of its backbone.
    """
    del describe
    return self

  def initial_params(self, params: Any, load: Callable[[str], tuple[Any, Any]]) -> Any:
    """Turns fresh parameters into those that training starts from.

    load: a folder of a run or of another library's checkpoint -> (configuration of its backbone, parameters).
    """
    del load
    return params

  def exported_params(self, params: Any) -> Any:
    """Returns, of parameters as they are trained, `backbone` and `heads_NAME`: a model that needs no more than
    these."""
    return params


def window_shapes(rows: int, length: int, layout: Any = None) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns a batch of windows of text (data/windows.py) without its content."""
  def shape(*size):
    return jax.ShapeDtypeStruct(size, jnp.int32, sharding=layout)
  return {name: shape(rows, length) for name in ('tokens', 'segments', 'sentences', 'words')} | {
      name: shape(rows) for name in ('document', 'corpus', 'index', 'epoch')}
