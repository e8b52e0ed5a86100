"""Pre-training objectives: corrupt windows of text into batches, and turn outputs into losses.

An objective is a frozen dataclass whose fields are its hyper-parameters. Corruption is pure JAX
inside the jitted step, keyed by example. A batch is therefore the same on one CPU and on a pod,
after a restart, and under any split of the batch.
"""
import abc
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax import sharding
from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.validation import ValidatedConfig

Arrays = dict[str, jax.Array]
Losses = dict[str, Any]
"""Loss name -> (sum, weight), divided once over the whole batch. A continuous objective adds CARRY,
and an objective with statistics adds STATISTICS."""
CARRY = 'carry'
"""Key of the state that a continuous objective hands from batch to batch."""
STATISTICS = 'statistics'
"""Key of the statistics of a run that an objective keeps in the training state."""
PROGRESS = 'progress'
"""Key of the fraction of the run's steps that is done, a scalar in training windows."""


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardPass:
  """Apply a model with its parameters to a batch, once or more often per training step."""

  model: nn.Module
  params: Any
  row_ids: jax.Array
  """Number of each row in the whole batch, [batch]; dropout is keyed by it."""
  key: jax.Array
  """Dropout key of this step."""
  chunks: int = 1
  """Number of chunks of the batch that go through the model one after another, and once more for
  their gradient, so that only one chunk's activations are in memory (gradient caching, Gao et al.
  2021, section 3)."""

  def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Any:
    """Compute the model's outputs by name.

    Args:
      batch: arrays with a leading batch axis.
      key: dropout key; None takes the key of this step.
    """
    rngs = {'dropout': self.key if key is None else key}
    def apply(chunk):
      batch, row_ids = chunk
      return self.model.apply({'params': self.params}, batch, row_ids, rngs=rngs)
    if self.chunks == 1:
      return apply((batch, self.row_ids))
    chunks = sharding.split_microbatches((batch, self.row_ids), self.chunks)
    outputs = jax.lax.map(jax.checkpoint(apply), chunks)
    # split_microbatches deals rows out in turn: the axes swap back before they are joined.
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), outputs)

  @property
  def width(self) -> int:
    """Width of the token embeddings, which `noise` and `perturbation` in a batch have too."""
    paths = jax.tree_util.tree_flatten_with_path(self.params['backbone'])[0]
    return next(x.shape[-1] for path, x in paths if path[-1].key == 'tokens')


@dataclasses.dataclass(frozen=True)
class TextLayout:
  """How documents become windows of text."""

  one_document: bool = False
  """Whether a sequence is made of one document's sentences: windows must not cross documents."""
  target_tokens: tuple[int, int] | None = None
  """Tokens reserved for targets in windows of (inputs, target) examples: (tokens of a window for
  targets, special tokens per text). None: windows are plain text."""
  separators: int = 0
  """Special tokens of a sequence between two documents of its window, 0 or 1: a window holds so
  many tokens less."""
  has_text_pairs: Callable[[int], bool] = lambda corpus: False
  """Tells whether documents of a corpus are pairs of texts: windows are then cut as 'pairs'."""


@dataclasses.dataclass(frozen=True)
class Requirements:
  """What the model, the tokenizer and the corpora must have."""

  architectures: tuple[str, ...] = ()
  """Class names of the model configurations that the objective trains; empty: any."""
  special_tokens: tuple[str, ...] = ()
  """Special tokens that the tokenizer must have, as fields of its `Vocab`."""
  own_vocabulary: bool = False
  """Whether the tokenizer is a word list of the objective, which the backbone does not know."""
  pretrained_heads: tuple[str, ...] = ()
  """Names of heads that the model must have with which a warm start begins."""
  frequency_ranks: bool = False
  """Whether windows of training hold `frequency_ranks` [batch, text], the rank of each token by its
  frequency in the corpora: 0 for the most frequent (`data.window_counts`)."""
  incompatibility: Callable[[Sequence[str], Any], str | None] = lambda corpora, model: None
  """Explains which of the corpora, or what in the model, the objective cannot learn with; None:
  nothing."""


@dataclasses.dataclass(frozen=True)
class StepTraits:
  """What the training step must know of the losses."""

  cross_row: bool = False
  """Whether a row's loss depends on other rows of the batch, as a contrastive loss does. With
  gradient accumulation the micro-batches then share one loss (`ForwardPass.chunks`)."""
  needs_progress: bool = False
  """Whether corruption depends on the fraction of steps done. Windows of training then hold
  PROGRESS; windows of evaluation do not."""
  changes_over_run: bool = False
  """Whether the corruption of a step also depends on the number of steps of the run, so that a run
  cannot become longer once it has begun."""
  keeps_statistics: bool = False
  """Whether the training state has statistics of the run (`Objective.statistics`)."""
  perturbs_inputs: bool = False
  """Whether `losses` needs gradients of the embeddings, so that none may be cut off above them."""


