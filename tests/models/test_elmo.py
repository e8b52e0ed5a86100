"""ELMo's sizes, spelling of words, and what reaches what; AllenNLP's own outputs are among the
cases of test_parity."""
import dataclasses
import functools
from typing import Any

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.architectures.elmo import Elmo, add_sentence_marks
from plm_jax.layers import char_ids
from plm_jax.layers.char_cnn import CharacterConfig
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.lstm import reverse_sequences
from plm_jax.models import elmo
from plm_jax.models.elmo import WeightsError

TINY = dataclasses.replace(
    elmo.small(), characters=CharacterConfig(size=3, filters=((1, 4), (3, 6)), highways=1,
                                             longest=9), width=5, cells=7,
    words=20)


def shapes(config):
  batch = {'characters': jnp.zeros((1, 2, config.characters.longest), jnp.int32)}
  return unbox(jax.eval_shape(lambda: Elmo(config).init(jax.random.key(0), batch)['params']))


@pytest.fixture(scope='module')
def params():
  keys = iter(jax.random.split(jax.random.key(1), 40))
  return jax.tree.map(lambda x: 0.4 * jax.random.normal(next(keys), x.shape), shapes(TINY))


@pytest.mark.parametrize(('config', 'published'), [
    (elmo.small(), 13.6), (elmo.medium(), 28.0), (elmo.original(), 93.6)],
    ids=['small', 'medium', 'original'])
def test_parameters_as_published(config, published):
  """allennlp.org/elmo, in millions with one decimal; without the softmax, which was not
  released."""
  number = count_parameters(shapes(config))
  assert number == sum(np.prod(shape) for shape in elmo.array_shapes(config).values())
  assert round(number / 1e6, 1) == published


def test_a_word_is_spelled_by_its_bytes():
  """Of bilm-tf: ids of bytes, begin 258, end 259, padding 260; here one more each."""
  ids = char_ids.encode_words(['cab', 'é', 'abcdefgh', ''], 6)
  assert ids.tolist() == [
      [259, 100, 98, 99, 260, 261], [259, 0xC3 + 1, 0xA9 + 1, 260, 261, 261],
      [259, 98, 99, 100, 101, 260],
      [259, 260, 261, 261, 261, 261]]
  assert char_ids.encode_boundary(char_ids.SENTENCE_BEGIN, 5).tolist() == [259, 257, 260, 261, 261]


def test_sentences_get_marks_and_are_reversed_for_the_backward_model():
  ids = np.zeros((2, 3, 4), np.int32)
  ids[0, :1], ids[1, :3] = char_ids.encode_words(['a'], 4), char_ids.encode_words(
      ['a', 'b', 'c'], 4)
  begin, end = (char_ids.encode_boundary(sign, 4)
                for sign in (char_ids.SENTENCE_BEGIN, char_ids.SENTENCE_END))
  marked = np.asarray(add_sentence_marks(ids))
  assert (marked[0] == [begin, ids[0, 0], end, [0] * 4, [0] * 4]).all()
  assert (marked[1] == [begin, *ids[1], end]).all()
  assert reverse_sequences(jnp.arange(8).reshape(2, 4),
                           jnp.array([3, 4])).tolist() == [[2, 1, 0, 3], [7, 6, 5, 4]]


@pytest.mark.slow
def test_one_direction_reads_earlier_words_and_the_other_later_words(params):
  """Each direction has half of the vector: another second word changes the forward half from it
  on, and the backward half up to it."""
  def read(*words) -> np.ndarray:
    batch = {'characters': jnp.asarray(char_ids.encode_words(words, 9))[None]}
    output: Any = Elmo(TINY).apply({'params': params}, batch)
    return output.layers[1:, 0, 1:-1]
  same = read('one', 'of', 'three') == read('one', 'or', 'three')
  forward, backward = np.split(same, 2, -1)
  assert forward[:, 0].all() and not forward[:, 1:].any()
  assert backward[:, 2].all() and not backward[:, :2].any()


@pytest.mark.slow
def test_padding_changes_nothing(params):
  words = char_ids.encode_words(['some', 'words'], 9)
  alone: Any = Elmo(TINY).apply({'params': params}, {'characters': jnp.asarray(words)[None]})
  padded = np.zeros((2, 5, 9), np.int32)
  padded[0, :2], padded[1] = words, char_ids.encode_words('abcde', 9)
  output: Any = Elmo(TINY).apply({'params': params}, {'characters': jnp.asarray(padded)})
  np.testing.assert_allclose(output.layers[:, 0, :4], alone.layers[:, 0], atol=1e-6)
  assert not output.layers[:, 0, 4:].any() and output.mask.sum(1).tolist() == [4, 7]
  np.testing.assert_allclose(output.state.cell[0], alone.state.cell[0], atol=1e-6)


@pytest.mark.release
@pytest.mark.slow
def test_state_carries_over_between_parts_of_a_text(params):
  """The state that is carried is all that the second part needs of the first."""
  streams = jnp.asarray(char_ids.encode_words([*'abcdefgh'], 9)).reshape(1, 1, 8, 9).repeat(2, 1)
  def call(part, **state) -> Any:
    batch = {'streams': part, 'valid': jnp.ones(part.shape[:3], bool), **state}
    return Elmo(TINY).apply({'params': params}, batch)
  whole, first = call(streams), call(streams[:, :, :5])
  second = call(streams[:, :, 5:], state=first.state)
  np.testing.assert_allclose(np.concatenate([first.hidden, second.hidden], 2), whole.hidden,
                             atol=1e-6)


def test_released_arrays_go_round(params):
  arrays = elmo.export_arrays(TINY, params)
  assert {name: x.shape for name, x in arrays.items()} == elmo.array_shapes(TINY)
  back = elmo.import_arrays(TINY, arrays)  # to the digits that adding 1 costs, as everywhere
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), back,
               jax.device_get(params))
  assert elmo.parse_options(elmo.make_options(TINY)) == dataclasses.replace(TINY, words=793_471)


@pytest.mark.parametrize(('change', 'message'), [
    ({'CNN/W_cnn_1': np.zeros((1, 3, 3, 5))},
     r'CNN/W_cnn_1 of the weights is \[1, 3, 3, 5\], and options.json makes it \[1, 3, 3, 6\]: the '
     r'two files '
     'are not of one model'),
    ({'CNN_proj/b_proj': None},
     r'the weights have no CNN_proj/b_proj, which options.json requires: \[5\]'),
    ({'CNN/W_cnn_2': np.zeros(1)},
     'the weights have CNN/W_cnn_2, which options.json does not have')])
def test_arrays_of_another_model_are_refused(params, change, message):
  arrays = {name: x for name, x in {**elmo.export_arrays(TINY, params), **change}.items() if x
            is not None}
  with pytest.raises(WeightsError, match=message):
    elmo.import_arrays(TINY, arrays)


@pytest.mark.parametrize(('options', 'message'), [
    ({}, "not the options.json of an ELMo of characters: KeyError 'char_cnn'"),
    ({'lstm': {}, 'char_cnn': {'n_characters': 300}},
     r'n_characters is 262 \(261 in training\), got 300'),
    ([], 'not the options.json of an ELMo of characters: TypeError')])
def test_options_of_something_else_are_refused(options, message):
  with pytest.raises(WeightsError, match=message):
    elmo.parse_options(options)
