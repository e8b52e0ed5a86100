"""Checkpoints of fairseq: `model.pt` of RoBERTa, XLM-R, BART and mBART.

The pickle is read as data. The tensors get transformers' names. The configuration comes from the
shapes and from what the pickle states about the model, in `args` or, since version 0.10.2, in
`cfg.model`. For a pickle that states nothing, heads are of 64, as in every released size.
"""
from collections.abc import Iterator, Mapping
import pathlib
import re
from typing import Any

import numpy as np

from plm_jax.conversion.files import RenamedPickle
from plm_jax.conversion.torch_pickle import TorchPickle
from plm_jax.models.layouts import Shape
from plm_jax.models.rules import ConvertError, raise_problems
from plm_jax.tokenizers.contract import abbreviate

FILE, PIECES = 'model.pt', 'sentencepiece.bpe.model'
BUFFERS = re.compile(r'(^|\.)(version|_float_tensor|_float_const)$')
"""names of tensors that are no parameters"""
ACTIVATIONS = {'relu': 'relu', 'gelu': 'gelu', 'gelu_fast': 'gelu_new', 'gelu_accurate': 'gelu_new',
               'swish': 'silu'}
"""fairseq's names of activations -> transformers'"""
FIXED = {
    'adaptive_softmax_cutoff': None, 'encoder_learned_pos': True, 'decoder_learned_pos': True,
    'layernorm_embedding': True, 'adaptive_input': False, 'cross_self_attention': False,
    'no_cross_attention': False, 'no_token_positional_embeddings': False,
    'token_positional_embeddings': True, 'decoder_output_dim': None,
    'encoder_layers_to_keep': None, 'decoder_layers_to_keep': None,
    'spectral_norm_classification_head': False, 'pooler_activation_fn': 'tanh',
    'tie_adaptive_weights': False, 'untie_weights_roberta': False}
"""attributes that are supported at these values only"""
TOKEN_TYPES = 'roberta.embeddings.token_type_embeddings.weight'
LAYER = 'roberta.encoder.layer.'
ROBERTA = (
    (r'^(en|de)coder\.sentence_encoder\.', 'sentence_encoder.'),
    (r'^(en|de)coder\.lm_head\.', 'lm_head.'),
    (r'^lm_head\.weight$', 'lm_head.decoder.weight'),
    (r'^sentence_encoder\.embed_tokens', 'roberta.embeddings.word_embeddings'),
    (r'^sentence_encoder\.embed_positions', 'roberta.embeddings.position_embeddings'),
    (r'^sentence_encoder\.(emb_layer_norm|layernorm_embedding)', 'roberta.embeddings.LayerNorm'),
    (r'^sentence_encoder\.layers\.', LAYER), (r'\.self_attn\.q_proj', '.attention.self.query'),
    (r'\.self_attn\.k_proj', '.attention.self.key'),
    (r'\.self_attn\.v_proj', '.attention.self.value'),
    (r'\.self_attn\.out_proj', '.attention.output.dense'),
    (r'\.self_attn_layer_norm', '.attention.output.LayerNorm'),
    (r'\.final_layer_norm', '.output.LayerNorm'),
    (r'\.fc1', '.intermediate.dense'), (r'\.fc2', '.output.dense'),
    (r'^classification_heads\.\w+\.', 'classifier.'))
"""patterns of fairseq's names -> transformers' names, of a RoBERTa"""
BART = (
    (r'^decoder\.output_projection\.', 'lm_head.'), (r'^(en|de)coder\.', r'model.\1coder.'),
    (r'^classification_heads\.\w+\.', 'classification_head.'))
"""the same, of a BART"""
ENCODER_TABLE = 'model.encoder.embed_tokens.weight'
DECODER_TABLE = 'model.decoder.embed_tokens.weight'
SHARED_TABLE = 'model.shared.weight'
"""token table of both sides of a BART"""


