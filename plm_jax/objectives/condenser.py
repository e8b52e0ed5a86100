"""Masked language modeling whose head reads the [CLS] vector (Condenser, coCondenser)."""
from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.architectures.encoder import position_ids
from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.attention import AttentionMask
from plm_jax.layers.masks import encoder_attention_mask
from plm_jax.layers.stack import Stack, StackConfig
from plm_jax.objectives import StepTraits, TextLayout, corruption
from plm_jax.objectives.bottleneck import SentenceBottleneck, decoder_flops
from plm_jax.objectives.masking import Distinct, Masking
from plm_jax.objectives.mlm import MaskedLM, classification_losses
from plm_jax.objectives.row_builders import Single, sentence_end
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class Condenser(SentenceBottleneck, MaskedLM):
  """Masked language modeling from the [CLS] vector of the last layer and tokens of an early one.

  Gao and Callan 2021, section 3; luyug/Condenser@74880ab8, modeling.py. Layers of a head, used in
  training only, read both. What late layers have learned of the text reaches the predictions of the
  head through the [CLS] vector alone.
  """

  limits = intervals(head_layers='[1, inf)', early='[0, 1]')

  pair: Single = Single()
  """How text becomes sequences."""
  masking: Masking = Distinct(unit='word')
  """How the tokens to predict are sampled."""
  head_layers: int = 2
  """Number of layers of the head (--n_head_layers)."""
  early: float = 0.5
  """Depth of the layer whose tokens the head reads, as a fraction of all layers (--skip_from 6 of
  12). 0: the embeddings."""
  late: float = 1.0
  """Factor of the loss of the encoder's own predictions (--late_mlm). 0: only the head predicts."""

  @property
  def terms(self) -> Mapping[str, float]:
    return {**super().terms, 'mlm': self.late, 'condenser': 1.0}

  def build(self, model, packed):
    """Build encoder, head and layers of the head.

    Raises:
      ConfigError: states inside the encoder are not normalized, or a sequence has several texts.
    """
    super().build(model, packed)
    if packed or model.block.norm_at != 'post' or model.windows:
      raise ConfigError(
          'the head of Condenser joins states of two layers, both after their norm '
          f'({name_field("model.block.norm_at")}=post), of one text per sequence: it is for '
          'encoders such as BERT and RoBERTa')
    layers = Stack(model.block, StackConfig(self.head_layers))
    depth = round(self.early * model.stack.blocks)
    return EncoderWithLayers(
        model.backbone(packed), self.heads(model), condenser=layers, depth=depth,
        padding=model.padding)

  def step_flops(self, model: Any, length: int) -> int:
    """Count the FLOPs of the encoder and of the layers of the head, with logits of both."""
    predicted = self.max_predictions(length)
    head = decoder_flops(model, self.head_layers, length, predicted)
    return super().step_flops(model, length) + head

  def accuracy_targets(self, outputs, batch):
    return dict.fromkeys(('mlm', 'condenser'), (batch['labels'], batch['weights']))


