import dataclasses
import gzip
import itertools
import json
import math
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import conversion
from plm_jax.config.run import ConfigError
from plm_jax.evaluation import scoring
from plm_jax.evaluation.perplexity import perplexity, read_texts
from plm_jax.evaluation.scoring import Scorer
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sources.lines import SourceError
from plm_jax.tokenizers import train_byte_bpe
from plm_jax.tokenizers.contract import Vocab
from tests.evaluation.test_scoring import Letters


def scorer(length=0, table=None):
  """Every token as likely as any; or the next by the last one."""
  table = np.zeros((14, 14), np.float32) if table is None else table
  def logits(params, batch):
    return jnp.take_along_axis(params[batch['tokens']], batch['positions'][..., None], 1)
  return Scorer(logits, jnp.asarray(table), Letters(), length)  # pyright: ignore


@pytest.mark.parametrize(('length', 'stride'), [(0, 0), (8, 4), (5, 1), (21, 20)])
def test_uniform(length, stride):
  """14 pieces; 'ab' is one of them."""
  found = perplexity(scorer(20), ['ab cd ef abab', 'gh'], length, stride)
  assert (found.tokens, found.words, found.bytes) == (10 + 2, 5, 15)
  assert found.per_token == pytest.approx(14)
  assert found.per_word == pytest.approx(14 ** (12 / 5))
  assert found.per_byte == pytest.approx(14 ** (12 / 15))
  assert found.bits_per_byte == pytest.approx(12 / 15 * math.log2(14))


def test_window_size_does_not_matter_to_a_bigram_model():
  """Nor do they to any model, as long as the text fits one."""
  table = np.random.default_rng(0).normal(size=(14, 14)).astype(np.float32)
  text = 'fad cab bed jab ' * 8
  whole = perplexity(scorer(table=table), [text])
  ids = [13, *Letters().encode(text)]
  odds = table.astype(np.float64) - np.log(np.exp(table.astype(np.float64)).sum(1, keepdims=True))
  assert whole.nats == pytest.approx(-sum(odds[a, b] for a, b in itertools.pairwise(ids)), rel=1e-6)
  for length, stride in ((40, 20), (7, 2), (150, 149)):
    assert perplexity(scorer(table=table), [text], length,
                      stride).nats == pytest.approx(whole.nats, rel=1e-6)


def test_context_is_not_counted():
  """Without a start token, the first token of each text is not predicted; its bytes, and a word
  that ends there, are not counted. A text of one token has nothing to predict."""
  tokenizer = train_byte_bpe(['The cat', 'The é'] * 9, 290, layout='gpt2')
  pieces = [[tokenizer.pieces[i] for i in tokenizer.encode(text)]
            for text in ('The cat', 'The', 'cThe', '日')]
  assert pieces[0][:2] == ['The', '▁cat'] and pieces[1] == ['The'] and pieces[2] == [
      'c', 'The'] and len(pieces[3]) == 3
  size = tokenizer.vocab.size
  uniform = lambda params, batch: jnp.zeros((*batch['positions'].shape, size))
  found = perplexity(Scorer(uniform, None, tokenizer, 8, start=False),
                     ['The cat', 'The', 'cThe', '日'])
  # ' cat'; nothing; 'The', a part of a word; a character that is predicted in part.
  assert (found.tokens, found.bytes, found.words) == (1 + 0 + 1 + 2, 4 + 0 + 3 + 3, 1 + 0 + 1 + 1)
  assert found.per_byte == pytest.approx(size ** (4 / 10)) and found.per_word == pytest.approx(
      size ** (4 / 3))
  with pytest.raises(ConfigError, match='there is no token to predict'):
    perplexity(Scorer(uniform, None, tokenizer, 8, start=False), ['The'])


def test_bytes_are_of_utf8():
  found = perplexity(scorer(), ['aé'])
  assert (found.bytes, found.words, found.tokens) == (3, 1, 2)


