"""Checkpoints of Megatron-LM: BERT's `model_optim_rng.pt`, whose pickle is read as data.

The tensors get the names of transformers' MegatronBert. The configuration comes from the shapes and
from the run's arguments, which newer files have next to the model.
"""
from collections.abc import Iterator
import pathlib
import re
from typing import Any

import numpy as np

from plm_jax import storage
from plm_jax.conversion.files import RenamedPickle
from plm_jax.conversion.folders import PathType, child_path, is_regular_file
from plm_jax.conversion.torch_pickle import TorchPickle
from plm_jax.models.layouts import Shape
from plm_jax.models.rules import ConvertError, raise_problems

FILE, LATEST = 'model_optim_rng.pt', 'latest_checkpointed_iteration.txt'
RANK_FOLDERS = ('mp_rank_00', 'mp_rank_00_000')
"""folders of a model that is not split between processes"""
PACKED_QKV = re.compile(r'\.(?:self_)?attention\.query_key_value\.')
FIXED = {
    'apply_residual_connection_post_layernorm': False, 'apply_layernorm_1p': False,
    'group_query_attention': False, 'normalization': 'LayerNorm',
    'position_embedding_type': 'learned_absolute', 'squared_relu': False, 'swiglu': False,
    'use_rotary_position_embeddings': False}
"""arguments that are supported at these values only"""
NAMES = (
    (r'^language_model\.embedding\.word_embeddings\.', 'bert.embeddings.word_embeddings.'),
    (r'^language_model\.embedding\.position_embeddings\.', 'bert.embeddings.position_embeddings.'),
    (r'^language_model\.embedding\.tokentype_embeddings\.',
     'bert.embeddings.token_type_embeddings.'),
    (r'^language_model\.(transformer|encoder)\.final_layernorm\.', 'bert.encoder.ln.'),
    (r'^language_model\.(transformer|encoder)\.layers\.', 'bert.encoder.layer.'),
    (r'\.(self_)?attention\.dense\.', '.attention.output.dense.'),
    (r'\.input_layernorm\.', '.attention.ln.'), (r'\.post_attention_layernorm\.', '.ln.'),
    (r'\.mlp\.dense_h_to_4h\.', '.intermediate.dense.'),
    (r'\.mlp\.dense_4h_to_h\.', '.output.dense.'),
    (r'^language_model\.pooler\.', 'bert.pooler.'), (r'^lm_head\.bias$', 'cls.predictions.bias'),
    (r'^lm_head\.dense\.', 'cls.predictions.transform.dense.'),
    (r'^lm_head\.layernorm\.', 'cls.predictions.transform.LayerNorm.'),
    (r'^binary_head\.', 'cls.seq_relationship.'))
"""patterns of Megatron's names -> transformers' names"""
TOKENS = 'bert.embeddings.word_embeddings.weight'
POSITIONS = 'bert.embeddings.position_embeddings.weight'
TYPES = 'bert.embeddings.token_type_embeddings.weight'


