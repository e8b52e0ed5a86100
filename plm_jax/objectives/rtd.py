"""Replaced-token detection, RTD (ELECTRA, DeBERTa v3): a discriminator finds a generator's
samples."""
from collections.abc import Mapping
import dataclasses
import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.dense import with_logical_axes
from plm_jax.layers.heads import MaskedLMHead, ModelWithHeads, ReplacedTokenHead
from plm_jax.objectives import (
    Objective,
    OptimizerHints,
    ParameterLifecycle,
    Requirements,
    StepTraits,
    TextLayout,
    corruption,
)
from plm_jax.objectives.mlm import MaskedLM, classification_losses
from plm_jax.objectives.row_builders import Single
from plm_jax.validation import intervals

Sharing = Literal['embeddings', 'disentangled', 'none']
SHARED_TABLES: Mapping[str, tuple[str, ...]] = {
    'embeddings': ('tokens', 'positions', 'types'),
    'disentangled': ('tokens', 'positions'),
    'none': ()}
"""Embedding tables of the generator that the discriminator uses too."""


@dataclasses.dataclass(frozen=True)
class ReplacedTokenDetection(Objective):
  """Replaced-token detection (ELECTRA: Clark et al. 2020, section 2).

  The generator learns masked language modeling, and the discriminator tells which tokens are its
  samples. The backbone is the discriminator.

  There are two differences from ELECTRA's released code. There the two networks share the norm of
  the embeddings too. And a token that was chosen twice (`masking.Repeated`) has one sample here,
  where that code takes the mean of two ids.

  DeBERTa v3's released code (microsoft/DeBERTa, apps/tasks/rtd_task.py, get_decoupled_loss_fn)
  trains the generator for a step, and then the discriminator on the samples of before that step,
  each with its own optimizer. No gradient flows from one to the other, and an optimizer works on
  each parameter alone, except for gradient clipping. So one backward pass of the sum of both
  losses, clipped by `optimizer_hints`, equals these two steps, with two exceptions. The table to
  which the discriminator adds its own is here that of before the generator's step, not after it.
  And a step with a loss that is not finite is skipped for both.
  """

  limits = intervals(width='(0, 1]', depth='(0, 1]')

  mlm: MaskedLM = MaskedLM(pair=Single(), mask_share=1.0, random_share=0.0)
  """Masked language modeling of the generator, and how text becomes sequences."""
  weight: float = 50.0
  """Factor of the discriminator's loss. DeBERTa v3's paper has 50 too, its released code 10."""
  sharing: Sharing = 'embeddings'
  """How the two networks share embeddings. `embeddings`: both have the same tables.
  `disentangled`: the discriminator's tables are the generator's, without gradient, plus its own
  (gradient-disentangled embedding sharing: He et al. 2023, section 3.2.3). `none`: separate
  tables."""
  width: float = 0.25
  """Width of the generator as a fraction of the model's."""
  depth: float = 1.0
  """Number of generator layers as a fraction of the model's."""
  optimizers: Literal['one', 'two'] = 'one'
  """One optimizer for both networks (ELECTRA), or one for each, which clips its own gradient
  (DeBERTa v3)."""
  first: bool = False
  """Whether the head adds the first token to each token, and normalizes (DeBERTa v3 as
  released)."""

  def conflict(self, option):
    if self.mlm.pair.pair_task:
      return (f'replaced-token detection asks nothing about pairs: {option("mlm.pair")} is '
              f'{self.mlm.pair}')
    if self.mlm.step_traits.keeps_statistics:
      return (f'{option("mlm.masking.kind")} adaptive is for masked language modeling alone: '
              'leave it out')
    if self.optimizers == 'two' and self.sharing == 'embeddings':
      return (f'tables that learn from both networks have one optimizer: {option("optimizers")} '
              f'two is for {option("sharing")} disentangled or none')
    return None

  @property
  def terms(self) -> Mapping[str, float]:
    """The generator's loss, and the discriminator's with factor `weight`."""
    return {'mlm': 1.0, 'rtd': self.weight}

  @property
  def layout(self) -> TextLayout:
    return self.mlm.layout

  @property
  def requirements(self) -> Requirements:
    return self.mlm.requirements

  @property
  def step_traits(self) -> StepTraits:
    return self.mlm.step_traits

  @property
  def optimizer_hints(self) -> OptimizerHints:
    """An optimizer for each network, or one for both."""
    if self.optimizers == 'one':
      return OptimizerHints()
    return OptimizerHints(groups=(('generator',), ('backbone', 'heads_rtd', 'difference')))

  @property
  def lifecycle(self) -> ParameterLifecycle:
    return DiscriminatorExport(self.sharing)

  def text_length(self, length: int) -> int:
    return self.mlm.text_length(length)

  def max_predictions(self, length: int) -> int:
    """Return the maximum number of tokens per sequence that the generator fills in."""
    return self.mlm.max_predictions(length)

  def corrupt(self, key, windows, vocab):
    """Build the generator's batch, and `draw` [batch, 2] uint32, the sampling key of each row."""
    # The generator's batch takes what `split` makes of the example's key, which is fold_in of 0
    # and 1.
    example_keys = corruption.example_keys(key, windows)
    keys = jax.vmap(lambda k: jax.random.key_data(jax.random.fold_in(k, 2)))(example_keys)
    return {**self.mlm.corrupt(key, windows, vocab), 'draw': keys}

  def heads(self, model) -> dict[str, nn.Module]:
    """Build the discriminator's head `rtd`, of every token."""
    return {'rtd': ReplacedTokenHead(model.block, self.first)}

  def build(self, model, packed: bool) -> nn.Module:
    """Build the generator, a smaller model of the same architecture, and the discriminator."""
    small = model.generator(self.width, self.depth)
    head = MaskedLMHead(small.block, small.tied, small.head)
    generator = ModelWithHeads(small.backbone(packed), {'mlm': head})
    return GeneratorDiscriminator(
        generator, model.backbone(packed), self.heads(model), self.sharing)

  def module_inputs(self, model):
    del model
    masked = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    return dict.fromkeys(('positions', 'labels', 'weights'), masked) | {
        'draw': jax.ShapeDtypeStruct((1, 2), jnp.uint32)}

  def step_flops(self, model, length: int) -> int:
    """Count the FLOPs of both networks, forward and twice that."""
    small, head = model.generator(self.width, self.depth), 2 * length * model.block.width ** 2
    generated = small.forward_flops(length, self.max_predictions(length))
    return 3 * (model.forward_flops(length, 0) + head + generated)

  def loss(self, outputs, batch):
    """Compute the generator's mlm, the discriminator's rtd, and the fraction of replaced tokens."""
    real, replaced = (batch['segments'] > 0).astype(jnp.float32), outputs['replaced']
    import optax
    loss = optax.sigmoid_binary_cross_entropy(outputs['rtd'], replaced)
    right = ((outputs['rtd'] > 0) == (replaced > 0)).astype(jnp.float32)
    losses = classification_losses('mlm', outputs['mlm'], batch['labels'], batch['weights'])
    for name, x in (('rtd', loss), ('rtd_accuracy', right), ('replaced', replaced)):
      losses[name] = (x * real).sum(), real.sum()
    return losses

  def accuracy_targets(self, outputs, batch):
    """Return the generator's labels, and which tokens were replaced, of all that are no padding."""
    real = (batch['segments'] > 0).astype(jnp.float32)
    return {'mlm': (batch['labels'], batch['weights']),
            'rtd': (outputs['replaced'].astype(jnp.int32), real)}


