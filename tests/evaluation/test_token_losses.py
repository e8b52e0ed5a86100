"""Losses by frequency and position, and neighbors, compared with direct computation."""
import numpy as np
import pytest
from test_minimal_pairs import model

import plm_jax
from plm_jax.cli import commands
from plm_jax.config.run import ConfigError
from plm_jax.evaluation import neighbors, token_losses
from plm_jax.evaluation.token_losses import TokenLosses
from plm_jax.tokenizers import train_byte_bpe, train_wordpiece

TEXTS = ['a quick brown fox jumps over the lazy dog', 'the lazy dog jumps']


@pytest.fixture(scope='module')
def bert():
  return model('bert', 'mlm', train_wordpiece(TEXTS, 80))


@pytest.fixture(scope='module')
def gpt2():
  return model('gpt2', 'lm', train_byte_bpe(TEXTS, 280, layout='gpt2'))


def test_token_losses_sum_to_text_losses(bert, gpt2):
  for trained, first in ((bert, 1), (gpt2, 1)):
    found = token_losses.compute_losses(trained, [*TEXTS, ' '])
    assert -found.nats.sum() == pytest.approx(plm_jax.likelihood(trained, TEXTS).sum(), abs=1e-3)
    ids = trained.tokenizer.encode_batch(TEXTS)
    assert sorted(found.ids.tolist()) == sorted(i for some in ids for i in some)
    assert sorted(found.places.tolist()) == sorted(first + place for some in ids
                                                   for place in range(len(some)))
  with pytest.raises(ConfigError, match='no token to predict'):
    token_losses.compute_losses(bert, [''])


def test_long_texts_are_split_into_several_rows(bert, gpt2):
  for trained in (bert, gpt2):
    found = token_losses.compute_losses(trained, [' '.join(TEXTS * 12)])
    assert len(found.ids) == len(trained.tokenizer.encode(' '.join(TEXTS * 12))) > 64
    assert found.places.max() <= 64


def test_bins_by_hand():
  tokens = TokenLosses(np.array([0, 1, 1, 2, 3]), np.array([1.0, 2.0, 4.0, 8.0, 16.0]),
                       np.array([0, 1, 2, 3, 4]))
  bins = token_losses.group_by_frequency(tokens, np.array([0, 9, 10, 1000]))
  assert [(one.name, one.tokens, one.nats) for one in bins] == [
      ('never', 1, 1.0), ('1 to 9', 2, 3.0), ('10 to 99', 1, 8.0), ('1,000 to 9,999', 1, 16.0)]
  assert bins[1].error == pytest.approx(1.0)
  assert [(one.name, one.tokens, one.nats) for one in token_losses.group_by_position(tokens)] == [
      ('0 to 1', 2, 1.5), ('2 to 3', 2, 6.0), ('4 to 7', 1, 16.0)]


def test_tokens_are_counted(bert):
  met = token_losses.count_tokens(bert, iter(TEXTS))
  assert met.sum() == sum(map(len, bert.tokenizer.encode_batch(TEXTS)))
  (lazy, *_), again = bert.tokenizer.encode('lazy'), token_losses.count_tokens(bert, TEXTS * 1000)
  assert met[lazy] >= 2 and again[lazy] == 1000 * met[lazy]


def test_neighbours(bert):
  alone, found = plm_jax.neighbors(bert, 'the lazy *dog* jumps',
                                   ['the lazy dog jumps', 'a quick fox'], top=3)
  assert found[0].word == 'dog' and found[0].cosine == pytest.approx(1, abs=1e-5)
  assert found[0].sentence == 'the lazy dog jumps' and len(found) == 3
  cosines = [cosine for _, cosine in alone]
  assert len(alone) == 3 and cosines == sorted(cosines, reverse=True)
  own = set(bert.tokenizer.encode('dog')) | {*bert.tokenizer.vocab.specials}
  assert not {bert.tokenizer.pieces[i] for i in own} & {piece for piece, _ in alone}
  for sentence in ('the dog', 'the *dog* *jumps*'):
    with pytest.raises(ConfigError, match='between stars'):
      neighbors.parse_marked_word(sentence)
  with pytest.raises(ConfigError, match='layers 0'):
    plm_jax.neighbors(bert, 'the *dog*', ['a fox'], layer=7)
  with pytest.raises(ConfigError, match='no sentence'):
    plm_jax.neighbors(bert, 'the *dog*', [])


def test_commands(gpt2, bert, tmp_path, capsys, monkeypatch):
  file = tmp_path / 'texts.txt'
  file.write_text('\n\n'.join(TEXTS))
  def typed(trained, *args):
    monkeypatch.setattr('plm_jax.api.models.load', lambda *_: trained)
    monkeypatch.setattr('sys.argv', ['plm_jax', *map(str, args)])
    commands.main()
    return capsys.readouterr().out
  said = typed(gpt2, 'losses', 'run', file, '--corpus', file, f'--page={tmp_path}/l.html')
  assert 'met in the corpus, times' in said and 'tokens before it' in said
  assert 'nats' in (tmp_path / 'l.html').read_text()
  said = typed(bert, 'neighbors', 'run', 'the *fox*', file, '--top=2')
  assert len(said.splitlines()) == 6 and said.splitlines()[3] == 'in context:'
