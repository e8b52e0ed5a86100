"""Figures of the explanations, drawn by the code that they explain, in English and in Chinese.

`python docs/figures.py` writes them into docs/figures and docs/zh/figures.

A Chinese figure keeps its text as text and names common Chinese fonts, so the browser chooses one
and the machine that builds the site needs none.
"""
import logging
import pathlib
import warnings

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use('svg')

import matplotlib.pyplot as plt

from plm_jax.layers.masks import attention_mask
from plm_jax.objectives import corruption
from plm_jax.sharding import AXIS_RULES

HERE = pathlib.Path(__file__).parent
STYLE = {'svg.hashsalt': 'plm_jax', 'font.size': 9, 'figure.facecolor': 'white'}
CHINESE_STYLE = {
    'svg.fonttype': 'none',
    'font.sans-serif': [
        'DejaVu Sans', 'Noto Sans CJK SC', 'Source Han Sans SC', 'PingFang SC', 'Microsoft YaHei',
        'WenQuanYi Micro Hei', 'SimHei', 'sans-serif']}
CHINESE = {
    'query': '查询（query）',
    'key': '键（key）',
    'bidirectional (BERT)': '双向（BERT）',
    'causal (GPT-2)': '因果（GPT-2）',
    'prefix LM (decoder-only T5, GLM)': '前缀语言模型（纯解码器 T5、GLM）',
    'permutation (XLNet)': '排列（XLNet）',
    'two packed sequences': '打包的两个序列',
    'two packed sequences, causal': '打包的两个序列，因果',
    'masked token by token (unit=token)': '逐个词元掩码（unit=token）',
    'masked word by word (unit=word)': '按词掩码（unit=word）',
    '8 samples': '8 次抽样',
    'update': '更新次数',
    'value of the parameter': '参数的值',
    '1 shard, 8 copies': '不分片，8 份副本',
    '8 shards, 1 copy': '8 个分片，1 份副本',
    'epoch 0': '第 0 轮',
    'epoch 1': '第 1 轮',
    'epoch 2': '第 2 轮',
    'new masks in each epoch': '每轮重新掩码',
    'duplicates=2': 'duplicates=2',
}


def write(folder: pathlib.Path, chinese: bool) -> None:
  """Draw the figures in one language; Chinese names end with _zh."""
  folder.mkdir(exist_ok=True)
  # The layout needs no Chinese font.
  logging.getLogger('matplotlib.font_manager').setLevel(logging.ERROR)
  style = STYLE | CHINESE_STYLE if chinese else STYLE
  ending = '_zh.svg' if chinese else '.svg'
  translate = CHINESE.__getitem__ if chinese else str
  for draw in FIGURES:
    path = folder / f'{draw.__name__}{ending}'
    with plt.rc_context(style), warnings.catch_warnings():
      warnings.filterwarnings('ignore', message='Glyph')
      figure = draw(translate)
      figure.savefig(path, metadata={'Date': None, 'Creator': None}, bbox_inches='tight')
      plt.close(figure)


def masks(translate):
  """Draw the attention masks of six kinds of model, from their segments and ranks."""
  one, two = jnp.ones((1, 12), int), jnp.array([[1] * 7 + [2] * 5])
  position = jnp.arange(12)[None]
  order = jax.random.permutation(jax.random.key(0), 12)[None]
  cases = {
      'bidirectional (BERT)': (one, None),
      'causal (GPT-2)': (one, position),
      'prefix LM (decoder-only T5, GLM)': (one, jnp.maximum(position - 6, 0)),
      'permutation (XLNet)': (one, order),
      'two packed sequences': (two, None),
      'two packed sequences, causal': (two, position)}
  figure, axes = plt.subplots(2, 3, figsize=(8, 5.6))
  for axis, (title, (segments, ranks)) in zip(axes.flat, cases.items(), strict=True):
    mask = np.asarray(attention_mask(segments, segments, ranks, ranks))[0, 0]
    axis.imshow(mask, cmap='Blues', vmin=0, vmax=1.5)
    axis.set_title(translate(title), fontsize=9)
    axis.set(xticks=[], yticks=[], xlabel=translate('key'), ylabel=translate('query'))
  figure.tight_layout()
  return figure


