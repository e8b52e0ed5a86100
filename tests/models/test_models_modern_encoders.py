"""NeoBERT, MosaicBERT, crammed BERT, LTG-BERT and GPT-BERT: no class of transformers has them, so
that what released code computes is written here in numpy, by its tensors."""
import json
import math
from typing import Any

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import erf

from plm_jax import conversion, validation
from plm_jax.architectures.encoder import Encoder
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.positions import alibi_slopes
from plm_jax.models import crammed, gpt_bert, ltg_bert, mosaicbert, neobert
from plm_jax.models.rules import ConvertError
from plm_jax.objectives.distillation import HiddenStatesHead
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single

LENGTHS = 9, 6
NEO = dict(
    architectures=['NeoBERTLMHead'], auto_map={'AutoModel': 'model.NeoBERT'},
    classifier_init_range=0.02, dim_head=8,
    decoder_init_range=0.02, embedding_init_range=0.02, hidden_size=24, intermediate_size=50,
    kwargs={'max_length': 8},
    max_length=16, model_type='neobert', norm_eps=1e-5, num_attention_heads=3, num_hidden_layers=2,
    pad_token_id=0,
    torch_dtype='float32', vocab_size=40)
MOSAIC = dict(
    alibi_starting_size=512, architectures=['BertForMaskedLM'], attention_probs_dropout_prob=0.0,
    hidden_act='gelu',
    auto_map={'AutoConfig': 'configuration_bert.BertConfig'}, hidden_dropout_prob=0.1,
    hidden_size=24,
    initializer_range=0.02, intermediate_size=20, layer_norm_eps=1e-12, max_position_embeddings=16,
    model_type='bert',
    num_attention_heads=6, num_hidden_layers=2, pad_token_id=0, position_embedding_type='absolute',
    type_vocab_size=2,
    vocab_size=40)

CRAMMED = dict(
    arch=dict(
        attention=dict(type='self-attention', num_attention_heads=3, dropout_prob=0.1,
                       qkv_bias=False),
        embedding=dict(vocab_size=40, pos_embedding='scaled-sinusoidal', dropout_prob=0.1,
                       max_seq_length=16,
                       embedding_dim=24, normalization=True),
        num_transformer_layers=2, hidden_size=24, intermed_size=32, hidden_dropout_prob=0.1,
        norm='LayerNorm',
        norm_eps=1e-12, norm_scheme='pre', nonlin='GELUglu', tie_weights=True, decoder_bias=False,
        use_bias=False,
        skip_head_transform=True, final_norm=True, num_labels=None, loss='cross-entropy'),
    architectures=['ScriptableLMForPreTraining'], model_type='crammedBERT')

LTG = dict(
    attention_probs_dropout_prob=0.1, hidden_dropout_prob=0.1, hidden_size=24, intermediate_size=16,
    layer_norm_eps=1e-7, max_position_embeddings=16, num_attention_heads=3, num_hidden_layers=2,
    position_bucket_size=4,
    vocab_size=40)


GPT = LTG | dict(architectures=['LtgbertForMaskedLM'], is_decoder=True, layer_norm_eps=1e-5)


def normal(x, weight, bias=None, eps=1e-12):
  x = x - x.mean(-1, keepdims=True) if bias is not None else x
  return x / np.sqrt((x ** 2).mean(-1, keepdims=True)
                     + eps) * weight + (0 if bias is None else bias)


def attend(q, k, v, bias=0.0):
  """[B, L, H, A] each -> [B, L, H A]; keys up to LENGTHS are valid."""
  logits = np.einsum('bqha,bkha->bhqk', q, k) / math.sqrt(q.shape[-1]) + bias
  logits = np.where((np.arange(q.shape[1]) < np.array(LENGTHS)[:, None])[:, None, None], logits,
                    -np.inf)
  probs = np.exp(logits - logits.max(-1, keepdims=True))
  return np.einsum('bhqk,bkha->bqha', probs / probs.sum(-1, keepdims=True),
                   v).reshape(*q.shape[:2], -1)


