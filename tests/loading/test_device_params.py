"""Parameters are copied to the device once, and results never use parameters that were replaced.
The second call of every public function compiles nothing and copies no parameter.

Compilations are counted by JAX's own events (`jax.monitoring`): traces, lowerings and compilations
of the backend, also those that the cache on the disk answers. Copies are found in two ways, because
JAX has no counter of them: its transfer guard refuses implicit ones, such as a host array that is
given to a compiled function, and explicit ones, by `jax.device_put`, are recorded and compared with
the shapes of the parameters. The guard alone allows explicit copies; at its strict level it would
refuse the copy of the batch as well.
"""
from collections.abc import Callable, Iterator
import contextlib
import copy
import dataclasses
import gc
import pathlib
import pickle
from typing import Any, NamedTuple
import weakref

from compilations import compiled
from flax.core import freeze
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ready

import plm_jax
from plm_jax.evaluation.probing import ProbeConfig
from plm_jax.loading import device_params
from plm_jax.sharding import MeshConfig

TEXTS = ['ana came home', 'bo had a dull book']
CALLS = {
    'encode': ('bert', lambda model: plm_jax.encode(model, TEXTS)),
    'fill_mask': ('bert', lambda model: [
        p for row in plm_jax.fill_mask(model, 'ana [MASK] home')[0] for _, p in row]),
    'likelihood': ('bert', lambda model: plm_jax.likelihood(model, TEXTS)),
    'generate': ('gpt2', lambda model: plm_jax.generate(model, TEXTS, max_new=4,
                                                        beams=2)[0][0].score),
    'score': ('gpt2', lambda model: plm_jax.score(model, [('ana came', ' home')])),
    'elmo': ('elmo', lambda model: plm_jax.encode(model, TEXTS)),
    'predict': ('classification',
                lambda model: plm_jax.predict(model, 'a fine film')[0].probability),
}


def halved(params):
  return jax.tree.map(lambda x: np.asarray(x) * 0.5, params)


@pytest.mark.parametrize('name', CALLS)
def test_replaced_parameters_are_used(name):
  """A new tree, new subtrees, and new arrays in the tree: each gives the results of a new
  model."""
  kind, call = CALLS[name]
  model = ready.model(kind)
  before = call(model)
  want = call(dataclasses.replace(model, params=halved(model.params)))
  assert not np.allclose(before, want)
  np.testing.assert_array_equal(call(model), before)
  model.params.update(halved(model.params))
  np.testing.assert_array_equal(call(model), want)
  replace_arrays(model.params, lambda x: x * 2)
  np.testing.assert_array_equal(call(model), before)


def replace_arrays(tree, change):
  for name, value in tree.items():
    if isinstance(value, dict):
      replace_arrays(value, change)
    else:
      tree[name] = change(value)


def test_host_arrays_move_once_and_stay():
  model = ready.model('gpt2')
  assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(model.params))
  tree = model.params
  plm_jax.generate(model, 'ana', max_new=2)
  assert model.params is tree
  leaves = jax.tree.leaves(model.params)
  forms = device_params.CACHES[model].forms
  made = {key: id(form) for key, form in forms.items()}
  plm_jax.generate(model, 'ana', max_new=2)
  plm_jax.encode(model, 'ana')
  assert all(old is new for old, new in zip(leaves, jax.tree.leaves(model.params), strict=True))
  assert {key: id(form) for key, form in forms.items()} == made


def test_later_writes_to_an_array_do_not_change_the_model():
  model = ready.model('bert')
  arrays = jax.tree.leaves(model.params)
  before = plm_jax.encode(model, TEXTS)
  for array in arrays:
    array[...] = 0
  np.testing.assert_array_equal(plm_jax.encode(model, TEXTS), before)
  with pytest.raises((TypeError, ValueError)):
    jax.tree.leaves(model.params)[0][...] = 0


def test_load_gives_device_arrays(tmp_path):
  plm_jax.export(ready.model('bert'), tmp_path / 'bert')
  model: Any = plm_jax.load(tmp_path / 'bert')
  assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(model.params))


@pytest.mark.parametrize('kind', ['bert', 'gpt2', 'classification'])
def test_memory_is_released_with_the_model(kind):
  model = ready.model(kind)
  call = {'bert': CALLS['likelihood'], 'gpt2': CALLS['generate'],
          'classification': CALLS['predict']}[kind][1]
  call(model)
  if kind != 'classification':
    plm_jax.encode(model, TEXTS)
  arrays = [weakref.ref(x) for x in jax.tree.leaves(model.params)]
  arrays += [weakref.ref(x) for form in device_params.CACHES[model].forms.values()
             for x in jax.tree.leaves(form)]
  gone = weakref.ref(model)
  del model
  gc.collect()
  assert gone() is None
  assert not any(array() is not None for array in arrays)


