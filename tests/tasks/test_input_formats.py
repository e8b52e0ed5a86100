"""Inputs of each family: tokens, segments and positions; several texts in one row give what they
give in rows of their own."""
import functools
from typing import Any

import backbones
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.errors import ConfigError
from plm_jax.inference import glm_infill
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import deberta, families, glm, xlm
from plm_jax.tasks.input_formats import INPUT_FORMATS, get_input_format
from plm_jax.tokenizers.contract import Vocab

BERT = Vocab(96, pad=0, unk=1, cls=2, sep=3, mask=4)
ROBERTA = Vocab(96, pad=1, unk=3, cls=0, sep=2, mask=4, bos=0, eos=2)
GPT2, LLAMA = Vocab(96, bos=90, eos=90), Vocab(96, unk=0, bos=1, eos=2)
T5 = Vocab(96, pad=0, unk=2, eos=1, sentinel=95)
MBART = Vocab(96, pad=1, unk=3, bos=0, eos=2, source=80, target=81)
GLM = Vocab(96, pad=0, cls=2, sep=3, mask=4, sop=5, eop=6, eos=7)


@pytest.mark.parametrize(('family', 'vocab', 'tokens', 'types', 'stand'), [
    ('bert', BERT, [2, 10, 11, 3, 20, 3], [0, 0, 0, 0, 1, 1], 0),
    ('deberta-v2', BERT, [2, 10, 11, 3, 20, 3], [0, 0, 0, 0, 1, 1], 0),
    ('roberta', ROBERTA, [0, 10, 11, 2, 2, 20, 2], [0] * 7, 0),
    ('xlnet', BERT, [10, 11, 3, 20, 3, 2], [0, 0, 0, 1, 1, 2], 5),
    ('openai-gpt', Vocab(96, bos=7, sep=8, cls=9), [7, 10, 11, 8, 20, 9], [0] * 6, 5),
    ('openai-gpt', Vocab(96), [96, 10, 11, 97, 20, 98], [0] * 6, 5),
    ('gpt2', GPT2, [90, 10, 11, 90, 20, 90], [0] * 6, 5),
    ('llama', LLAMA, [1, 10, 11, 2, 20, 2], [0] * 6, 5),
    ('t5', T5, [10, 11, 1, 20, 1], [0] * 5, 4),
    ('bart', ROBERTA, [0, 10, 11, 2, 2, 20, 2], [0] * 7, 6),
    ('mbart', MBART, [10, 11, 2, 20, 2, 80], [0] * 6, 4),
    ('glm', GLM, [2, 10, 11, 3, 20, 4, 7, 5], [0, 0, 0, 0, 1, 1, 1, 1], 7),
    ('elmo', Vocab(96, bos=0, eos=1, unk=2), [10, 11, 20], [0, 0, 1], 0)])
def test_rows_of_pairs(family, vocab, tokens, types, stand):
  row = get_input_format(family).make_row([[10, 11], [20]], vocab, 12)
  assert (row.tokens, row.token_types, row.summary_position, row.lost) == (tokens, types, stand, 0)
  assert [tokens[start] for start in row.text_starts] == [10, 20]
  assert get_input_format(family).count_special(vocab, 2) == len(tokens) - 3


def test_ids_behind_the_vocabulary():
  """Only GPT's rows have some, and only where its tokenizer was not made for them."""
  gpt = get_input_format('openai-gpt')
  assert gpt.extra_ids(Vocab(96)) == 3 and not gpt.extra_ids(Vocab(96, bos=7, sep=8, cls=9))
  assert not any(form.extra_ids(LLAMA) for name, form in INPUT_FORMATS.items() if name
                 != 'openai-gpt')


def test_every_family_has_a_form():
  assert set(INPUT_FORMATS) == set(families.FAMILIES)
  with pytest.raises(ConfigError, match='models of type rnn have no input format'):
    get_input_format('rnn')


def test_tokenizers_without_what_stands_around():
  for family, vocab, lacks in (
      ('bert', GPT2, r'no \[CLS\]'), ('gpt2', Vocab(96), 'eos or sep'), ('glm', BERT, 'startof')):
    with pytest.raises(ConfigError, match=lacks):
      get_input_format(family).make_row([[10]], vocab, 12)


def test_the_decoder_reads_each_text_shifted():
  """<s> 10 </s> and <s> 20 21 </s> in one row: each begins with </s>, and positions begin anew."""
  batch = {'tokens': jnp.array([[0, 10, 2, 0, 20, 21, 2, 1]]),
           'segments': jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]])}
  made = get_input_format('bart').add_model_inputs(batch, ROBERTA)
  assert made['decoder_tokens'].tolist() == [[2, 0, 10, 2, 0, 20, 21, 1]]
  assert made['decoder_place'].tolist()[0][:7] == [0, 1, 2, 0, 1, 2, 3]
  assert get_input_format('mbart').add_model_inputs(batch, MBART)['decoder_tokens'].tolist()[0][
      0] == 80
  assert get_input_format('roberta').add_model_inputs(batch, ROBERTA)['place'].tolist() == [
      [2, 3, 4, 2, 3, 4, 5, 1]]


