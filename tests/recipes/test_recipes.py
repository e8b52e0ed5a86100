"""Every recipe at its smallest size is run, exported and loaded.

For each pair of architecture and objective one recipe is trained, and its model fills masks or
generates text. For each architecture whose runs tests/test_compatibility.py does not continue, one
recipe is killed, resumed and evaluated. The steps of the other recipes are only traced:
tests/golden and tests/test_compatibility.py check gradients and trajectories of their families.
"""
from collections.abc import Callable
import dataclasses
import functools
import json
import pathlib
from typing import Any, Literal

import jax
import numpy as np
import pytest
import tiny

from plm_jax import conversion, recipes, validation
from plm_jax.cli import commands as cli
from plm_jax.config.run import Phase, PretrainRun
from plm_jax.inference import fill_mask, generate
from plm_jax.loading import loaded_model
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.objectives import metric_names
from plm_jax.runs.run import run
from plm_jax.training import feed
from plm_jax.training.train import TrainingResult

RECIPES = [*recipes.all_recipes()]
CONTINUED = json.loads((pathlib.Path(__file__).parents[1] / 'fixtures' / 'before'
                        / 'after.json').read_text())
"""recipes whose runs test_compatibility.py continues"""
EVERY = 'bert_base', 'gpt_base', 't5_small'


@pytest.fixture(scope='module')
def corpus(tmp_path_factory) -> pathlib.Path:
  path = tmp_path_factory.mktemp('text') / 'corpus.txt'
  path.write_text(tiny.text())
  return path


def smallest(name: str) -> PretrainRun:
  """Three steps of one length, on one device; a checkpoint after each."""
  config = recipes.find_recipe(name)('test')
  text = dataclasses.replace(config.data.prepare, heldout=0.2)
  return dataclasses.replace(
      config, mesh=dataclasses.replace(config.mesh, data=1),
      data=dataclasses.replace(config.data, prepare=text),
      train=dataclasses.replace(config.train, phases=(Phase(3, 32, 8),), accumulate=1, log_every=1,
                                eval_every=3,
                                eval_batches=2, save_every=1))


How = Literal['disturbed', 'trained', 'traced']


def different() -> list:
  """Recipes as parameters, those together whose smallest runs are one and the same: sizes of a
  family, most often.

  Those of EVERY run with each change, the others before a release. A recipe is only traced where
  one recipe before it has both its model and its objective.
  """
  groups: dict[PretrainRun, list[str]] = {}
  for name in RECIPES:
    groups.setdefault(dataclasses.replace(smallest(name), name=''), []).append(name)
  wirings = {type(recipes.find_recipe(name)('test').model) for name in CONTINUED}
  kinds: set[tuple[type, type]] = set()
  objectives: set[type] = set()
  params = []
  for config, names in groups.items():
    wiring, kind = type(config.model), (type(config.model), type(config.objective))
    how: How = 'trained' if kind not in kinds else 'traced'
    if wiring not in wirings:
      how = 'disturbed'
    marks = [pytest.mark.release] * (names[0] not in EVERY)
    wirings.add(wiring)
    kinds.add(kind)
    objectives.add(kind[1])
    params.append(pytest.param(names[0], how, id='='.join(names), marks=marks))
  return params


def on(corpus: pathlib.Path, config: PretrainRun, folder: pathlib.Path) -> PretrainRun:
  source = str(corpus)
  if config.data.assembly == 'examples':  # a sentence is read, and its first word is written
    lines = [line.split('. ')[0] for line in corpus.read_text().splitlines() if line]
    examples = corpus.with_suffix('.tsv')
    examples.write_text('\n'.join(['a\tb', *(f'{line}\t{line.split()[0]}' for line in lines)]))
    source = f'task:columns-a-b:{examples}'
  return dataclasses.replace(
      config, output=str(folder), data=dataclasses.replace(config.data, path=(source,)))


@pytest.fixture(scope='module')
def teacher(corpus, tmp_path_factory) -> Callable[[str], pathlib.Path]:
  """Train the teacher model for a student of a family."""
  @functools.cache
  def trained(family: str) -> pathlib.Path:
    folder = tmp_path_factory.mktemp('teacher') / 'run'
    name = {'roberta': 'roberta_base', 'gpt2': 'gpt2_small'}.get(family, 'bert_base')
    run(on(corpus, smallest(name), folder))
    return folder
  return trained