def neo(w, tokens):
  """chandar-lab/NeoBERT, model.py: a head has its query, key and value together, rope turns numbers
  2 i and 2 i + 1."""
  x, (rows, length) = w['model.encoder.weight'][tokens], tokens.shape
  turn = np.exp(1j * np.arange(length)[:, None] * 10_000.0 ** (-np.arange(0, 8, 2) / 8))[:, None]
  def turned(y):
    pairs = (y[..., ::2] + 1j * y[..., 1::2]) * turn
    return np.stack([pairs.real, pairs.imag], -1).reshape(y.shape)
  for n in range(2):
    p = {name.partition(f'encoder.{n}.')[2]: y for name, y in w.items() if f'encoder.{n}.' in name}
    heads = normal(x, p['attention_norm.weight'], eps=1e-5) @ p['qkv.weight'].T
    q, k, v = np.split(heads.reshape(rows, length, 3, 24), 3, -1)
    x = x + attend(turned(q), turned(k), v) @ p['wo.weight'].T
    a, b = np.split(normal(x, p['ffn_norm.weight'], eps=1e-5) @ p['ffn.w12.weight'].T, 2, -1)
    x = x + (a / (1 + np.exp(-a)) * b) @ p['ffn.w3.weight'].T
  x = normal(x, w['model.layer_norm.weight'], eps=1e-5)
  return x, x @ w['decoder.weight'].T + w['decoder.bias']


def mosaic(w, tokens):
  """mosaicml/examples, bert_layers.py; the slopes of six heads are those for four, and every
  other slope for eight."""
  def gelu(y):
    return y * (1 + erf(y / math.sqrt(2))) / 2
  def normed(x, name):
    return normal(x, w[f'{name}.weight'], w[f'{name}.bias'])
  def linear(x, name):
    return x @ w[f'{name}.weight'].T + w[f'{name}.bias']
  table, (rows, length) = w['bert.embeddings.word_embeddings.weight'], tokens.shape
  x = normed(table[tokens] + w['bert.embeddings.token_type_embeddings.weight'][0],
             'bert.embeddings.LayerNorm')
  fall = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])[:, None, None]
  bias = -fall * abs(np.arange(length)[:, None] - np.arange(length))
  for n in range(2):
    at = f'bert.encoder.layer.{n}'
    q, k, v = np.split(linear(x, f'{at}.attention.self.Wqkv').reshape(rows, length, 3, 6, 4), 3, 2)
    y = attend(q[:, :, 0], k[:, :, 0], v[:, :, 0], bias)
    x = normed(x + linear(y, f'{at}.attention.output.dense'), f'{at}.attention.output.LayerNorm')
    a, b = np.split(x @ w[f'{at}.mlp.gated_layers.weight'].T, 2, -1)
    x = normed(x + linear(gelu(a) * b, f'{at}.mlp.wo'), f'{at}.mlp.layernorm')
  h = normed(gelu(linear(x, 'cls.predictions.transform.dense')),
             'cls.predictions.transform.LayerNorm')
  return x, h @ table.T + w['cls.predictions.decoder.bias']


def cram(w, tokens):
  """JonasGeiping/cramming, components.py: of a GLU the second half is activated."""
  def normed(x, name):
    return normal(x, w[f'encoder.{name}.weight'], w[f'encoder.{name}.bias'])
  table, (rows, length) = w['encoder.embedding.word_embedding.weight'], tokens.shape
  angles = np.arange(length)[:, None] * np.exp(np.arange(0, 24, 2) * -math.log(10_000) / 24)
  waves = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, 24)
  x = normed(table[tokens] + w['encoder.embedding.pos_embedding.scale_factor'] * waves,
             'embedding.norm')
  for n in range(2):
    at = f'layers.{n}'
    heads = normed(x, f'{at}.norm1') @ w[
        f'encoder.{at}.attn.self_attention.query_key_value.weight'].T
    q, k, v = np.split(heads.reshape(rows, length, 3, 24), 3, -1)
    x = x + attend(q, k, v) @ w[f'encoder.{at}.attn.dense.weight'].T
    a, b = np.split(normed(x, f'{at}.norm2') @ w[f'encoder.{at}.ffn.dense_in.weight'].T, 2, -1)
    x = x + (b * (1 + erf(b / math.sqrt(2))) / 2 * a) @ w[f'encoder.{at}.ffn.dense_out.weight'].T
  x = normed(x, 'final_norm')
  return x, x @ table.T


