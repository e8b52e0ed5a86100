"""RetroMAE and DupMAE: what the decoder sees, losses computed by hand, and what is exported."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bert
import pytest
import tiny

from plm_jax import validation
from plm_jax.errors import ConfigError
from plm_jax.layers.rope import Rope, TwoRopes
from plm_jax.models import modernbert
from plm_jax.objectives.retro_mae import DupMAE, RetroMAE

OBJECTIVE = RetroMAE(mask_rate=0.25, decoder_mask_rate=0.5)
DUPLEX = DupMAE(mask_rate=0.25, decoder_mask_rate=0.5)
CONFIG = tiny.config(dropout=0.0, attention={'dropout': 0.0})
ROTARY = validation.with_paths(CONFIG, {
    'embeddings.absolute': 'none', 'block.attention.position': Rope(100.0)})
# As in ModernBERT: norms come first, the embeddings have one too, and windows their own base.
PRE_NORM = validation.with_paths(ROTARY, {
    'block.norm_at': 'pre', 'embeddings.norm': True, 'stack.first_norm': False, 'windows': (0, 4),
    'block.attention.position': TwoRopes(Rope(100.0), Rope(10.0))})


@functools.cache
def corrupted(rows=64):
  windows = tiny.windows(rows, OBJECTIVE.text_length(tiny.LENGTH), seed=3, shortest=12)
  corrupt = jax.jit(lambda key, w: OBJECTIVE.corrupt(key, w, tiny.VOCAB))
  return jax.device_get(corrupt(jax.random.key(5), windows))


@functools.cache
def model_and_params(objective=OBJECTIVE, config=CONFIG):
  module = objective.build(config, packed=False)
  batch = jax.tree.map(lambda x: x[:4], corrupted())
  shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), batch)['params'])
  return module, tiny.random_params(shapes)


def test_a_position_sees_half_of_the_words_whole_and_never_itself():
  """Special tokens are seen by all others, padding by none."""
  batch = corrupted()
  context, segments, weights = batch['context'], batch['segments'], batch['decoded_weights']
  assert not context[:, np.arange(tiny.LENGTH), np.arange(tiny.LENGTH)].any()
  assert not context[np.broadcast_to((segments == 0)[:, None], context.shape)].any()
  special = (segments > 0) & (weights == 0)
  assert (special.sum(-1) == 2).all() and special[:, 0].all()
  for row in range(len(context)):
    seen = context[row][:, special[row]]
    others = ~np.eye(tiny.LENGTH, dtype=bool)[:, special[row]]
    assert (seen == others).all()
  # The text around each position of the text; the mask is a share of all tokens, as for MLM.
  text = (weights[:, :, None] * weights[:, None, :]) > 0
  text &= ~np.eye(tiny.LENGTH, dtype=bool)
  hidden = (text & ~context).sum() / text.sum()
  assert 0.48 < hidden < 0.58
  # Positions have masks of their own.
  first = context[0][weights[0] > 0]
  assert len(np.unique(first, axis=0)) > len(first) / 2


def test_the_text_is_predicted_everywhere_and_the_encoder_reads_it_masked():
  batch = corrupted()
  windows = tiny.windows(64, OBJECTIVE.text_length(tiny.LENGTH), seed=3, shortest=12)
  length = (windows['segments'] > 0).sum(-1)
  np.testing.assert_array_equal(batch['decoded_weights'].sum(-1), length)
  for row, size in enumerate(length):
    np.testing.assert_array_equal(batch['decoded'][row, 1:size + 1], windows['tokens'][row, :size])
  masked = (batch['tokens'] != batch['decoded']).sum() / length.sum()
  assert 0.2 < masked < 0.3


def reference_loss(params, batch, duplex=False, cls=None):
  """Compute the loss of the decoder in numpy, float64.

  duplex: as modeling_duplex.py has it. cls: [B, 1, D], the [CLS] vector of an encoder with rotary
  positions (theta 100); None: BERT's is computed. With a `decoder_norm`, norms come first.
  """
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  table, rotary, first = p['backbone']['embeddings'], cls is not None, 'decoder_norm' in p
  positions = np.zeros((1, tiny.LENGTH, 1)) if rotary else table['positions'][:tiny.LENGTH]
  if cls is None:
    cls = numpy_bert.hidden(p['backbone'], batch)[:, :1]
  embedded = table['tokens'][batch['decoded']] + positions + table['types'][0]
  seen = np.concatenate([cls, numpy_bert.norm(embedded, table['norm'])[:, 1:]], 1)
  x, layer = positions + cls, p['decoder']
  if duplex:
    x = numpy_bert.norm(x + table['types'][0], table['norm'])
  attention, mlp = layer['attention'], layer['mlp']
  def norm_first(y, name):
    return numpy_bert.norm(y, layer[name]) if first else y
  def norm_last(y, name):
    return y if first else numpy_bert.norm(y, layer[name])
  def project(name, y):
    y = np.einsum('bld,dha->blha', norm_first(y, 'attention_norm'), attention[name]['kernel'])
    y += attention[name]['bias']
    return rotate(y) if rotary and name != 'value' else y
  q, k, v = project('query', x), project('key', seen), project('value', seen)
  logits = np.einsum('bqha,bkha->bhqk', q, k) / np.sqrt(q.shape[-1])
  logits = np.where(batch['context'][:, None], logits, -1e9)
  y = np.einsum('bhqk,bkha->bqha', np.exp(numpy_bert.log_softmax(logits)), v)
  y = np.einsum('bqha,had->bqd', y, attention['out']['kernel']) + attention['out']['bias']
  x = norm_last(x + y, 'attention_norm')
  y = norm_first(x, 'mlp_norm') @ mlp['up']['kernel'] + mlp['up']['bias']
  x = norm_last(x + numpy_bert.gelu(y) @ mlp['down']['kernel'] + mlp['down']['bias'], 'mlp_norm')
  if first:
    x = numpy_bert.norm(x, p['decoder_norm'])
  logits = numpy_bert.log_softmax(all_logits(p, x))
  loss = -np.take_along_axis(logits, batch['decoded'][..., None], -1)[..., 0]
  return (loss * batch['decoded_weights']).sum() / batch['decoded_weights'].sum()


def rotate(x):
  """Turn pairs of features, half of them apart, as complex numbers; x: [B, L, H, A]."""
  half = x.shape[-1] // 2
  angles = np.arange(x.shape[1])[:, None, None] * 100.0 ** -(np.arange(half) / half)
  turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
  return np.concatenate([turned.real, turned.imag], -1)


def all_logits(p, x):
  """Compute masked-LM logits of hidden states x [B, L, D]."""
  mlm = p['heads_mlm']
  h = numpy_bert.norm(numpy_bert.gelu(x @ mlm['dense']['kernel'] + mlm['dense']['bias']),
                      mlm['norm'])
  return h @ p['backbone']['embeddings']['tokens'].T + mlm['bias']


def reference_bag(params, batch):
  """Compute decoder_ot_loss and ot_embedding of modeling_duplex.py in numpy, float64."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  logits = all_logits(p, numpy_bert.hidden(p['backbone'], batch))
  logits = logits[:, 1:] - 1000 * (batch['segments'][:, 1:, None] == 0)
  logs, losses = numpy_bert.log_softmax(logits.max(1)), []
  for row, text in enumerate(batch['decoded']):
    tokens = text[batch['decoded_weights'][row] > 0]
    losses.append(-logs[row, np.unique(tokens)].sum() / len(tokens))
  return np.mean(losses)


