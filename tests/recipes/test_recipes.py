"""Every recipe at its smallest: trained, exported, read back and asked for words; one of each wiring killed, taken up
again and evaluated."""
import dataclasses
import pathlib
import random

import jax
import numpy as np
import pytest

from plm_jax import conversion, recipes
from plm_jax.cli import commands as cli
from plm_jax.cli.run import run
from plm_jax.config import Experiment, Phase
from plm_jax.inference import fill_mask, generate, loading
from plm_jax.inference.search import GenerationConfig
from plm_jax.training import feed
from plm_jax.training.train import Result

RECIPES = [*recipes.every()]


@pytest.fixture(scope='module')
def corpus(tmp_path_factory) -> pathlib.Path:
  """Three hundred documents in a language of two thousand words: enough for the tokenizers to find 2,048 pieces in."""
  draw = random.Random(0)
  syllables = [a + b for a in 'bdfgklmnprstvz' for b in 'aeiou']
  words = [''.join(draw.choices(syllables, k=draw.randint(2, 4))) for _ in range(2000)]
  def sentence():
    return f'{" ".join(draw.choices(words, k=draw.randint(5, 10)))}.'.capitalize()
  path = tmp_path_factory.mktemp('text') / 'corpus.txt'
  path.write_text('\n\n'.join('\n'.join(' '.join(sentence() for _ in range(3)) for _ in range(3)) for _ in range(300)))
  return path


def smallest(name: str) -> Experiment:
  """Three steps of one length, on one device; a checkpoint after each."""
  config = recipes.find(name)('test')
  text = dataclasses.replace(config.data.prepare, heldout=0.2)
  return dataclasses.replace(
      config, mesh=dataclasses.replace(config.mesh, data=1), data=dataclasses.replace(config.data, prepare=text),
      train=dataclasses.replace(config.train, phases=(Phase(3, 32, 8),), accumulate=1, log_every=1, eval_every=3,
                                eval_batches=2, save_every=1))


def different() -> list:
  """Recipes as parameters, those together whose smallest runs are one and the same: sizes of a family, most often.

  The first of each wiring with each objective is killed, taken up again and evaluated.
  """
  groups: dict[Experiment, list[str]] = {}
  for name in RECIPES:
    groups.setdefault(dataclasses.replace(smallest(name), name=''), []).append(name)
  kinds: dict[tuple[type, type], str] = {}
  for config, names in groups.items():
    kinds.setdefault((type(config.model), type(config.objective)), names[0])
  return [pytest.param(names[0], names[0] in kinds.values(), id='='.join(names)) for names in groups.values()]


def on(corpus: pathlib.Path, config: Experiment, folder: pathlib.Path) -> Experiment:
  source = str(corpus)
  if config.data.assembly == 'examples':  # a sentence is read, and its first word is written
    lines = [line.split('. ')[0] for line in corpus.read_text().splitlines() if line]
    examples = corpus.with_suffix('.tsv')
    examples.write_text('\n'.join(['a\tb', *(f'{line}\t{line.split()[0]}' for line in lines)]))
    source = f'task:columns-a-b:{examples}'
  return dataclasses.replace(
      config, output=str(folder), data=dataclasses.replace(config.data, path=(source,)))


@pytest.fixture(scope='module')
def teacher(corpus, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp('teacher') / 'run'
  run(on(corpus, smallest('bert_base'), folder))
  return folder


def killed_and_taken_up(config: Experiment, monkeypatch) -> Result | None:
  """Does the run, which dies before its third step, and goes on with it."""
  def cut(*arguments):
    for step, phase, windows in batches(*arguments):
      if step == 2:
        raise KeyError('power cut')
      yield step, phase, windows
  batches = feed.batches
  with monkeypatch.context() as patch:
    patch.setattr(feed, 'batches', cut)
    with pytest.raises(KeyError, match='power cut'):
      run(config)
  taken_up = []
  def counted(*arguments):
    for item in batches(*arguments):
      taken_up.append(item[0])
      yield item
  with monkeypatch.context() as patch:
    patch.setattr(feed, 'batches', counted)
    result = run(config)
  assert taken_up == [2]
  return result


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'disturbed'), different())
def test_recipe(name, disturbed, corpus, tmp_path, request, monkeypatch, capsys):
  config = on(corpus, smallest(name), tmp_path / 'run')
  if hasattr(config.objective, 'teacher'):
    folder = str(request.getfixturevalue('teacher'))
    text = dataclasses.replace(config.data.prepare, tokenizer=f'{folder}/tokenizer')
    config = dataclasses.replace(config, objective=dataclasses.replace(config.objective, teacher=folder),
                                 data=dataclasses.replace(config.data, prepare=text))
  result = killed_and_taken_up(config, monkeypatch) if disturbed else run(config)
  assert result and result.finished
  figures = [result.heldout[term] for term in config.objective.terms]
  assert np.isfinite(figures).all() and all(figures)
  if disturbed:
    capsys.readouterr()
    run(dataclasses.replace(config, mode='evaluate'))
    printed = dict(line.split(': ') for line in capsys.readouterr().out.strip().splitlines())
    assert printed == {term: f'{value:.4f}' for term, value in result.heldout.items()}

  monkeypatch.setattr('sys.argv', ['plm_jax', 'export', config.folder, str(tmp_path / 'out')])
  ours = loading.load(config.folder)
  if config.model.kind == 'encoder-decoder' and config.model.added:  # a source encoder of its own
    with pytest.raises(SystemExit, match='layers: 2 has no counterpart there'):
      cli.main()
  else:
    cli.main()
    theirs = conversion.load(tmp_path / 'out')
    assert theirs.model and theirs.family == config.family
    kept = {part: ours.params[part] for part in theirs.params}
    jax.tree.map(np.testing.assert_array_equal, kept, dict(theirs.params))
  if 'lm' in ours.heads and ours.model.kind != 'infilling':
    assert len(generate.generate(ours, ['Bada kofu.'], GenerationConfig(4))[0]) == 1
  if 'mlm' in ours.heads:
    assert len(fill_mask.fill(ours, ['Bada [MASK] kofu.'], top=3)[0][0]) == 3


@pytest.mark.slow
def test_a_warm_start_reads_what_transformers_writes(corpus, tmp_path):
  """Of a T5 it writes a tokenizer.json alone: no model of SentencePiece."""
  first = dataclasses.replace(smallest('t5_small'), output=str(tmp_path / 'first'))
  first = dataclasses.replace(
      first, data=dataclasses.replace(first.data, path=(str(corpus),)),
      train=dataclasses.replace(first.train, phases=(Phase(1, 32, 8),), eval_every=1))
  run(first)
  trained = loading.load(first.folder)
  conversion.save(tmp_path / 'out', trained.model, trained.params, trained.tokenizer, like='t5')
  (tmp_path / 'out' / 'spiece.model').unlink()
  folder = str(tmp_path / 'out')
  again = run(dataclasses.replace(
      first, output=str(tmp_path / 'again'), warm_start=folder, optim=dataclasses.replace(first.optim, peak=0.0)))
  assert again
  warm = loading.load(str(tmp_path / 'again'))
  assert warm.tokenizer.pieces == trained.tokenizer.pieces
  jax.tree.map(np.testing.assert_array_equal, warm.params, trained.params)
