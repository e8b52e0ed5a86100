import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tokenizer_kinds import KINDS

from plm_jax.api import models
from plm_jax.cli import commands
from plm_jax.errors import ConfigError
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.tokenizers import BertNormalization, ByteTokenizer, TokenizerError, WordPiece
from plm_jax.training import vocabulary_expansion

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the', 'heart', 'card', '##io', '##logy',
          'my', '##card', 's',
          '##ick', '.']
TEXTS = ['The cardiology sick.', 'Cardiology, the heart cardio',
         'sick cardiology sick zebra zebra zebra']


def tokenizer():
  return WordPiece(PIECES, BertNormalization(lowercase=True))


def model(tied=True):
  """A BERT with a vocabulary of twenty ids; the tokenizer has fifteen of them."""
  config = dataclasses.replace(tiny.config(layers=1), vocab=20, tied=tied)
  heads = MaskedLM().heads(config)
  module = MaskedLM().build(config, False)
  batch = {name: np.ones((1, 8), np.int32) for name in ('tokens', 'segments', 'positions')}
  params = tiny.random_params(
      jax.eval_shape(lambda: module.init(jax.random.key(0), batch)['params']))
  return LoadedModel('bert', config, heads, params, tokenizer())


def test_split_words_are_listed_by_frequency():
  assert vocabulary_expansion.find_new_words(TEXTS, tokenizer(), 9,
                                             1) == ['cardiology', 'sick', 'cardio']
  assert vocabulary_expansion.find_new_words(TEXTS, tokenizer(), 1, 1) == ['cardiology']
  assert vocabulary_expansion.find_new_words(TEXTS, tokenizer(), 9, 3) == ['cardiology', 'sick']
  assert vocabulary_expansion.find_new_words(TEXTS, tokenizer(), 9, 4) == []


@pytest.mark.parametrize('tied', [True, False])
def test_new_embeddings_are_the_mean_of_their_pieces(tied):
  before, words = model(tied), ['cardiology', 'sick']
  after = vocabulary_expansion.expand_vocabulary(before, words)
  assert after.model.vocab == 20 and vocabulary_expansion.require_tokenizer(after).vocab.size == 17
  old, new = before.params, after.params
  table, grown = old['backbone']['embeddings']['tokens'], new['backbone']['embeddings']['tokens']
  np.testing.assert_array_equal(grown[:15], table[:15])
  np.testing.assert_allclose(grown[15], (table[7] + table[8] + table[9]) / 3, rtol=1e-6)
  np.testing.assert_allclose(grown[16], (table[12] + table[13]) / 2, rtol=1e-6)
  bias, more = old['heads_mlm']['bias'], new['heads_mlm']['bias']
  np.testing.assert_allclose(more[15:17], [bias[7:10].mean(), bias[12:14].mean()], rtol=1e-5)
  assert ('kernel' in new['heads_mlm']) == (not tied)
  if not tied:
    kernel, more = old['heads_mlm']['kernel'], new['heads_mlm']['kernel']
    np.testing.assert_allclose(more[:, 16], kernel[:, 12:14].mean(1), rtol=1e-5)


def test_a_table_without_room_grows():
  after = vocabulary_expansion.expand_vocabulary(model(), [f'card{"io" * n}' for n in range(1, 9)])
  assert after.model.vocab == 23 and after.params['backbone']['embeddings']['tokens'].shape == (
      23, 32)
  assert after.params['heads_mlm']['bias'].shape == (23,) and after.params['heads_mlm']['dense'][
      'bias'].shape == (32,)
  batch = {'tokens': jnp.array([[2, 22, 3, 0, 0, 0, 0, 0]]),
           'segments': jnp.ones((1, 8), jnp.int32)}
  module = MaskedLM().build(after.model, False)
  assert jax.eval_shape(lambda: module.apply({'params': after.params},
                                             batch))['mlm'].shape == (1, 8, 23)


def test_old_ids_stay_and_the_tokenizer_is_read_as_it_was_written(tmp_path):
  larger = vocabulary_expansion.require_tokenizer(
    vocabulary_expansion.expand_vocabulary(model(), ['cardiology', 'sick'])
  )
  assert larger.pieces[:15] == PIECES
  assert larger.encode('the sick cardiology heart.') == [5, 16, 15, 6, 14]
  larger.save(tmp_path)
  again = WordPiece.load(tmp_path / 'vocab.txt')
  assert again.pieces == larger.pieces and again.hash == larger.hash


