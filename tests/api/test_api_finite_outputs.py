"""No function answers from outputs that are not finite: each ends with the same one-line error."""
import itertools

import jax
import numpy as np
import pytest
import ready

import plm_jax
from plm_jax.errors import NotFiniteError, check_finite
from plm_jax.inference.token_features import iterate_attention, word_layers
from plm_jax.metrics.nearest import find_nearest

TEXT = 'ana came home'
INPUTS = {'answers': ('who ?', 'angela came'), 'choice': ('who came ?', ['angela', 'bo']),
          'rerank': ('who ?', ['angela came', 'a film']), 'embedding': (TEXT, 'a fine film')}
CALLS = {
    'encode': lambda model: plm_jax.encode(model, [TEXT]),
    'encode tokens': lambda model: plm_jax.encode(model, [TEXT], pooling='none'),
    'similar': lambda model: plm_jax.similar(model, TEXT, 'a fine film'),
    'search': lambda model: plm_jax.search(model, ['a fine film'], TEXT),
    'predict': lambda model: plm_jax.predict(model, [INPUTS.get(model.task.example_kind, TEXT)]),
    'fill_mask': lambda model: plm_jax.fill_mask(model, 'ana [MASK] home'),
    'generate': lambda model: plm_jax.generate(model, TEXT, max_new=4),
    'sample': lambda model: plm_jax.generate(model, TEXT, max_new=4, temperature=1.0, stop=('x',)),
    'beams': lambda model: plm_jax.generate(model, TEXT, max_new=4, beams=2),
    'unmask': lambda model: plm_jax.generate(model, TEXT, max_new=4, order='confidence'),
    'stream': lambda model: list(plm_jax.stream(model, TEXT, max_new=4)),
    'score': lambda model: plm_jax.score(model, [('ana came', ' home')]),
    'likelihood': lambda model: plm_jax.likelihood(model, [TEXT]),
    'losses': lambda model: plm_jax.losses(model, [TEXT]),
    'word layers': lambda model: word_layers(model, [TEXT.split()]),
    'attention': lambda model: list(iterate_attention(model, [TEXT.split()])),
    'neighbors': lambda model: plm_jax.neighbors(model, 'ana *came* home', [TEXT])}
TASKS = 'classification', 'regression', 'tagging', 'answers', 'choice', 'multilabel', 'rerank'
KINDS = {
    'bert': ('encode', 'encode tokens', 'similar', 'search', 'fill_mask', 'likelihood', 'losses',
             'unmask',
             'word layers', 'attention', 'neighbors'),
    'embedding': ('encode', 'similar', 'search', 'predict'),
    'elmo': ('encode', 'word layers'),
    'gpt2': ('generate', 'sample', 'beams', 'stream', 'score', 'likelihood', 'losses'),
    't5': ('generate', 'beams'),
    'glm': ('fill_mask', 'generate')}
CASES = [*itertools.chain.from_iterable([(kind, name) for name in names]
                                        for kind, names in KINDS.items()),
         *[(kind, 'predict') for kind in TASKS]]


@pytest.mark.parametrize(('kind', 'name'), CASES)
def test_a_model_with_one_damaged_number_gives_no_answer(kind, name):
  model = ready.model(kind)
  CALLS[name](model)
  for value in (np.nan, np.inf):
    damage(model, value)
    with pytest.raises(NotFiniteError, match='outputs of the model are not finite'):
      CALLS[name](model)


def damage(model, value):
  """Sets one number of the backbone, in a parameter that all inputs go through."""
  leaves, form = jax.tree_util.tree_flatten_with_path(model.params['backbone'])
  names = [jax.tree_util.keystr(path) for path, _ in leaves]
  place = next(number for number, name in enumerate(names) if 'scale' in name or 'bias' in name)
  arrays = [np.array(x) for _, x in leaves]
  arrays[place].flat[0] = value
  model.params['backbone'] = jax.tree.unflatten(form, arrays)


def test_vectors_that_are_not_finite_find_nothing():
  corpus = np.eye(3, dtype=np.float32)
  for queries, vectors in ((corpus, corpus * np.nan), (corpus * np.inf, corpus)):
    with pytest.raises(NotFiniteError,
                       match='vectors of the queries or of the corpus are not finite'):
      find_nearest(queries, vectors, 1)


def test_numbers_are_returned_unchanged():
  assert check_finite(2.0) == 2.0
  with pytest.raises(NotFiniteError, match=r'^scores are not finite \(NaN or infinite\): '):
    check_finite([1.0, float('nan')], 'scores')