@dataclasses.dataclass(frozen=True)
class CoCondenser(Condenser):
  """Condenser, with a contrastive loss between the [CLS] vectors of two spans of a document.

  Gao and Callan 2022, section 3.2; luyug/Condenser@74880ab8, modeling.py, compute_contrastive_loss
  (line 239), and data.py, CoCondenserDataset (line 169). Each span finds the other span of its
  document by their dot product, among all spans of the batch, on all devices. A batch of N
  documents has 2 N sequences. Two windows of one document may share a batch here; their spans are
  no negatives of each other.
  """

  limits = intervals(reach='[2, 1000]')

  reach: int = 4
  """Consecutive text of a document from which its two spans come, in lengths of a span: one span
  from each half, at random. The halves meet between two sentences."""

  @property
  def terms(self) -> Mapping[str, float]:
    """All losses count alike (modeling.py, line 225)."""
    return {**super().terms, 'contrast': 1.0}

  @property
  def layout(self) -> TextLayout:
    return TextLayout(one_document=True)

  @property
  def step_traits(self) -> StepTraits:
    return dataclasses.replace(super().step_traits, cross_row=True)

  def text_length(self, length: int) -> int:
    return self.reach * super().text_length(length)

  def corrupt(self, key, windows, vocab):
    """Take two spans of each window, build their sequences and mask them.

    Returns:
      what Condenser returns, with 2 * batch rows, the spans of a window one after the other; and of
      each row `window`, `document` and `corpus`, and `paired`, 1.0 where both spans have text.
    """
    # Keys of masks are `fold_in` of 0 and 1, and of twice the index and the next number.
    keys = corruption.example_keys(key, windows, self.duplicates)
    keys = jax.vmap(lambda k: jax.random.fold_in(k, 2))(keys)
    names = {'tokens', 'segments', 'sentences', 'words', 'similar'} & windows.keys()
    spans = jax.vmap(self.cut_spans)(keys, {name: windows[name] for name in names})
    paired = (spans['segments'] > 0).any(-1).all(-1).astype(jnp.float32)
    numbers = {name: jnp.repeat(windows[name], 2) for name in ('document', 'corpus', 'epoch')}
    spans = {name: x.reshape(-1, *x.shape[2:]) for name, x in spans.items()}
    index = (windows['index'][:, None] * 2 + jnp.arange(2)).reshape(-1)
    batch = super().corrupt(key, {**windows, **spans, **numbers, 'index': index}, vocab)
    return {
        **batch, 'window': jnp.arange(len(index)) // 2, 'document': numbers['document'],
        'corpus': numbers['corpus'], 'paired': jnp.repeat(paired, 2)}

  def cut_spans(self, key, text):
    """Cut a text into halves and crop each to a span at random (data.py, _truncate, line 101).

    A text of one sentence is halved within it if it is longer than a span; otherwise it is the
    first span, and the second is empty.

    Args:
      key: random key.
      text: arrays of the tokens of a window, [text, ...].

    Returns:
      the same arrays of both spans, [2, span, ...].
    """
    sentences = text['sentences']
    room, size = len(sentences) // self.reach, (sentences > 0).sum()
    middle = sentences[size // 2]
    before, after = sentence_end(sentences, middle - 1), sentence_end(sentences, middle)
    cut = jnp.where(after < size, after, before)
    cut = jnp.where(cut > 0, cut, jnp.where(size > room, (size + 1) // 2, size))
    start, sizes = jnp.stack([jnp.zeros_like(cut), cut]), jnp.stack([cut, size - cut])
    start += jax.random.randint(key, (2,), 0, jnp.maximum(sizes - room, 0) + 1)
    place = start[:, None] + jnp.arange(room)
    inside = jnp.arange(room) < sizes[:, None]
    def take(x):
      mask = inside.reshape(*inside.shape, *[1] * (x.ndim - 1))
      return jnp.where(mask, x.at[place].get(mode='fill', fill_value=0), 0)
    spans = {name: take(x) for name, x in text.items()}
    words = spans['words']
    return {**spans, 'words': jnp.where(inside, words - words[:, :1] + 1, 0)}

  def loss(self, outputs, batch):
    vectors = outputs['cls']  # [2 * batch, hidden]
    scores = jnp.einsum('ad,bd->ab', vectors, vectors, precision='highest')
    rows = jnp.arange(len(vectors))
    partner = rows ^ 1
    same = (batch['document'][:, None] == batch['document']) & (
        batch['corpus'][:, None] == batch['corpus'])
    candidates = ~same & (batch['segments'] > 0).any(-1) | (partner[:, None] == rows)
    scores = jnp.where(candidates, scores, -1e9)
    return super().loss(outputs, batch) | classification_losses(
        'contrast', scores, partner, batch['paired'])

  def step_flops(self, model: Any, length: int) -> int:
    """Count the FLOPs of both spans, without the products between vectors."""
    return 2 * super().step_flops(model, length)


class EncoderWithLayers(nn.Module):
  """An encoder with heads, and layers after it: batch -> {'mlm': logits, 'condenser': logits,
  'cls': vectors [batch, hidden] float32}.

  Parameters: `backbone`, `heads_mlm`, `condenser`.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  condenser: nn.Module
  depth: int
  padding: int

  def __call__(self, batch, row_ids=None):
    output = self.backbone(batch, row_ids, within=True)
    head, inside = self.heads['mlm'], output.inside
    early = inside.hidden[self.depth - 1] if self.depth else inside.embedded
    h = jnp.concatenate([output.hidden[:, :1], early[:, 1:]], axis=1)
    mask = AttentionMask(encoder_attention_mask(batch, packed=False))
    h, _ = self.condenser(h, mask, position_ids(batch['tokens'], self.padding), row_ids=row_ids)
    return {'mlm': head(output, batch, row_ids),
            'condenser': head(output.replace(hidden=h), batch, row_ids),
            'cls': output.hidden[:, 0].astype(jnp.float32)}