def reference_duplex(params, batch):
  """Compute the loss of the decoder and that of the bag of words."""
  return reference_loss(params, batch, duplex=True) + 0.1 * reference_bag(params, batch)


@pytest.mark.parametrize(('objective', 'terms', 'reference_loss'), [
    (OBJECTIVE, {'retro': 1.0}, reference_loss),
    (DUPLEX, {'retro': 1.0, 'bag': 0.1}, reference_duplex)], ids=['retromae', 'dupmae'])
def test_the_loss_is_that_of_numpy_and_its_gradient_that_of_differences(
    objective, terms, reference_loss):
  assert objective.terms == {'mlm': 1.0, **terms}
  module, params = model_and_params(objective)
  batch = jax.tree.map(lambda x: x[:4], corrupted())
  def loss(params):
    losses = objective.loss(module.apply({'params': params}, batch), batch)
    return sum(factor * losses[name][0] / losses[name][1] for name, factor in terms.items())
  value, gradient = jax.jit(jax.value_and_grad(loss))(params)
  expected = reference_loss(params, batch)
  np.testing.assert_allclose(value, expected, rtol=2e-6)
  # A direction of all parameters: the vector of the encoder, its tables, decoder and head.
  draw = np.random.default_rng(1)
  step = jax.tree.map(lambda x: draw.normal(size=x.shape), params)
  slope = sum(jax.tree.leaves(jax.tree.map(lambda g, s: (np.asarray(g, np.float64) * s).sum(),
                                           gradient, step)))
  ends = []
  for sign in (1, -1):
    moved = jax.tree.map(lambda x, s, sign=sign: np.asarray(x, np.float64) + sign * 1e-6 * s,
                         params, step)
    ends.append(reference_loss(moved, batch))
  np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=2e-4)


