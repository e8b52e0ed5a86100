"""Several texts in one row, apart, are the same texts in rows of their own: states and what heads
say."""
import functools
from typing import Any

import backbones
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.tasks.input_formats import get_input_format
from plm_jax.tokenizers.contract import Vocab

VOCAB = Vocab(size=96, pad=1, unk=3, cls=0, sep=2, mask=4, bos=5, eos=6)
T5 = Vocab(size=96, pad=0, unk=2, eos=1, sentinel=95)
VOCABS = {
    't5': T5, 'mt5': T5, 'umt5': T5, 'mbart': Vocab(96, pad=1, bos=0, eos=2, source=90, target=91),
    'glm': Vocab(96, pad=0, cls=2, sep=3, mask=4, sop=5, eop=6, eos=7)}
SLOW = {
    'roberta', 'deberta', 'deberta-v2', 'bart', 'gpt3', 'gpt_neo', 'cohere', 'mt5', 'umt5', 'mbart',
    'marian', 'albert', 'electra', 'distilbert', 'v3', 'modernbert'}
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
  return [[draw.integers(10, 90, size).tolist() for size in sizes]
          for sizes in ((3,), (5, 2), (1, 1), (7,))]


def laid(rows, lengths):
  """Rows of `Row`s, one behind another in each -> tokens, types, segments [B, L], extract [B,
  E]."""
  batch = {name: np.zeros((len(rows), LENGTH), np.int32)
           for name in ('tokens', 'types', 'segments')}
  extract = np.zeros((len(rows), lengths), np.int32)
  for number, some in enumerate(rows):
    at = 0
    for slot, row in enumerate(some):
      here = slice(at, at + len(row.tokens))
      batch['tokens'][number, here], batch['types'][number, here] = row.tokens, row.token_types
      batch['segments'][number, here], extract[number, slot] = slot + 1, at + row.summary_position
      at += len(row.tokens)
  return {name: jnp.asarray(x) for name, x in (batch | {'extract': extract}).items()}


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in backbones.PUBLISHED if name != 'spanbert'])
def test_texts_in_one_row_are_apart(name):
  vocab, family, model = VOCABS.get(name, VOCAB), backbones.family(name), backbones.small(
      name, 96, LENGTH)
  for head in ('label', 'choice'):
    model = conversion.enable_required_parts(family, head, model)
  heads = {head: conversion.build_head(family, head, model, 3, WORDS)
           for head in ('label', 'tags', 'span', 'choice')}
  form = get_input_format(family)
  rows = [form.make_row(some, vocab, 20) for some in texts()]
  alone, packed = (form.add_model_inputs(laid(some, len(some[0])), vocab)
                   for some in ([[row] for row in rows], [rows]))
  params = tiny.random_params(jax.eval_shape(
      ModelWithHeads(model.backbone(), heads).init, jax.random.key(0), alone)['params'])

  @functools.partial(jax.jit, static_argnums=1)
  def run(batch, several):
    every: Any = {**heads, 'states': States()}
    return ModelWithHeads(model.backbone(packed=several), every).apply({'params': params}, batch)
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
      np.testing.assert_allclose(together[kind][0, at:at + size], apart[kind][number, :size],
                                 atol=1e-5)
    at += size
