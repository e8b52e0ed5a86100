"""Checkpoints of Megatron-LM: BERT, `model_optim_rng.pt`, whose pickle is read as data.

The tensors have the names of transformers' MegatronBert here, and the configuration is that of the shapes and of the
run's arguments, which newer files have beside the model.
"""
import pathlib
import re
from typing import Any

import numpy as np

from plm_jax import storage
from plm_jax.conversion.folders import Place, inside, ordinary
from plm_jax.conversion.rules import ConvertError, Shape, refuse
from plm_jax.conversion.slices import Index
from plm_jax.conversion.torch_pickle import TorchPickle

FILE, LATEST = 'model_optim_rng.pt', 'latest_checkpointed_iteration.txt'
RANKS = ('mp_rank_00', 'mp_rank_00_000')  # of the only part of a model that is not split
PACKED = re.compile(r'\.(?:self_)?attention\.query_key_value\.')
NAMES = (
    (r'^language_model\.embedding\.word_embeddings\.', 'bert.embeddings.word_embeddings.'),
    (r'^language_model\.embedding\.position_embeddings\.', 'bert.embeddings.position_embeddings.'),
    (r'^language_model\.embedding\.tokentype_embeddings\.', 'bert.embeddings.token_type_embeddings.'),
    (r'^language_model\.(transformer|encoder)\.final_layernorm\.', 'bert.encoder.ln.'),
    (r'^language_model\.(transformer|encoder)\.layers\.', 'bert.encoder.layer.'),
    (r'\.(self_)?attention\.dense\.', '.attention.output.dense.'),
    (r'\.input_layernorm\.', '.attention.ln.'), (r'\.post_attention_layernorm\.', '.ln.'),
    (r'\.mlp\.dense_h_to_4h\.', '.intermediate.dense.'), (r'\.mlp\.dense_4h_to_h\.', '.output.dense.'),
    (r'^language_model\.pooler\.', 'bert.pooler.'), (r'^lm_head\.bias$', 'cls.predictions.bias'),
    (r'^lm_head\.dense\.', 'cls.predictions.transform.dense.'),
    (r'^lm_head\.layernorm\.', 'cls.predictions.transform.LayerNorm.'),
    (r'^binary_head\.', 'cls.seq_relationship.'))
TOKENS, POSITIONS, TYPES = (f'bert.embeddings.{name}_embeddings.weight' for name in ('word', 'position', 'token_type'))


