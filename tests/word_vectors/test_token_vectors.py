"""fastText vectors of tokens, from token records."""
import numpy as np
import pytest

from plm_jax.data import records
from plm_jax.data.records import RecordsMeta, Shard
from plm_jax.errors import ConfigError
from plm_jax.tokenizers import train_wordpiece
from plm_jax.word_vectors import token_vectors

TEXTS = ['the cat sat on the mat', 'the dog sat on the mat', 'a cat and a dog eat fish'] * 40


@pytest.fixture
def folder(tmp_path):
  """Two shards of sentences, of which the last is cut, and a token that occurs only nine times."""
  tokenizer = train_wordpiece([*TEXTS, 'zebra zebra'], 60)
  shards: list[Shard] = []
  for n, texts in enumerate((TEXTS, TEXTS + ['zebra'] * 9)):
    ids = tokenizer.encode_batch(texts)
    flat = np.zeros(sum(map(len, ids)), records.token_dtype(60))
    flat['token'] = np.concatenate(ids)
    sentences = np.zeros(len(ids), records.SENTENCE_DTYPE)
    sentences['start'] = np.cumsum([0, *map(len, ids)])[:-1]
    shards.append(records.write_shard(tmp_path, f'train-{n:05}', flat, sentences))
  tokenizer.save(tmp_path / 'tokenizer')
  records.write_meta(tmp_path, RecordsMeta(
      tokenizer.vocab.size, tokenizer.hash, tuple(shards), (), 'source'))
  return tmp_path, tokenizer


def test_the_corpus_has_sentences_of_frequent_tokens(folder):
  path, tokenizer = folder
  corpus, kept = token_vectors.read_corpus([path], tokenizer)
  names = [tokenizer.pieces[i] for i in kept]
  assert list(corpus.vocabulary.words) == names and names[0] == 'the'
  assert 'zebra' in tokenizer.pieces and 'zebra' not in names
  assert list(corpus.vocabulary.counts) == sorted(corpus.vocabulary.counts, reverse=True)
  sentences = corpus.train
  assert len(sentences.starts) == 249 + 1 and sentences.lengths[-9:].tolist() == [0] * 9
  second = sentences.ids[sentences.starts[121]:sentences.starts[122]]
  assert [names[i] for i in second] == ['the', 'dog', 'sat', 'on', 'the', 'mat']


def test_the_text_is_cut_after_a_number_of_tokens(folder, monkeypatch):
  path, tokenizer = folder
  monkeypatch.setattr(token_vectors, 'MAX_TOKENS', 63)
  corpus, _ = token_vectors.read_corpus([path], tokenizer)
  assert len(corpus.train.ids) == corpus.train.starts[-1] <= 63
  monkeypatch.setattr(token_vectors, 'MAX_TOKENS', 20)
  with pytest.raises(ConfigError, match='occur 10 times or more'):
    token_vectors.train_token_vectors([path], tokenizer)


@pytest.mark.slow
def test_similar_tokens_have_similar_vectors(folder, tmp_path, monkeypatch):
  path, tokenizer = folder
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
  vectors = token_vectors.train_token_vectors([path], tokenizer)
  assert vectors.shape == (tokenizer.vocab.size, 100) and np.isfinite(vectors).all()
  index = {piece: i for i, piece in enumerate(tokenizer.pieces)}
  assert not vectors[[index['zebra'], index['[MASK]']]].any() and vectors[index['cat']].any()
  again = token_vectors.train_token_vectors([path], tokenizer)  # from the cache
  np.testing.assert_array_equal(again, vectors)