def test_forms_of_replaced_parameters_are_released():
  model = ready.model('gpt2')
  plm_jax.generate(model, 'ana', max_new=2)
  form, = device_params.CACHES[model].forms.values()
  old = [weakref.ref(x) for x in jax.tree.leaves(form)]
  del form
  model.params.update(halved(model.params))
  plm_jax.encode(model, 'ana')
  gc.collect()
  assert not any(array() is not None for array in old)


def test_models_can_be_copied_and_pickled():
  model = ready.model('classification')
  want = plm_jax.predict(model, 'a fine film')
  for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    assert plm_jax.predict(other, 'a fine film') == want


def test_other_mappings_and_types():
  model = ready.model('bert')
  want = plm_jax.encode(model, TEXTS)
  frozen = dataclasses.replace(model, params=freeze(jax.tree.map(np.asarray, model.params)))
  np.testing.assert_array_equal(plm_jax.encode(frozen, TEXTS), want)
  half = dataclasses.replace(model, params=jax.tree.map(
      lambda x: np.asarray(x).astype(jnp.bfloat16), model.params))
  found = plm_jax.encode(half, TEXTS)
  assert {x.dtype for x in jax.tree.leaves(half.params)} == {jnp.dtype(jnp.bfloat16)}
  np.testing.assert_allclose(found, want, atol=0.1)


@pytest.mark.parametrize(('kind', 'call'), [
    ('bert', lambda model: plm_jax.encode(model, TEXTS)),
    pytest.param('bert', lambda model: plm_jax.likelihood(model, TEXTS), marks=pytest.mark.slow),
    pytest.param('gpt2', lambda model: [row[0].tokens
                                        for row in plm_jax.generate(model, TEXTS, max_new=4)],
                 marks=pytest.mark.slow)])
def test_a_sharded_model_stays_sharded(kind, call, tmp_path):
  plm_jax.export(ready.model(kind), tmp_path / 'model')
  whole: Any = plm_jax.load(tmp_path / 'model')
  model: Any = plm_jax.load(tmp_path / 'model', MeshConfig(1, fsdp=2, tensor=2))
  before = [(x, x.sharding) for x in jax.tree.leaves(model.params)]
  assert any(not sharding.is_fully_replicated for _, sharding in before)
  for _ in range(2):
    np.testing.assert_allclose(call(model), call(whole), rtol=1e-3, atol=1e-4)
  assert all(old is new for (old, _), new in zip(before, jax.tree.leaves(model.params),
                                                 strict=True))
  model.params.update(halved(model.params))  # host arrays, which go to all devices
  whole.params.update(halved(whole.params))
  np.testing.assert_allclose(call(model), call(whole), rtol=1e-3, atol=1e-4)


class Case(NamedTuple):
  """A call of a public function; calls of different numbers have other texts in the same shapes."""

  function: str
  kind: str
  """of model, as `ready.model` names it; '': the function takes none"""
  call: Callable[[Any, int, pathlib.Path], Any]
  slow: bool = False
  """another case of the function runs in the quick suite"""


def texts(number: int) -> list[str]:
  return ready.texts(number, count=3)


def masked(number: int) -> list[str]:
  return [f'{text} [MASK] {text[:3]}' for text in texts(number)]


def pairs(number: int) -> list[tuple[str, str]]:
  return [(text, ' ' + text) for text in texts(number)]


def conll(folder: pathlib.Path) -> str:
  path = folder / 'words.conll'
  path.write_text('ana N\ncame V\n\nbo N\nhad V\n')
  return str(path)


def exported(folder: pathlib.Path) -> pathlib.Path:
  if not (folder / 'exported').exists():
    plm_jax.export(ready.model('bert'), folder / 'exported')
  return folder / 'exported'


def corpus(folder: pathlib.Path) -> str:
  (folder / 'corpus.txt').write_text('\n\n'.join(ready.LINES * 20))
  return str(folder / 'corpus.txt')


def blanks(kind: str) -> Callable[[int], list[str]]:
  return masked if kind != 'glm' else lambda number: [f'{text} [MASK] .' for text in texts(number)]


