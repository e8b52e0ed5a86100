"""What a student learns of its teacher's layers: layer by layer (TinyBERT), or the relations of one layer (MiniLM).

Each is a value, of which `Distillation` asks what to read of `layers.stack.Inside`, of the student and of the teacher,
and how far that is apart.
"""
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.checked import Checked, within
from plm_jax.layers.attention import products
from plm_jax.layers.masks import visible
from plm_jax.layers.stack import Inside
from plm_jax.objectives import Losses

Relation = Literal['attention', 'queries', 'keys', 'values']
Read = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Layerwise(Checked):
  """Jiao et al. 2020, section 3.1: layer m of a student of M learns of layer m N / M of its teacher's N.

  Squared differences: of embeddings and hidden states, the student's through one matrix for all (released code; the
  paper has another for embeddings), and of logits of attention. Released code counts padding too, here it does not.
  """

  projects: ClassVar[bool] = True
  """the student's states go through a matrix, to its teacher's width"""

  embeddings: float = 1.0
  """factor of what the first layers read (equation 9)"""
  hidden: float = 1.0
  """factor of what layers give (equation 8)"""
  scores: float = 1.0
  """factor of logits of attention (equation 7)"""

  def conflict(self, option):
    """Says that there is nothing to learn."""
    return None if self.terms else f'{option("embeddings")}, {option("hidden")} and {option("scores")} are all 0'

  @property
  def terms(self) -> Mapping[str, float]:
    """Factors of the losses, but for those that are 0."""
    factors = {'embeddings': self.embeddings, 'hidden': self.hidden, 'scores': self.scores}
    return {name: factor for name, factor in factors.items() if factor}

  def refuses(self, student, teacher) -> str:
    """Says why a student, by its configuration, cannot learn so of its teacher; '' where it can."""
    if teacher.stack.blocks % student.stack.blocks:
      return (f"the student's layers are evenly spaced among its teacher's {teacher.stack.blocks}, got "
              f'{student.stack.blocks}: give --model.stack.layers a number that divides it')
    if self.scores and student.block.heads != teacher.block.heads:
      return f'logits of attention are compared head by head: give --model.block.heads {teacher.block.heads}'
    return refuses_wiring(student, teacher)

  def own(self, inside: Inside, model, fit: Callable[[jax.Array], jax.Array]) -> Read:
    """Reads the student: all of its layers."""
    return self.read(inside, model, list(range(model.stack.blocks)), fit)

  def taught(self, inside: Inside, teacher, student) -> Read:
    """Reads the teacher: as many of its layers as the student has."""
    step = teacher.stack.blocks // student.stack.blocks
    return self.read(inside, teacher, list(range(step - 1, teacher.stack.blocks, step)), lambda x: x)

  def read(self, inside: Inside, model, layers: list[int], fit: Callable[[jax.Array], jax.Array]) -> Read:
    """Reads embeddings [1, B, L, D], hidden [N, B, L, D] and scores [N, B, H, L, L] of these layers."""
    found: Read = {}
    if self.embeddings:
      found['embeddings'] = fit(inside.embedded[None])
    if self.hidden:
      found['hidden'] = fit(inside.hidden[jnp.array(layers)])
    if self.scores:
      found['scores'] = jnp.stack([scores(inside, model, layer) for layer in layers])
    return found

  def losses(self, own: Read, taught: Read, mask) -> Losses:
    """Returns (sum, weight) pairs, sums over layers of means over tokens, or over pairs of tokens that see each other:
    mask [B, L, L]."""
    text = mask.any(1).astype(jnp.float32)
    found = {}
    for name, x in own.items():
      squared = jnp.square(x.astype(jnp.float32) - taught[name].astype(jnp.float32))
      if name == 'scores':
        found[name] = jnp.where(mask, squared.mean(2), 0).sum(), mask.sum().astype(jnp.float32)
      else:
        found[name] = (squared.mean(-1) * text).sum(), text.sum()
    return found


