"""The same work as a command, in JAX and Flax alone: read a transformers checkpoint, compute, print.

    python -m benchmarks.bare_model fill-mask|encode|predict|tag|generate FOLDER TEXT

It knows BERT and GPT-2, checks nothing, and imports nothing else but safetensors and tokenizers. `command_start_up`
compares the commands of plm_jax with it.
"""
import json
import pathlib
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import tokenizers

LENGTH, NEW_TOKENS = 16, 8


class Layer(nn.Module):
  """A Transformer layer: with the norms after the sublayers as in BERT, or before them as in GPT-2."""

  width: int
  heads: int
  inner: int
  eps: float
  decoder: bool

  @nn.compact
  def __call__(self, x, mask):
    attention_norm = nn.LayerNorm(self.eps, name='attention_norm')
    mlp_norm = nn.LayerNorm(self.eps, name='mlp_norm')
    y = attention_norm(x) if self.decoder else x
    q, k, v = (nn.Dense(self.width, name=name)(y).reshape(*y.shape[:2], self.heads, -1)
               for name in ('query', 'key', 'value'))
    weights = jnp.einsum('bqhd,bkhd->bhqk', q, k) / np.sqrt(self.width // self.heads)
    weights = jax.nn.softmax(jnp.where(mask, weights, -1e9))
    y = nn.Dense(self.width, name='output')(jnp.einsum('bhqk,bkhd->bqhd', weights, v).reshape(x.shape))
    x = x + y if self.decoder else attention_norm(x + y)
    y = nn.Dense(self.inner, name='up')(mlp_norm(x) if self.decoder else x)
    y = nn.Dense(self.width, name='down')(nn.gelu(y, approximate=self.decoder))
    return x + y if self.decoder else mlp_norm(x + y)


class Model(nn.Module):
  """A BERT or a GPT-2, and the head of a task."""

  task: str
  rows: tuple[int, int, int]
  """rows of the tables of tokens, positions and segments"""
  layers: int
  layer: Layer
  classes: int

  @nn.compact
  def __call__(self, tokens, place):
    layer = self.layer
    names = 'tokens', 'positions', 'types'
    table, positions, types = (self.param(name, nn.initializers.zeros, (rows, layer.width))
                               for name, rows in zip(names, self.rows, strict=True))
    x, norm = table[tokens] + positions[:tokens.shape[1]], nn.LayerNorm(layer.eps, name='norm')
    mask = (tokens > 0)[:, None, None]
    if layer.decoder:
      mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    else:
      x = norm(x + types[0])
    for number in range(self.layers):
      x = layer.copy(name=f'layer_{number}')(x, mask)
    if self.task == 'encode':
      real = (tokens > 0)[..., None]
      return (x * real).sum(1) / real.sum(1)
    if self.task == 'tag':
      return nn.Dense(self.classes, name='classifier')(x)
    if self.task == 'predict':
      x = nn.tanh(nn.Dense(layer.width, name='dense')(x[:, 0]))
      return jax.nn.softmax(nn.Dense(self.classes, name='classifier')(x))
    x = x[:, place]
    if self.task == 'generate':
      return norm(x) @ table.T
    x = nn.LayerNorm(layer.eps, name='head_norm')(nn.gelu(nn.Dense(layer.width, name='dense')(x), approximate=False))
    return jax.nn.softmax(x @ table.T + self.param('bias', nn.initializers.zeros, self.rows[:1]))


def read_bert(tensors, layers: int, task: str):
  """Return the parameters of a BERT from the tensors of transformers."""
  def dense(name):
    return {'kernel': tensors[f'{name}.weight'].T, 'bias': tensors[f'{name}.bias']}

  def norm(name):
    return {'scale': tensors[f'{name}.weight'], 'bias': tensors[f'{name}.bias']}

  at = 'bert.embeddings'
  params = {'tokens': tensors[f'{at}.word_embeddings.weight'], 'positions': tensors[f'{at}.position_embeddings.weight'],
            'types': tensors[f'{at}.token_type_embeddings.weight'], 'norm': norm(f'{at}.LayerNorm')}
  for number in range(layers):
    at = f'bert.encoder.layer.{number}'
    params[f'layer_{number}'] = {
        **{name: dense(f'{at}.attention.self.{name}') for name in ('query', 'key', 'value')},
        'output': dense(f'{at}.attention.output.dense'), 'attention_norm': norm(f'{at}.attention.output.LayerNorm'),
        'up': dense(f'{at}.intermediate.dense'), 'down': dense(f'{at}.output.dense'),
        'mlp_norm': norm(f'{at}.output.LayerNorm')}
  if task == 'fill-mask':
    at = 'cls.predictions'
    params |= {'dense': dense(f'{at}.transform.dense'), 'head_norm': norm(f'{at}.transform.LayerNorm'),
               'bias': tensors[f'{at}.bias']}
  if task == 'predict':
    params['dense'] = dense('bert.pooler.dense')
  if task in ('predict', 'tag'):
    params['classifier'] = dense('classifier')
  return params


def read_gpt2(tensors, layers: int):
  """Return the parameters of a GPT-2 from the tensors of transformers."""
  def dense(name):
    return {'kernel': tensors[f'{name}.weight'], 'bias': tensors[f'{name}.bias']}

  def norm(name):
    return {'scale': tensors[f'{name}.weight'], 'bias': tensors[f'{name}.bias']}

  tokens = tensors['transformer.wte.weight']
  params = {'tokens': tokens, 'positions': tensors['transformer.wpe.weight'],
            'types': np.zeros((1, tokens.shape[1]), np.float32), 'norm': norm('transformer.ln_f')}
  for number in range(layers):
    at = f'transformer.h.{number}'
    packed, layer = dense(f'{at}.attn.c_attn'), {}
    for name, kernel, bias in zip(('query', 'key', 'value'), np.split(packed['kernel'], 3, 1),
                                  np.split(packed['bias'], 3), strict=True):
      layer[name] = {'kernel': kernel, 'bias': bias}
    params[f'layer_{number}'] = layer | {
        'output': dense(f'{at}.attn.c_proj'), 'attention_norm': norm(f'{at}.ln_1'), 'up': dense(f'{at}.mlp.c_fc'),
        'down': dense(f'{at}.mlp.c_proj'), 'mlp_norm': norm(f'{at}.ln_2')}
  return params


def main() -> None:
  task, folder, text = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
  config = json.loads((folder / 'config.json').read_text())
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  tokenizer = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  labels = config.get('id2label', {})
  if task == 'generate':
    layers, width = config['n_layer'], config['n_embd']
    layer = Layer(width, config['n_head'], config.get('n_inner') or 4 * width, config['layer_norm_epsilon'], True)
    params, positions, types = read_gpt2(tensors, layers), config['n_positions'], 1
  else:
    layers = config['num_hidden_layers']
    layer = Layer(config['hidden_size'], config['num_attention_heads'], config['intermediate_size'],
                  config['layer_norm_eps'], False)
    params, positions, types = read_bert(tensors, layers, task), config['max_position_embeddings'], 2
  model = Model(task, (config['vocab_size'], positions, types), layers, layer, len(labels))
  params = jax.device_put(params)
  apply = jax.jit(lambda params, tokens, place: model.apply({'params': params}, tokens, place))

  ids = tokenizer.encode(text).ids
  def compute(place: int):
    tokens = np.zeros((1, LENGTH), np.int32)
    tokens[0, :len(ids)] = ids
    return np.asarray(apply(params, tokens, place))[0]

  if task == 'generate':
    for _ in range(NEW_TOKENS):
      ids.append(int(compute(len(ids) - 1).argmax()))
    print(tokenizer.decode(ids))
  elif task == 'fill-mask':
    found = compute(ids.index(tokenizer.token_to_id('[MASK]')))
    for token in np.argsort(-found)[:5]:
      print(f'{found[token]:7.2%}  {tokenizer.id_to_token(token)}')
  elif task == 'tag':
    for token, scores in zip(ids, compute(0), strict=False):
      print(tokenizer.id_to_token(token), labels[str(scores.argmax())])
  elif task == 'predict':
    found = compute(0)
    print(labels[str(found.argmax())], found)
  else:
    print(compute(0)[:4])


if __name__ == '__main__':
  main()