class FairseqCheckpoint(RenamedPickle):
  """The tensors of a checkpoint under transformers' names, and its configuration in `hf_config`.

  Queries, keys and values, which are one tensor before the end of 2019, become three. transformers'
  RoBERTa has a table of one segment type that fairseq's does not have: it is zeros.
  """

  def __init__(self, path: pathlib.Path):
    """Open a checkpoint. Raises ConvertError for a pickle of anything else."""
    super().__init__(TorchPickle(path, inside='model', nested=True), path)
    metadata = self.source.metadata
    config = metadata.get('cfg')
    section = config.get('model') if isinstance(config, dict) else None
    found = section or metadata.get('args')
    self.stated: dict[str, Any] = found if isinstance(found, dict) else {}
    is_bart = 'encoder.layers.0.fc1.weight' in self.source.tensors
    self.kind = 'bart' if is_bart else 'roberta'
    for name, (shape, dtype) in self.source.tensors.items():
      if BUFFERS.search(name):
        continue
      for part, rows in split_packed(name, shape):
        own = shape if rows is None else (rows.stop - rows.start, *shape[1:])
        self.add_tensor(part, BART if is_bart else ROBERTA, (name, rows), (own, dtype))
    both = self.places.keys() >= {ENCODER_TABLE, DECODER_TABLE}
    if both and np.array_equal(self.read(ENCODER_TABLE), self.read(DECODER_TABLE)):
      # One table, which transformers' files also have as `shared`.
      self.places[SHARED_TABLE] = self.places[ENCODER_TABLE]
      self.tensors[SHARED_TABLE] = self.tensors[ENCODER_TABLE]
    self.hf_config = self.infer_hf_config()
    if self.kind == 'roberta':
      self.tensors[TOKEN_TYPES] = (1, self.hf_config['hidden_size']), 'F32'

  def infer_hf_config(self) -> dict[str, Any]:
    """Return transformers' configuration by the shapes and the stated attributes.

    Raises ConvertError where the shapes are not those of a model, or the attributes disagree.
    """
    # Sizes.
    is_roberta = self.kind == 'roberta'
    if is_roberta:
      layer = LAYER
      tokens = 'roberta.embeddings.word_embeddings.weight'
      positions = 'roberta.embeddings.position_embeddings.weight'
      first = f'{LAYER}0.intermediate.dense.weight'
    else:
      layer = 'model.encoder.layers.'
      tokens = 'model.encoder.embed_tokens.weight'
      positions = 'model.encoder.embed_positions.weight'
      first = 'model.encoder.layers.0.fc1.weight'
    needed = (tokens, positions, first)
    missing = [name for name in needed if len(self.tensors.get(name, ((), ''))[0]) != 2]
    raise_problems(
        missing, f'{self.path} is no RoBERTa and no BART of fairseq: it has no tensor')
    (vocab, width), (rows, _), (inner, _) = (self.tensors[name][0] for name in needed)
    sizes = {
        'encoder_layers': self.count_layers(layer), 'encoder_embed_dim': width,
        'encoder_ffn_embed_dim': inner, 'max_positions': rows - 2,
        'max_source_positions': rows - 2}
    if not is_roberta:
      sizes |= {'decoder_layers': self.count_layers('model.decoder.layers.'),
                'decoder_embed_dim': width}
    self.check_stated(self.stated, sizes, FIXED)

    # What both models have.
    hf_config: dict[str, Any] = {
        'vocab_size': vocab, 'pad_token_id': 1, 'bos_token_id': 0, 'eos_token_id': 2}
    for name in ('classifier.out_proj.weight', 'classification_head.out_proj.weight'):
      if name in self.tensors:
        hf_config['num_labels'] = self.tensors[name][0][0]
        break
    kinds = ('dropout', 'attention_dropout', 'activation_dropout')
    rates = {name: self.read_dropout(name) for name in kinds}
    dropouts = {name: rate for name, rate in rates.items() if rate is not None}
    stated = self.stated.get('activation_fn', 'gelu')
    if stated not in ACTIVATIONS:
      raise ConvertError(f'{self.path}: activation_fn is {abbreviate(stated)}, known are '
                         f'{", ".join(ACTIVATIONS)}')
    if is_roberta:
      return hf_config | self.roberta_config(vocab, width, rows, inner, dropouts)
    return hf_config | self.bart_config(width, rows, inner, dropouts)

  def roberta_config(
      self, vocab: int, width: int, rows: int, inner: int, dropouts: Mapping[str, float],
  ) -> dict[str, Any]:
    """Return the attributes of a RoBERTa. Raises ConvertError for one that transformers lacks."""
    stated = self.stated.get('activation_fn', 'gelu')
    activation = ACTIVATIONS[stated]
    if self.stated.get('encoder_normalize_before'):
      raise ConvertError(f'{self.path}: encoder_normalize_before is True, a RoBERTa has its norms '
                         'after sublayers')
    if activation != 'gelu' and 'lm_head.dense.weight' in self.tensors:
      raise ConvertError(f'{self.path}: activation_fn is {abbreviate(stated)}; the head of '
                         'transformers\' RoBERTa has gelu only')
    hf_config: dict[str, Any] = {}
    if 'dropout' in dropouts:
      hf_config['hidden_dropout_prob'] = dropouts['dropout']
    if 'attention_dropout' in dropouts:
      hf_config['attention_probs_dropout_prob'] = dropouts['attention_dropout']
    is_multilingual = vocab == 250_002 or (self.path.parent / PIECES).exists()
    return {
        **hf_config, 'model_type': 'xlm-roberta' if is_multilingual else 'roberta',
        'hidden_size': width, 'num_hidden_layers': self.count_layers(LAYER),
        'num_attention_heads': self.count_heads('encoder', width), 'intermediate_size': inner,
        'hidden_act': activation, 'max_position_embeddings': rows, 'type_vocab_size': 1,
        'layer_norm_eps': 1e-5}

  def bart_config(
      self, width: int, rows: int, inner: int, dropouts: Mapping[str, float],
  ) -> dict[str, Any]:
    """Return the attributes of a BART, or of an mBART, which has pre-layer normalization.

    Raises ConvertError where the stated order of norms is not that of the tensors.
    """
    sides = ('encoder', 'decoder')
    has_norm = 'model.encoder.layer_norm.weight' in self.tensors
    names = [f'{side}_normalize_before' for side in sides]
    orders = {bool(self.stated[name]) for name in names if name in self.stated}
    if len(orders) == 2 or orders == {not has_norm}:
      article = 'a' if has_norm else 'no'
      raise ConvertError(
          f'{self.path}: encoder_normalize_before and decoder_normalize_before are '
          f'{abbreviate(orders)}, and the file has {article} norm after all layers')
    hf_config: dict[str, Any] = {}
    for side in sides:
      first = self.tensors.get(f'model.{side}.layers.0.fc1.weight', ((inner,), ''))
      hf_config[f'{side}_layers'] = self.count_layers(f'model.{side}.layers.')
      hf_config[f'{side}_attention_heads'] = self.count_heads(side, width)
      hf_config[f'{side}_ffn_dim'] = first[0][0]
    scaled = not self.stated.get('no_scale_embedding', not has_norm)
    activation = ACTIVATIONS[self.stated.get('activation_fn', 'gelu')]
    return {
        **hf_config, **dropouts, 'model_type': 'mbart' if has_norm else 'bart', 'd_model': width,
        'activation_function': activation, 'max_position_embeddings': rows - 2,
        'scale_embedding': scaled}

  def count_heads(self, side: str, width: int) -> int:
    """Return the number of attention heads that the pickle states; unstated, heads are of 64.

    Raises ConvertError where the heads do not divide the hidden size.
    """
    name = f'{side}_attention_heads'
    stated = self.stated.get(name, self.stated.get('encoder_attention_heads'))
    if stated is None and width % 64:
      raise ConvertError(
          f'{self.path} states no {name}, and heads of 64 do not divide a width of {width}')
    heads = width // 64 if stated is None else stated
    if type(heads) is not int or not 1 <= heads <= width or width % heads:
      raise ConvertError(
          f'{self.path}: {abbreviate(heads)} heads ({name}) do not divide a width of {width}')
    return heads

  def read_dropout(self, name: str) -> float | None:
    """Return a dropout rate that the pickle states, None where it states none."""
    older = self.stated.get('relu_dropout') if name == 'activation_dropout' else None
    value = self.stated.get(name, older)
    if value is None:
      return None
    if not isinstance(value, int | float) or not 0 <= value < 1:
      raise ConvertError(f'{self.path}: {name} is {abbreviate(value)}, expected a share below 1')
    return float(value)

  def count_layers(self, prefix: str) -> int:
    """Count the layers whose tensors have the prefix."""
    names = [name for name in self.tensors if name.startswith(prefix)]
    return len({name.removeprefix(prefix).partition('.')[0] for name in names})


def split_packed(name: str, shape: Shape) -> Iterator[tuple[str, slice | None]]:
  """Split in_proj_weight and in_proj_bias into those of queries, keys and values.

  Yields:
    (name, rows of the tensor); None: all rows, of any other tensor.
  """
  module, _, leaf = name.rpartition('.')
  if leaf not in ('in_proj_weight', 'in_proj_bias') or not shape or shape[0] % 3:
    yield name, None
    return
  size = shape[0] // 3
  for number, part in enumerate('qkv'):
    rows = slice(number * size, (number + 1) * size)
    yield f'{module}.{part}_proj.{leaf.removeprefix("in_proj_")}', rows