@dataclasses.dataclass(frozen=True)
class Relations(Checked):
  """Wang et al. 2020, sections 3.1 and 3.2 (MiniLM), and with `heads` Wang et al. 2021, section 3.1 (MiniLMv2).

  A relation is the softmax of the products of the vectors of all tokens; the student's last layer is to have those of
  one layer of its teacher: divergences, means over heads and tokens. Of queries and keys it is attention itself.
  """

  limits = within(heads='[0, inf)', layer='[0, inf)')
  projects: ClassVar[bool] = False

  of: tuple[Relation, ...] = ('attention', 'values')
  """what tokens are compared by; MiniLMv2: queries, keys and values"""
  heads: int = 0
  """vectors of all heads are joined and divided anew into so many; 0: they stay those of attention, of which student
  and teacher have as many"""
  layer: int = 0
  """the teacher's, from 1; 0: the last"""

  def conflict(self, option):
    """Says which relations do not go together."""
    if not self.of or len(set(self.of)) < len(self.of):
      return f'{option("of")} names relations, each once, got {self.of}'
    if self.heads and 'attention' in self.of:
      return f"{option('of')} attention is that of the models' heads: leave out {option('heads')}"
    return None

  @property
  def terms(self) -> Mapping[str, float]:
    """All relations alike."""
    return dict.fromkeys(self.of, 1.0)

  def refuses(self, student, teacher) -> str:
    """Says why a student, by its configuration, cannot learn so of its teacher; '' where it can."""
    if self.layer > teacher.stack.blocks:
      return f'the teacher has {teacher.stack.blocks} layers, and --objective.inner.layer is {self.layer}'
    if not self.heads and student.block.heads != teacher.block.heads:
      return (f'relations are compared head by head: give --model.block.heads {teacher.block.heads}, or '
              '--objective.inner.heads a number')
    for model in (student, teacher):
      sizes = {heads * model.block.head_dim for heads in (model.block.heads, model.block.key_heads)}
      if self.heads and any(size % self.heads for size in sizes):
        return f'--objective.inner.heads {self.heads} does not divide the width of queries or keys, {max(sizes)}'
    return refuses_wiring(student, teacher)

  def own(self, inside: Inside, model, fit: Callable[[jax.Array], jax.Array]) -> Read:
    """Reads the student's last layer."""
    del fit
    return self.read(inside, model, model.stack.blocks - 1)

  def taught(self, inside: Inside, teacher, student) -> Read:
    """Reads the teacher's layer."""
    del student
    return self.read(inside, teacher, (self.layer or teacher.stack.blocks) - 1)

  def read(self, inside: Inside, model, layer: int) -> Read:
    """Reads the logits of each relation [B, R, L, L] of a layer."""
    vectors = {'queries': inside.query, 'keys': inside.key, 'values': inside.value}
    return {name: scores(inside, model, layer) if name == 'attention' else related(vectors[name][layer], self.heads)
            for name in self.of}

  def losses(self, own: Read, taught: Read, mask) -> Losses:
    """Returns (sum, weight) pairs: divergences of the student's relations from the teacher's. mask [B, L, L]."""
    text = mask.any(-1).astype(jnp.float32)
    found = {}
    for name, x in own.items():
      ours, theirs = (jax.nn.log_softmax(jnp.where(mask[:, None], logits, -1e9)) for logits in (x, taught[name]))
      divergence = (jnp.exp(theirs) * (theirs - ours)).sum(-1).mean(1)
      found[name] = (divergence * text).sum(), text.sum()
    return found


Inner = Layerwise | Relations


def refuses_wiring(student, teacher) -> str:
  """Says that a model has no layers that can be looked at; '' where both have."""
  known = EncoderConfig | DecoderConfig
  others = [type(model).__name__ for model in (student, teacher) if not isinstance(model, known)]
  return f'layers of an encoder or a decoder are compared, not those of {others[0]}' if others else ''


def scores(inside: Inside, model, layer: int) -> jax.Array:
  """Returns the logits of attention of a layer, before any mask [B, H, L, L], float32."""
  scale = model.block.attention.scale or model.block.head_dim ** -0.5
  logits = products(inside.query[layer], inside.key[layer]) * scale
  return logits if inside.bias is None else logits + inside.bias[layer]


def related(vectors, heads: int) -> jax.Array:
  """Multiplies vectors [B, L, H, A] of all tokens with each other, divided into other heads where these are not 0 ->
  [B, H, L, L] float32, over the root of a head's size."""
  if heads:
    vectors = vectors.reshape(*vectors.shape[:2], heads, -1)
  return products(vectors, vectors) * vectors.shape[-1] ** -0.5


def seen(batch: Mapping[str, Any], causal: bool) -> jax.Array:
  """Tells which tokens of a batch are compared: those of one text, of a causal model with what comes before them, bool
  [B, L, L]."""
  segments = batch['segments']
  ranks = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape) if causal else None
  mask = visible(segments, segments, ranks, ranks)
  return mask[:, 0]