@pytest.mark.parametrize(('length', 'stride', 'message'), [
    (22, 4, 'windows of 22 tokens do not fit a model that reads 20'),
    (8, 8, 'the stride is at least 1 and below the length of 8 tokens, got 8'),
    (8, -1, 'got -1'),
])
def test_refused(length, stride, message):
  with pytest.raises(ConfigError, match=message):
    perplexity(scorer(20), ['abc'], length, stride)


def test_no_text():
  with pytest.raises(ConfigError, match='no text to measure'):
    perplexity(scorer(), ['', ' \n'])


def test_texts(tmp_path):
  (tmp_path / 'a.txt').write_text('One.\n\n = Two = \n')
  (tmp_path / 'b.txt.gz').write_bytes(gzip.compress(b'Three.\r\nFour.'))
  (tmp_path / 'c.jsonl').write_text('\n'.join(map(json.dumps,
                                                  [{'text': 'Five.\nSix.'}, {'text': 'Seven.'}])))
  assert read_texts(f'{tmp_path}/a.txt,{tmp_path}/b.txt.gz') == ['One.\n\n = Two = \n',
                                                                 'Three.\r\nFour.']
  assert read_texts(f'{tmp_path}/c.jsonl') == ['Five.\nSix.', 'Seven.']
  with pytest.raises(SourceError):
    read_texts(f'{tmp_path}/none.txt')


class Squares:
  """A text is how many ids it has: 7 i i + 3 i modulo 52."""

  vocab = Vocab(53, bos=52, eos=52)
  spaced = True

  def encode_batch(self, texts):
    return [[(7 * i * i + 3 * i) % 52 for i in range(int(text))] for text in texts]

  def encode_with_offsets(self, texts):
    return None, None, np.arange(int(texts[0]))


@pytest.mark.parametrize(('length', 'stride', 'nats'), [
    (48, 24, 598.346971), (48, 47, 598.636333), (20, 5, 577.475788), (30, 1, 596.116147)])
def test_a_gpt2_as_transformers_has_it(length, stride, nats):
  """Its recipe for models of fixed length, by transformers 5.23 in float64, without a start: 119
  tokens."""
  imported = conversion.load(pathlib.Path(__file__).parents[1] / 'golden/gpt2/kv_cache_steps')
  trained = LoadedModel('gpt2', imported.config, dict(imported.heads), imported.params,
                        Squares())  # pyright: ignore
  found = perplexity(scoring.make_scorer(trained, start=False), ['120'], length, stride)
  assert (found.tokens, found.nats) == (119, pytest.approx(nats, rel=2e-6))


def test_windows_of_a_run_begin_with_the_start_token_as_its_sequences_do():
  """A model of pairs whose training began every sequence so: what follows the start has the start
  before it."""
  table = np.random.default_rng(0).normal(size=(14, 14)).astype(np.float32)
  text = 'fad cab bed jab ' * 3
  ids = Letters().encode(text)
  odds = table.astype(np.float64) - np.log(np.exp(table.astype(np.float64)).sum(1, keepdims=True))
  run = dataclasses.replace(scorer(6, table), starts_every_row=True)
  # Windows of 6 tokens with the start, 5 of the text: the first begins with the start, too.
  spans = scoring.strided_spans([13, *ids], 1, 6, 5, run.row_start)
  assert all(span.ids[0] == 13 and len(span.ids) <= 6 for span in spans)
  assert [token for span in spans for token in span.ids[span.first:]] == ids
  expected = 0.0
  for span in spans:
    for place in range(span.first, len(span.ids)):
      expected -= odds[span.ids[place - 1], span.ids[place]]
  assert perplexity(run, [text], 6, 5).nats == pytest.approx(expected, rel=1e-6)
  assert scorer(6, table).row_start == [] == dataclasses.replace(run, start=False).row_start
  # A context that is too long loses its beginning, and the start token stays.
  whole = scoring.Span([13, *ids], len(ids))
  assert [tuple(span) for span in run.rows(*whole)] == [([13, *ids[-6:]], 6)]
  assert all(span.ids[0] == 13 for span in run.rows([13, *ids], 1))