def cram_shapes():
  layer = {'attn.self_attention.query_key_value': (72, 24), 'attn.dense': (24, 24),
           'ffn.dense_in': (32, 24),
           'ffn.dense_out': (24, 16)}
  norms = ('encoder.embedding.norm', 'encoder.final_norm', *(
      f'encoder.layers.{n}.norm{place}' for n in range(2) for place in (1, 2)))
  return {'encoder.embedding.word_embedding.weight': (40, 24),
          'encoder.embedding.pos_embedding.scale_factor': (1,),
          **{f'encoder.layers.{n}.{name}.weight': shape for n in range(2)
             for name, shape in layer.items()},
          **{f'{name}.{part}': (24,) for name in norms for part in ('weight', 'bias')}}


def ltg(w, tokens):
  """ltgoslo/ltg-bert, babylm/train/model.py: distances, query minus key, in seven buckets, which
  get wider beyond two tokens; and the norm at the beginning of heads."""
  def gelu(y, tanh=False):
    return y * (1 + (np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)) if tanh
                     else erf(y / math.sqrt(2)))) / 2
  def normed(x, weight=1.0, bias=0.0):
    return normal(x, weight, bias, 1e-7)
  table, (rows, length) = w['embedding.word_embedding.weight'], tokens.shape
  relative = normed(w['embedding.relative_embedding'],
                    *(w[f'embedding.relative_layer_norm.{p}'] for p in (
      'weight', 'bias')))
  distance = np.arange(length)[:, None] - np.arange(length)
  far = np.ceil(np.log(np.maximum(abs(distance), 1) / 2) / math.log(15 / 2)) + 2
  bucket = 3 + np.where(abs(distance) <= 2, distance, far * np.sign(distance)).astype(int)
  x = normed(table[tokens])
  for n in range(2):
    p = {name.partition(f'layers.{n}.')[2]: y for name, y in w.items() if f'layers.{n}.' in name}
    linear = lambda x, name, p=p: x @ p[f'attention.{name}.weight'].T + p[f'attention.{name}.bias']
    h = normed(x)
    (q, k), (a, b) = (np.split(linear(y, 'in_proj_qk').reshape(*y.shape[:-1], 6, 8), 2, -2)
                      for y in (h, relative))
    bias = np.einsum('bqha,qkha->bhqk', q, b[bucket]) + np.einsum('bkha,qkha->bhqk', k, a[bucket])
    y = linear(attend(q / math.sqrt(3), k, linear(h, 'in_proj_v').reshape(rows, length, 3, 8),
                      bias / math.sqrt(24)),
               'out_proj')
    x = x + normed(y, p['attention.post_layer_norm.weight'], p['attention.post_layer_norm.bias'])
    a, b = np.split(normed(x) @ p['mlp.mlp.1.weight'].T, 2, -1)
    x = x + normed(a * gelu(b, tanh=True)) @ p['mlp.mlp.4.weight'].T
  x = normed(x)
  h = normed(gelu(x @ w['classifier.nonlinearity.1.weight'].T
                  + w['classifier.nonlinearity.1.bias']))
  return x, h @ table.T + w['classifier.nonlinearity.5.bias']


def ltg_shapes():
  matrices = {'attention.in_proj_qk': (48, 24), 'attention.in_proj_v': (24, 24),
              'attention.out_proj': (24, 24),
              'mlp.mlp.1': (32, 24), 'mlp.mlp.4': (24, 16)}
  biases = {'attention.in_proj_qk': 48, 'attention.in_proj_v': 24, 'attention.out_proj': 24,
            'attention.post_layer_norm': 24}
  layers = {f'{name}.weight': shape for name, shape in matrices.items()} | {
      f'{name}.bias': (size,) for name, size in biases.items()} | {
          'attention.post_layer_norm.weight': (24,)}
  return {'embedding.word_embedding.weight': (40, 24), 'embedding.relative_embedding': (7, 24),
          **{f'embedding.relative_layer_norm.{part}': (24,) for part in ('weight', 'bias')},
          **{f'transformer.layers.{n}.{name}': shape for n in range(2)
             for name, shape in layers.items()},
          'classifier.nonlinearity.1.weight': (24, 24), 'classifier.nonlinearity.1.bias': (24,),
          'classifier.nonlinearity.5.bias': (40,)}