@dataclasses.dataclass(frozen=True)
class DiscriminatorExport(ParameterLifecycle):
  """Exports the discriminator, with embedding tables of its own."""

  sharing: Sharing

  def exported(self, params):
    """Return the discriminator, with tables of its own."""
    shared = params['generator']['backbone']['embeddings']
    tables = {name: shared[name] for name in SHARED_TABLES[self.sharing] if name in shared}
    if 'difference' in params:
      tables = {name: x + params['difference'][name] for name, x in tables.items()}
    embeddings = {**params['backbone']['embeddings'], **tables}
    backbone = {**params['backbone'], 'embeddings': embeddings}
    return {'backbone': backbone, 'heads_rtd': params['heads_rtd']}


class GeneratorDiscriminator(nn.Module):
  """Generator and discriminator of replaced-token detection.

  Outputs: mlm [batch, predictions, vocabulary], the generator's logits; rtd [batch, length], the
  discriminator's; filled [batch, length], the tokens that it reads; replaced [batch, length], 1.0
  or 0.0.

  Parameters: `generator`, `backbone`, `heads_rtd`. Shared tables are the generator's. With
  disentangled sharing, `difference` is what the discriminator adds to them.
  """

  generator: nn.Module
  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  sharing: Sharing

  @nn.compact
  def __call__(self, batch, rows=None):
    logits = self.generator(batch, rows)['mlm']

    # Embedding tables of the discriminator.
    shared = nn.unbox(self.generator.variables['params']['backbone']['embeddings'])
    tables = {name: shared[name] for name in SHARED_TABLES[self.sharing] if name in shared}
    if self.sharing == 'disentangled':
      def init_table(name):
        axis = 'vocab' if name == 'tokens' else None
        return with_logical_axes(nn.initializers.zeros, (axis, 'width'))
      def init_difference(key):
        return {name: init_table(name)(key, x.shape) for name, x in tables.items()}
      difference: Any = self.param('difference', init_difference)
      tables = {name: jax.lax.stop_gradient(x) + difference[name] for name, x in tables.items()}

    # The generator's samples replace the masks.
    keys = jax.random.wrap_key_data(batch['draw'])
    sampled = jax.vmap(sample_ids)(keys, jax.lax.stop_gradient(logits))
    filled, replaced = fill_masks(
        batch['tokens'], batch['positions'], batch['labels'], batch['weights'], sampled)
    hidden = ('positions', 'labels', 'weights', 'draw')
    seen = {name: x for name, x in batch.items() if name not in hidden}
    output = self.backbone({**seen, 'tokens': filled, 'tables': tables}, rows)
    outputs = {name: head(output, seen, rows) for name, head in self.heads.items()}
    return {'mlm': logits, 'filled': filled, 'replaced': replaced, **outputs}