@dataclasses.dataclass(frozen=True)
class OptimizerHints:
  """What the optimizer must know of the parameters."""

  frozen: tuple[str, ...] = ()
  """Frozen parameters, such as a teacher's, as patterns of `trainable.match_parameters`."""
  groups: tuple[tuple[str, ...], ...] = ()
  """Top-level parameter names that have an optimizer of their own; empty: one optimizer for all.
  Each group has its own gradient clipping (`optimizers.clip_gradients`)."""


class ParameterLifecycle:
  """Where parameters come from and what is left of them: teacher, initial and exported parameters.

  The defaults suit a model that is trained from scratch and is exported as it is.
  """

  def resolve_teacher(self, describe: Callable[[str], Any]) -> 'Objective | None':
    """Return the objective with the configuration of its teacher filled in; None: it has no
    teacher.

    Args:
      describe: function from the folder of a run, or of another library's checkpoint, to the
        configuration of its backbone.

    Raises:
      ConfigError: a teacher is needed and not given.
    """
    del describe

  def initial(self, params: Any, load: Callable[[str], tuple[Any, Any]]) -> Any:
    """Return the parameters that training starts from, such as those of a teacher.

    Args:
      params: freshly initialized parameters.
      load: function from the folder of a run, or of another library's checkpoint, to (configuration
        of its backbone, parameters).
    """
    del load
    return params

  def exported(self, params: Any) -> Any:
    """Return `backbone` and `heads_NAME` of trained parameters: all that a trained model needs."""
    return params


class Reporting:
  """How held-out metrics are compared and printed: accuracies in percent, and losses."""

  def higher_is_better(self, figure: str) -> bool:
    """Tell whether larger values of a metric are better: of accuracies, not of losses."""
    return figure.partition('/')[0].endswith('accuracy')

  def format_metric(self, figure: str, value: float, digits: int = 3) -> str:
    """Format a metric for people; digits: decimal places of a loss."""
    if figure.partition('/')[0].endswith(('accuracy', 'baseline')):
      return f'{value:.{digits - 2}%}'
    return f'{value:.{digits}f}'