def test_the_command_writes_a_checkpoint_for_a_warm_start(tmp_path, capsys, monkeypatch):
  models.export(model(), tmp_path / 'before')
  text = tmp_path / 'text.txt'
  text.write_text('\n'.join(TEXTS))
  monkeypatch.setattr('sys.argv', ['plm_jax', 'expand-vocab', f'{tmp_path}/before', str(text),
                                   f'{tmp_path}/after',
                                   '--words=2', '--least=2'])
  commands.main()
  assert capsys.readouterr().out == '2 words more, cardiology, sick: ' + (
      f'give --warm-start={tmp_path}/after --model.vocab=20\n')
  after = models.load(tmp_path / 'after')
  assert (
    vocabulary_expansion.require_tokenizer(after).pieces == [*PIECES, 'cardiology', 'sick']
    and after.model.vocab == 20
  )
  want = vocabulary_expansion.expand_vocabulary(model(), ['cardiology', 'sick']).params['backbone'][
      'embeddings'][
    'tokens'
  ]
  np.testing.assert_array_equal(after.params['backbone']['embeddings']['tokens'], want)


@pytest.mark.parametrize('kind', ['byte BPE', 'SentencePiece', 'SentencePiece of LLaMA',
                                  'SentencePiece of mBART', 'SentencePiece of T5'])
def test_rows_of_other_tokenizers_are_the_mean_of_their_pieces(kind):
  """New tokens come before languages, masks and sentinels, which keep their rows under new ids."""
  before = KINDS[kind]()
  size, words = before.vocab.size, ['stand', 'trones']
  if kind == 'byte BPE':
    words = [f' {word}' for word in words]
  config = dataclasses.replace(tiny.config(layers=1), vocab=size + 3)
  table = np.random.default_rng(0).normal(size=(size + 3, 4)).astype(np.float32)
  trained = LoadedModel(
      'bert', config, MaskedLM().heads(config),
      {'backbone': {'embeddings': {'tokens': table}}, 'generator': {'heads_mlm': {
          'bias': table[:, 2]}},
       'heads_mlm': {'bias': table[:, 0], 'kernel': table.T, 'dense': {'bias': table[:, 1]}}},
      before)
  after = vocabulary_expansion.expand_vocabulary(trained, words)
  larger = vocabulary_expansion.require_tokenizer(after)
  rows = np.asarray(after.params['backbone']['embeddings']['tokens'])
  assert after.model.vocab == len(rows) == max(size + 3, larger.vocab.size)
  for word, pieces in zip(words, before.encode_batch(words), strict=True):
    new, = larger.encode(word)
    np.testing.assert_allclose(rows[new], table[pieces].mean(0), rtol=1e-5)
  names = {piece: i for i, piece in enumerate(larger.pieces)}
  for i, piece in enumerate(before.pieces):
    np.testing.assert_array_equal(rows[names[piece]], table[i])
  np.testing.assert_array_equal(after.params['heads_mlm']['bias'], rows[:, 0])
  np.testing.assert_array_equal(after.params['generator']['heads_mlm']['bias'], rows[:, 2])
  np.testing.assert_array_equal(after.params['heads_mlm']['kernel'], rows.T)
  np.testing.assert_array_equal(after.params['heads_mlm']['dense']['bias'], table[:, 1])


def test_models_and_words_that_cannot_be_expanded_are_refused():
  with pytest.raises(ConfigError,
                     match='has no tokenizer whose vocabulary could be expanded'):
    vocabulary_expansion.expand_vocabulary(dataclasses.replace(model(), tokenizer=None), ['sick'])
  with pytest.raises(ConfigError, match='there is no word to add'):
    vocabulary_expansion.expand_vocabulary(model(), [])
  with pytest.raises(TokenizerError, match=r'ByteTokenizer, bytes.* expected WordPiece'):
    vocabulary_expansion.find_new_words(['text'], ByteTokenizer(), 1)


@pytest.mark.parametrize(('x', 'shape', 'want'), [
    # The array in the middle, at offset (new - old) // 2, and periodic on both sides: what _tile_1d
    # and _tile_2d of AnswerDotAI/ModernBERT, src/bert_layers/initialization.py, make of the same
    # arrays.
    ([1, 2, 3], (3,), [1, 2, 3]),
    ([1, 2, 3], (7,), [2, 3, 1, 2, 3, 1, 2]),
    ([1, 2], (7,), [1, 2, 1, 2, 1, 2, 1]),
    ([1, 2, 3], (4,), [1, 2, 3, 1]),
    ([[1, 2], [3, 4]], (2, 4), [[2, 1, 2, 1], [4, 3, 4, 3]]),
    ([[1, 2], [3, 4]], (3, 5), [[2, 1, 2, 1, 2], [4, 3, 4, 3, 4], [2, 1, 2, 1, 2]]),
    ([[1, 2], [3, 4]], (4, 2), [[3, 4], [1, 2], [3, 4], [1, 2]]),
])
def test_arrays_are_tiled_from_the_middle(x, shape, want):
  np.testing.assert_array_equal(vocabulary_expansion.tile_from_middle(np.array(x), shape), want)