def fill_masks(tokens, positions, labels, weights, sampled):
  """Put sampled tokens at the predicted positions.

  Args:
    tokens: [batch, length].
    positions: [batch, predictions].
    labels: original tokens, [batch, predictions].
    weights: 0 where a position does not count, [batch, predictions].
    sampled: [batch, predictions].

  Returns:
    (tokens [batch, length], 1.0 where a token is not the original one [batch, length]).
  """
  def fill(tokens, positions, labels, weights, sampled):
    places = jnp.where(weights > 0, positions, tokens.shape[0])
    differs = (sampled != labels).astype(jnp.float32)
    replaced = jnp.zeros(tokens.shape).at[places].set(differs, mode='drop')
    return tokens.at[places].set(sampled.astype(tokens.dtype), mode='drop'), replaced
  return jax.vmap(fill)(tokens, positions, labels, weights, sampled)


def sample_ids(key, logits):
  """Sample a token id [predictions] from the softmax of each row of logits [predictions,
  vocabulary].

  Samples by inversion of the cumulative distribution, of a block of ids and then of one in it. This
  takes one random number per prediction, where Gumbel noise would take one per logit, and no sum is
  long enough to lose digits.
  """
  number, vocab = logits.shape
  size = math.isqrt(vocab - 1) + 1
  probabilities = jax.nn.softmax(logits.astype(jnp.float32))
  blocks = jnp.pad(probabilities, [(0, 0), (0, -vocab % size)]).reshape(number, -1, size)
  block, left = invert_cumulative(blocks.sum(-1), jax.random.uniform(key, (number,)))
  chosen = jnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0]
  inside, _ = invert_cumulative(chosen, left)
  return jnp.minimum(block * size + inside, vocab - 1)


def invert_cumulative(mass, share):
  """Invert a cumulative distribution.

  Args:
    mass: unnormalized probabilities, [rows, n].
    share: quantile, 0 to 1, [rows].

  Returns:
    (index at the quantile [rows], quantile inside the mass of that index [rows]).
  """
  upto = jnp.cumsum(mass, -1)
  wanted = (share * upto[:, -1])[:, None]
  place = jnp.minimum((upto <= wanted).sum(-1, keepdims=True), mass.shape[1] - 1)
  here = jnp.take_along_axis(mass, place, 1)
  reached = jnp.take_along_axis(upto, place, 1)
  left = (wanted - reached + here) / jnp.maximum(here, jnp.finfo(jnp.float32).tiny)
  return place[:, 0], jnp.clip(left[:, 0], 0, 1 - 2 ** -24)
