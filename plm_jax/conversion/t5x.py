"""Checkpoints of T5X: a msgpack file `checkpoint`, with large arrays in zarr folders next to it."""
from collections.abc import Iterator, Mapping
import dataclasses
import math
import pathlib
import re
from typing import Any

from etils import epath
from flax import serialization
from flax.traverse_util import flatten_dict
import numpy as np

from plm_jax import storage
from plm_jax.conversion.files import DTYPE_NAMES
from plm_jax.conversion.folders import child_path, is_regular_file
from plm_jax.errors import describe_error, parse_errors_as
from plm_jax.models.layouts import Index, Shape, select
from plm_jax.models.rules import ConvertError, raise_problems
from plm_jax.tokenizers.contract import abbreviate

FILE = 'checkpoint'
MAX_LAYERS = 1000
DRIVERS = ('zarr', 'zarr3')
METADATA_FILES = ('.zarray', '.zattrs', 'zarr.json')
"""files of an array without numbers"""
MAX_COMPRESSION = 100
"""limit of an array's bytes per byte of its files; trained numbers compress by less than 2"""
MAX_CONSTANT_BYTES = 64 << 20
"""size of an array that may compress further: one number repeated, as norms are at first"""
MAX_FILE_BYTES = 2 << 30
"""limit of the msgpack file, which holds arrays of up to some MiB"""
SPEC_KEYS = {'driver', 'kvstore'}
"""keys of a value that states where an array is"""
PART_NAMES = {
    'pre_attention_layer_norm': 'layer.0.layer_norm', 'attention': 'layer.0.SelfAttention',
    'pre_self_attention_layer_norm': 'layer.0.layer_norm',
    'self_attention': 'layer.0.SelfAttention',
    'pre_cross_attention_layer_norm': 'layer.1.layer_norm',
    'encoder_decoder_attention': 'layer.1.EncDecAttention',
    'pre_mlp_layer_norm': 'layer.{m}.layer_norm', 'mlp': 'layer.{m}.DenseReluDense'}
"""T5X's parts of a layer -> transformers'; {m} is the number of the MLP"""
TOKEN_TABLE = 'token_embedder/embedding'
BUCKETS = 'block.0.layer.0.SelfAttention.relative_attention_bias.weight'
FULL_NAMES = {
    TOKEN_TABLE: 'shared.weight', 'decoder/logits_dense/kernel': 'lm_head.weight',
    'encoder/relpos_bias/rel_embedding': f'encoder.{BUCKETS}',
    'decoder/relpos_bias/rel_embedding': f'decoder.{BUCKETS}',
    'encoder/encoder_norm/scale': 'encoder.final_layer_norm.weight',
    'decoder/decoder_norm/scale': 'decoder.final_layer_norm.weight'}
"""T5X's names of parameters outside of layers -> transformers' names"""
LAYER = re.compile(
    r'(encoder|decoder)/(?:layers_(\d+)|layers|encoder|decoder)/(\w+)/(?:(\w+)/)?(kernel|scale)')
"""name of a parameter of one layer, or of all layers along axis 1"""


@dataclasses.dataclass(frozen=True)
class TensorLocation:
  """Where a tensor of transformers is in the checkpoint."""

  name: str
  """T5X's name"""
  layer: int | None = None
  """its index along axis 1, where layers are scanned"""