LM, BOTH = ('gpt2', 'llama', 'glm', 'gptbert'), ('gpt2', 'bert')
CASES = [
    *(Case('encode', kind, lambda model, number, _: plm_jax.encode(model, texts(number)),
           kind != 'bert')
      for kind in ('bert', 'gpt2', 't5', 'bart', 'glm', 'gptbert', 'elmo', 'embedding')),
    Case('encode', 'bert', lambda model, number, _: plm_jax.encode(
        model, texts(number), layer=1, pooling='none'), True),
    *(Case('fill_mask', kind,
           lambda model, number, _, of=blanks(kind): plm_jax.fill_mask(model, of(number)),
           kind != 'bert') for kind in ('bert', 'glm', 'gptbert')),
    *(Case('generate', kind,
           lambda model, number, _: plm_jax.generate(model, texts(number), max_new=4),
           kind != 'gpt2')
      for kind in (*LM, 't5', 'bart')),
    Case('generate', 'gpt2', lambda model, number, _: plm_jax.generate(
        model, texts(number), max_new=4, beams=2, number=2), True),
    Case('generate', 'gpt2', lambda model, number, _: plm_jax.generate(
        model, texts(number), max_new=4, temperature=1.0, seed=number, stop=('x',)), True),
    Case('generate', 'bert', lambda model, number, _: plm_jax.generate(
        model, texts(number), max_new=4, order='random', temperature=1.0, seed=number), True),
    Case('stream', 'gpt2',
         lambda model, number, _: [*plm_jax.stream(model, texts(number)[0], max_new=4)]),
    *(Case('score', kind, lambda model, number, _: plm_jax.score(model, [
        (text + (' [MASK]' if model.family == 'glm' else ''), ' ana') for text in texts(number)]),
        kind != 'gpt2')
      for kind in LM), Case('perplexity', 'gpt2',
                            lambda model, number, _: plm_jax.perplexity(model, texts(number),
                                                                        length=16)),
    Case('perplexity', 'bert', lambda model, number, _: plm_jax.perplexity(
        model, texts(number), samples=2, seed=number), True),
    *(Case('likelihood', kind, lambda model, number, _: plm_jax.likelihood(model, texts(number)),
           kind != 'bert')
      for kind in BOTH),
      *(Case('minimal_pairs', kind,
             lambda model, number, _: plm_jax.minimal_pairs(model, pairs(number)), kind != 'bert')
      for kind in BOTH),
      *(Case('losses', kind, lambda model, number, _: plm_jax.losses(model, texts(number)),
           kind != 'bert')
      for kind in BOTH), *(Case('probe', kind, lambda model, number, folder: plm_jax.probe(
        model, conll(folder), conll(folder), config=ProbeConfig(seeds=1, epochs=1)), kind != 'bert')
      for kind in ('bert', 'elmo', 't5')),
    *(Case('attention', kind, lambda model, number, _: plm_jax.attention(model, texts(number)),
           kind != 'bert')
      for kind in ('bert', 't5')),
    *(Case('neighbors', kind,
           lambda model, number, _: plm_jax.neighbors(model, '*ana* came', texts(number)),
           kind != 'bert') for kind in ('bert', 'elmo')),
    *(Case('similar', kind, lambda model, number, _: plm_jax.similar(model, *texts(number)[:2]),
           kind != 'embedding')
      for kind in ('bert', 'embedding')),
    *(Case('search', kind,
           lambda model, number, _: plm_jax.search(model, texts(number), texts(number)[0]),
           kind != 'embedding') for kind in ('bert', 'embedding')),
    Case('distill', 'bert',
         lambda model, number, folder: plm_jax.distill(model, folder / f'static{number}', size=4)),
    *(Case('predict', kind,
           lambda model, number, _: plm_jax.predict(model, ['a fine film', 'a dull film'][number:]
                                                                      + ['a film'] * number),
                                                                      kind == 'regression')
      for kind in ('classification', 'regression')),
    Case('rerank', 'rerank', lambda model, number, _: plm_jax.rerank(
        model, 'fine', ['a film', ['dull', 'fine'][number]]), True),
    Case('predict', 'choice',
         lambda model, number, _: plm_jax.predict(model, [('a film', ['dull', 'fine'])]), True),
    Case('predict', 'classification', lambda model, number, _: plm_jax.predict(
        model, ['a fine film', 'a film'], pack=True), True),
    Case('tag', 'tagging', lambda model, number, _: plm_jax.tag(model, 'angela merkel came .')),
    Case('answer', 'answers',
         lambda model, number, _: plm_jax.answer(model, 'who came ?', 'a film. angela came.')),
    Case('warm_up', 'bert',
         lambda model, number, _: plm_jax.warm_up(model, length=16, functions=['encode'])),
    Case('load', '', lambda _, number, folder: plm_jax.load(exported(folder))),
    Case('export', 'bert',
         lambda model, number, folder: plm_jax.export(model, folder / f'out{number}')),
    Case('convert', '',
         lambda _, number, folder: plm_jax.convert(exported(folder), folder / f'other{number}')),
    Case('recipe', '', lambda _, number, folder: plm_jax.recipe('bert_base', scale='test')),
    Case('prepare', '', lambda _, number, folder: plm_jax.prepare(
        corpus(folder), folder / f'records{number}', vocab=80)),
    Case('clean', '', lambda _, number, folder: plm_jax.clean(corpus(folder),
                                                              folder / f'cleaned{number}')),
]
EXEMPT = {
    'GenerationConfig': 'a configuration', 'MeshConfig': 'a configuration',
    'train': 'a run compiles its own step, which is kept in the cache on the disk',
    'finetune': 'a run compiles its own step, which is kept in the cache on the disk',
    'inspect': 'looks at the batches of one run, whose step it shares nothing with',
    'history': 'reads a file',
    'push': 'writes what export writes, and uploads it'}