class MegatronCheckpoint(RenamedPickle):
  """The tensors of a checkpoint under transformers' names, and its configuration in `hf_config`.

  Queries, keys and values, which are one tensor there, become three. Their order depends on the
  version of the file (checkpointing.py, fix_query_key_value_ordering): whole parts one after
  another in version 0; number by number within each head in version 1; the three parts of each head
  in versions 2 and 3. A model without next sentence prediction has no segment types: they are
  zeros.
  """

  def __init__(self, path: pathlib.Path):
    """Open a checkpoint.

    Raises ConvertError for a pickle of anything else, and for a part of a model.
    """
    super().__init__(TorchPickle(path, inside='model', nested=True), path)
    self.arguments = self.source.metadata.get('args', {})
    self.version = self.source.metadata.get('checkpoint_version', 0)
    if self.version not in (0, 1, 2, 3):
      raise ConvertError(f'{path} is of version {self.version!r:.100}, known are 0 to 3')
    for name in (
        'tensor_model_parallel_size', 'model_parallel_size', 'pipeline_model_parallel_size'):
      if self.arguments.get(name, 1) != 1:
        raise ConvertError(
            f'{path} is a part of a model, whose {name} was {self.arguments[name]!r:.100}: put it '
            "together first, with Megatron's tools")
    for theirs, (shape, dtype) in self.source.tensors.items():
      for name, part, own in self.split_packed(theirs, shape):
        self.add_tensor(name, NAMES, (theirs, part), (own, dtype))
    self.hf_config = self.infer_hf_config()
    self.tensors.setdefault(TYPES, ((2, self.hf_config['hidden_size']), 'F32'))

  def split_packed(self, theirs: str, shape: Shape) -> Iterator[tuple[str, int | None, Shape]]:
    """Yield (name, number of the part, its shape) of a packed tensor, or the tensor itself.

    Raises ConvertError for a packed tensor that cannot be split.
    """
    if not PACKED_QKV.search(theirs):
      yield theirs, None, shape
      return
    if not shape or shape[0] % 3:
      raise ConvertError(f'{self.path}: {theirs:.100} is {list(shape)}, expected queries, keys '
                         'and values')
    for number, part in enumerate(('query', 'key', 'value')):
      name = PACKED_QKV.sub(f'.attention.self.{part}.', theirs)
      yield name, number, (shape[0] // 3, *shape[1:])

  def read_part(self, x: np.ndarray, part: int) -> np.ndarray:
    heads, rest = self.hf_config['num_attention_heads'], x.shape[1:]
    if self.version == 0:
      x = x.reshape(3, -1, *rest)[part]
    elif self.version == 1:
      x = x.reshape(heads, -1, 3, *rest)[:, :, part]
    else:
      x = x.reshape(heads, 3, -1, *rest)[:, part]
    return x.reshape(-1, *rest)

  def infer_hf_config(self) -> dict[str, Any]:
    """Return transformers' configuration by the shapes and the run's arguments.

    Without arguments, heads are of 64 and gelu is the tanh approximation, which Megatron's fused
    one is. Raises ConvertError where the shapes are not those of a BERT.
    """
    first = 'bert.encoder.layer.0.intermediate.dense.weight'
    needed = (TOKENS, POSITIONS, first, 'bert.encoder.ln.weight')
    shapes = {name: self.tensors.get(name, ((), ''))[0] for name in needed}
    missing = [name for name, shape in shapes.items() if not 1 <= len(shape) <= 2]
    raise_problems(missing, f'{self.path} is no BERT of Megatron-LM: it has no tensor')
    vocab, width = (*shapes[TOKENS], 1)[:2]
    rows, inner = shapes[POSITIONS][0], shapes[first][0]
    names = [name for name in self.tensors if name.startswith('bert.encoder.layer.')]
    count = len({name.split('.')[3] for name in names})

    # The arguments have to fit the shapes.
    stated = self.arguments
    sizes = {'num_layers': count, 'hidden_size': width, 'ffn_hidden_size': inner,
             'max_position_embeddings': rows}
    self.check_stated(stated, sizes, FIXED)
    heads = stated.get('num_attention_heads', max(1, width // 64))
    if type(heads) is not int or not 1 <= heads <= width or width % heads:
      raise ConvertError(f'{self.path}: {heads!r:.100} heads do not divide a width of {width}')
    exact = stated and not stated.get('bias_gelu_fusion', False) and not stated.get(
        'openai_gelu', False)
    types = self.tensors.get(TYPES, ((2,), ''))[0]
    return {
        'model_type': 'megatron-bert', 'vocab_size': vocab, 'hidden_size': width,
        'num_hidden_layers': count, 'num_attention_heads': heads, 'intermediate_size': inner,
        'max_position_embeddings': rows, 'type_vocab_size': (*types, 2)[0],
        'hidden_act': 'gelu' if exact else 'gelu_new',
        'hidden_dropout_prob': stated.get('hidden_dropout', 0.1),
        'attention_probs_dropout_prob': stated.get('attention_dropout', 0.1),
        'layer_norm_eps': stated.get('layernorm_epsilon', 1e-5)}


def find_megatron(path: PathType) -> pathlib.Path | None:
  """Find the file of a Megatron-LM checkpoint; None: there is none.

  path: the file, its folder, or the folder of a run, which names its newest step. Raises
  ConvertError for the parts of a model that was split between processes.
  """
  if path.name == FILE and path.is_file():
    return pathlib.Path(path)
  steps = [path]
  if is_regular_file(path / LATEST):
    step = storage.read_text(path / LATEST, 1 << 10, ConvertError).strip()
    steps.append(child_path(path, f'iter_{int(step):07}' if step.isdecimal() else step))
  for step in steps:
    for place in [step] + [step / rank for rank in RANK_FOLDERS]:
      if not (place / FILE).is_file():
        continue
      others = ('mp_rank_01', 'mp_rank_01_000', 'mp_rank_00_001')
      if any((step / other / FILE).exists() for other in others):
        raise ConvertError(f'{step} holds the parts of a model that was split between processes: '
                           "put it together first, with Megatron's tools")
      return pathlib.Path(place / FILE)
  return None
