import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import api
from plm_jax.cli import commands
from plm_jax.errors import ConfigError
from plm_jax.inference.loading import Trained
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.tokenizers import BertText, WordPiece
from plm_jax.training import growth

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the', 'heart', 'card', '##io', '##logy', 'my', '##card', 's',
          '##ick', '.']
TEXTS = ['The cardiology sick.', 'Cardiology, the heart cardio', 'sick cardiology sick zebra zebra zebra']


def tokenizer():
  return WordPiece(PIECES, BertText(lowercase=True))


def model(tied=True):
  """A BERT with a vocabulary of twenty ids, of which the tokenizer has fifteen."""
  config = dataclasses.replace(tiny.config(layers=1), vocab=20, tied=tied)
  heads = MaskedLM().heads(config)
  module = MaskedLM().build(config, False)
  batch = {name: np.ones((1, 8), np.int32) for name in ('tokens', 'segments', 'positions')}
  params = tiny.random_params(jax.eval_shape(lambda: module.init(jax.random.key(0), batch)['params']))
  return Trained('bert', config, heads, params, tokenizer())


def test_words_that_are_split_by_how_often_they_come():
  assert growth.new_words(TEXTS, tokenizer(), 9, 1) == ['cardiology', 'sick', 'cardio']
  assert growth.new_words(TEXTS, tokenizer(), 1, 1) == ['cardiology']
  assert growth.new_words(TEXTS, tokenizer(), 9, 3) == ['cardiology', 'sick']
  assert growth.new_words(TEXTS, tokenizer(), 9, 4) == []


@pytest.mark.parametrize('tied', [True, False])
def test_rows_begin_as_the_mean_of_their_pieces(tied):
  before, words = model(tied), ['cardiology', 'sick']
  after = growth.grown(before, words)
  assert after.model.vocab == 20 and growth.wordpiece_of(after).vocab.size == 17
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
  after = growth.grown(model(), [f'card{"io" * n}' for n in range(1, 9)])
  assert after.model.vocab == 23 and after.params['backbone']['embeddings']['tokens'].shape == (23, 32)
  assert after.params['heads_mlm']['bias'].shape == (23,) and after.params['heads_mlm']['dense']['bias'].shape == (32,)
  batch = {'tokens': jnp.array([[2, 22, 3, 0, 0, 0, 0, 0]]), 'segments': jnp.ones((1, 8), jnp.int32)}
  module = MaskedLM().build(after.model, False)
  assert jax.eval_shape(lambda: module.apply({'params': after.params}, batch))['mlm'].shape == (1, 8, 23)


def test_old_ids_stay_and_the_tokenizer_is_read_as_it_was_written(tmp_path):
  larger = growth.wordpiece_of(growth.grown(model(), ['cardiology', 'sick']))
  assert larger.pieces[:15] == PIECES
  assert larger.encode('the sick cardiology heart.') == [5, 16, 15, 6, 14]
  larger.save(tmp_path)
  again = WordPiece.load(tmp_path / 'vocab.txt')
  assert again.pieces == larger.pieces and again.hash == larger.hash


def test_the_command_writes_what_a_run_can_begin_with(tmp_path, capsys, monkeypatch):
  api.export(model(), tmp_path / 'before')
  text = tmp_path / 'text.txt'
  text.write_text('\n'.join(TEXTS))
  monkeypatch.setattr('sys.argv', ['plm_jax', 'grow', f'{tmp_path}/before', str(text), f'{tmp_path}/after', '--words=2',
                                   '--least=2'])
  commands.main()
  assert capsys.readouterr().out == '2 words more, cardiology, sick: ' + (
      f'give --warm-start={tmp_path}/after --model.vocab=20\n')
  after = api.load(tmp_path / 'after')
  assert growth.wordpiece_of(after).pieces == [*PIECES, 'cardiology', 'sick'] and after.model.vocab == 20
  want = growth.grown(model(), ['cardiology', 'sick']).params['backbone']['embeddings']['tokens']
  np.testing.assert_array_equal(after.params['backbone']['embeddings']['tokens'], want)


def test_what_cannot_grow_is_refused():
  with pytest.raises(ConfigError, match='has no tokenizer: only a WordPiece vocabulary grows by whole words'):
    growth.grown(dataclasses.replace(model(), tokenizer=None), ['sick'])
  with pytest.raises(ConfigError, match='there is no word to add'):
    growth.grown(model(), [])