def test_every_public_function_has_a_case():
  assert {case.function for case in CASES} | EXEMPT.keys() == set(plm_jax.__all__)


@contextlib.contextmanager
def watched(parameters: set[tuple[int, ...]], guard: str = 'disallow') -> Iterator[list[Any]]:
  """Lets through no implicit copy to the device; collects explicit ones of arrays that are shaped
  like parameters."""
  copied, put = [], jax.device_put
  def recorded(x: Any, *args: Any, **kwargs: Any) -> Any:
    copied.extend(leaf.shape for leaf in jax.tree.leaves(x)
                  if not isinstance(leaf, jax.Array) and np.shape(leaf) in parameters)
    return put(x, *args, **kwargs)
  with pytest.MonkeyPatch.context() as patch, jax.transfer_guard_host_to_device(guard):
    patch.setattr(jax, 'device_put', recorded)
    yield copied


@pytest.mark.parametrize('case', [
    pytest.param(case, marks=[pytest.mark.slow] * case.slow) for case in CASES],
    ids=lambda case: f'{case.function}-{case.kind}')
def test_a_second_call_compiles_and_copies_nothing(case, tmp_path):
  model = ready.model(case.kind) if case.kind else None
  case.call(model, 0, tmp_path)
  shapes = {x.shape for x in jax.tree.leaves(model.params)} if model else set()
  compiled.clear()
  if model is None:
    case.call(model, 1, tmp_path)
  else:
    runs = case.function != 'export'  # exported parameters stay on the host
    assert not runs or all(isinstance(x, jax.Array) for x in jax.tree.leaves(model.params))
    with watched({shape for shape in shapes if len(shape) > 1},
                 'disallow' if runs else 'allow') as copied:
      case.call(model, 1, tmp_path)
    assert not copied
  assert not compiled


def test_a_second_model_of_the_same_configuration_compiles_nothing():
  first, second = ready.model('bert'), ready.model('bert')
  plm_jax.fill_mask(first, masked(0))
  plm_jax.likelihood(first, texts(0))
  compiled.clear()
  plm_jax.fill_mask(second, masked(1))
  plm_jax.likelihood(second, texts(1))
  assert not compiled


@pytest.mark.parametrize('kind', ['bert', 'gpt2'])
def test_the_counters_detect_compilations_and_copies(kind):
  """A function that compiles in every call, and a model whose parameters are copied in every call,
  are found."""
  model = ready.model(kind)
  plm_jax.encode(model, texts(0))
  compiled.clear()
  jax.jit(lambda x: x + 1)(np.float32(1))
  assert sum(compiled.values()) >= 3
  host = jax.tree.map(np.asarray, model.params)
  shapes = {x.shape for x in jax.tree.leaves(host)}
  model.params.update(host)
  with watched(shapes) as copied:
    plm_jax.encode(model, texts(0))
  assert len(copied) == len(jax.tree.leaves(host))
  host = jax.tree.map(np.asarray, model.params)
  with watched(shapes), pytest.raises(Exception, match='Disallowed host-to-device transfer'):
    jax.jit(lambda params: params)(host)
