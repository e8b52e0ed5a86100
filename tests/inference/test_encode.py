"""Vectors of texts equal those of other libraries, in any batch, for every architecture."""
import contextlib
import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.architectures.xlnet import XLNetConfig
from plm_jax.inference import encode as encoding
from plm_jax.inference.encode import compute_vectors, encode
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tokenizers.wordpiece import train_wordpiece

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
TEXTS = ['the cat', 'the dog sat on the mat, and the cat on the dog', 'cat', 'and the mat ' * 6]


@pytest.fixture(scope='module')
def tokenizer():
  return train_wordpiece(['the cat sat on the mat, and the dog on the cat'] * 9, 60)


def trained(model, tokenizer) -> LoadedModel:
  zeros = {name: jnp.ones((1, 4), jnp.int32)
           for name in ('tokens', 'segments', 'decoder_tokens', 'decoder_segments')}
  params = tiny.random_params(jax.eval_shape(model.backbone().init, jax.random.key(0),
                                             zeros)['params'])
  return LoadedModel('bert', model, {}, {'backbone': params}, tokenizer)


def models(vocab: int) -> list:
  block, stack, pre = tiny.block(), StackConfig(2), tiny.block(norm_at='pre')
  two_streams = {'position': XLNetConfig().block.attention.position, 'bias': ()}
  disentangled = {'position': DebertaConfig().block.attention.position}
  return [
      EncoderConfig(vocab, block, stack, 64),
      EncoderConfig(vocab, block, StackConfig(2, groups=1), 64,
                    embeddings=EmbeddingConfig(width=16)),
      DebertaConfig(vocab, tiny.block(attention=disentangled), stack, 64, conv=3, absolute=False),
      XLNetConfig(vocab, tiny.block(attention=two_streams), stack, 64),
      DecoderConfig(vocab, pre, stack, 64), DecoderConfig(vocab, pre, stack, 64, types=8),
      EncoderDecoderConfig(vocab, pre, stack, StackConfig(1), max_length=64)]


@pytest.fixture(scope='module', params=range(7),
                ids=lambda number: type(models(60)[number]).__name__)
def model(request, tokenizer):
  return trained(models(tokenizer.vocab.size)[request.param], tokenizer)


@pytest.mark.slow
def test_vectors_do_not_depend_on_the_rest_of_the_batch(model, monkeypatch):
  ends = dataclasses.replace(model.tokenizer.vocab, bos=2, eos=3, sop=2, eop=3)
  monkeypatch.setattr(model.tokenizer, 'vocab', ends)
  together = encode(model, TEXTS, pooling='none', layer=1, tokens=64)
  for text, found in zip(TEXTS, together, strict=True):
    alone, = encode(model, [text], pooling='none', layer=1)
    assert found.shape == alone.shape
    np.testing.assert_allclose(found, alone, atol=2e-5)
  middle = encode(model, TEXTS, layer=1)
  np.testing.assert_allclose(middle, [found.mean(0) for found in together], atol=2e-5)
  np.testing.assert_array_equal(encode(model, TEXTS[:1], layer=-2),
                                encode(model, TEXTS[:1], layer=1))


@pytest.mark.slow
def test_pooling(tokenizer):
  model = trained(models(tokenizer.vocab.size)[0], tokenizer)
  tokens = encode(model, TEXTS, pooling='none')
  assert [len(some) for some in tokens] == [len(tokenizer.encode(text)) + 2 for text in TEXTS]
  for pooling, of in (('max', lambda x: x.max(0)), ('first', lambda x: x[0]),
                      ('last', lambda x: x[-1]),
                      ('mean', lambda x: x.mean(0))):
    np.testing.assert_allclose(encode(model, TEXTS, pooling=pooling), [of(x) for x in tokens],
                               atol=1e-5)
  long = 'the cat sat on the mat ' * 20
  ids = tokenizer.encode(long)
  np.testing.assert_allclose(encode(model, [long], cut=True), encode(model, [ids[:62]]), atol=1e-6)