def test_padding_has_the_places_behind_its_text():
  """As in BERT's own rows, where the softmax over a row has padding too (run_squad.py)."""
  batch = {'tokens': jnp.array([[2, 10, 3, 0, 0]]), 'segments': jnp.array([[1, 1, 1, 0, 0]])}
  assert get_input_format('bert').add_model_inputs(batch, BERT)['place'].tolist() == [
      [0, 1, 2, 3, 4]]


def test_a_blank_is_laid_as_it_is_filled():
  row = get_input_format('glm').make_row([[10, 11, 12]], GLM, 12)
  batch = {'tokens': jnp.array([row.tokens]), 'segments': jnp.ones((1, len(row.tokens)), jnp.int32)}
  made = get_input_format('glm').add_model_inputs(batch, GLM)
  wanted = glm_infill.build_row(glm_infill.InfillingText([2, 10, 11, 12, 4, 7], ((4, ()),)), GLM)
  assert {name: made[name][0].tolist() for name in wanted} == wanted


def test_a_word_for_each_class():
  model = glm.base().resize(tiny.block(norm_at='pre'), 1, 96, 16)
  head = conversion.build_head('glm', 'label', model, 2, words=(30, 31))
  row = get_input_format('glm').make_row([[10, 11, 12]], GLM, 16)
  batch = {'tokens': jnp.array([row.tokens]), 'segments': jnp.ones((1, len(row.tokens)), jnp.int32)}
  batch = get_input_format('glm').add_model_inputs(batch, GLM) | {
      'extract': jnp.array([[row.summary_position]])}
  lm = conversion.build_head('glm', 'lm', model, 2)
  whole = ModelWithHeads(model.backbone(), {'lm': lm, 'label': head})
  params = tiny.random_params(jax.eval_shape(whole.init, jax.random.key(0), batch))
  outputs = jax.jit(whole.apply)(params, batch)
  np.testing.assert_allclose(outputs['label'][0, 0], outputs['lm'][0, row.summary_position, 30:32],
                             rtol=1e-5)
  for words in ((), (30,), (30, 30), (30, 96)):
    with pytest.raises(conversion.ConvertError, match='2 different ids below 96'):
      conversion.build_head('glm', 'label', model, 2, words)


def test_a_head_that_does_not_fit_the_backbone():
  with pytest.raises(conversion.ConvertError, match='give it pooler=True'):
    conversion.build_head('deberta-v2', 'label', deberta.v3_small(), 2)
  assert conversion.enable_required_parts('deberta-v2', 'label', deberta.v3_small()).pooler
  assert conversion.enable_required_parts('deberta-v2', 'tags',
                                          deberta.v3_small()) == deberta.v3_small()


@pytest.mark.parametrize('family', sorted({*INPUT_FORMATS} & {*backbones.PUBLISHED} | {'xlm'}))
def test_positions_of_a_text_are_those_of_the_model_itself(family):
  """Each token of one padded text has the same state with what `arrange` adds and without."""
  vocab = {'glm': GLM, 'mbart': MBART, 't5': T5, 'mt5': T5, 'umt5': T5}.get(family, ROBERTA)
  if family == 'xlm':
    model = xlm.make_config(2, 32, 2, 96, 0).resize(tiny.block(), 2, 96, 16)
  else:
    model = backbones.small(family, 96, 16)
  form = get_input_format(family)
  row = form.make_row([[10, 11, 12, 20]], vocab, 12)
  size = len(row.tokens)
  batch = {'tokens': jnp.array([[*row.tokens, *[max(vocab.pad, 0)] * (12 - size)]]),
           'segments': jnp.array([[1] * size + [0] * (12 - size)])}
  arranged = form.add_model_inputs(batch, vocab)
  plain = {name: x for name, x in arranged.items() if name not in ('place', 'decoder_place')}
  if family == 'glm':  # whose places say where the blank is
    plain['place'] = arranged['place']
  backbone = model.backbone()
  params = tiny.random_params(jax.eval_shape(backbone.init, jax.random.key(0), arranged)['params'])
  got, want = (backbone.apply({'params': params}, some).hidden for some in (arranged, plain))
  np.testing.assert_allclose(got[:, :size], want[:, :size], atol=1e-5)


def test_places_of_xlm_begin_with_0_and_of_roberta_behind_padding():
  batch = {'tokens': jnp.array([[0, 10, 2, 1]]), 'segments': jnp.array([[1, 1, 1, 0]])}
  assert get_input_format('xlm').add_model_inputs(batch, ROBERTA)['place'].tolist() == [
      [0, 1, 2, 3]]
  assert get_input_format('roberta').add_model_inputs(batch, ROBERTA)['place'].tolist() == [
      [2, 3, 4, 1]]


VOCAB = Vocab(size=96, pad=1, unk=3, cls=0, sep=2, mask=4, bos=5, eos=6)
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
                                 atol=2e-5)
    at += size
