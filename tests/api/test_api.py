"""The public API: the examples of its docstrings, its errors, and its import time; no function
answers from outputs that are not finite."""
import contextlib
import doctest
import io
import itertools
import pathlib
import re
import subprocess
import sys

import backbones
import hub_server
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ready
import tiny
import tuned

import plm_jax
from plm_jax import conversion
from plm_jax.api import corpus, knowledge, models, serving, similarity, transfer
from plm_jax.api import scoring as scoring_functions
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.config.run import ConfigError
from plm_jax.errors import NotFiniteError, UserError, check_finite
from plm_jax.evaluation import scoring
from plm_jax.inference import generate
from plm_jax.inference.token_features import iterate_attention, word_layers
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.metrics.nearest import find_nearest
from plm_jax.tokenizers import train_byte_bpe, train_wordpiece


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """A folder with a text and two short runs, in which the module's tests work."""
  folder = tmp_path_factory.mktemp('api')
  (folder / 'corpus.txt').write_text(tiny.text())
  reviews = ''.join(f'A {word} film {number}.\t{label}\n' for number in range(12)
                    for word, label in (('fine', 'good'), ('dull', 'bad')))
  (folder / 'reviews.tsv').write_text(f'text\tlabel\n{reviews}')
  for name in ('train', 'test'):
    (folder / f'{name}.conll').write_text(
        'The DET\narray NOUN\nreturns VERB\n\nAn DET\nindex NOUN\n')
  for name, kind in (('names', 'tagging'), ('answers', 'answers'), ('ranker', 'rerank')):
    models.export(tuned.trained(kind), folder / 'runs' / name)
  with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
    patch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
    for name in ('bert_base', 'gpt2_small'):
      plm_jax.train(name, scale='test', output=f'runs/{name}-laptop',
                    data={'path': ('corpus.txt',)},
                    mesh={'data': 1})
  with contextlib.chdir(folder):
    yield folder


@pytest.fixture(scope='module')
def checkpoints(tmp_path_factory):
  """A folder with a text and two checkpoints with random parameters."""
  folder = tmp_path_factory.mktemp('checkpoints')
  (folder / 'corpus.txt').write_text(tiny.text()[:3000])
  lines = tiny.text().splitlines()[:300]
  zeros = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  for family, heads, tokenizer in (('bert', ('mlm', 'nsp'), train_wordpiece(lines, 300)),
                                   ('gpt2', ('lm',), train_byte_bpe(lines, 300, layout='gpt2'))):
    model = backbones.small(family, tokenizer.vocab.size, 64)
    module = ModelWithHeads(model.backbone(),
                            {head: conversion.build_head(family, head, model, 2) for head in heads})
    shapes = jax.eval_shape(module.init, jax.random.key(0),
                            {'tokens': zeros, 'segments': zeros})['params']
    conversion.save(folder / family, model, tiny.random_params(shapes), tokenizer, like=family)
  with contextlib.chdir(folder):
    yield


@pytest.mark.release
@pytest.mark.slow
def test_docstrings(runs, monkeypatch):
  """The example of every public function works. Steps are traced; the page on Python below
  trains for real."""
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  with hub_server.Hub() as hub:
    hub.connect(monkeypatch)
    check_docstrings()
  readme = hub.files('ORG/NAME')['README.md'].decode()
  assert 'pipeline_tag: fill-mask' in readme
  assert 'with the recipe' in readme


def check_docstrings():
  modules = models, corpus, knowledge, scoring_functions, serving, similarity, transfer
  functions = [value for module in modules for value in vars(module).values()
               if (name := getattr(value, '__name__', '')) in plm_jax.__all__
               and value is getattr(plm_jax, name)
               and value.__module__ == module.__name__]
  finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False,
                                                                  optionflags=doctest.ELLIPSIS)
  assert sorted(value.__name__ for value in functions) == sorted(
      name for name in plm_jax.__all__ if name.islower())
  for function in functions:
    test, = finder.find(function, function.__name__, globs={'plm_jax': plm_jax})
    assert test.examples, f'{function.__name__} shows no use'
    said = io.StringIO()
    runner.run(test, out=said.write)
    assert not said.getvalue()