@pytest.mark.parametrize('config', [ROTARY, PRE_NORM], ids=['rotary', 'modernbert'])
@pytest.mark.parametrize('objective', [OBJECTIVE, DUPLEX], ids=['retromae', 'dupmae'])
def test_encoders_with_rotary_positions_have_a_decoder_that_rotates(config, objective):
  module, params = model_and_params(objective, config)
  batch = jax.tree.map(lambda x: x[:4], corrupted())
  def loss(params, batch):
    total, count = objective.loss(module.apply({'params': params}, batch), batch)['retro']
    return total / count
  encoder = config.backbone(packed=False)
  hidden = jax.jit(encoder.apply)({'params': params['backbone']}, batch).hidden
  expected = reference_loss(params, batch, objective is DUPLEX, np.asarray(hidden[:, :1]))
  np.testing.assert_allclose(jax.jit(loss)(params, batch), expected, rtol=2e-6)


def test_what_is_exported_is_an_encoder_with_its_head():
  _, params = model_and_params()
  assert {*params} == {'backbone', 'heads_mlm', 'decoder'}
  assert {*OBJECTIVE.lifecycle.exported(params)} == {'backbone', 'heads_mlm'}


def test_encoders_with_other_positions_and_several_texts_per_sequence_are_refused():
  narrow = validation.with_paths(CONFIG, {'embeddings.width': 16})
  none = validation.with_paths(CONFIG, {'embeddings.absolute': 'none'})
  for config, packed in ((none, False), (narrow, False), (modernbert.base(), True)):
    with pytest.raises(ConfigError, match='learned positions of the same width, or rotates'):
      OBJECTIVE.build(config, packed=packed)


@pytest.mark.parametrize('config', [CONFIG, PRE_NORM], ids=['bert', 'modernbert'])
def test_flops_have_one_layer_and_logits_everywhere(config):
  plain = 3 * config.forward_flops(32, OBJECTIVE.max_predictions(32))
  decoder = OBJECTIVE.step_flops(config, 32) - plain
  block = config.block
  layer = 4 * block.width ** 2 + 2 * block.width * block.mlp_dim + 2 * 32 * block.width
  head = block.width ** 2 + block.width * config.vocab
  assert decoder == pytest.approx(3 * 2 * 32 * (layer + head), rel=0.01)
  assert jnp.isfinite(decoder)


def test_the_masked_lm_of_dupmae_is_that_of_retromae():
  module, params = model_and_params()
  batch = jax.tree.map(lambda x: x[:4], corrupted())
  duplex = model_and_params(DUPLEX)[0]
  logits = [jax.jit(m.apply)({'params': params}, batch)['mlm'] for m in (module, duplex)]
  np.testing.assert_allclose(*logits, atol=1e-5)


def test_flops_of_dupmae_have_logits_of_the_encoder_everywhere():
  more = DUPLEX.step_flops(CONFIG, 32) - OBJECTIVE.step_flops(CONFIG, 32)
  head = CONFIG.block.width ** 2 + CONFIG.block.width * CONFIG.vocab
  assert more == 3 * 2 * (32 - OBJECTIVE.max_predictions(32)) * head
