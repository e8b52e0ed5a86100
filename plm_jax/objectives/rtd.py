"""Replaced-token detection: a generator fills masks, and the model tells which tokens are not the original ones."""
from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from plm_jax.checked import within
from plm_jax.layers.dense import named
from plm_jax.layers.heads import MaskedTokens, ReplacedTokens, WithHeads
from plm_jax.objectives import Objective, noise
from plm_jax.objectives.mlm import MaskedLM, classification
from plm_jax.objectives.pairs import Single

Sharing = Literal['embeddings', 'disentangled', 'none']
TABLES: Mapping[str, tuple[str, ...]] = {
    'embeddings': ('tokens', 'positions', 'types'), 'disentangled': ('tokens', 'positions'), 'none': ()}


@dataclasses.dataclass(frozen=True)
class ReplacedTokenDetection(Objective):
  """Clark et al. 2020, section 2: the generator learns masked language modelling, its samples are what is told apart.

  The backbone is the discriminator. Of released code this differs in that ELECTRA's two networks there share the norm
  of the embeddings too, and that a token which was drawn twice (`MaskedLM.choice`) has one sample, where ELECTRA's code
  takes the mean of two ids.

  DeBERTa v3's released code (microsoft/DeBERTa, apps/tasks/rtd_task.py, get_decoupled_loss_fn) trains the generator for
  a step, and then the discriminator on the samples of before that step, each by an optimizer of its own. No gradient
  goes from one to the other, and an optimizer works on each parameter alone but for the clipping: so one backward pass
  of the sum of both losses, clipped by `parts`, is these two steps, with two exceptions. The table that the
  discriminator adds its own to is here that of before the generator's step, not behind it; and a step with a loss that
  is not finite is left out by both.
  """

  limits = within(width='(0, 1]', depth='(0, 1]')

  mlm: MaskedLM = MaskedLM(pair=Single(), mask_share=1.0, random_share=0.0)
  """how the generator's text is corrupted, and how text becomes rows"""
  weight: float = 50.0
  """of the discriminator's loss beside the generator's; DeBERTa v3's paper has 50 too, its released code 10"""
  sharing: Sharing = 'embeddings'
  """embedding tables are the same in both; or the discriminator's are the generator's, whose gradient is stopped, plus
  its own (He et al. 2023, section 3.2.3); or they have nothing in common"""
  width: float = 0.25
  """the generator's width as a share of the model's"""
  depth: float = 1.0
  """the generator's layers as a share of the model's"""
  optimizers: Literal['one', 'two'] = 'one'
  """one for both networks (ELECTRA), or one for each, that clips its gradient by itself (DeBERTa v3)"""
  first: bool = False
  """the head adds the first token to every one, and normalises (released DeBERTa v3)"""

  def conflict(self, option):
    """Says that pairs are not asked about, and that tables of both networks have one optimizer."""
    if self.mlm.pair.question:
      return f'replaced-token detection asks nothing about pairs: {option("mlm.pair")} is {self.mlm.pair}'
    if self.optimizers == 'two' and self.sharing == 'embeddings':
      return (f'tables that learn from both networks have one optimizer: {option("optimizers")} two is for '
              f'{option("sharing")} disentangled or none')
    return None

  @property
  def parts(self) -> tuple[tuple[str, ...], ...]:
    """The networks that have an optimizer each, or none."""
    return (('generator',), ('backbone', 'heads_rtd', 'difference')) if self.optimizers == 'two' else ()

  @property
  def terms(self) -> Mapping[str, float]:
    """The generator's loss, and the discriminator's, which weighs `weight` times as much."""
    return {'mlm': 1.0, 'rtd': self.weight}

  @property
  def one_document(self) -> bool:
    """Whether the way to make rows takes sentences of one document."""
    return self.mlm.one_document

  def of_pairs(self, corpus: int) -> bool:
    """Tells whether a corpus is of translations."""
    return self.mlm.of_pairs(corpus)

  def unfit(self, corpora: Sequence[str], model) -> str | None:
    """Says what does not go with the way to make rows."""
    return self.mlm.unfit(corpora, model)

  @property
  def paced(self) -> bool:
    """Whether masked language modelling does not mask the same share everywhere."""
    return self.mlm.paced

  def window(self, length: int) -> int:
    """Returns what masked language modelling takes."""
    return self.mlm.window(length)

  def predictions(self, length: int) -> int:
    """Returns M, the most tokens that the generator fills in."""
    return self.mlm.predictions(length)

  def corrupt(self, key, windows, vocab):
    """Makes the generator's batch, and `draw` [B, 2] uint32, the key that each row's samples are drawn with."""
    # Of the example's key, the generator's batch takes what `split` makes of it, which is fold_in of 0 and 1.
    keys = jax.vmap(lambda k: jax.random.key_data(jax.random.fold_in(k, 2)))(noise.example_keys(key, windows))
    return {**self.mlm.corrupt(key, windows, vocab), 'draw': keys}

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns the discriminator's head, `rtd`, of every token."""
    return {'rtd': ReplacedTokens(model.block, self.first)}

  def build(self, model, packed: bool) -> nn.Module:
    """Builds the generator, a smaller one of the same wiring, and the discriminator that reads its samples."""
    small = model.generator(self.width, self.depth)
    generator = WithHeads(small.backbone(packed), {'mlm': MaskedTokens(small.block, small.tied, small.head)})
    return GeneratorDiscriminator(generator, model.backbone(packed), self.heads(model), self.sharing)

  def step_flops(self, model, length: int) -> int:
    """Counts the FLOPs of both, forward and twice that."""
    small, head = model.generator(self.width, self.depth), 2 * length * model.block.width ** 2
    generated = small.forward_flops(length, self.predictions(length))
    return 3 * (model.forward_flops(length, 0) + head + generated)

  def loss(self, outputs, batch):
    """Returns the generator's mlm, the discriminator's rtd, and replaced, the share of the tokens that are not the
    original ones."""
    real, replaced = (batch['segments'] > 0).astype(jnp.float32), outputs['replaced']
    loss = optax.sigmoid_binary_cross_entropy(outputs['rtd'], replaced)
    right = ((outputs['rtd'] > 0) == (replaced > 0)).astype(jnp.float32)
    return classification('mlm', outputs['mlm'], batch['labels'], batch['weights']) | {
        name: ((x * real).sum(), real.sum())
        for name, x in (('rtd', loss), ('rtd_accuracy', right), ('replaced', replaced))}

  def answers(self, outputs, batch):
    """Returns the generator's labels, and which tokens were replaced, of all that are no padding."""
    return {'mlm': (batch['labels'], batch['weights']),
            'rtd': (outputs['replaced'].astype(jnp.int32), (batch['segments'] > 0).astype(jnp.float32))}

  def exported_params(self, params):
    """Returns the discriminator, with tables of its own."""
    shared = params['generator']['backbone']['embeddings']
    tables = {name: shared[name] for name in TABLES[self.sharing] if name in shared}
    tables = {name: x + params['difference'][name] if 'difference' in params else x for name, x in tables.items()}
    backbone = {**params['backbone'], 'embeddings': {**params['backbone']['embeddings'], **tables}}
    return {'backbone': backbone, 'heads_rtd': params['heads_rtd']}


