"""TSDAE: which words go, and its loss, in numpy and by sentence-transformers."""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
import tiny

from plm_jax import conversion, validation
from plm_jax.errors import ConfigError
from plm_jax.models import modernbert
from plm_jax.objectives.tsdae import SentenceAutoencoder

OBJECTIVE = SentenceAutoencoder()
CONFIG = tiny.config(dropout=0.0, attention={'dropout': 0.0})


@functools.cache
def corrupted():
  windows = tiny.windows(4, OBJECTIVE.text_length(tiny.LENGTH), seed=3, shortest=12)
  return jax.device_get(OBJECTIVE.corrupt(jax.random.key(5), windows, tiny.VOCAB))


@functools.cache
def params_of(objective=OBJECTIVE, config=CONFIG):
  module = objective.build(config, packed=False)
  batch = corrupted()
  shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), batch)['params'])
  return tiny.random_params(shapes)


def test_words_are_deleted_whole_and_the_decoder_reads_all():
  windows = tiny.windows(256, OBJECTIVE.text_length(tiny.LENGTH), seed=3)
  windows['tokens'] = (windows['segments'] > 0) * np.arange(5, tiny.LENGTH + 3)  # all are different
  batch = jax.device_get(OBJECTIVE.corrupt(jax.random.key(5), windows, tiny.VOCAB))
  kept = words = 0
  for row in range(256):
    size = (windows['segments'][row] > 0).sum()
    text, numbers = windows['tokens'][row, :size], windows['words'][row, :size]
    np.testing.assert_array_equal(
        batch['decoder_tokens'][row, :size + 2], [tiny.VOCAB.cls, *text, tiny.VOCAB.sep])
    np.testing.assert_array_equal(
        batch['labels'][row, :size + 1], batch['decoder_tokens'][row, 1:size + 2])
    np.testing.assert_array_equal(batch['weights'][row], np.arange(tiny.LENGTH) <= size)
    left = batch['tokens'][row, :(batch['segments'][row] > 0).sum()]
    assert left[0] == tiny.VOCAB.cls and left[-1] == tiny.VOCAB.sep and len(left) > 2
    # The words that are left: some choice of them, in order.
    pieces = [tuple(text[numbers == n]) for n in range(1, numbers.max() + 1)]
    place, rest = 0, tuple(left[1:-1])
    for piece in pieces:
      if rest and rest[:len(piece)] == piece:
        rest, place = rest[len(piece):], place + 1
    assert not rest, row
    kept, words = kept + place, words + len(pieces)
  assert 0.37 < kept / words < 0.43


def test_one_word_at_random_always_stays():
  """Of three words, each as often."""
  objective = SentenceAutoencoder(deleted=1.0)
  tokens, words = jnp.array([11, 12, 13, 14, 0]), jnp.array([1, 2, 2, 3, 0])
  keys = jax.random.split(jax.random.key(1), 600)
  left = jax.device_get(jax.vmap(lambda key: objective.delete_words(key, tokens, words))(keys))
  texts = [tuple(row[:size]) for row, size in zip(
      left['tokens'], left['segments'].sum(-1), strict=True)]
  counts = [texts.count(one) for one in ((11,), (12, 13), (14,))]
  assert sum(counts) == 600 and min(counts) > 150
  empty = objective.delete_words(keys[0], 0 * tokens, 0 * words)
  assert not np.asarray(empty['segments']).any()


