"""Word vectors: the losses and updates of word2vec, C&W and GloVe, and fastText's parts of
words."""
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.word_vectors import losses, subwords, word_corpus
from plm_jax.word_vectors.glove import GloVe, count_pairs


def word2vec(case) -> dict[str, Any]:
  """Every pair is a separate block with its own negative samples; in CBOW negative samples that
  equal the word count, too."""
  given = {name: jnp.asarray(x, jnp.float32 if x.dtype.kind == 'f' else jnp.int32)
           for name, x in case.inputs.items()}
  tables = {'input': given['W_in'], 'output': given['W_out']}
  center, context, negatives = (given[name] for name in ('center', 'context', 'negatives'))
  rows = {'input': center[:, None], 'output': jnp.concatenate([context[:, None], negatives], 1)}
  pair, counted = jnp.ones((6, 1, 1)), jnp.ones((6, 1, 5))
  def loss(found):
    return losses.skip_gram_loss(found['input'], found['output'][:, :1], found['output'][:, 1:],
                                 pair, counted)
  moved = losses.descend_rows(lambda found: loss(found).sum(), tables, rows, 1.0)
  around = given['cbow_context']
  pairs = (around >= 0)[:, :, None].astype(jnp.float32)
  cbow = losses.cbow_loss(
      tables['input'][around], tables['output'][center][:, None], tables['output'][negatives],
      pairs, counted,
      jnp.ones(around.shape))
  counts = np.asarray(given['counts'])
  return {
      'sgns_loss': loss(losses.gather_rows(tables, rows)), 'cbow_ns_loss': cbow,
      'grad_W_in': tables['input'] - moved['input'],
      'grad_W_out': tables['output'] - moved['output'],
      'unigram_075': word_corpus.noise_distribution(counts),
      'keep_prob_word2vec_c': word_corpus.keep_probability(counts, 1e-3),
      'keep_prob_fasttext': word_corpus.keep_probability(counts, 1e-3),
      'keep_prob_paper': word_corpus.keep_probability(counts, 1e-3, 'paper'),
      'cw_hinge': losses.ranking_loss(given['cw_pos'], given['cw_neg']).mean()}


def glove(case) -> dict[str, Any]:
  """Counts the case's corpus, and goes through its pairs one by one.

  cooccur.c has the first pair twice: where memory holds all pairs the file of what did not fit is
  empty, and its merge_files takes for its first record the one that was read last.
  """
  hyper = case.about['hp']
  words = [line.split()[0] for line in (case.path / 'vocab.txt').read_text().splitlines()]
  text = word_corpus.corpus_from_words([line.split()
                                        for line in (case.path
                                                     / 'corpus.txt').read_text().splitlines()])
  assert text.vocabulary.words == tuple(words)
  pairs = np.array(count_pairs(text.train, len(words), window=5, memory=1000))
  pairs['count'][0] *= 2
  np.testing.assert_allclose(np.array(pairs.tolist()), case.inputs['cooc'], atol=1e-9)
  config = GloVe(width=8, window=5, largest=hyper['x_max'], power=hyper['alpha'], batch=1,
                 call=len(pairs))
  learner = config.make_learner(text, 0)
  tables, bias = (jnp.asarray(case.inputs[name], jnp.float32)
                  for name in ('W', 'C')), (case.inputs[name] for name in (
      'bw', 'bc'))
  params = {name: jnp.concatenate([table, jnp.asarray(one, jnp.float32)[:, None]], 1)
            for name, table, one in zip(('word', 'context'), tables, bias, strict=True)}
  state = {'params': params, 'squares': jax.tree.map(jnp.ones_like, params)}
  batches = {name: jnp.asarray(array) for name, array in learner.make_batches(pairs).arrays.items()}
  first = jax.jit(lambda state: jax.vmap(lambda batch: learner.loss(state, {}, batch)[0])(
      batches).sum())(state)
  def step(state, batch):
    return learner.step(state, {}, batch, hyper['eta']), learner.loss(state, {}, batch)[0]
  after, costs = jax.jit(lambda state: jax.lax.scan(step, state, batches))(state)
  found = {name: np.asarray(table) for name, table in after['params'].items()}
  return {
      'weights_f': losses.glove_weight(jnp.asarray(pairs['count'], jnp.float32), hyper['x_max'],
                                       hyper['alpha']),
      'batch_loss_sum': first, 'epoch_cost': costs.sum(), 'W': found['word'][:, :-1],
      'bw': found['word'][:, -1],
      'C': found['context'][:, :-1], 'bc': found['context'][:, -1],
      'final_vectors': config.make_vectors(found, text.vocabulary).matrix}


def fasttext(case) -> dict[str, np.ndarray]:
  """Also compare the n-grams, which are in a separate file."""
  words, ngrams = (json.loads((case.path / f'{name}.json').read_text())
                   for name in ('words', 'ngrams'))
  got = {}
  for number, (word, expected) in enumerate(zip(words, ngrams, strict=True)):
    found = [*subwords.ngram_hashes(word)]
    assert [ngram for ngram, _ in found] == expected
    got |= {f'hash.{number}': [code for _, code in found], f'n_ngrams.{number}': len(found),
            f'bucket2M.{number}': subwords.Subwords().ngram_rows(word, 0)}
  return {name: np.array(value, np.int64) for name, value in got.items()}
