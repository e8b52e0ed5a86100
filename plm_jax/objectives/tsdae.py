"""Denoising autoencoder of sentence vectors (TSDAE)."""
from collections.abc import Mapping
import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax import validation
from plm_jax.architectures.encoder import Encoder, EncoderConfig
from plm_jax.errors import ConfigError
from plm_jax.layers.heads import MaskedLMHead
from plm_jax.layers.pooling import pool
from plm_jax.objectives import ParameterLifecycle, corruption
from plm_jax.objectives.bottleneck import EncoderExport, SentenceBottleneck
from plm_jax.objectives.mlm import TokenPrediction
from plm_jax.objectives.row_builders import Single
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class SentenceAutoencoder(SentenceBottleneck, TokenPrediction):
  """Reconstruction of a text from the vector of what is left of it after deletions (TSDAE).

  Wang et al. 2021, section 3; UKPLab/sentence-transformers@85ec6455, losses/
  DenoisingAutoEncoderLoss.py and datasets/DenoisingAutoEncoderDataset.py. The decoder predicts each
  token from those before it, and its cross-attention sees the sentence vector alone. It is the
  encoder itself with a causal mask: all parameters are shared but those of cross-attention
  (tie_encoder_decoder). A word here is one of the tokenizer's, not NLTK's.
  """

  predictions = ('tsdae', 'tsdae', 'weights'),
  limits = intervals(deleted='[0, 1]')

  deleted: float = 0.6
  """Probability that a word of the encoder's text is deleted (del_ratio). One always stays."""
  pooling: Literal['first', 'mean'] = 'first'
  """Sentence vector: the state of [CLS] (first), or the mean of all states."""

  @property
  def terms(self) -> Mapping[str, float]:
    return {'tsdae': 1.0}

  def text_length(self, length: int) -> int:
    return Single().text_length(length)

  def corrupt(self, key, windows, vocab):
    """Build the sequences of text for the decoder, and of what is left of it for the encoder.

    Returns:
      tokens, segments, types, and decoder_tokens, decoder_segments [batch, length]; labels, the
      token after each of the decoder's, and weights [batch, length].
    """
    keys = corruption.example_keys(key, windows)
    text = Single().arrange(keys, windows, vocab)
    left = jax.vmap(self.delete_words)(keys, windows['tokens'], windows['words'])
    rows = Single().arrange(keys, left, vocab)
    following = jnp.pad(text['segments'][:, 1:], ((0, 0), (0, 1)))
    return {
        **{name: rows[name] for name in ('tokens', 'segments', 'types')},
        'decoder_tokens': text['tokens'], 'decoder_segments': text['segments'],
        'labels': jnp.roll(text['tokens'], -1, 1), 'weights': (following > 0).astype(jnp.float32)}

  def delete_words(self, key, tokens, words):
    """Delete words of a text at random, but not all.

    Args:
      key: key of the example.
      tokens: [text].
      words: word of each token, 0 at padding, [text].

    Returns:
      tokens, segments and words [text] of what is left.
    """
    size = words.shape[0]
    draw = jnp.where(words > 0, jax.random.uniform(key, (size + 1,))[words], -1)
    # The word with the largest number always stays: where all would go, that is one at random.
    kept, number = corruption.keep_tokens(
        tokens, (draw > self.deleted) | ((draw == draw.max()) & (words > 0)), size)
    inside = (jnp.arange(size) < number).astype(jnp.int32)
    return {'tokens': kept, 'segments': inside, 'words': inside}

  @property
  def lifecycle(self) -> ParameterLifecycle:
    """The head predicts the next token, which no encoder needs."""
    return EncoderExport(('backbone',))

  def heads(self, model) -> dict[str, nn.Module]:
    """Return no heads of the encoder: the only head is the decoder's."""
    del model
    return {}

  def decoder(self, model: EncoderConfig) -> EncoderConfig:
    """Make the configuration of the decoder: the encoder with causal and cross-attention."""
    return validation.with_paths(
        model, {'causal': True, 'pooler': False, 'block.cross': True})

  def build(self, model, packed):
    """Build the autoencoder, with a head that begins as the masked-LM head of a warm start.

    Raises:
      ConfigError: a sequence has several texts, which have one vector.
    """
    if packed:
      raise ConfigError('a sentence vector of TSDAE is of one text per sequence: give windows of '
                        'document, not of several texts')
    heads = {'mlm': MaskedLMHead(model.block, model.tied, model.head)}
    return TiedAutoencoder(model.backbone(packed), heads, self.decoder(model), self.pooling)

  def module_inputs(self, model):
    del model
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    return {'decoder_tokens': tokens, 'decoder_segments': tokens}

  def step_flops(self, model: Any, length: int) -> int:
    """Count the FLOPs of encoder and decoder, with logits of the decoder everywhere.

    Cross-attention has queries and outputs at each position, and one key.
    """
    cross = 4 * length * model.stack.blocks * model.block.width * (
        model.block.heads * model.block.head_dim)
    both = model.forward_flops(length, 0) + self.decoder(model).forward_flops(length, length)
    return 3 * (both + cross)


class TiedAutoencoder(nn.Module):
  """An encoder, and itself as the decoder of its sentence vector: batch -> {'tsdae': logits}.

  Parameters: `backbone`, `heads_mlm`, and `cross`, those of the decoder that the encoder has not,
  under the names that they have in an encoder.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  decoder: EncoderConfig
  pooling: Literal['first', 'mean']

  @nn.compact
  def __call__(self, batch, row_ids=None):
    hidden = self.backbone(batch, row_ids).hidden
    vector = pool(hidden.astype(jnp.float32), batch['segments'], self.pooling)  # [batch, hidden]
    read = {
        'tokens': batch['decoder_tokens'], 'segments': batch['decoder_segments'],
        'memory': vector[:, None].astype(hidden.dtype)}

    # The decoder's parameters: the encoder's, and those of cross-attention.
    decoder = Encoder(self.decoder, parent=None)
    shared = nn.unbox(self.backbone.variables['params'])
    cross = nn.unbox(self.get_variable('params', 'cross'))
    if cross is None:
      def init_cross(key):
        return drop_shared(decoder.init(key, read)['params'], shared)
      cross = self.param('cross', init_cross)
    rngs = {} if row_ids is None else {'dropout': self.make_rng('dropout')}
    params = merge_params(shared, cross)
    output = decoder.apply({'params': params}, read, row_ids, rngs=rngs)
    return {'tsdae': self.heads['mlm'](output, {}, row_ids)}


def drop_shared(params: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
  """Return the part of a tree of parameters that another one has not."""
  rest = {}
  for name, part in params.items():
    if name not in shared:
      rest[name] = part
    elif isinstance(part, Mapping) and (below := drop_shared(part, shared[name])):
      rest[name] = below
  return rest


def merge_params(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
  """Merge two trees of parameters without a common leaf."""
  both = {**a, **b}
  return both | {name: merge_params(a[name], b[name]) for name in a.keys() & b.keys()}