@pytest.mark.parametrize(('kind', 'room'), [(0, 62), (3, 62), (4, 63)])
def test_truncated_texts_keep_their_special_tokens(kind, room, tokenizer, monkeypatch):
  """An encoder has [CLS] and [SEP], a decoder a start alone."""
  monkeypatch.setattr(tokenizer, 'vocab', dataclasses.replace(tokenizer.vocab, bos=2, eos=3))
  model = trained(models(tokenizer.vocab.size)[kind], tokenizer)
  ids = tokenizer.encode('the cat sat on the mat, and the dog ' * 20)
  seen = []
  monkeypatch.setattr(encoding, 'iterate_batches',
                      lambda rows, *more: seen.extend(rows) or iter(()))
  with contextlib.suppress(TypeError, ValueError):
    encode(model, [ids], cut=True)
  whole = encoding.build_row(model, tokenizer, ids[:room])
  assert seen == [whole] and len(whole) == 64


def test_the_last_token_of_xlnet_has_segment_type_2(tokenizer):
  xlnet = models(tokenizer.vocab.size)[3]
  (_, batch), = encoding.iterate_batches([[5, 6, 3, 2], [7, 3, 2]], xlnet, 64, 0)
  types = np.asarray(batch['types'])
  assert types[:, :4].tolist() == [[0, 0, 0, 2], [0, 0, 2, 0]] and types.sum() == 4
  (_, batch), = encoding.iterate_batches([[5, 6, 3, 2]], models(tokenizer.vocab.size)[0], 64, 0)
  assert 'types' not in batch


@pytest.mark.parametrize('case', ['bert/base_no_token_types', 'gpt_neo/lm_global_local_w4', *(
    pytest.param(case, marks=pytest.mark.slow) for case in (
        'roberta/masked_lm', 'albert/groups2_inner2', 'deberta/v1_seqcls_c2p_only'))])
def test_hidden_states_equal_transformers(case):
  outputs, inputs = (np.load(GOLDEN / case / f'{name}.npz') for name in ('outputs', 'inputs'))
  names = [name for name in outputs.files if name.startswith('hidden_states.')]
  imported = conversion.load(GOLDEN / case)
  params = jax.tree.map(jnp.asarray, imported.params['backbone'])
  real = np.asarray(inputs['attention_mask'], bool)
  batch = {'tokens': jnp.asarray(inputs['input_ids']), 'segments': jnp.asarray(real, jnp.int32)}
  if 'token_type_ids' in inputs:
    batch['types'] = jnp.asarray(inputs['token_type_ids'])
  assert len(names) >= 3
  for name in names:
    found = compute_vectors(imported.config, params, batch, int(name.rpartition('.')[2]), 'none')
    np.testing.assert_allclose(np.asarray(found)[real], outputs[name][real], atol=1e-4,
                               err_msg=name)


@pytest.mark.slow
def test_rows_of_many_lengths_use_few_shapes(tokenizer, monkeypatch):
  shapes = set()
  read = encoding.compute_vectors
  def counted(config, params, batch, *how):
    shapes.add(batch['tokens'].shape)
    return read(config, params, batch, *how)
  monkeypatch.setattr(encoding, 'compute_vectors', counted)
  model = trained(models(tokenizer.vocab.size)[0], tokenizer)
  found = encode(model, [[5] * size for size in range(1, 61)], tokens=256)
  assert found.shape == (60, 32) and len(shapes) <= 5


def test_batches_on_a_cpu_are_small(monkeypatch):
  """At most 2,048 tokens, and attention scores of at most 8 MiB or the size of a layer's
  weights."""
  def batch_size(length, tokens=8192, width=384):
    model = models(100)[0]
    model = dataclasses.replace(model, block=dataclasses.replace(model.block, width=width,
                                                                 heads=12))
    return next(encoding.split_rows([length] * 100, model, 512, tokens))[:2]
  assert [batch_size(length) for length in (64, 128, 256, 512)] == [(64, 32), (128, 8), (256, 2),
                                                                    (512, 1)]
  assert [batch_size(length, width=768)
          for length in (128, 256, 512)] == [(128, 16), (256, 8), (512, 2)]
  assert batch_size(64, tokens=100) == (64, 1)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  assert batch_size(512) == (512, 16)
