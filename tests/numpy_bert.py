"""BERT with its two heads and its loss in plain numpy, float64: what the real one is compared with."""
import numpy as np
from scipy.special import erf


def gelu(x):
  return x * (1 + erf(x / np.sqrt(2))) / 2


def norm(x, p, eps=1e-12):
  x = x - x.mean(-1, keepdims=True)
  return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) * p['scale'] + p['bias']


def log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def hidden(p, batch):
  """p: parameters of the encoder -> [B, L, D]."""
  table = p['embeddings']
  x = table['tokens'][batch['tokens']] + table['positions'][:batch['tokens'].shape[1]] + table['types'][batch['types']]
  x = norm(x, table['norm'])
  seen = (batch['segments'] > 0)[:, None, None, :]
  layers = p['stack']['layers']['block']
  number = layers['mlp_norm']['scale'].shape[0]
  for n in range(number):
    at = lambda module, name, n=n: {key: value[n] for key, value in layers[module][name].items()}
    q, k, v = (np.einsum('bld,dha->blha', x, at('attention', name)['kernel']) + at('attention', name)['bias']
               for name in ('query', 'key', 'value'))
    logits = np.einsum('bqha,bkha->bhqk', q, k) / np.sqrt(q.shape[-1])
    probs = np.exp(log_softmax(np.where(seen, logits, -1e9)))
    y = np.einsum('bhqk,bkha->bqha', probs, v)
    out = at('attention', 'out')
    x = norm(x + np.einsum('bqha,had->bqd', y, out['kernel']) + out['bias'], {k: v[n] for k, v in layers['attention_norm'].items()})
    up, down = at('mlp', 'up'), at('mlp', 'down')
    y = gelu(x @ up['kernel'] + up['bias']) @ down['kernel'] + down['bias']
    x = norm(x + y, {k: v[n] for k, v in layers['mlp_norm'].items()})
  return x


def loss(params, batch):
  """Mean of MLM over predicted positions plus mean of NSP over rows of text."""
  x, mlm, nsp = hidden(params['backbone'], batch), params['heads_mlm'], params['heads_nsp']['dense']
  h = np.take_along_axis(x, batch['positions'][..., None], 1)
  h = norm(gelu(h @ mlm['dense']['kernel'] + mlm['dense']['bias']), mlm['norm'])
  logits = log_softmax(h @ params['backbone']['embeddings']['tokens'].T + mlm['bias'])
  tokens = -np.take_along_axis(logits, batch['labels'][..., None], -1)[..., 0]
  pooler = params['backbone']['pooler']
  pooled = np.tanh(x[:, 0] @ pooler['kernel'] + pooler['bias'])
  rows = -np.take_along_axis(log_softmax(pooled @ nsp['kernel'] + nsp['bias']), batch['nsp'][:, None], -1)[:, 0]
  full = batch['segments'].any(-1)
  return (tokens * batch['weights']).sum() / batch['weights'].sum() + (rows * full).sum() / full.sum()
