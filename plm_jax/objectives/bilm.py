"""Bidirectional language modelling: each word is predicted from those before it, and from those behind it (ELMo)."""
from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import within
from plm_jax.layers import spelling
from plm_jax.layers.lstm import turned
from plm_jax.layers.softmax import NextWords, candidates
from plm_jax.objectives import CARRY, Objective


@dataclasses.dataclass(frozen=True)
class BidirectionalLM(Objective):
  """Peters et al. 2018, section 3.1, on texts that are read on and on: LSTMs go on from batch to batch.

  A text is a row of sentences, each its words and </S>. From the left <S> and the words are read, and the words and
  </S> predicted; from the right </S> and the words turned round are read, and these and <S> predicted. Words are read
  by their characters, and those that softmax does not know are predicted as <UNK>. Differs from allenai/bilm-tf, which
  draws sentences for each direction anew, in this: both directions read the same stretches of text, the backward one
  from its end on; and of words that even the tokenizer does not list the characters are those of <UNK>.
  """

  limits = within(samples='[1, inf)', factor='(0, inf)', fresh='[0, 1]')

  samples: int = 8192
  """words that a batch's words are told from in training, drawn for each direction; in evaluation it is all of them"""
  factor: float = 20.0
  """on the mean of both losses: released code has the words of a row, which clipping and Adagrad feel"""
  fresh: float = 0.0
  """share of rows whose LSTMs begin a batch in training as if it were their first, where the others go on (as
  published: none). LSTMs that have had a state since their first step may run to the limits of their cells without one:
  in a short run one of two directions did"""

  @property
  def terms(self) -> Mapping[str, float]:
    """Both directions count half."""
    return {'forward': self.factor / 2, 'backward': self.factor / 2}

  def window(self, length: int) -> int:
    """Returns `length`: there is a target for each word that is read."""
    return length

  def predictions(self, length: int) -> int:
    """Counts the logits of a row: a word and what it is told from, in both directions."""
    return 2 * length * (self.samples + 1)

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns the softmax of both directions."""
    return {'next': NextWords(model.words, model.dtype)}

  def carry(self, model, rows):
    """Returns the state of the LSTMs, the last word of each direction, its characters, and the number, 1 added, of the
    window that would go on with it."""
    shape = lambda *size: jax.ShapeDtypeStruct((rows, 2, *size), jnp.int32)
    return {'state': jax.eval_shape(lambda: model.state(rows)), 'word': shape(),
            'characters': shape(model.characters.longest), 'due': shape()}

  def described(self, windows, tokenizer):
    """Adds characters and behind_characters [B, L, 50] of the words."""
    return {**windows, **{f'{side}characters': tokenizer.characters(windows[f'{side}tokens'])
                          for side in ('', 'behind_')}}

  def shapes(self, rows, length, layout=None):
    """Returns windows without their content: from both sides, with characters."""
    shape = lambda *size: jax.ShapeDtypeStruct((rows, *size), jnp.int32, sharding=layout)
    both = {f'{side}{name}': shape(length, *rest) for side in ('', 'behind_') for name, rest in (
        ('tokens', ()), ('segments', ()), ('characters', (spelling.LONGEST,)))}
    return super().shapes(rows, length, layout) | both | {'behind_index': shape()}

  def corrupt(self, key, windows, vocab):
    """Makes streams [B, 2, L, 50] and labels, valid [B, 2, L]: forward and backward, each as it is read; and what the
    next batch needs of this one. After a jump in the text a sentence begins."""
    del key
    valid = jnp.stack([windows['segments'] > 0, windows['behind_segments'] > 0], 1)
    sizes = valid.sum(-1)
    def both(name):
      return jnp.stack([windows[name], turned(windows[f'behind_{name}'], sizes[:, 1])], 1)
    words, characters = both('tokens'), both('characters')
    valid = jnp.arange(words.shape[2]) < sizes[..., None]
    index = jnp.stack([windows['index'], windows['behind_index']], 1)
    carry = windows.get(CARRY)
    if carry is None:
      carry = {'word': jnp.zeros_like(index), 'characters': jnp.zeros_like(characters[:, :, 0]),
               'due': jnp.zeros_like(index)}
    last = jnp.where(carry['due'] == index + 1, carry['word'], vocab.eos)
    before = jnp.concatenate([last[..., None], words[..., :-1]], -1)
    spelled = jnp.concatenate([carry['characters'][:, :, None], characters[:, :, :-1]], 2)
    longest = characters.shape[-1]
    marks = np.stack([spelling.mark(sign, longest) for sign in (spelling.SENTENCE_BEGIN, spelling.SENTENCE_END)])
    streams = jnp.where((before == vocab.eos)[..., None], marks[None, :, None], spelled) * valid[..., None]
    labels = words.at[:, 1].set(jnp.where(words[:, 1] == vocab.eos, vocab.bos, words[:, 1]))
    end = jnp.maximum(sizes - 1, 0)[..., None]
    kept = {'word': jnp.where(sizes > 0, jnp.take_along_axis(words, end, 2)[..., 0], last),
            'characters': jnp.where((sizes > 0)[..., None], jnp.take_along_axis(
                characters, end[..., None], 2)[:, :, 0], carry['characters']),
            'due': index + jnp.array([2, 0])}
    batch = {'streams': streams, 'labels': labels, 'valid': valid, 'kept': kept}
    return batch | ({'state': carry['state']} if 'state' in carry else {})

  def losses(self, passes, batch):
    """Returns the losses of sampled softmax, whose candidates are drawn by the key of the step, as are the rows that
    begin without a state."""
    if self.fresh:
      def draw(row):
        return jax.random.bernoulli(jax.random.fold_in(jax.random.fold_in(passes.key, 2), row), self.fresh)
      begin = jax.vmap(draw)(passes.rows)
      batch = {**batch, 'state': jax.tree.map(
          lambda x: jnp.where(begin.reshape(-1, *[1] * (x.ndim - 1)), 0, x), batch['state'])}
    known = passes.params['heads_next']['bias'].shape[0]
    if self.samples < known:
      key = jax.random.fold_in(passes.key, 1)
      batch = {**batch, 'candidates': candidates(key, known, self.samples)}
    return self.loss(passes(batch), batch)

  def loss(self, outputs: Mapping[str, Any], batch):
    """Returns forward and backward, cross-entropies, and what the next batch goes on from."""
    weights = batch['valid'].astype(jnp.float32)
    sums = (outputs['next'].losses * weights).sum((0, 2))
    number = weights.sum((0, 2))
    kept: Any = batch['kept']
    return {'forward': (sums[0], number[0]), 'backward': (sums[1], number[1]),
            CARRY: {**kept, 'state': outputs['next'].state}}