class T5XCheckpoint:
  """The parameters of a checkpoint, under transformers' names and in its layout."""

  def __init__(self, folder: pathlib.Path):
    """Open a checkpoint. Raises ConvertError for parameters that are not those of a T5."""
    self.folder = folder
    self.leaves = dict(read_parameters(folder))
    self.stores: dict[str, Any] = {}
    self.places: dict[str, TensorLocation] = {}
    unknown = []
    for name in self.leaves:
      found = dict(self.map_names(name))
      if not found:
        unknown.append(name)
      self.places |= found
    raise_problems(unknown, f'{folder}: not parameters of a T5 whose layers share their positions')
    self.tensors: dict[str, tuple[Shape, str]] = {}
    for name, place in self.places.items():
      leaf = self.open_array(place.name)
      dtype = getattr(leaf.dtype, 'numpy_dtype', leaf.dtype)  # tensorstore's, or numpy's
      dtype_name = np.dtype(dtype).name
      self.tensors[name] = self.torch_shape(place), DTYPE_NAMES.get(dtype_name, dtype_name)

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read tensor[index] as transformers has it.

    Raises ConvertError where a file is shorter than its array.
    """
    place = self.places[name]
    x = self.open_array(place.name)
    is_zarr = not isinstance(x, np.ndarray)
    if is_zarr:
      self.check_size(place.name, x)
    if place.layer is not None:
      x = x[:, place.layer]
    if is_zarr:
      x = x.read().result()
    x = x.reshape(matrix_shape(place.name, x.shape))
    return select(x if place.name == TOKEN_TABLE else x.T, index)

  def torch_shape(self, place: TensorLocation) -> Shape:
    """Return transformers' shape: transposed, except for the table of tokens."""
    shape = tuple(self.open_array(place.name).shape)
    own = shape if place.layer is None else (shape[0], *shape[2:])
    shape = matrix_shape(place.name, own)
    return shape if place.name == TOKEN_TABLE else shape[::-1]

  def open_array(self, name: str) -> Any:
    """Return an array of the msgpack file, or an opened zarr array, which is not read."""
    spec = self.leaves[name]
    if not isinstance(spec, Mapping):
      return spec
    if name not in self.stores:
      import tensorstore  # a dependency of orbax that nothing else here needs
      path = self.array_path(spec)
      if spec['driver'] not in DRIVERS:
        raise ConvertError(f'{self.folder}: {name:.100} is read by {abbreviate(spec["driver"])}, '
                           f'expected one of {", ".join(DRIVERS)}')
      kvstore = {'driver': 'file', 'path': f'{path}/'}
      try:
        self.stores[name] = tensorstore.open(
            {'driver': spec['driver'], 'kvstore': kvstore}, read=True).result()
      except ValueError as error:
        raise ConvertError(f'{self.folder}: {name:.100} cannot be read from {path.name}: '
                           f'{describe_error(error)}') from error
    return self.stores[name]

  def array_path(self, spec: Mapping[str, Any]) -> pathlib.Path:
    """Return the path of an array.

    Paths in the file are those of the bucket or the folder that it was written to.
    """
    path = pathlib.PurePosixPath(spec['kvstore']['path'].rstrip('/'))
    return child_path(self.folder, path.name)

  def check_size(self, name: str, leaf: Any) -> None:
    """Raise ConvertError where an array is far larger than its files.

    The missing numbers would be read as zeros.
    """
    path = self.array_path(self.leaves[name])
    there = sum(file.stat().st_size for file in path.rglob('*')
                if file.is_file() and file.name not in METADATA_FILES)
    size = leaf.dtype.numpy_dtype.itemsize
    described = math.prod(leaf.shape) * size
    chunk = math.prod(leaf.chunk_layout.read_chunk.shape) * size
    limit = max(MAX_COMPRESSION * there, MAX_CONSTANT_BYTES) if there else 0
    if described > limit:
      raise ConvertError(
          f'{path} describes {described:,} bytes of numbers, in files of {there:,} bytes')
    # The library allocates a whole chunk, and without memory for it ends the process.
    if chunk > max(2 * described, MAX_CONSTANT_BYTES):
      raise ConvertError(
          f'{path} describes {described:,} bytes of numbers, in chunks of {chunk:,} bytes')

  def map_names(self, name: str) -> Iterator[tuple[str, TensorLocation]]:
    """Yield (transformers' name, location) of each tensor in one of T5X's arrays.

    Yields nothing for an unknown name.
    """
    if name in FULL_NAMES:
      yield FULL_NAMES[name], TensorLocation(name)
    found = LAYER.fullmatch(name)
    if not found or found[3] not in PART_NAMES:
      return
    side, number, part, sub, leaf = found.groups()
    end = PART_NAMES[part].format(m=2 if side == 'decoder' else 1)
    if leaf == 'kernel':
      # transformers calls query, key, value and out by their first letters.
      if part.endswith('attention') and sub:
        sub = sub[0]
      end += f'.{sub}'
    if number is not None:
      yield f'{side}.block.{number}.{end}.weight', TensorLocation(name)
      return
    shape = list(self.open_array(name).shape)
    if len(shape) < 2 or shape[1] > MAX_LAYERS:
      raise ConvertError(f'{self.folder}: {name} has the shape {shape}, expected at most '
                         f'{MAX_LAYERS} layers along its second axis')
    for layer in range(shape[1]):
      yield f'{side}.block.{layer}.{end}.weight', TensorLocation(name, layer)

  def infer_hf_config(self) -> dict[str, Any]:
    """Infer the configuration, which a checkpoint does not hold, from its shapes.

    Raises ConvertError where they are not those of a T5.
    """
    shapes = {name: shape for name, (shape, _) in self.tensors.items()}
    first = 'encoder.block.0.layer'
    needed = ('shared.weight', f'{first}.0.SelfAttention.q.weight',
              f'{first}.0.SelfAttention.relative_attention_bias.weight')
    missing = [name for name in needed if name not in shapes]
    raise_problems(missing, f'{self.folder} is no checkpoint of a T5: it has no tensor')
    (vocab, width), (joined, _), (buckets, heads) = (shapes[name] for name in needed)
    layers = {}
    for side in ('encoder', 'decoder'):
      blocks = [name for name in shapes if name.startswith(f'{side}.block.')]
      layers[side] = len({name.split('.')[2] for name in blocks})
    gated = f'{first}.1.DenseReluDense.wi_0.weight' in shapes
    return {
        'model_type': 't5', 'architectures': ['T5ForConditionalGeneration'], 'vocab_size': vocab,
        'd_model': width, 'd_kv': joined // heads, 'num_heads': heads,
        'relative_attention_num_buckets': buckets,
        'd_ff': shapes[f'{first}.1.DenseReluDense.wo.weight'][1], 'num_layers': layers['encoder'],
        'num_decoder_layers': layers['decoder'],
        'feed_forward_proj': 'gated-gelu' if gated else 'relu',
        'tie_word_embeddings': 'lm_head.weight' not in shapes}