def test_unsupported_functions_raise_one_line_errors(checkpoints):
  encoder, decoder = plm_jax.load('bert'), plm_jax.load('gpt2')
  assert encoder.capabilities == ('encode', 'fill_mask', 'likelihood', 'minimal_pairs', 'export')
  assert decoder.capabilities == (
      'encode', 'generate', 'stream', 'score', 'perplexity', 'likelihood', 'minimal_pairs',
      'export')
  for call, line in (
      (lambda: plm_jax.fill_mask(decoder, 'a [MASK]'),
       r'a gpt2 has no \[MASK\] and continues texts'),
      (lambda: plm_jax.generate(encoder, 'a'),
       'no language model head: text cannot be generated'),
      (lambda: plm_jax.score(encoder, [('a', 'b')]),
       'no language model head: texts cannot be scored'),
      (lambda: plm_jax.perplexity(encoder, ['a']),
       'no language model head: texts cannot be scored'),
      (lambda: plm_jax.load('corpus.txt'), 'corpus.txt'),
      (lambda: plm_jax.encode(encoder, 'so ' * 99),
       r'the model takes 64: give windows=mean, .* or cut=True'),
      (lambda: plm_jax.encode(encoder, 'a', layer=3), r'layers 0 \(its embeddings\) to 2, got 3'),
      (lambda: plm_jax.encode(encoder, []), 'there is no prompt: give texts'),
      (lambda: plm_jax.encode(encoder, 'a', pooling='sum'), 'pooling is one of own, mean, max'),
      (lambda: plm_jax.generate(decoder, 'a', tempreature=1.0),
       "GenerationConfig has no field 'tempreature'"),
      (lambda: plm_jax.recipe('bert_bas'), 'did you mean bert_base'),
      (lambda: plm_jax.recipe('bert_base', data={'pth': 'x'}), "DataConfig has no field 'pth'"),
      (lambda: plm_jax.recipe('bert_base', data={'path': 'x'}), r'DataConfig\.path is'),
      (lambda: plm_jax.predict(encoder, 'a'), 'was not fine-tuned on a task'),
      (lambda: plm_jax.finetune('', 'sst3', scale='test'), 'sst3'),
      (lambda: plm_jax.finetune('', 'sst2', scale='test', trian={}),
       "FinetuneRun has no field 'trian'"),
      (lambda: plm_jax.finetune('', 'sst2', scale='test', mode='compile'),
       'mode train, got compile'),
      (lambda: plm_jax.train('bert_base', scale='test', mode='evaluate'),
       'mode train, got evaluate')):
    with pytest.raises((CheckpointError, ConfigError), match=line) as raised:
      call()
    assert '\n' not in str(raised.value)


def test_results_equal_those_from_the_modules(checkpoints):
  decoder = plm_jax.load('gpt2')
  (found,), = generate.generate(decoder, ['Bada'], generate.GenerationConfig(6))
  assert plm_jax.generate(decoder, 'Bada', max_new=6) == [[found]]
  assert ''.join(piece.text for piece in plm_jax.stream(decoder, 'Bada', max_new=6)) == found.text
  pairs = [('Bada', ' kofu'), ('', 'Bada')]
  np.testing.assert_allclose(
      plm_jax.score(decoder, pairs),
      [one.logprob for one in scoring.make_scorer(decoder).score(pairs)], rtol=1e-6)
  with pytest.raises(ConfigError, match='one text is streamed'):
    plm_jax.stream(decoder, 'Bada', temperature=1.0, number=2)


def test_the_import_is_fast():
  """Importing the package loads nothing slow, and `dir` lists its functions."""
  code = ('import sys, plm_jax; heavy = {"jax", "flax", "numpy", "tensorflow", "tyro"} & '
          'set(sys.modules);'
          'assert not heavy, heavy; assert set(dir(plm_jax)) == set(plm_jax.__all__); '
          'plm_jax.load; '
          'assert "jax" in sys.modules and "tensorflow" not in sys.modules; from plm_jax.loading '
          'import loaded_model; '
          'assert loaded_model.LoadedModel')
  subprocess.run([sys.executable, '-c', code], check=True)
  with pytest.raises(AttributeError, match='no attribute'):
    getattr(plm_jax, 'trian')  # noqa: B009


@pytest.mark.slow
def test_the_page_in_python(runs, monkeypatch):
  """The examples of the page on Python work in their order, at the smallest scale."""
  (runs / 'held_out.txt').write_text(tiny.text()[:3000])
  page = (pathlib.Path(__file__).parents[2] / 'docs/start/python.md').read_text()
  blocks = re.findall(r'^```python\n(.*?)^```', page, re.M | re.S)
  assert len(blocks) == 6
  names = {}
  monkeypatch.chdir(runs)
  for block in blocks:
    exec(block.replace("scale='laptop'", "scale='test'"), names)
  assert names['vectors'].shape == (10, 32) and names['cls_vectors'].shape == (1, 32)
  assert len(names['candidates']) == 5 and names['result'].per_token > 1
  assert conversion.load('mine/').family == 'bert'
  assert names['prediction'].label in names['films'].labels == ('bad', 'good')


@pytest.mark.parametrize(('name', 'message'), [
    ('bert_base', 'bert_base is a recipe, not a trained model: train it first, or give the folder'),
    ('runs/none', 'there is no folder runs/none')])
def test_models_that_do_not_exist_are_refused(name, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=f'^{message}'):
    plm_jax.fill_mask(name, 'a [MASK]')


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
