"""Every kind of task on every backbone: two steps, and what is then said of the development set is measured."""
from typing import Any

import jax
import labelled
import numpy as np
import pytest
import tiny

from plm_jax import checked, sharding, tokenizers
from plm_jax.models import (
    albert,
    bart,
    bert,
    deberta,
    deberta_v2,
    distilbert,
    electra,
    glm,
    gpt,
    gpt2,
    llama,
    palm,
    roberta,
    spanbert,
    t5,
    xlnet,
)
from plm_jax.recipes.finetune import Start
from plm_jax.tasks.setup import settled
from plm_jax.training.learner import make_learner
from plm_jax.training.step import jitted_step, sharded_init

TEXTS = [' '.join((*labelled.NAMES, *labelled.GOOD, *labelled.BAD, *labelled.REST, 'who'))] * 9
TOKENIZERS = {
    'pieces': labelled.tokenizer, 'bytes': lambda: tokenizers.train_byte_bpe(TEXTS, 320),
    'ended': lambda: tokenizers.train_byte_bpe(TEXTS, 320, layout='gpt2'),
    'words': lambda: tokenizers.train_word_bpe(TEXTS, 120),
    'blanks': lambda: tokenizers.train_wordpiece(TEXTS, 90, blanks=True),
    **{layout: lambda layout=layout: tokenizers.train_sentencepiece(
        [*TEXTS, *tiny.text().splitlines()[:200]], {'llama': 400, 't5': 250}.get(layout, 150), layout=layout)
       for layout in ('albert', 'xlnet', 'deberta', 'llama', 't5')}}
BACKBONES = {
    'bert': (bert.tiny(), 'pieces'), 'roberta': (roberta.base(), 'bytes'), 'albert': (albert.base(), 'albert'),
    'distilbert': (distilbert.base(), 'pieces'), 'spanbert': (spanbert.base(), 'pieces'),
    'electra': (electra.small(), 'pieces'), 'deberta': (deberta.base(), 'bytes'),
    'deberta-v2': (deberta_v2.xlarge(), 'deberta'), 'v3': (deberta_v2.v3_small(), 'deberta'),
    'xlnet': (xlnet.base(), 'xlnet'), 'openai-gpt': (gpt.base(), 'words'), 'gpt2': (gpt2.small(), 'ended'),
    'llama': (llama.llama_7b(), 'llama'), 'cohere': (palm.palm_8b(), 'llama'), 'glm': (glm.base(), 'blanks'),
    't5': (t5.small(), 't5'), 'bart': (bart.base(), 'bytes')}


@pytest.fixture(scope='module')
def home(tmp_path_factory):
  return tmp_path_factory.mktemp('labelled')


def shrunk(size: Any, vocab: int) -> Any:
  block = checked.replaced(size.block, {'width': 32, 'heads': 2, 'mlp_dim': 64, 'head_size': 16,
                                        'kv_heads': size.block.kv_heads and 1})
  return size.resized(block, 2, vocab, 96)


@pytest.mark.parametrize(('name', 'kind'), [
    pytest.param(name, kind, marks=[pytest.mark.slow] * ((name, kind) != ('bert', 'tagging')))
    for name in BACKBONES for kind in labelled.KINDS])
def test_two_steps(name, kind, home):
  size, of = BACKBONES[name]
  tokenizer = TOKENIZERS[of]()
  begin = Start('', 'deberta-v2' if name == 'v3' else name, shrunk(size, tokenizer.vocab.size))
  room = {'objective__stride': 16, 'objective__question_length': 16} if kind == 'answers' else {}
  config = labelled.run(home, kind, 2, begin, train__phases=labelled.phases(2, 64), **room)
  ready = settled(config, tokenizer)
  mesh = sharding.make_mesh(config.mesh)
  learner, feed = make_learner(ready.config, tokenizer.vocab), ready.open_feed(mesh)
  with jax.set_mesh(mesh):
    make, _, layout = sharded_init(learner, feed.first(), mesh)
    state = make()
    update, losses = jitted_step(learner, layout), []
    for _, _, windows in feed.stream(0, mesh):
      state, numbers = update(state, windows)
      losses.append(float(numbers['loss']))
    figures = feed.evaluator(learner, mesh)(state.params, config.train.phases[0])
  assert len(losses) == 2 and np.isfinite(losses).all() and all(losses)
  assert config.train.best in figures and 0 <= figures[config.train.best] <= 100
