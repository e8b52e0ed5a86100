"""Checkpoints of fairseq: RoBERTa, XLM-R, BART and mBART, `model.pt`, whose pickle is read as data.

The tensors have transformers' names here, and the configuration, which the pickle has among what is not read, is that
of the shapes; heads are of 64, as in every released size.
"""
import pathlib
import re
from typing import Any

import numpy as np

from plm_jax.conversion.rules import ConvertError, refuse
from plm_jax.conversion.slices import Index
from plm_jax.conversion.torch_pickle import TorchPickle

FILE, PIECES = 'model.pt', 'sentencepiece.bpe.model'
# Buffers.
NONE = re.compile(r'(^|\.)(version|_float_tensor|_float_const)$')
TYPES = 'roberta.embeddings.token_type_embeddings.weight'
LAYER = 'roberta.encoder.layer.'
ROBERTA = (
    (r'^(en|de)coder\.sentence_encoder\.', 'sentence_encoder.'), (r'^(en|de)coder\.lm_head\.', 'lm_head.'),
    (r'^lm_head\.weight$', 'lm_head.decoder.weight'),
    (r'^sentence_encoder\.embed_tokens', 'roberta.embeddings.word_embeddings'),
    (r'^sentence_encoder\.embed_positions', 'roberta.embeddings.position_embeddings'),
    (r'^sentence_encoder\.(emb_layer_norm|layernorm_embedding)', 'roberta.embeddings.LayerNorm'),
    (r'^sentence_encoder\.layers\.', LAYER), (r'\.self_attn\.q_proj', '.attention.self.query'),
    (r'\.self_attn\.k_proj', '.attention.self.key'), (r'\.self_attn\.v_proj', '.attention.self.value'),
    (r'\.self_attn\.out_proj', '.attention.output.dense'),
    (r'\.self_attn_layer_norm', '.attention.output.LayerNorm'), (r'\.final_layer_norm', '.output.LayerNorm'),
    (r'\.fc1', '.intermediate.dense'), (r'\.fc2', '.output.dense'),
    (r'^classification_heads\.\w+\.', 'classifier.'))
BART = ((r'^decoder\.output_projection\.', 'lm_head.'), (r'^(en|de)coder\.', r'model.\1coder.'),
        (r'^classification_heads\.\w+\.', 'classification_head.'))


class Fairseq:
  """The tensors of a checkpoint under transformers' names, and its configuration in `described`.

  Queries, keys and values that lie in one (before 2019's end) are three; the types of one row that transformers'
  RoBERTa has, and fairseq's has not, are zeros.
  """

  def __init__(self, path: pathlib.Path):
    """Raises ConvertError for a pickle of anything else."""
    self.source, self.path = TorchPickle(path, inside='model'), path
    self.kind = 'bart' if 'encoder.layers.0.fc1.weight' in self.source.tensors else 'roberta'
    self.places: dict[str, tuple[str, slice | None]] = {}  # transformers' name -> theirs, and which rows
    self.tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, (shape, dtype) in self.source.tensors.items():
      if not NONE.search(name):
        for whole, rows in parts(name, shape):
          self.add(whole, name, rows, (shape if rows is None else (rows.stop - rows.start, *shape[1:]), dtype))
    self.described = self.describe()
    if self.kind == 'roberta':
      self.tensors[TYPES] = (1, self.described['hidden_size']), 'F32'

  def add(self, name: str, theirs: str, rows: slice | None, said: tuple[tuple[int, ...], str]) -> None:
    """Notes a tensor. Raises ConvertError for two of one name."""
    for pattern, replacement in ROBERTA if self.kind == 'roberta' else BART:
      name = re.sub(pattern, replacement, name)
    if name in self.places:
      raise ConvertError(f'{self.path}: the tensors {self.places[name][0]} and {theirs} are both {name}')
    self.places[name], self.tensors[name] = (theirs, rows), said

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Reads tensor[index]."""
    if name not in self.places:
      return np.zeros(self.tensors[name][0], np.float32)[... if index is None else index]
    theirs, rows = self.places[name]
    x = self.source.read(theirs)
    return (x if rows is None else x[rows])[... if index is None else index]

  def describe(self) -> dict[str, Any]:
    """Returns transformers' configuration by the shapes. Raises ConvertError where there are not those of a model."""
    first = f'{LAYER}0.intermediate.dense.weight' if self.kind == 'roberta' else 'model.encoder.layers.0.fc1.weight'
    embeddings = {'roberta': 'roberta.embeddings.{}_embeddings.weight', 'bart': 'model.encoder.embed_{}s.weight'}
    tokens, positions = (embeddings[self.kind].format(name) for name in (
        ('word', 'position') if self.kind == 'roberta' else ('token', 'position')))
    refuse([name for name in (tokens, positions, first) if len(self.tensors.get(name, ((), ''))[0]) != 2],
           f'{self.path} is no RoBERTa and no BART of fairseq: it has no tensor')
    (vocab, width), (rows, _), (inner, _) = (self.tensors[name][0] for name in (tokens, positions, first))
    said = {'vocab_size': vocab, 'pad_token_id': 1, 'bos_token_id': 0, 'eos_token_id': 2}
    heads = max(1, width // 64)
    classes = {name: self.tensors[name][0][0] for name in (
        'classifier.out_proj.weight', 'classification_head.out_proj.weight') if name in self.tensors}
    said |= {'num_labels': next(iter(classes.values()))} if classes else {}
    if self.kind == 'roberta':
      many = vocab == 250_002 or (self.path.parent / PIECES).exists()
      return {**said, 'model_type': 'xlm-roberta' if many else 'roberta', 'hidden_size': width,
              'num_hidden_layers': self.count(LAYER), 'num_attention_heads': heads, 'intermediate_size': inner,
              'max_position_embeddings': rows, 'type_vocab_size': 1, 'layer_norm_eps': 1e-5}
    pre = 'model.encoder.layer_norm.weight' in self.tensors
    sides = {f'{side}_{name}': value for side in ('encoder', 'decoder') for name, value in (
        ('layers', self.count(f'model.{side}.layers.')), ('attention_heads', heads), ('ffn_dim', inner))}
    return {**said, **sides, 'model_type': 'mbart' if pre else 'bart', 'd_model': width,
            'max_position_embeddings': rows - 2, 'scale_embedding': pre}

  def count(self, before: str) -> int:
    """Counts the layers whose names begin so."""
    return len({name.removeprefix(before).partition('.')[0] for name in self.tensors if name.startswith(before)})


def parts(name: str, shape: tuple[int, ...]):
  """Yields (a name, rows of the tensor that are it, None for all): of in_proj_weight and its like there are three."""
  before, _, leaf = name.rpartition('.')
  if leaf not in ('in_proj_weight', 'in_proj_bias') or not shape or shape[0] % 3:
    yield name, None
    return
  size = shape[0] // 3
  for number, part in enumerate('qkv'):
    yield f'{before}.{part}_proj.{leaf.removeprefix("in_proj_")}', slice(number * size, (number + 1) * size)