def gpt(w, tokens):
  """ltgoslo/gpt-bert, pretraining/model_extra.py: scores of distances, gates, the norm before the
  output projection, sums of all states after each sublayer; and the norm at the beginning of
  heads."""
  def gelu(y, tanh=False):
    return y * (1 + (np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)) if tanh
                     else erf(y / math.sqrt(2)))) / 2
  def normed(x, weight=1.0, bias=0.0):
    return normal(x, weight, bias, 1e-5)
  def halves(x, name):
    return np.split(x @ w[f'{name}.weight'].T + w[f'{name}.bias'], 2, -1)
  table, (rows, length) = w['embedding.word_embedding.weight'], tokens.shape
  relative = normed(w['embedding.relative_embedding'],
                    *(w[f'embedding.relative_layer_norm.{p}'] for p in (
      'weight', 'bias')))
  distance = np.arange(length)[:, None] - np.arange(length)
  far = np.ceil(np.log(np.maximum(abs(distance), 1) / 2) / math.log(15 / 2)) + 2
  bucket = 3 + np.where(abs(distance) <= 2, distance, far * np.sign(distance)).astype(int)
  x = normed(table[tokens])
  states = [x]
  def summed(x):
    alpha = w[f'transformer.dwa_modules.alphas.{len(states) - 1}']
    states.append(x)
    return sum(a * state for a, state in zip(alpha, states, strict=True))
  for n in range(2):
    at = f'transformer.attention_layers.{n}'
    h = normed(x)
    q, k = (y.reshape(rows, length, 3, 8) for y in halves(h, f'{at}.in_proj_qk'))
    v, gate = halves(h, f'{at}.in_proj_vg')
    q_pos, k_pos = (y[bucket].reshape(length, length, 3, 8)
                    for y in halves(relative, f'{at}.in_proj_qk'))
    scores = (np.einsum('bqhd,qkhd->bhqk', q, k_pos)
              + np.einsum('bkhd,qkhd->bhqk', k, q_pos)) / math.sqrt(3 * 8)
    y = attend(q / math.sqrt(3), k, v.reshape(rows, length, 3, 8), scores) * gelu(gate)
    x = summed(x + normed(y) @ w[f'{at}.out_proj.weight'].T + w[f'{at}.out_proj.bias'])
    a, b = np.split(normed(x) @ w[f'transformer.mlp_layers.{n}.mlp.1.weight'].T, 2, -1)
    x = summed(x + normed(a * gelu(b, tanh=True)) @ w[f'transformer.mlp_layers.{n}.mlp.4.weight'].T)
  x = normed(x)
  h = normed(gelu(x @ w['classifier.nonlinearity.1.weight'].T
                  + w['classifier.nonlinearity.1.bias']))
  return x, h @ table.T + w['classifier.nonlinearity.5.bias']


def gpt_shapes():
  attention = {'in_proj_qk.weight': (48, 24), 'in_proj_qk.bias': (48,),
               'in_proj_vg.weight': (48, 24),
               'in_proj_vg.bias': (48,), 'out_proj.weight': (24, 24), 'out_proj.bias': (24,)}
  mlp = {'mlp.1.weight': (32, 24), 'mlp.4.weight': (24, 16)}
  kept = {name: shape for name, shape in ltg_shapes().items() if 'transformer' not in name}
  return kept | {f'transformer.attention_layers.{n}.{name}': shape for n in range(2)
                 for name, shape in attention.items()} | {
      f'transformer.mlp_layers.{n}.{name}': shape for n in range(2)
      for name, shape in mlp.items()} | {
      f'transformer.dwa_modules.alphas.{n}': (n + 2,) for n in range(4)}