def test_an_array_is_not_tiled_to_a_smaller_one():
  with pytest.raises(ValueError, match=r'\[3\] cannot be tiled to the shape \[2\]'):
    vocabulary_expansion.tile_from_middle(np.arange(3), (2,))


def stacked(layers, width, heads, seed):
  """Parameters of ModernBERT's architecture, with heads of 2: the first layer has no norm before
  its attention."""
  def random(*shape):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)
  block = {'attention': {'query': {'kernel': random(layers, width, heads, 2)},
                         'out': {'kernel': random(layers, heads, 2, width)}},
           'attention_norm': {'scale': random(layers - 1, width)},
           'mlp_norm': {'scale': random(layers, width)}}
  return {'backbone': {'embeddings': {'tokens': random(9, width)},
                       'stack': {'layers': {'block': block}, 'norm': {'scale': random(width)}}},
          'heads_mlm': {'bias': random(9), 'dense': {'kernel': random(width, width)}}}


def test_a_larger_model_is_initialized_by_tiling_a_smaller_one():
  small, large = stacked(4, 4, 2, seed=0), stacked(6, 8, 4, seed=1)
  found = vocabulary_expansion.tile_params(large, small)
  jax.tree.map(lambda x, y: np.testing.assert_equal(x.shape, y.shape), found, large)
  old, new = (tree['backbone']['stack']['layers']['block'] for tree in (small, found))
  # Layer i of 6 begins as layer round(i 4 / 6) of 4: 0, 1, 1, 2, 3, 3. Columns: 2 3 | 0 1 2 3 | 0 1
  # of the old ones.
  middle = [2, 3, 0, 1, 2, 3, 0, 1]
  for layer, source in enumerate([0, 1, 1, 2, 3, 3]):
    np.testing.assert_array_equal(new['mlp_norm']['scale'][layer],
                                  old['mlp_norm']['scale'][source][middle])
    # Two heads of two: all heads are one axis of four, which becomes one of eight.
    query, out = old['attention']['query']['kernel'][source], old['attention']['out']['kernel'][
        source]
    np.testing.assert_array_equal(
        new['attention']['query']['kernel'][layer].reshape(8, 8),
        query.reshape(4, 4)[middle][:, middle])
    np.testing.assert_array_equal(
        new['attention']['out']['kernel'][layer].reshape(8, 8),
        out.reshape(4, 4)[middle][:, middle])
    if layer:
      np.testing.assert_array_equal(
          new['attention_norm']['scale'][layer - 1],
          old['attention_norm']['scale'][source - 1][middle])
  np.testing.assert_array_equal(found['backbone']['embeddings']['tokens'],
                                small['backbone']['embeddings']['tokens'][:, middle])
  np.testing.assert_array_equal(found['heads_mlm']['bias'], small['heads_mlm']['bias'])
  np.testing.assert_array_equal(found['backbone']['stack']['norm']['scale'], np.ones(8))


def test_layers_of_modernbert_large():
  """22 layers become 28, as in the released code: round(i * 22 / 28)."""
  small, large = stacked(22, 2, 1, seed=0), stacked(28, 2, 1, seed=1)
  old, new = (tree['backbone']['stack']['layers']['block']['mlp_norm']['scale']
              for tree in (small, vocabulary_expansion.tile_params(large, small)))
  sources = [int(np.flatnonzero((old == row).all(1))[0]) for row in new]
  assert sources == [0, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 13, 13, 14, 15, 16, 16, 17,
                     18, 19, 20, 20, 21]


def test_a_first_layer_without_a_norm_gives_none():
  """Of 2 layers and 5, layer 1 begins as layer 0, which has no norm before its attention: its norm
  begins as ones."""
  small, large = stacked(2, 4, 2, seed=0), stacked(5, 4, 2, seed=1)
  found = vocabulary_expansion.tile_params(large, small)['backbone']['stack']['layers']['block'][
      'attention_norm'][
    'scale'
  ]
  old = small['backbone']['stack']['layers']['block']['attention_norm']['scale'][0]
  np.testing.assert_array_equal(found, [np.ones(4), old, old, old])


@pytest.mark.parametrize('change', ['smaller', 'vocabulary'])
def test_models_that_cannot_be_expanded(change):
  small, large = stacked(4, 4, 2, seed=0), stacked(6, 8, 4, seed=1)
  if change == 'smaller':
    small, large = large, small
  else:
    small['backbone']['embeddings']['tokens'] = np.zeros((8, 4))
  with pytest.raises(ValueError, match=r'tiled|layers|8 rows there and 9 here'):
    vocabulary_expansion.tile_params(large, small)
