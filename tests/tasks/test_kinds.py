"""Every kind of task on every backbone: a step is traced, and what is said of the development set
is measured; of every form in which families take texts a backbone makes two steps."""
import functools

import backbones
from flax.linen import unbox
import jax
import labelled
import numpy as np
import pytest
import tiny

from plm_jax import sharding, tokenizers
from plm_jax.finetuning import feed as feed_lib
from plm_jax.finetuning.feed import compile_forward
from plm_jax.finetuning.setup import resolve_run
from plm_jax.recipes.finetune import InitialModel
from plm_jax.training.learner import make_learner
from plm_jax.training.step import init_state, jit_train_step, make_sharded_init, train_step

TEXTS = [' '.join((*labelled.NAMES, *labelled.GOOD, *labelled.BAD, *labelled.REST, 'who'))] * 9
TOKENIZERS = {
    'pieces': labelled.tokenizer, 'bytes': lambda: tokenizers.train_byte_bpe(TEXTS, 320),
    'ended': lambda: tokenizers.train_byte_bpe(TEXTS, 320, layout='gpt2'),
    'words': lambda: tokenizers.train_word_bpe(TEXTS, 120),
    'blanks': lambda: tokenizers.train_wordpiece(TEXTS, 90, blanks=True),
    **{layout: lambda layout=layout: tokenizers.train_sentencepiece(
        [*TEXTS, *tiny.text().splitlines()[:200]], {'llama': 400, 't5': 250}.get(layout, 150),
        layout=layout)
       for layout in ('albert', 'xlnet', 'deberta', 'llama', 't5')}}
READ_BY = {
    'bert': 'pieces', 'roberta': 'bytes', 'albert': 'albert', 'distilbert': 'pieces',
    'spanbert': 'pieces',
    'electra': 'pieces', 'deberta': 'bytes', 'deberta-v2': 'deberta', 'v3': 'deberta',
    'xlnet': 'xlnet',
    'openai-gpt': 'words', 'gpt2': 'ended', 'llama': 'llama', 'cohere': 'llama', 'glm': 'blanks',
    't5': 't5',
    'bart': 'bytes', 'modernbert': 'bytes'}
# One backbone of each form of `tasks.forms`, and of T5, whose positions are relative; each kind of
# task twice.
STEPS = {'bert': 'tagging', 'roberta': 'classification', 'xlnet': 'answers', 'openai-gpt': 'choice',
         'gpt2': 'tagging',
         'glm': 'classification', 't5': 'answers', 'bart': 'choice'}
MARKS = {'bert': [], 'gpt2': [pytest.mark.slow], 't5': [pytest.mark.slow]}


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  return tmp_path_factory.mktemp('labelled')


@functools.cache
def tokenizer(name):
  return TOKENIZERS[name]()


def ready(name, kind, home):
  """-> (run of two steps whose examples have been read, its mesh, what learns, what it learns
  from)."""
  own = tokenizer(READ_BY[name])
  begin = InitialModel('', backbones.family(name), backbones.small(name, own.vocab.size, 96))
  room = {'objective__stride': 16, 'objective__question_length': 16} if kind == 'answers' else {}
  config = labelled.run(home, kind, 2, begin, train__phases=labelled.phases(2, 64), **room)
  found = resolve_run(config, own)
  mesh = sharding.make_mesh(config.mesh)
  return found.config, mesh, make_learner(found.config, own.vocab), found.open_feed(mesh)


def assert_measured(config, figures):
  assert config.train.best in figures and 0 <= figures[config.train.best] <= 100 and np.isfinite(
      figures['loss'])


@pytest.mark.parametrize(('name', 'kind'), [
    pytest.param(name, kind, marks=MARKS.get(name, [pytest.mark.slow, pytest.mark.release]))
    for name, kind in STEPS.items()])
def test_two_steps(name, kind, home):
  config, mesh, learner, feed = ready(name, kind, home)
  with jax.set_mesh(mesh):
    make, _, layout = make_sharded_init(learner, feed.first_window(), mesh)
    state = make()
    update, losses = jit_train_step(learner, layout), []
    for _, _, windows in feed.stream(0, mesh):
      state, numbers = update(state, windows)
      losses.append(float(numbers['loss']))
    figures = feed.make_evaluator(learner, mesh)(state.params, config.train.phases[0])
  assert len(losses) == 2 and np.isfinite(losses).all() and all(losses)
  assert_measured(config, figures)


def by_lot(learner):
  """As `tasks.feed.forward`, traced: numbers of the shapes and types that the model would answer
  with."""
  said, draw = compile_forward(learner), np.random.default_rng(0)
  return lambda params, windows: jax.tree.map(
      lambda x: np.asarray(draw.random(x.shape), x.dtype), said.eval_shape(params, windows))


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'kind'), [
    pytest.param(name, kind, marks=[pytest.mark.release] * (number % len(labelled.KINDS) > 0))
    for number, (name, kind) in enumerate(
        (name, kind) for name in READ_BY for kind in labelled.KINDS if STEPS.get(name) != kind)])
def test_a_step_keeps_shapes_and_what_is_said_is_measured(name, kind, home, monkeypatch):
  """Of the pairs that make no steps: theirs is traced, as is the head, which answers by lot."""
  config, mesh, learner, feed = ready(name, kind, home)
  monkeypatch.setattr(feed_lib, 'compile_forward', by_lot)
  shapes = functools.partial(jax.tree.map, lambda x: (x.shape, x.dtype))
  with jax.set_mesh(mesh):
    state = unbox(jax.eval_shape(lambda: init_state(learner, feed.first_window())))
    windows = next(iter(feed.stream(0, mesh)))[2]
    assert shapes(jax.eval_shape(functools.partial(train_step, learner), state,
                                 windows)[0]) == shapes(state)
    assert_measured(config, feed.make_evaluator(learner, mesh)(state.params,
                                                               config.train.phases[0]))