def neo_shapes():
  layer = {'attention_norm': (24,), 'qkv': (72, 24), 'wo': (24, 24), 'ffn_norm': (24,),
           'ffn.w12': (80, 24),
           'ffn.w3': (24, 40)}
  layers = {f'model.transformer_encoder.{n}.{name}': shape for n in range(2)
            for name, shape in layer.items()}
  return {f'{name}.weight': shape for name, shape in {
      'model.encoder': (40, 24), 'model.layer_norm': (24,), 'decoder': (40, 24),
      **layers}.items()} | {
          'decoder.bias': (40,)}


def mosaic_shapes():
  biased = {'attention.self.Wqkv': (72, 24), 'attention.output.dense': (24, 24),
            'attention.output.LayerNorm': (24,),
            'mlp.wo': (24, 20), 'mlp.layernorm': (24,)}
  biased = {f'bert.encoder.layer.{n}.{name}': shape for n in range(2)
            for name, shape in biased.items()} | {
      'bert.embeddings.LayerNorm': (24,), 'cls.predictions.transform.dense': (24, 24),
      'cls.predictions.transform.LayerNorm': (24,)}
  return {'bert.embeddings.word_embeddings.weight': (40, 24),
          'bert.embeddings.token_type_embeddings.weight': (2, 24),
          'cls.predictions.decoder.bias': (40,),
          **{f'bert.encoder.layer.{n}.mlp.gated_layers.weight': (40, 24) for n in range(2)},
          **{f'{name}.weight': shape for name, shape in biased.items()},
          **{f'{name}.bias': shape[:1] for name, shape in biased.items()}}


@pytest.mark.parametrize(('hf_config', 'shapes', 'reference', 'family'), [
    (NEO, neo_shapes(), neo, 'neobert'), (MOSAIC, mosaic_shapes(), mosaic, 'mosaicbert'),
    (CRAMMED, cram_shapes(), cram, 'crammedBERT'), (LTG, ltg_shapes(), ltg, 'ltgbert'),
    (GPT, gpt_shapes(), gpt, 'gptbert')], ids=['neo', 'mosaic', 'crammed', 'ltg', 'gpt'])
def test_released_checkpoints_are_read_and_written(hf_config, shapes, reference, family, tmp_path):
  draw = np.random.default_rng(0)
  weights = {name: (draw.normal(size=shape) * 0.3
                    + (len(shape) == 1 and name.endswith('weight'))).astype(np.float32)
             for name, shape in shapes.items()}
  (tmp_path / 'theirs').mkdir()
  tied = {'mosaicbert': ('cls.predictions.decoder.weight',
                         'bert.embeddings.word_embeddings.weight'),
          'crammedBERT': ('decoder.weight', 'encoder.embedding.word_embedding.weight'),
          'ltgbert': ('classifier.nonlinearity.5.weight', 'embedding.word_embedding.weight')}
  tied = tied.get('ltgbert' if family == 'gptbert' else family)
  save_file(weights | ({tied[0]: weights[tied[1]]} if tied else {}),
            tmp_path / 'theirs' / 'model.safetensors')
  (tmp_path / 'theirs' / 'config.json').write_text(json.dumps(hf_config))
  found = conversion.load(tmp_path / 'theirs')
  assert found.family == family and {*found.heads} == {'mlm'}
  tokens = draw.integers(1, 40, (2, 9))
  segments = (np.arange(9) < np.array(LENGTHS)[:, None]).astype(np.int32)
  model: Any = ModelWithHeads(Encoder(found.config), {**found.heads, 'hidden': HiddenStatesHead()})
  got = jax.jit(lambda p: model.apply({'params': p},
                                      {'tokens': tokens, 'segments': segments}))(found.params)
  hidden, logits = reference({name: x.astype(np.float64) for name, x in weights.items()}, tokens)
  for ours, want in ((got['hidden'], hidden), (got['mlm'], logits)):
    np.testing.assert_allclose(np.where(segments[..., None], ours, 0),
                               np.where(segments[..., None], want, 0),
                               atol=2e-5 * np.abs(want).max())

  conversion.save(tmp_path / 'ours', found.config, found.params, like=family)
  written, said = (load_file(tmp_path / 'ours' / 'model.safetensors'),
                   json.loads((tmp_path / 'ours' / 'config.json').read_text()))
  assert {*written} == {*weights} and all((written[name] == x).all() for name, x in weights.items())
  assert said['model_type'] == hf_config.get('model_type', family)
  assert 'auto_map' not in hf_config or 'AutoConfig' in said['auto_map']
  again = conversion.load(tmp_path / 'ours')
  assert again.config == found.config and again.family == family