def is_t5x(folder: epath.Path | pathlib.Path) -> bool:
  """Tell whether a folder has the file, which is not TensorFlow's text of the same name."""
  path = folder / FILE
  if not is_regular_file(path):
    return False
  with path.open('rb') as file:
    return not file.read(32).startswith((b'model_checkpoint_path', b'all_model_checkpoint'))


def read_parameters(folder: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yield (name, array or specification of where it is) of each parameter."""
  content = storage.read_bytes(folder / FILE, limit=MAX_FILE_BYTES, error=ConvertError)
  with parse_errors_as(folder / FILE, 'a checkpoint of T5X', ConvertError):
    tree: Any = serialization.msgpack_restore(content)
    tree = tree.get('optimizer', tree)['target']
    flat: Mapping[Any, Any] = flatten_dict(tree, is_leaf=lambda _, x: set(x) >= SPEC_KEYS)
    for path, leaf in flat.items():
      is_array = isinstance(leaf, np.ndarray) and leaf.dtype.kind in 'fV'
      if not is_array and not isinstance(leaf, Mapping):
        raise ConvertError(f'{folder / FILE}: {"/".join(path)!r:.100} is {abbreviate(leaf)}, '
                           'expected an array of numbers')
      yield '/'.join(path), leaf


def matrix_shape(name: str, shape: Shape) -> Shape:
  """Return the shape of an attention kernel with heads and their sizes as one axis."""
  if len(shape) != 3:
    return shape
  if name.endswith('out/kernel'):
    return (math.prod(shape[:2]), shape[2])
  return (shape[0], math.prod(shape[1:]))
