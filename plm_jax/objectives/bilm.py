"""Bidirectional language modeling (ELMo): forward and backward LSTMs predict the next word."""
from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers import char_ids
from plm_jax.layers.lstm import reverse_sequences
from plm_jax.layers.sampled_softmax import SampledSoftmaxHead, sample_words
from plm_jax.objectives import CARRY, Objective, Requirements
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class BidirectionalLM(Objective):
  """Bidirectional language modeling with LSTM states carried across batches (ELMo: Peters et al.
  2018, 3.1).

  A text is a row of sentences, each its words and </S>. Forward: <S> and the words are read, the
  words and </S> predicted. Backward: </S> and the reversed words are read, these and <S>
  predicted. Words are read by their characters. Words that the softmax does not know are
  predicted as <UNK>.

  There are two differences from allenai/bilm-tf. There each direction samples its own sentences;
  here both directions read the same text, the backward one from its end. And words that the
  tokenizer does not list have the characters of <UNK>.
  """

  limits = intervals(samples='[1, inf)', factor='(0, inf)', fresh='[0, 1]')

  samples: int = 8192
  """Number of words of the sampled softmax, sampled per batch and direction in training. Evaluation
  compares with all words."""
  factor: float = 20.0
  """Factor of the mean of both losses. The released code has the words of a row, to which
  clipping and Adagrad are sensitive."""
  fresh: float = 0.0
  """Fraction of rows whose LSTM state is reset to zeros at a training batch (as published: none).
  LSTMs that have had a state since their first step may saturate their cells without one: in a
  short run one of the two directions did."""

  @property
  def terms(self) -> Mapping[str, float]:
    """Both directions, with half of the factor each."""
    return {'forward': self.factor / 2, 'backward': self.factor / 2}

  @property
  def requirements(self) -> Requirements:
    return Requirements(('ElmoConfig',))

  def max_predictions(self, length: int) -> int:
    """Count the logits of a row: a word and its samples, in both directions."""
    return 2 * length * (self.samples + 1)

  def heads(self, model) -> dict[str, nn.Module]:
    return {'next': SampledSoftmaxHead(model.words, model.dtype)}

  def module_inputs(self, model):
    words = jax.ShapeDtypeStruct((1, 2, 8), jnp.int32)
    characters = jax.ShapeDtypeStruct((1, 2, 8, model.characters.longest), jnp.int32)
    return {'streams': characters, 'labels': words, 'valid': words}

  def carry(self, model, rows):
    """Return the shapes of the state of the LSTMs and of the last word in each direction.

    Arrays are [rows, 2, ...]: the LSTM state, the last word, its characters, and `due`, 1 plus the
    number of the window that continues it.
    """
    def shape(*size):
      return jax.ShapeDtypeStruct((rows, 2, *size), jnp.int32)
    return {'state': jax.eval_shape(lambda: model.zero_state(rows)), 'word': shape(),
            'characters': shape(model.characters.longest), 'due': shape()}

  def add_token_info(self, windows, tokenizer):
    """Add characters and behind_characters of the words, [batch, length, 50]."""
    windows = dict(windows)
    for side in ('', 'behind_'):
      windows[f'{side}characters'] = tokenizer.characters(windows[f'{side}tokens'])
    return windows

  def shapes(self, rows, length, layout=None):
    def shape(*size):
      return jax.ShapeDtypeStruct((rows, *size), jnp.int32, sharding=layout)
    shapes = super().shapes(rows, length, layout)
    for side in ('', 'behind_'):
      shapes[f'{side}tokens'] = shapes[f'{side}segments'] = shape(length)
      shapes[f'{side}characters'] = shape(length, char_ids.MAX_CHARACTERS)
    return {**shapes, 'behind_index': shape()}

  def corrupt(self, key, windows, vocab):
    """Build the forward and backward streams; after a jump in the text a sentence begins.

    Returns:
      streams [batch, 2, length, 50]: characters of the words that each direction reads, in its
      order; labels and valid [batch, 2, length]; kept: what the next batch needs of this one; and
      the LSTM state, where there is one.
    """
    del key
    valid = jnp.stack([windows['segments'] > 0, windows['behind_segments'] > 0], 1)
    sizes = valid.sum(-1)
    def both(name):
      backward = reverse_sequences(windows[f'behind_{name}'], sizes[:, 1])
      return jnp.stack([windows[name], backward], 1)
    words, characters = both('tokens'), both('characters')
    valid = jnp.arange(words.shape[2]) < sizes[..., None]
    index = jnp.stack([windows['index'], windows['behind_index']], 1)

    # The word before the first: the last of the batch before, or a boundary of sentences.
    carry = windows.get(CARRY)
    if carry is None:
      carry = {'word': jnp.zeros_like(index), 'characters': jnp.zeros_like(characters[:, :, 0]),
               'due': jnp.zeros_like(index)}
    last = jnp.where(carry['due'] == index + 1, carry['word'], vocab.eos)
    before = jnp.concatenate([last[..., None], words[..., :-1]], -1)
    spelled = jnp.concatenate([carry['characters'][:, :, None], characters[:, :, :-1]], 2)

    # Inputs and labels, with boundaries of sentences as words of their own.
    longest = characters.shape[-1]
    signs = (char_ids.SENTENCE_BEGIN, char_ids.SENTENCE_END)
    marks = np.stack([char_ids.encode_boundary(sign, longest) for sign in signs])
    streams = jnp.where((before == vocab.eos)[..., None], marks[None, :, None], spelled)
    streams *= valid[..., None]
    backward_labels = jnp.where(words[:, 1] == vocab.eos, vocab.bos, words[:, 1])
    labels = words.at[:, 1].set(backward_labels)

    # What the next batch continues from.
    end = jnp.maximum(sizes - 1, 0)[..., None]
    last_word = jnp.take_along_axis(words, end, 2)[..., 0]
    last_characters = jnp.take_along_axis(characters, end[..., None], 2)[:, :, 0]
    kept = {'word': jnp.where(sizes > 0, last_word, last),
            'characters': jnp.where((sizes > 0)[..., None], last_characters, carry['characters']),
            'due': index + jnp.array([2, 0])}
    batch = {'streams': streams, 'labels': labels, 'valid': valid, 'kept': kept}
    if 'state' in carry:
      batch['state'] = carry['state']
    return batch

  def losses(self, passes, batch):
    """Compute the losses of the sampled softmax.

    The step's key samples the words, and the rows whose LSTM state is reset.
    """
    if self.fresh:
      def draw(row):
        key = jax.random.fold_in(jax.random.fold_in(passes.key, 2), row)
        return jax.random.bernoulli(key, self.fresh)
      begin = jax.vmap(draw)(passes.row_ids)
      def reset(x):
        return jnp.where(begin.reshape(-1, *[1] * (x.ndim - 1)), 0, x)
      batch = {**batch, 'state': jax.tree.map(reset, batch['state'])}
    known = passes.params['heads_next']['bias'].shape[0]
    if self.samples < known:
      key = jax.random.fold_in(passes.key, 1)
      batch = {**batch, 'candidates': sample_words(key, known, self.samples)}
    return self.loss(passes(batch), batch)

  def loss(self, outputs: Mapping[str, Any], batch):
    """Compute the cross-entropies forward and backward, and what the next batch continues from."""
    weights = batch['valid'].astype(jnp.float32)
    sums = (outputs['next'].losses * weights).sum((0, 2))
    number = weights.sum((0, 2))
    kept: Any = batch['kept']
    return {'forward': (sums[0], number[0]), 'backward': (sums[1], number[1]),
            CARRY: {**kept, 'state': outputs['next'].state}}
