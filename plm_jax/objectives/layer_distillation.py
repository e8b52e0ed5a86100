"""Distillation of intermediate layers: layer to layer (TinyBERT), or self-attention relations
(MiniLM).

Each way is a value that reads `layers.stack.LayerStates` of student and teacher, and compares them.
`Distillation` calls it.
"""
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.errors import name_field
from plm_jax.layers.attention import multiply_query_key
from plm_jax.layers.masks import attention_mask
from plm_jax.layers.stack import LayerStates
from plm_jax.objectives import Losses
from plm_jax.validation import ValidatedConfig, intervals

Relation = Literal['attention', 'queries', 'keys', 'values']
LayerReadings = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Layerwise(ValidatedConfig):
  """Transformer distillation, layer to layer (TinyBERT: Jiao et al. 2020, section 3.1).

  Layer m of a student with M layers learns from layer m N / M of a teacher with N. The losses are
  mean squared errors of embeddings, hidden states and attention logits. The student's states go
  through one matrix for all layers (as released; the paper has another for embeddings). Released
  code counts padding too, here it does not count.
  """

  projects_student: ClassVar[bool] = True
  """The student's states are projected to the teacher's width."""

  embeddings: float = 1.0
  """Factor of the loss of the embeddings, which the first layers read (equation 9)."""
  hidden: float = 1.0
  """Factor of the loss of the layers' outputs (equation 8)."""
  scores: float = 1.0
  """Factor of the loss of the attention logits (equation 7)."""

  def conflict(self, option):
    if self.terms:
      return None
    return f'{option("embeddings")}, {option("hidden")} and {option("scores")} are all 0'

  @property
  def terms(self) -> Mapping[str, float]:
    """Factors of the losses, without those of 0."""
    factors = {'embeddings': self.embeddings, 'hidden': self.hidden, 'scores': self.scores}
    return {name: factor for name, factor in factors.items() if factor}

  def find_mismatch(self, student, teacher) -> str:
    """Explain why a student's configuration does not fit its teacher's; '' where it does."""
    if teacher.stack.blocks % student.stack.blocks:
      return (f"the student's layers are evenly spaced among its teacher's {teacher.stack.blocks}, "
              f'got {student.stack.blocks}: give {name_field("model.stack.layers")} a number that '
              'divides it')
    if self.scores and student.block.heads != teacher.block.heads:
      return ('logits of attention are compared head by head: give '
              f'{name_field("model.block.heads")} {teacher.block.heads}')
    return find_wiring_mismatch(student, teacher)

  def read_student(
      self, states: LayerStates, model, fit: Callable[[jax.Array], jax.Array]) -> LayerReadings:
    """Read all layers of the student; fit: projection to the teacher's width."""
    return self.read(states, model, list(range(model.stack.blocks)), fit)

  def read_teacher(self, states: LayerStates, teacher, student) -> LayerReadings:
    """Read as many layers of the teacher as the student has, evenly spaced."""
    step = teacher.stack.blocks // student.stack.blocks
    layers = list(range(step - 1, teacher.stack.blocks, step))
    return self.read(states, teacher, layers, lambda x: x)

  def read(self, states: LayerStates, model, layers: list[int],
           fit: Callable[[jax.Array], jax.Array]) -> LayerReadings:
    """Read some layers.

    Returns:
      embeddings [1, batch, length, width], hidden [layers, batch, length, width] and scores
      [layers, batch, heads, length, length], each where its factor is not 0.
    """
    readings: LayerReadings = {}
    if self.embeddings:
      readings['embeddings'] = fit(states.embedded[None])
    if self.hidden:
      readings['hidden'] = fit(states.hidden[jnp.array(layers)])
    if self.scores:
      readings['scores'] = jnp.stack(
          [attention_logits(states, model, layer) for layer in layers])
    return readings

  def losses(self, own: LayerReadings, taught: LayerReadings, mask) -> Losses:
    """Compute mean squared errors as (sum, weight) pairs.

    They are sums over layers of means over tokens, or over pairs of tokens that attend to each
    other.

    Args:
      own: the student's readings.
      taught: the teacher's readings.
      mask: attention mask, [batch, length, length].
    """
    text = mask.any(1).astype(jnp.float32)
    losses = {}
    for name, x in own.items():
      squared = jnp.square(x.astype(jnp.float32) - taught[name].astype(jnp.float32))
      if name == 'scores':
        losses[name] = jnp.where(mask, squared.mean(2), 0).sum(), mask.sum().astype(jnp.float32)
      else:
        losses[name] = (squared.mean(-1) * text).sum(), text.sum()
    return losses