def killed_and_taken_up(config: PretrainRun, monkeypatch) -> TrainingResult | None:
  """Run until it is killed before its third step, and resume."""
  def cut(*arguments):
    for step, phase, windows in batches(*arguments):
      if step == 2:
        raise KeyError('power cut')
      yield step, phase, windows
  batches = feed.stream_batches
  with monkeypatch.context() as patch:
    patch.setattr(feed, 'stream_batches', cut)
    with pytest.raises(KeyError, match='power cut'):
      run(config)
  taken_up = []
  def counted(*arguments):
    for item in batches(*arguments):
      taken_up.append(item[0])
      yield item
  with monkeypatch.context() as patch:
    patch.setattr(feed, 'stream_batches', counted)
    result = run(config)
  assert taken_up == [2]
  return result


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'how'), different())
def test_recipe(name, how: How, corpus, tmp_path, request, monkeypatch, capsys):
  config = on(corpus, smallest(name), tmp_path / 'run')
  if hasattr(config.objective, 'teacher'):
    folder = str(request.getfixturevalue('teacher')(config.family))
    text = dataclasses.replace(config.data.prepare, tokenizer=f'{folder}/tokenizer')
    config = dataclasses.replace(config, objective=dataclasses.replace(config.objective,
                                                                       teacher=folder),
                                 data=dataclasses.replace(config.data, prepare=text))
  if how == 'traced':
    monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  result = killed_and_taken_up(config, monkeypatch) if how == 'disturbed' else run(config)
  assert result and result.finished
  figures = [result.heldout[term] for term in config.objective.terms]
  assert np.isfinite(figures).all() and all(figures)
  if how == 'disturbed':
    capsys.readouterr()
    run(dataclasses.replace(config, mode='evaluate'))
    text, *lines = capsys.readouterr().out.strip().splitlines()
    assert text.startswith('text: 20% of the documents (')
    show = config.objective.reporting.format_metric
    assert dict(line.split(': ') for line in lines) == {
        metric_names.display_name(term, result.heldout): show(term, value, digits=4)
        for term, value in result.heldout.items()}

  monkeypatch.setattr('sys.argv', ['plm_jax', 'export', config.folder, str(tmp_path / 'out')])
  ours = loaded_model.load_model(config.folder)
  # with a source encoder
  if config.model.kind == 'encoder-decoder' and config.model.new_parts:
    with pytest.raises(SystemExit, match='layers: 2 has no counterpart there'):
      cli.main()
  else:
    cli.main()
    theirs: Any = conversion.load(tmp_path / 'out')
    assert theirs.config and theirs.family == config.family
    kept = {part: ours.params[part] for part in theirs.params}
    # in its files forget gates have a bias that is less by 1
    exact = 1e-6 if config.family == 'elmo' else 0
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=exact), kept,
                 dict(theirs.params))
  if how == 'traced':
    return
  if 'lm' in ours.heads and ours.model.kind != 'infilling':
    assert len(generate.generate(ours, ['Bada kofu.'], GenerationConfig(4))[0]) == 1
  if 'mlm' in ours.heads:
    assert len(fill_mask.fill(ours, ['Bada [MASK] kofu.'], top=3)[0][0]) == 3


@pytest.mark.slow
def test_a_warm_start_reads_what_transformers_writes(corpus, tmp_path, monkeypatch):
  """Of a T5 it writes a tokenizer.json alone: no model of SentencePiece."""
  # parameters do not change
  monkeypatch.setattr('plm_jax.training.learner.jit_train_step', tiny.traced_step)
  first = dataclasses.replace(smallest('t5_small'), output=str(tmp_path / 'first'))
  first = dataclasses.replace(
      first, data=dataclasses.replace(first.data, path=(str(corpus),)),
      train=dataclasses.replace(first.train, phases=(Phase(1, 32, 8),), eval_every=1))
  run(first)
  trained = loaded_model.load_model(first.folder)
  conversion.save(tmp_path / 'out', trained.model, trained.params, trained.tokenizer, like='t5')
  (tmp_path / 'out' / 'spiece.model').unlink()
  folder = str(tmp_path / 'out')
  again = run(dataclasses.replace(first, output=str(tmp_path / 'again'), warm_start=folder,
                                  seed=first.seed + 1))
  assert again
  warm = loaded_model.load_model(str(tmp_path / 'again'))
  assert warm.tokenizer.pieces == trained.tokenizer.pieces
  jax.tree.map(np.testing.assert_array_equal, warm.params, trained.params)


@pytest.mark.release
@pytest.mark.slow
def test_masked_diffusion_resumes_with_the_same_losses(corpus, tmp_path, monkeypatch):
  """Times that are stratified over the batch, frequencies of tokens, and the progress of the
  curriculum."""
  def smaller(folder):
    config = on(corpus, smallest('mdlm_strict'), tmp_path / folder)
    return validation.with_paths(config, {'objective.frequency_power': 1.0,
                                          'model.stack.layers': 1})
  whole = run(smaller('whole'))
  resumed = killed_and_taken_up(smaller('resumed'), monkeypatch)
  assert whole and resumed and whole.heldout == resumed.heldout
  tiny.assert_same(whole.params, resumed.params)
