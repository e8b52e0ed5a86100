"""BERT with its two heads and its loss in plain numpy, float64, as a reference."""
import jax
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
  return inside(p, batch)['hidden'][-1]


def inside(p, batch):
  """p: parameters of the encoder -> embedded [B, L, D]; hidden [B, L, D], scores, unmasked, [B, H,
  L, L], and query, key, value [B, L, H, A], one a layer."""
  table = p['embeddings']
  x = table['tokens'][batch['tokens']] + table['positions'][:batch['tokens'].shape[1]]
  x = x + table['types'][batch['types']] if 'types' in table else x
  x = norm(x, table['norm'])
  found = {'embedded': x, **{name: [] for name in ('hidden', 'scores', 'query', 'key', 'value')}}
  run_layers(p['stack']['layers']['block'], x, batch['segments'] > 0, found)
  return found


def run_layers(layers, x, seen, found=None):
  """layers: parameters with an axis of layers; x: [B, L, D]; seen: [B, L], tokens that are no
  padding; found: lists that get the states of each layer -> [B, L, D]."""
  for n in range(layers['mlp_norm']['scale'].shape[0]):
    layer = jax.tree.map(lambda x, n=n: x[n], layers)
    attention, mlp = layer['attention'], layer['mlp']
    q, k, v = (np.einsum('bld,dha->blha', x, attention[name]['kernel']) + attention[name]['bias']
               for name in ('query', 'key', 'value'))
    logits = np.einsum('bqha,bkha->bhqk', q, k) / np.sqrt(q.shape[-1])
    probs = np.exp(log_softmax(np.where(seen[:, None, None, :], logits, -1e9)))
    y = np.einsum('bhqk,bkha->bqha', probs, v)
    y = np.einsum('bqha,had->bqd', y, attention['out']['kernel']) + attention['out']['bias']
    x = norm(x + y, layer['attention_norm'])
    y = gelu(x @ mlp['up']['kernel'] + mlp['up']['bias']) @ mlp['down']['kernel'] + mlp['down'][
        'bias']
    x = norm(x + y, layer['mlp_norm'])
    for name, value in dict(hidden=x, scores=logits, query=q, key=k, value=v).items():
      if found:
        found[name].append(value)
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
  rows = -np.take_along_axis(log_softmax(pooled @ nsp['kernel'] + nsp['bias']),
                             batch['nsp'][:, None], -1)[:, 0]
  full = batch['segments'].any(-1)
  return (tokens * batch['weights']).sum() / batch['weights'].sum() + (rows * full).sum(
      ) / full.sum()