class GeneratorDiscriminator(nn.Module):
  """batch -> mlm [B, M, V], the generator's logits; rtd [B, L], the discriminator's; filled [B, L], the tokens that it
  reads; replaced [B, L], 1.0 or 0.0.

  Parameters: `generator`, `backbone`, `heads_rtd`; tables that are shared are the generator's, and where they are
  disentangled `difference` is what the discriminator adds to them.
  """

  generator: nn.Module
  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  sharing: Sharing

  @nn.compact
  def __call__(self, batch, rows=None):
    logits = self.generator(batch, rows)['mlm']
    shared = nn.unbox(self.generator.variables['params']['backbone']['embeddings'])
    tables = {name: shared[name] for name in TABLES[self.sharing] if name in shared}
    if self.sharing == 'disentangled':
      difference: Any = self.param('difference', lambda key: {
          name: named(nn.initializers.zeros, ('vocab' if name == 'tokens' else None, 'width'))(key, x.shape)
          for name, x in tables.items()})
      tables = {name: jax.lax.stop_gradient(x) + difference[name] for name, x in tables.items()}
    sampled = jax.vmap(draw)(jax.random.wrap_key_data(batch['draw']), jax.lax.stop_gradient(logits))
    filled, replaced = fill(batch['tokens'], batch['positions'], batch['labels'], batch['weights'], sampled)
    seen = {name: x for name, x in batch.items() if name not in ('positions', 'labels', 'weights', 'draw')}
    output = self.backbone({**seen, 'tokens': filled, 'tables': tables}, rows)
    given = {name: head(output, seen, rows) for name, head in self.heads.items()}
    return {'mlm': logits, 'filled': filled, 'replaced': replaced, **given}


def fill(tokens, positions, labels, weights, sampled):
  """Puts samples [B, M] into tokens [B, L] at the predicted positions -> (tokens [B, L], 1.0 where not the
  original's)."""
  def one(tokens, positions, labels, weights, sampled):
    places = jnp.where(weights > 0, positions, tokens.shape[0])
    replaced = jnp.zeros(tokens.shape).at[places].set((sampled != labels).astype(jnp.float32), mode='drop')
    return tokens.at[places].set(sampled.astype(tokens.dtype), mode='drop'), replaced
  return jax.vmap(one)(tokens, positions, labels, weights, sampled)


def draw(key, logits):
  """Draws an id [M] from the softmax of each of logits [M, V].

  By inversion, of a block of ids and then of one in it: one random number for each, where noise on every logit would
  take V, and no sum long enough to lose digits.
  """
  number, vocab = logits.shape
  size = math.isqrt(vocab - 1) + 1
  probabilities = jax.nn.softmax(logits.astype(jnp.float32))
  blocks = jnp.pad(probabilities, [(0, 0), (0, -vocab % size)]).reshape(number, -1, size)
  block, left = invert(blocks.sum(-1), jax.random.uniform(key, (number,)))
  inside, _ = invert(jnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0], left)
  return jnp.minimum(block * size + inside, vocab - 1)


def invert(mass, share):
  """Finds, of mass [M, n] and share [M] in 0 .. 1, (where that share of all mass lies [M], which share of what is there
  [M])."""
  upto = jnp.cumsum(mass, -1)
  wanted = (share * upto[:, -1])[:, None]
  place = jnp.minimum((upto <= wanted).sum(-1, keepdims=True), mass.shape[1] - 1)
  here = jnp.take_along_axis(mass, place, 1)
  left = (wanted - jnp.take_along_axis(upto, place, 1) + here) / jnp.maximum(here, jnp.finfo(jnp.float32).tiny)
  return place[:, 0], jnp.clip(left[:, 0], 0, 1 - 2 ** -24)