def words(translate):
  """Draw eight samples of masks: token by token, and word by word."""
  tokens = [
      'the', 'token', '##izer', 'un', '##mask', '##s', 'pre', '##train', '##ing', 'text', 'in', 'Jap', '##an',
      '##ese']
  number = jnp.cumsum(jnp.array([not token.startswith('##') for token in tokens]))
  keys = jax.random.split(jax.random.key(1), 8)
  masked = {
      'masked token by token (unit=token)':
          jax.vmap(lambda key: corruption.choose_tokens(key, number > 0, 4))(keys),
      'masked word by word (unit=word)':
          jax.vmap(lambda key: corruption.number_spans(key, number, 4))(keys) > 0}
  figure, axes = plt.subplots(2, 1, figsize=(8, 3.8))
  for axis, (title, samples) in zip(axes, masked.items(), strict=True):
    axis.imshow(np.asarray(samples), cmap='YlOrBr', vmin=0, vmax=1.6, aspect='auto')
    axis.set_title(translate(title), fontsize=9)
    axis.set(ylabel=translate('8 samples'), yticks=[], xticks=range(len(tokens)))
    axis.set_xticklabels(tokens, fontsize=8)
  figure.tight_layout()
  return figure


def precision(translate):
  """Draw a parameter of value 1 over a thousand updates of 0.001, in float32 and in bfloat16."""
  figure, axis = plt.subplots(figsize=(6, 2.8))
  for dtype in (jnp.float32, jnp.bfloat16):
    step = jnp.asarray(1e-3, dtype)
    _, path = jax.lax.scan(lambda x, _, step=step: (x + step, x), jnp.ones((), dtype), None, 1000)
    axis.plot(np.asarray(path, np.float32), label=jnp.dtype(dtype).name)
  axis.set(xlabel=translate('update'), ylabel=translate('value of the parameter'))
  axis.legend()
  return figure


def sharding(translate):
  """Draw how the kernel of an MLP [width, mlp] is sharded over eight devices by three meshes."""
  figure, axes = plt.subplots(1, 3, figsize=(8, 2.7))
  for axis, mesh in zip(axes, ({'data': 8}, {'fsdp': 8}, {'fsdp': 4, 'tensor': 2}), strict=True):
    parts = []
    for logical in ('width', 'mlp'):
      parts.append(int(np.prod([mesh.get(name, 1) for name in AXIS_RULES[logical]])))
    owner = np.arange(parts[0] * parts[1]).reshape(parts)
    picture = np.kron(owner, np.ones((16 // parts[0], 16 // parts[1])))
    axis.imshow(picture, cmap='tab10', vmin=0, vmax=9)
    options = ', '.join(f'{name}={size}' for name, size in mesh.items())
    count = translate('1 shard, 8 copies' if owner.size == 1 else '8 shards, 1 copy')
    axis.set_title(f'{options}: {count}', fontsize=9)
    axis.set(xlabel='mlp', ylabel='width', xticks=[], yticks=[])
  figure.tight_layout()
  return figure


def determinism(translate):
  """Draw the masks of four windows in three epochs, without and with two duplicates."""
  figure, axes = plt.subplots(2, 3, figsize=(8, 2.8))
  for line, duplicates in zip(axes, (0, 2), strict=True):
    for epoch, axis in enumerate(line):
      windows = {
          'corpus': jnp.zeros(4, int), 'index': jnp.arange(4), 'epoch': jnp.full(4, epoch)}
      keys = corruption.example_keys(jax.random.key(0), windows, duplicates)
      masked = jax.vmap(lambda key: corruption.choose_tokens(key, jnp.ones(24, bool), 4))(keys)
      axis.imshow(np.asarray(masked), cmap='YlOrBr', vmin=0, vmax=1.6, aspect='auto')
      kind = translate('duplicates=2' if duplicates else 'new masks in each epoch')
      axis.set_title(f'{translate(f"epoch {epoch}")}: {kind}', fontsize=9)
      axis.set(xticks=[], yticks=[])
  figure.tight_layout()
  return figure


FIGURES = (masks, words, precision, sharding, determinism)

if __name__ == '__main__':
  for docs, chinese in ((HERE, False), (HERE / 'zh', True)):
    write(docs / 'figures', chinese)