@dataclasses.dataclass(frozen=True)
class Objective(ValidatedConfig, abc.ABC):
  """Contract of a pre-training objective.

  A new objective defines `terms`, `corrupt`, `heads` and `loss`, and overrides what differs from
  the defaults. What other parts of the program must know of it are values by subject: `layout`,
  `requirements`, `step_traits`, `optimizer_hints`, `lifecycle`, `reporting`.

  `plm_jax/data/windows.py` specifies the windows. Arguments called `model` are the configuration of
  the backbone.
  """

  # Learning: corruption, heads and losses.

  @property
  @abc.abstractmethod
  def terms(self) -> Mapping[str, float]:
    """Losses that training minimizes, with their factors.

    Other names that `loss` returns are only reported.
    """

  @abc.abstractmethod
  def corrupt(self, key: jax.Array, windows: Arrays, vocab: Any) -> Arrays:
    """Turn windows into a batch of static shapes: masked inputs, labels and loss weights.

    Args:
      key: random key; each example folds in its own index.
      windows: arrays with a leading batch axis, see `plm_jax/data/windows.py`.
      vocab: the tokenizer's `Vocab`.
    """

  @abc.abstractmethod
  def heads(self, model: Any) -> dict[str, nn.Module]:
    """Build the output heads that `loss` reads, by name."""

  @abc.abstractmethod
  def loss(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Compute (sum, weight) pairs by name.

    A weight depends on the batch alone. A row with nothing to predict has weight 0.
    """

  def losses(self, passes: ForwardPass, batch: Arrays) -> Losses:
    """Compute the (sum, weight) pairs of a training step, which may take several forward passes.

    The default is `loss` after one forward pass. The weights of `terms` are those of `loss`.
    """
    return self.loss(passes(batch), batch)

  def accuracy_targets(self, outputs: Mapping[str, jax.Array], batch: Arrays) -> Losses:
    """Return the labels that each NAME_accuracy compares with: NAME -> (labels, weights).

    Evaluation counts these labels for the accuracy of the majority-class baseline.
    """
    del outputs, batch
    return {}

  def carry(self, model: Any, rows: int) -> Any:
    """Return the shapes of the state that each batch hands to the next, or None for no state.

    An objective with a carry is continuous: the rows of a batch continue where those of the batch
    before ended. Windows come in the order of the text, and `behind_NAME` holds the windows of the
    same text from its end (`data.pipeline`). The state is zeros at first, comes to `corrupt` as
    windows['carry'], and is returned by `loss` and `losses` under CARRY.

    Args:
      model: configuration of the backbone.
      rows: batch size, the leading axis of each array.
    """
    del model, rows

  def statistics(self, vocab: int) -> Any:
    """Return the statistics at the start of a run.

    Only an objective with `StepTraits.keeps_statistics` defines this and `update_statistics`.

    Statistics are part of the training state, the same on all devices, and come to `corrupt` as
    windows['statistics'] in training, but not in evaluation. `losses` returns what a batch adds to
    them under STATISTICS, as arrays with a leading batch axis.

    Args:
      vocab: size of the vocabulary.
    """
    raise NotImplementedError

  def update_statistics(self, statistics: Any, seen: Any, step: jax.Array) -> Any:
    """Return the statistics after a step.

    Args:
      statistics: those before the step.
      seen: what `losses` returned under STATISTICS, for the whole batch.
      step: number of steps before this one.
    """
    raise NotImplementedError

  def build(self, model: Any, packed: bool) -> nn.Module:
    """Build the module (batch, row ids) -> outputs by name, of one network or of two."""
    return ModelWithHeads(model.backbone(packed), self.heads(model))

  def module_inputs(self, model: Any) -> Mapping[str, jax.ShapeDtypeStruct]:
    """Return shapes of batch fields that the module of `build` needs and other models do not.

    With `families.dummy_inputs` they are a batch that parameters take their shapes from.
    """
    del model
    return {}

  # Sizes of windows, batches and steps.

  starts_every_row = True
  """whether a sequence begins with the start token, also where its text begins inside a document"""

  def text_length(self, length: int) -> int:
    """Return the number of raw text tokens to cut for sequences of `length` tokens."""
    return length

  def max_predictions(self, length: int) -> int:
    """Return the maximum number of predicted positions in a sequence of `length` tokens."""
    return length

  def step_flops(self, model: Any, length: int) -> int:
    """Count the matrix-product FLOPs of one training step per sequence: forward, and twice that."""
    return 3 * model.forward_flops(length, self.max_predictions(length))

  def add_token_info(self, windows: Mapping[str, Any], tokenizer: Any) -> Mapping[str, Any]:
    """Add to windows what only the tokenizer knows of their tokens, such as characters or synonyms.

    Runs on the host, on numpy arrays. Most objectives need token ids alone.
    """
    del tokenizer
    return windows

  def shapes(self, rows: int, length: int, layout: Any = None) -> Any:
    """Return the shapes of windows for `rows` sequences of `length` tokens; layout: sharding."""
    return window_shapes(rows, self.text_length(length), layout)

  # Values by subject.

  @property
  def layout(self) -> TextLayout:
    """How documents become windows."""
    return TextLayout()

  @property
  def requirements(self) -> Requirements:
    """What the model, the tokenizer and the corpora must have."""
    return Requirements()

  @property
  def step_traits(self) -> StepTraits:
    """What the training step must know of the losses."""
    return StepTraits()

  @property
  def optimizer_hints(self) -> OptimizerHints:
    """What the optimizer must know of the parameters."""
    return OptimizerHints()

  @property
  def lifecycle(self) -> ParameterLifecycle:
    """Teacher, initial and exported parameters."""
    return ParameterLifecycle()

  @property
  def reporting(self) -> Reporting:
    """How held-out metrics are compared and printed."""
    return Reporting()

  @property
  def generates(self) -> bool:
    """Whether a masked-LM head is trained for every mask rate, so that it generates text."""
    return False

  def mask_tokens(self, model: Any) -> tuple[str, ...]:
    """Return the mask tokens that a prompt may contain and the model fills in; empty: none."""
    return ('[MASK]',) if 'mlm' in self.heads(model) else ()


def window_shapes(rows: int, length: int, layout: Any = None) -> dict[str, jax.ShapeDtypeStruct]:
  """Return the shapes of a batch of text windows (`data/windows.py`); layout: their sharding."""
  def shape(*size):
    return jax.ShapeDtypeStruct(size, jnp.int32, sharding=layout)
  shapes = {name: shape(rows, length) for name in ('tokens', 'segments', 'sentences', 'words')}
  return shapes | {name: shape(rows) for name in ('document', 'corpus', 'index', 'epoch')}


# The mask rate of a phase: find and set it in an objective, or in a part of the objective.


def count_mask_rates(config: Any) -> int:
  """Count the mask rates of an objective, or of a part of one: 1 for BERT, T5 and ELECTRA."""
  if isinstance(config, tuple):
    return sum(map(count_mask_rates, config))
  if not dataclasses.is_dataclass(config):
    return 0
  inner = sum(count_mask_rates(getattr(config, field.name)) for field in dataclasses.fields(config))
  return inner + hasattr(config, 'mask_rate')


def check_mask_rates(phases: Sequence[Any], objective: Any) -> None:
  """Raise ConfigError for the mask rate of a phase where the objective has none, or several."""
  for number, phase in enumerate(phases):
    if phase.mask_rate is None:
      continue
    option, rates = name_field(f'train.phases.{number}.mask_rate'), count_mask_rates(objective)
    if rates != 1:
      raise ConfigError(f'{option}: the objective {type(objective).__name__} has '
                        f'{rates or "no"} mask rate{"s" if rates > 1 else ""}: leave it out')
    if getattr(objective, 'final_mask_rate', None) is not None:
      raise ConfigError(f'{option} and {name_field("objective.final_mask_rate")} both change the '
                        'mask rate during the run: give one of them')


def set_mask_rate(config: Any, rate: float) -> Any:
  """Return an objective, or a part of one, with another mask rate."""
  if isinstance(config, tuple):
    return tuple(set_mask_rate(part, rate) for part in config)
  if not count_mask_rates(config):
    return config
  changed = {}
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    changed[field.name] = rate if field.name == 'mask_rate' else set_mask_rate(value, rate)
  return dataclasses.replace(config, **changed)
