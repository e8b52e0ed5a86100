import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.errors import ConfigError
from plm_jax.layers.stack import StackConfig
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.tokenizers.contract import Vocab

T5 = Vocab(size=50, pad=0, eos=1, unk=2, sentinel=49)
BART = Vocab(size=50, pad=1, cls=0, sep=2, mask=4)
# Two examples: target 5 6, inputs 7 8 9; target 10, inputs 11 12. Rows of 7 tokens to read and 5 to
# write.
WINDOWS = dict(
    tokens=jnp.array([[5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0]]),
    segments=jnp.array([[1] * 5 + [2] * 3 + [0] * 4]),
    sentences=jnp.array([[1, 1, 2, 2, 2, 3, 4, 4, 0, 0, 0, 0]]))


def rows(windows, vocab=T5, **fields):
  objective = TextToText(decoder_length=5, **fields)
  batch = jax.jit(lambda w: objective.corrupt(jax.random.key(0), w, vocab))(windows)
  return {name: np.asarray(x)[0].tolist() for name, x in batch.items()}


def window(target, inputs):
  """One example that may be too long for its window of 12."""
  both = (target + inputs)[:12]
  sentences = ([1] * len(target) + [2] * len(inputs))[:12]
  fill = [0] * (12 - len(both))
  return dict(tokens=jnp.array([both + fill]), segments=jnp.array([[1] * len(both) + fill]),
              sentences=jnp.array([sentences + fill]))


def test_examples_of_a_row_as_t5_has_them():
  assert rows(WINDOWS) == {
      'tokens': [7, 8, 9, 1, 11, 12, 1], 'segments': [1, 1, 1, 1, 2, 2, 2],
      'place': [0, 1, 2, 3, 0, 1, 2],
      'decoder_tokens': [0, 5, 6, 0, 10], 'decoder_segments': [1, 1, 1, 2, 2],
      'decoder_place': [0, 1, 2, 0, 1],
      'labels': [5, 6, 1, 10, 1], 'weights': [1.0] * 5, 'content': [1.0, 1.0, 0.0, 1.0, 0.0]}


def test_a_vocabulary_without_sentinels_and_start_is_marians():
  marian = Vocab(size=50, pad=0, eos=1, unk=2)
  assert TextToText().special_tokens == ('pad', 'eos')
  assert rows(WINDOWS, marian) == rows(WINDOWS, T5)
  with pytest.raises(ConfigError, match='specials is 1, and texts of this tokenizer have 2'):
    rows(WINDOWS, BART)


def test_an_example_as_bart_has_it():
  assert rows(window([5, 6], [7, 8, 9]), BART, specials=2) == {
      'tokens': [0, 7, 8, 9, 2, 1, 1], 'segments': [1] * 5 + [0] * 2,
      'place': [0, 1, 2, 3, 4, 0, 0],
      'decoder_tokens': [2, 0, 5, 6, 1], 'decoder_segments': [1, 1, 1, 1, 0],
      'decoder_place': [0, 1, 2, 3, 0],
      'labels': [0, 5, 6, 2, 0], 'weights': [1.0] * 4 + [0.0], 'content': [0.0, 1.0, 1.0, 0.0, 0.0]}


def test_an_example_as_mbart_has_it():
  """Its own code: the source ends with its language, the decoder begins with that of the target and
  ends with it."""
  mbart = Vocab(size=50, bos=0, pad=1, eos=2, mask=49, source=40, target=41)
  assert rows(window([5, 6], [7, 8, 9]), mbart, specials=2) == {
      'tokens': [7, 8, 9, 2, 40, 1, 1], 'segments': [1] * 5 + [0] * 2,
      'place': [0, 1, 2, 3, 4, 0, 0],
      'decoder_tokens': [41, 5, 6, 2, 1], 'decoder_segments': [1, 1, 1, 1, 0],
      'decoder_place': [0, 1, 2, 3, 0],
      'labels': [5, 6, 2, 41, 0], 'weights': [1.0] * 4 + [0.0],
      'content': [1.0, 1.0, 0.0, 0.0, 0.0]}


def test_ends_of_targets_count_in_the_loss_and_not_in_the_accuracy():
  """A model that knows that the target ends, and nothing else, would be right in two of five; so
  would 5, 5, 5, ..."""
  objective, batch = TextToText(decoder_length=5), {name: np.array([x])
                                                    for name, x in rows(WINDOWS).items()}
  ends = jnp.zeros((1, 5, 50)).at[..., 1].set(9.0)
  losses = objective.loss({'lm': ends}, batch)
  assert [x.tolist() for x in losses['seq2seq_accuracy']] == [0, 3] and losses['seq2seq'][1] == 5
  labels, weights = objective.accuracy_targets({'lm': ends}, batch)['seq2seq']
  assert labels[weights > 0].tolist() == [5, 6, 10]


def test_texts_that_are_too_long_lose_what_is_before_their_end_token():
  batch = rows(window([5, 6], list(range(10, 20))))
  assert batch['tokens'] == [10, 11, 12, 13, 14, 15, 1]
  assert batch['labels'] == [5, 6, 1, 0, 0]
  batch = rows(window([5] * 7, [10, 11, 12]))
  assert batch['tokens'] == [10, 11, 12, 1, 0, 0, 0]
  assert batch['labels'] == [5, 5, 5, 5, 1]
  batch = rows(window([5] * 3, list(range(10, 19))), BART, specials=2)
  assert (batch['tokens'], batch['labels']) == ([0, 10, 11, 12, 13, 14, 2], [0, 5, 5, 5, 2])


def test_nothing_is_learned_of_an_example_without_inputs_or_of_an_empty_row():
  assert rows(window([5] * 12, [7]))['weights'] == [0.0] * 5
  assert rows(window([], []))['weights'] == [0.0] * 5


@pytest.mark.slow
def test_examples_of_a_row_do_not_see_each_other():
  """An example's logits are the same, to rounding, beside another and alone."""
  objective = TextToText(decoder_length=5)
  cfg = EncoderDecoderConfig(vocab=50, block=tiny.block(norm_at='pre', dropout=0.0),
                             stack=StackConfig(2),
                             decoder=StackConfig(2), max_length=12, absolute='learned')
  model = objective.build(cfg, packed=True)
  def batch_of(windows):
    return objective.corrupt(jax.random.key(0), windows, T5)
  together, alone = batch_of(WINDOWS), batch_of(window([10], [11, 12]))
  params = tiny.random_params(jax.eval_shape(model.init, jax.random.key(0), together)['params'])
  logits = jax.jit(lambda batch: model.apply({'params': params}, batch)['lm'])
  np.testing.assert_allclose(logits(together)[0, 3:], logits(alone)[0, :2], atol=1e-5)