@pytest.mark.parametrize(('config', 'backbone', 'whole'), [
    (neobert.base(), 221_665_536, 245_136_954), (mosaicbert.base(), 136_777_728, 137_400_384),
    (mosaicbert.large(), 434_139_136, 435_221_312), (crammed.base(), 119_589_889, 119_589_889),
    (ltg_bert.base(), 97_622_784, 98_229_760), (gpt_bert.base(), 118_847_556, 119_454_532),
    (gpt_bert.small(), 29_736_132, 29_892_164)],
    ids=['neobert', 'mosaicbert', 'mosaicbert_large', 'crammed', 'ltg', 'gpt', 'gpt_small'])
def test_parameters_as_published(config, backbone, whole):
  """222M and 250M (Le Breton et al. 2025); 137M and 434M (Portes et al. 2023); 120M (Geiping and
  Goldstein 2023); 98M (Samuel et al. 2023); 119M and 30M (Charpentier and Samuel 2024)."""
  batch = {name: jnp.zeros((1, 8), jnp.int32) for name in ('tokens', 'segments', 'positions')}
  model = ModelWithHeads(Encoder(config), MaskedLM(pair=Single()).heads(config))
  params = unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)['params']))
  assert count_parameters(params['backbone']) == backbone and count_parameters(params) == whole


@pytest.mark.parametrize('family', [
    mosaicbert, *(pytest.param(family, marks=[pytest.mark.slow, pytest.mark.release])
                  for family in (neobert, ltg_bert, gpt_bert))])
def test_packed_texts_give_the_outputs_of_single_texts(family):
  """And one gets no gradient of the other."""
  config = validation.with_paths(family.base(), {
      'block.width': 24, 'block.heads': 6, 'block.mlp_dim': 16, 'stack.layers': 2, 'vocab': 40,
      'max_length': 16,
      'block.init.std': 0.3, 'embeddings.types': 0})
  tokens, segments = np.arange(5, 17)[None], np.repeat([1, 2], [5, 7])[None]
  model: Any = Encoder(config, packed=True)
  params = unbox(jax.jit(model.init)(jax.random.key(0),
                                     {'tokens': tokens, 'segments': segments})['params'])
  def read(tokens, segments, noise):
    return model.apply({'params': params},
                       {'tokens': tokens, 'segments': segments, 'noise': noise}).hidden
  whole = read(tokens, segments, jnp.zeros((1, 12, 24)))
  for part in slice(5), slice(5, 12):
    alone = read(tokens[:, part], 0 * segments[:, part] + 1, jnp.zeros((1, 24)))
    np.testing.assert_allclose(whole[:, part], alone, atol=1e-5)
  gradient = jax.grad(lambda noise: (read(tokens, segments, noise)[:, :5] ** 3).sum())(
      jnp.zeros((1, 12, 24)))
  assert not gradient[:, 5:].any() and gradient[:, :5].any(-1).all()


def test_widths_of_a_gated_network():
  assert neobert.swiglu_width(3072) == 2048 and neobert.swiglu_width(50) == 40
  assert neobert.normalize_hf_config({'intermediate_size': 3072})['intermediate_size'] == 2048
  with pytest.raises(ConvertError, match='dim_head is not'):
    neobert.normalize_hf_config({'dim_head': 32})
  with pytest.raises(ConvertError, match=r'block\.mlp_dim is 20, and theirs are multiples of 8'):
    neobert.denormalize_hf_config({'intermediate_size': 20})
  assert alibi_slopes(8) == [2 ** -(n + 1) for n in range(8)] and alibi_slopes(1) == [1 / 256]