class Megatron:
  """The tensors of a checkpoint under transformers' names, and its configuration in `described`.

  Queries, keys and values, which lie in one tensor, are three. How they lie in it depends on the version of the file
  (checkpointing.py, fix_query_key_value_ordering): one behind another in version 0, number by number in every head in
  1, and in 2 and 3 the three of a head together. Types that a model without a question about pairs does not have are
  zeros.
  """

  def __init__(self, path: pathlib.Path):
    """Raises ConvertError for a pickle of anything else, and for a part of a model."""
    self.source, self.path = TorchPickle(path, inside='model', nested=True), path
    self.arguments = self.source.beside.get('args', {})
    self.version = self.source.beside.get('checkpoint_version', 0)
    if self.version not in (0, 1, 2, 3):
      raise ConvertError(f'{path} is of version {self.version!r:.100}, known are 0 to 3')
    for name in ('tensor_model_parallel_size', 'model_parallel_size', 'pipeline_model_parallel_size'):
      if self.arguments.get(name, 1) != 1:
        raise ConvertError(f'{path} is a part of a model, whose {name} was {self.arguments[name]!r:.100}: put it '
                           "together first, with Megatron's tools")
    self.places: dict[str, tuple[str, int | None]] = {}  # transformers' name -> theirs, and which of the three
    self.tensors: dict[str, tuple[Shape, str]] = {}
    for name, said in self.source.tensors.items():
      self.add(name, said)
    self.described = self.describe()
    self.tensors.setdefault(TYPES, ((2, self.described['hidden_size']), 'F32'))

  def add(self, theirs: str, said: tuple[Shape, str]) -> None:
    """Notes a tensor. Raises ConvertError for two of one name, and for three that cannot be parted."""
    shape, dtype = said
    if PACKED.search(theirs):
      if not shape or shape[0] % 3:
        raise ConvertError(f'{self.path}: {theirs:.100} is {list(shape)}, expected queries, keys and values')
      each = ((f'.attention.self.{part}.', number) for number, part in enumerate(('query', 'key', 'value')))
      parts = [(PACKED.sub(part, theirs), number, (shape[0] // 3, *shape[1:])) for part, number in each]
    else:
      parts = [(theirs, None, shape)]
    for name, number, own in parts:
      for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
      if name in self.places:
        raise ConvertError(f'{self.path}: the tensors {self.places[name][0]:.100} and {theirs:.100} are both {name}')
      self.places[name], self.tensors[name] = (theirs, number), (own, dtype)

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Reads tensor[index]."""
    if name not in self.places:
      return np.zeros(self.tensors[name][0], np.float32)[... if index is None else index]
    theirs, part = self.places[name]
    x = self.source.read(theirs)
    if part is not None:
      heads, rest = self.described['num_attention_heads'], x.shape[1:]
      if self.version == 0:
        x = x.reshape(3, -1, *rest)[part]
      elif self.version == 1:
        x = x.reshape(heads, -1, 3, *rest)[:, :, part]
      else:
        x = x.reshape(heads, 3, -1, *rest)[:, part]
      x = x.reshape(-1, *rest)
    return x[... if index is None else index]

  def describe(self) -> dict[str, Any]:
    """Returns transformers' configuration. Raises ConvertError where the shapes are not those of a BERT.

    Without arguments, heads are of 64 and gelu is the tanh approximation, which Megatron's fused one is.
    """
    first = 'bert.encoder.layer.0.intermediate.dense.weight'
    refuse([name for name in (TOKENS, POSITIONS, first, 'bert.encoder.ln.weight')
            if not 1 <= len(self.tensors.get(name, ((), ''))[0]) <= 2],
           f'{self.path} is no BERT of Megatron-LM: it has no tensor')
    (vocab, width), (rows, _), (inner, _) = (
        (*self.tensors[name][0], 1)[:2] for name in (TOKENS, POSITIONS, first))
    given = self.arguments
    heads = given.get('num_attention_heads', max(1, width // 64))
    if type(heads) is not int or not 1 <= heads <= width or width % heads:
      raise ConvertError(f'{self.path}: {heads!r:.100} heads do not divide a width of {width}')
    exact = given and not given.get('bias_gelu_fusion', False) and not given.get('openai_gelu', False)
    layers = {name.split('.')[3] for name in self.tensors if name.startswith('bert.encoder.layer.')}
    return {'model_type': 'megatron-bert', 'vocab_size': vocab, 'hidden_size': width, 'num_hidden_layers': len(layers),
            'num_attention_heads': heads, 'intermediate_size': inner, 'max_position_embeddings': rows,
            'type_vocab_size': (*self.tensors.get(TYPES, ((), ''))[0], 2)[0],
            'hidden_act': 'gelu' if exact else 'gelu_new',
            'hidden_dropout_prob': given.get('hidden_dropout', 0.1),
            'attention_probs_dropout_prob': given.get('attention_dropout', 0.1),
            'layer_norm_eps': given.get('layernorm_epsilon', 1e-5)}


def of_megatron(path: Place) -> pathlib.Path | None:
  """Finds a checkpoint of Megatron-LM: the file, its folder, or that of a run, which names its newest step. Raises
  ConvertError for the parts of a model that was split between processes."""
  if path.name == FILE and path.is_file():
    return pathlib.Path(path)
  steps = [path]
  if ordinary(path / LATEST):
    step = storage.read_text(path / LATEST, 1 << 10, ConvertError).strip()
    steps.append(inside(path, f'iter_{int(step):07}' if step.isdecimal() else step))
  for step in steps:
    found = [place / FILE for place in (step, *(step / rank for rank in RANKS)) if (place / FILE).is_file()]
    if found and any((step / f'mp_rank_{other}' / FILE).exists() for other in ('01', '01_000', '00_001')):
      raise ConvertError(f'{step} holds the parts of a model that was split between processes: put it together first, '
                         "with Megatron's tools")
    if found:
      return pathlib.Path(found[0])
  return None