def reference_loss(params, batch, pooling='first'):
  """Compute the loss in numpy, float64."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  h = numpy_bert.hidden(p['backbone'], batch)
  real = batch['segments'] > 0
  vector = h[:, 0] if pooling == 'first' else (h * real[..., None]).sum(1) / real.sum(
      1, keepdims=True)
  table, length = p['backbone']['embeddings'], tiny.LENGTH
  x = table['tokens'][batch['decoder_tokens']] + table['positions'][:length] + table['types'][0]
  x = numpy_bert.norm(x, table['norm'])
  own, crossed = (tree['stack']['layers']['block'] for tree in (p['backbone'], p['cross']))
  causal = np.tril(np.ones((length, length), bool))
  for n in range(CONFIG.stack.layers):
    layer = jax.tree.map(lambda leaf, n=n: leaf[n], {**own, **crossed})
    x = numpy_bert.norm(x + attend(layer['attention'], x, x, causal), layer['attention_norm'])
    one = np.ones((length, 1), bool)
    x = numpy_bert.norm(x + attend(layer['cross'], x, vector[:, None], one), layer['cross_norm'])
    up, down = layer['mlp']['up'], layer['mlp']['down']
    y = numpy_bert.gelu(x @ up['kernel'] + up['bias']) @ down['kernel'] + down['bias']
    x = numpy_bert.norm(x + y, layer['mlp_norm'])
  mlm = p['heads_mlm']
  h = numpy_bert.norm(numpy_bert.gelu(x @ mlm['dense']['kernel'] + mlm['dense']['bias']),
                      mlm['norm'])
  logits = numpy_bert.log_softmax(h @ table['tokens'].T + mlm['bias'])
  loss = -np.take_along_axis(logits, batch['labels'][..., None], -1)[..., 0]
  return (loss * batch['weights']).sum() / batch['weights'].sum()


def attend(attention, x, keys, mask):
  """Attend from x [B, Q, D] to keys [B, K, D] where mask [Q, K] is True."""
  q, k, v = (np.einsum('bld,dha->blha', y, attention[name]['kernel']) + attention[name]['bias']
             for name, y in (('query', x), ('key', keys), ('value', keys)))
  logits = np.einsum('bqha,bkha->bhqk', q, k) / np.sqrt(q.shape[-1])
  probs = np.exp(numpy_bert.log_softmax(np.where(mask, logits, -1e9)))
  y = np.einsum('bhqk,bkha->bqha', probs, v)
  return np.einsum('bqha,had->bqd', y, attention['out']['kernel']) + attention['out']['bias']


def run(objective, config, params, batch, *args, **options) -> Any:
  return objective.build(config, packed=False).apply({'params': params}, batch, *args, **options)


def mean_loss(objective, config, params, batch):
  outputs = run(objective, config, params, batch)
  total, weight = objective.loss(outputs, batch)['tsdae']
  return total / weight


@pytest.mark.parametrize('pooling', ['first', 'mean'])
def test_the_loss_is_that_of_numpy_and_its_gradient_that_of_differences(pooling):
  objective, batch, params = SentenceAutoencoder(pooling=pooling), corrupted(), params_of()
  value, gradient = jax.jit(jax.value_and_grad(
      lambda p: mean_loss(objective, CONFIG, p, batch)))(params)
  np.testing.assert_allclose(value, reference_loss(params, batch, pooling), rtol=2e-6)
  draw = np.random.default_rng(1)
  step = jax.tree.map(lambda x: draw.normal(size=x.shape), params)
  slope = sum(jax.tree.leaves(jax.tree.map(
      lambda g, s: (np.asarray(g, np.float64) * s).sum(), gradient, step)))
  ends = []
  for size in (1e-6, -1e-6):
    moved = jax.tree.map(lambda x, s, e=size: np.asarray(x, np.float64) + e * s, params, step)
    ends.append(reference_loss(moved, batch, pooling))
  np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=2e-4)


def test_the_decoder_is_the_encoder_with_cross_attention():
  params = params_of()
  assert {*params} == {'backbone', 'heads_mlm', 'cross'}
  assert {*params['cross']} == {'stack'}
  assert {*params['cross']['stack']['layers']['block']} == {'cross', 'cross_norm'}
  assert {*OBJECTIVE.lifecycle.exported(params)} == {'backbone'}
  assert not OBJECTIVE.heads(CONFIG) and not OBJECTIVE.mask_tokens(CONFIG)
  plain = CONFIG.backbone().init(jax.random.key(0), corrupted())['params']
  assert jax.tree.structure(jax.tree.map(np.shape, params['backbone'])) == jax.tree.structure(
      jax.tree.map(np.shape, tiny.random_params(plain)))


def test_dropout_of_the_decoder_differs_from_step_to_step():
  config = tiny.config(dropout=0.3)
  first, again, other = (
      run(OBJECTIVE, config, params_of(), corrupted(), np.arange(4),
          rngs={'dropout': jax.random.key(seed)})['tsdae'] for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert not np.allclose(first, other)


def test_any_encoder_has_a_decoder():
  """ModernBERT: norms before the layers, sliding windows, no norm in the first layer."""
  config = validation.with_paths(modernbert.base(), {
      'block.width': 32, 'block.heads': 4, 'block.mlp_dim': 64, 'stack.layers': 3,
      'vocab': tiny.VOCAB.size, 'max_length': tiny.LENGTH, 'windows': (0, 4)})
  batch, params = corrupted(), params_of(config=config)
  changed = dict(batch, decoder_tokens=batch['decoder_tokens'].copy())
  changed['decoder_tokens'][:, 9] = 50
  logits = [run(OBJECTIVE, config, params, one)['tsdae'] for one in (batch, changed)]
  np.testing.assert_allclose(logits[0][:, :9], logits[1][:, :9], rtol=1e-5, atol=1e-5)
  assert not np.allclose(logits[0][:, 9], logits[1][:, 9])


def test_rows_of_several_texts_are_refused():
  with pytest.raises(ConfigError, match='one text per sequence'):
    OBJECTIVE.build(CONFIG, packed=True)


def test_flops_are_those_of_both_with_logits_of_the_decoder():
  both = CONFIG.forward_flops(32, 0) + dataclasses.replace(CONFIG, pooler=False).forward_flops(
      32, 32)
  cross = 2 * 2 * 32 * CONFIG.stack.layers * CONFIG.block.width ** 2
  assert OBJECTIVE.step_flops(CONFIG, 32) == 3 * (both + cross)


def test_the_loss_is_that_of_sentence_transformers(tmp_path):
  """DenoisingAutoEncoderLoss of a small BERT, with the parameters of its tied decoder."""
  pytest.importorskip('sentence_transformers')
  from library_folders import write_encoder
  from sentence_transformers import SentenceTransformer
  from sentence_transformers.sentence_transformer import modules
  from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
  import torch
  write_encoder(tmp_path, 24)
  from transformers import BertConfig, BertForMaskedLM
  torch.manual_seed(1)
  BertForMaskedLM(BertConfig.from_pretrained(tmp_path)).save_pretrained(tmp_path)
  encoder = modules.Transformer(str(tmp_path))
  pooling = modules.Pooling(encoder.get_embedding_dimension(), 'cls')
  model = SentenceTransformer(modules=[encoder, pooling], device='cpu')
  library = DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True).eval()

  # The same parameters.
  with torch.no_grad():
    for parameter in library.decoder.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  plain = BertForMaskedLM(BertConfig.from_pretrained(tmp_path))
  plain.load_state_dict(library.decoder.state_dict(), strict=False)
  plain.save_pretrained(tmp_path)
  state = {name: x.detach().numpy() for name, x in library.decoder.named_parameters()}
  imported = conversion.load(tmp_path, heads=['mlm'])
  config, names = imported.config, {'query': 'self.query', 'key': 'self.key',
                                    'value': 'self.value', 'out': 'output.dense'}
  prefix = 'bert.encoder.layer.0.crossattention'
  heads, width = config.block.heads, config.block.width
  cross = {}
  for name, theirs in names.items():
    kernel, bias = (state[f'{prefix}.{theirs}.{part}'] for part in ('weight', 'bias'))
    shape = (heads, -1, width) if name == 'out' else (width, heads, -1)
    cross[name] = {'kernel': kernel.T.reshape(shape),
                   'bias': bias if name == 'out' else bias.reshape(heads, -1)}
  norm = {'scale': state[f'{prefix}.output.LayerNorm.weight'],
          'bias': state[f'{prefix}.output.LayerNorm.bias']}
  block = jax.tree.map(lambda x: x[None], {'cross': cross, 'cross_norm': norm})
  params = {**imported.params, 'cross': {'stack': {'layers': {'block': block}}}}

  # The same batch.
  vocab = dataclasses.replace(tiny.VOCAB, size=config.vocab)
  windows = tiny.windows(4, OBJECTIVE.text_length(16), seed=3, shortest=5)
  windows['tokens'] = np.where(windows['segments'] > 0, 5 + windows['tokens'] % 26, 0)
  batch = jax.device_get(OBJECTIVE.corrupt(jax.random.key(5), windows, vocab))
  features = [
      {'input_ids': torch.tensor(batch[f'{side}tokens']).long(),
       'attention_mask': torch.tensor(batch[f'{side}segments'] > 0).long()}
      for side in ('', 'decoder_')]
  expected = library(features, torch.zeros(4)).item()
  value = mean_loss(OBJECTIVE, dataclasses.replace(config, pooler=False), params, batch)
  np.testing.assert_allclose(value, expected, rtol=2e-6)
