"""The second call of every public function compiles nothing and copies no parameter to the device.

Compilations are counted by JAX's own events (`jax.monitoring`): traces, lowerings and compilations
of the backend, also those that the cache on the disk answers. Copies are found in two ways, because
JAX has no counter of them: its transfer guard refuses implicit ones, such as a host array that is
given to a compiled function, and explicit ones, by `jax.device_put`, are recorded and compared with
the shapes of the parameters. The guard alone allows explicit copies; at its strict level it would
refuse the copy of the batch as well.
"""
from collections.abc import Callable, Iterator
import contextlib
import pathlib
from typing import Any, NamedTuple

from compilations import compiled
import jax
import numpy as np
import pytest
import ready

import plm_jax
from plm_jax.evaluation.probing import ProbeConfig


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
