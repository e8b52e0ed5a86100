"""Several texts in one row, apart, are the same texts in rows of their own: states and what heads say."""
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import checked, conversion
from plm_jax.layers.heads import WithHeads
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
    gpt3,
    gpt_neo,
    llama,
    mbart,
    mt5,
    palm,
    roberta,
    t5,
    transformer,
    xlnet,
)
from plm_jax.tasks.forms import form_of
from plm_jax.tokenizers.contract import Vocab

VOCAB = Vocab(size=96, pad=1, unk=3, cls=0, sep=2, mask=4, bos=5, eos=6)
T5 = Vocab(size=96, pad=0, unk=2, eos=1, sentinel=95)
MODELS = {
    'bert': (bert.tiny(), VOCAB), 'roberta': (roberta.base(), VOCAB), 'albert': (albert.base(), VOCAB),
    'distilbert': (distilbert.base(), VOCAB), 'electra': (electra.small(), VOCAB), 'deberta': (deberta.base(), VOCAB),
    'deberta-v2': (deberta_v2.xlarge(), VOCAB), 'v3': (deberta_v2.v3_small(), VOCAB), 'xlnet': (xlnet.base(), VOCAB),
    'openai-gpt': (gpt.base(), VOCAB), 'gpt2': (gpt2.small(), VOCAB), 'gpt3': (gpt3.small(), VOCAB),
    'gpt_neo': (gpt_neo.b0_125(), VOCAB), 'llama': (llama.llama_7b(), VOCAB), 'cohere': (palm.palm_8b(), VOCAB),
    't5': (t5.small(), T5), 'mt5': (mt5.small(), T5), 'bart': (bart.base(), VOCAB),
    'mbart': (mbart.large(), Vocab(96, pad=1, bos=0, eos=2, source=90, target=91)),
    'marian': (transformer.base(), VOCAB),
    'glm': (glm.base(), Vocab(96, pad=0, cls=2, sep=3, mask=4, sop=5, eop=6, eos=7)),
}
SLOW = {
    'roberta', 'deberta', 'deberta-v2', 'bart', 'gpt3', 'gpt_neo', 'cohere', 'mt5', 'mbart',
    'marian', 'albert', 'electra', 'distilbert', 'v3'}
LENGTH = 40
WORDS = (30, 31, 32)  # of classes, where a family says them by words


class States:
  """A head that is the hidden states."""

  def __call__(self, output, batch, rows=None):
    del batch, rows
    return output.hidden


def texts():
  """Four examples of one text or two, without special tokens."""
  draw = np.random.default_rng(0)
  return [[draw.integers(10, 90, size).tolist() for size in sizes] for sizes in ((3,), (5, 2), (1, 1), (7,))]


def laid(rows, lengths):
  """Rows of `Row`s, one behind another in each -> tokens, types, segments [B, L], extract [B, E]."""
  batch = {name: np.zeros((len(rows), LENGTH), np.int32) for name in ('tokens', 'types', 'segments')}
  extract = np.zeros((len(rows), lengths), np.int32)
  for number, some in enumerate(rows):
    at = 0
    for slot, row in enumerate(some):
      here = slice(at, at + len(row.tokens))
      batch['tokens'][number, here], batch['types'][number, here] = row.tokens, row.types
      batch['segments'][number, here], extract[number, slot] = slot + 1, at + row.stand
      at += len(row.tokens)
  return {name: jnp.asarray(x) for name, x in (batch | {'extract': extract}).items()}


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODELS])
def test_texts_in_one_row_are_apart(name):
  model, vocab = MODELS[name]
  family = 'deberta-v2' if name == 'v3' else name
  block = checked.replaced(
      model.block, {'width': 32, 'heads': 4, 'mlp_dim': 64, 'head_size': 8, 'kv_heads': None})
  changes = {'windows': (0, 4)} if name in ('gpt3', 'gpt_neo') else {}
  model = checked.replaced(model.resized(block, 2, 96, LENGTH), changes)
  for head in ('label', 'choice'):
    model = conversion.with_parts(family, head, model)
  heads = {head: conversion.head_of(family, head, model, 3, WORDS) for head in ('label', 'tags', 'span', 'choice')}
  form = form_of(family)
  rows = [form.row(some, vocab, 20) for some in texts()]
  alone, packed = (form.arrange(laid(some, len(some[0])), vocab) for some in ([[row] for row in rows], [rows]))
  params = tiny.random_params(jax.eval_shape(
      WithHeads(model.backbone(), heads).init, jax.random.key(0), alone)['params'])

  @functools.partial(jax.jit, static_argnums=1)
  def run(batch, several):
    every: Any = {**heads, 'states': States()}
    return WithHeads(model.backbone(packed=several), every).apply({'params': params}, batch)
  with jax.default_matmul_precision('highest'):
    apart, together = run(alone, False), run(packed, True)
  assert apart['label'].shape == (4, 1, 3) and apart['choice'].shape == (4, 1)
  assert together['label'].shape == (1, 4, 3) and together['choice'].shape == (1, 4)
  for kind in ('label', 'choice'):
    np.testing.assert_allclose(together[kind][0], apart[kind][:, 0], atol=1e-5)
  at = 0
  for number, row in enumerate(rows):
    size = len(row.tokens)
    for kind in ('states', 'tags', 'span'):
      np.testing.assert_allclose(together[kind][0, at:at + size], apart[kind][number, :size], atol=1e-5)
    at += size