@dataclasses.dataclass(frozen=True)
class Relations(ValidatedConfig):
  """Self-attention relation distillation (MiniLM: Wang et al. 2020, sections 3.1 and 3.2).

  With `heads` it is MiniLMv2 (Wang et al. 2021, section 3.1). A relation is the softmax of the
  scaled products of the vectors of all tokens. The student's last layer learns the relations of
  one layer of its teacher by KL divergence, a mean over heads and tokens. The relation of queries
  and keys is attention itself.
  """

  limits = intervals(heads='[0, inf)', layer='[0, inf)')
  projects_student: ClassVar[bool] = False

  of: tuple[Relation, ...] = ('attention', 'values')
  """Relations to learn. MiniLMv2 has queries, keys and values."""
  heads: int = 0
  """Number of relation heads: the vectors of all attention heads are concatenated and split into
  this many heads. 0: the attention heads themselves; student and teacher then have the same
  number."""
  layer: int = 0
  """Layer of the teacher, from 1. 0: the last."""

  def conflict(self, option):
    if not self.of or len(set(self.of)) < len(self.of):
      return f'{option("of")} names relations, each once, got {self.of}'
    if self.heads and 'attention' in self.of:
      return (f"{option('of')} attention is that of the models' heads: leave out "
              f"{option('heads')}")
    return None

  @property
  def terms(self) -> Mapping[str, float]:
    """All relations with factor 1."""
    return dict.fromkeys(self.of, 1.0)

  def find_mismatch(self, student, teacher) -> str:
    """Explain why a student's configuration does not fit its teacher's; '' where it does."""
    if self.layer > teacher.stack.blocks:
      return (f'the teacher has {teacher.stack.blocks} layers, and '
              f'{name_field("objective.inner.layer")} is {self.layer}')
    if not self.heads and student.block.heads != teacher.block.heads:
      return (f'relations are compared head by head: give {name_field("model.block.heads")} '
              f'{teacher.block.heads}, or {name_field("objective.inner.heads")} a number')
    for model in (student, teacher):
      block = model.block
      sizes = {heads * block.head_dim for heads in (block.heads, block.key_heads)}
      if self.heads and any(size % self.heads for size in sizes):
        return (f'{name_field("objective.inner.heads")} {self.heads} does not divide the width of '
                f'queries or keys, {max(sizes)}')
    return find_wiring_mismatch(student, teacher)

  def read_student(
      self, states: LayerStates, model, fit: Callable[[jax.Array], jax.Array]) -> LayerReadings:
    """Read the student's last layer."""
    del fit
    return self.read(states, model, model.stack.blocks - 1)

  def read_teacher(self, states: LayerStates, teacher, student) -> LayerReadings:
    """Read the layer of the teacher."""
    del student
    return self.read(states, teacher, (self.layer or teacher.stack.blocks) - 1)

  def read(self, states: LayerStates, model, layer: int) -> LayerReadings:
    """Read the logits of each relation of a layer, [batch, heads, length, length]."""
    vectors = {'queries': states.query, 'keys': states.key, 'values': states.value}
    readings = {}
    for name in self.of:
      if name == 'attention':
        readings[name] = attention_logits(states, model, layer)
      else:
        # [batch, length, attention heads, head size] -> [batch, length, relation heads, size]
        x = vectors[name][layer]
        x = x.reshape(*x.shape[:2], self.heads or x.shape[2], -1)
        readings[name] = multiply_query_key(x, x) * x.shape[-1] ** -0.5
    return readings

  def losses(self, own: LayerReadings, taught: LayerReadings, mask) -> Losses:
    """Compute the KL divergences of the student's relations from the teacher's.

    Args:
      own: the student's readings.
      taught: the teacher's readings.
      mask: attention mask, [batch, length, length].

    Returns:
      (sum, weight) pairs.
    """
    text = mask.any(-1).astype(jnp.float32)
    def log_softmax(logits):
      return jax.nn.log_softmax(jnp.where(mask[:, None], logits, -1e9))
    losses = {}
    for name, x in own.items():
      ours, theirs = log_softmax(x), log_softmax(taught[name])
      divergence = (jnp.exp(theirs) * (theirs - ours)).sum(-1).mean(1)
      losses[name] = (divergence * text).sum(), text.sum()
    return losses


def find_wiring_mismatch(student, teacher) -> str:
  """Explain that the layers of an architecture cannot be compared; '' where both can."""
  for model in (student, teacher):
    if not isinstance(model, EncoderConfig | DecoderConfig):
      return ('layers of an encoder or a decoder are compared, not those of '
              f'{type(model).__name__}')
  return ''


def attention_logits(states: LayerStates, model, layer: int) -> jax.Array:
  """Compute the attention logits of a layer before masking, float32 [batch, heads, length,
  length]."""
  scale = model.block.attention.scale or model.block.head_dim ** -0.5
  logits = multiply_query_key(states.query[layer], states.key[layer]) * scale
  return logits if states.bias is None else logits + states.bias[layer]


def comparison_mask(batch: Mapping[str, Any], causal: bool) -> jax.Array:
  """Return the attention mask of the pairs of tokens to compare, bool [batch, length, length].

  These are pairs of one text; in a causal model, of a token and those before it.
  """
  segments = batch['segments']
  ranks = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape) if causal else None
  mask = attention_mask(segments, segments, ranks, ranks)
  return mask[:, 0]
