"""Checkpoints of T5X: a msgpack file `checkpoint`, whose large arrays are zarr folders beside it."""
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
from plm_jax.conversion.files import NAMES
from plm_jax.conversion.folders import inside, ordinary
from plm_jax.conversion.rules import ConvertError, refuse
from plm_jax.conversion.slices import Index
from plm_jax.errors import outside, understood
from plm_jax.tokenizers.contract import brief

FILE = 'checkpoint'
LAYERS = 1000
DRIVERS = ('zarr', 'zarr3')
DESCRIBED = ('.zarray', '.zattrs', 'zarr.json')  # files that have no numbers
# Bytes of an array for each byte of its files, at most: numbers that were learnt do not become smaller than some half.
# ALWAYS: of an array that may be anything, one number again and again, as norms are at first.
PACKED, ALWAYS = 100, 64 << 20
WHOLE_FILE = 2 << 30  # bytes of the msgpack file: arrays up to some MiB are in it
SPEC = {'driver', 'kvstore'}  # what says where an array is, and not the array
# Parts of a layer there -> in transformers, with {m} for the place of the network.
PARTS = {
    'pre_attention_layer_norm': 'layer.0.layer_norm', 'attention': 'layer.0.SelfAttention',
    'pre_self_attention_layer_norm': 'layer.0.layer_norm', 'self_attention': 'layer.0.SelfAttention',
    'pre_cross_attention_layer_norm': 'layer.1.layer_norm', 'encoder_decoder_attention': 'layer.1.EncDecAttention',
    'pre_mlp_layer_norm': 'layer.{m}.layer_norm', 'mlp': 'layer.{m}.DenseReluDense'}
TABLE = 'token_embedder/embedding'
WHOLE = {
    TABLE: 'shared.weight', 'decoder/logits_dense/kernel': 'lm_head.weight',
    **{f'{side}/relpos_bias/rel_embedding': f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
       for side in ('encoder', 'decoder')},
    **{f'{side}/{side}_norm/scale': f'{side}.final_layer_norm.weight' for side in ('encoder', 'decoder')}}
# One layer, or all of them along axis 1.
LAYER = re.compile(r'(encoder|decoder)/(?:layers_(\d+)|layers|encoder|decoder)/(\w+)/(?:(\w+)/)?(kernel|scale)')


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a tensor comes from."""

  name: str
  layer: int | None = None
  """its place on axis 1, where layers are scanned"""


class T5X:
  """The parameters of a checkpoint, under transformers' names and in its layout."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.leaves = dict(target(folder))
    self.stores: dict[str, Any] = {}
    self.places: dict[str, Place] = {}
    unknown = []
    for name in self.leaves:
      found = dict(self.named(name))
      unknown += [name] * (not found)
      self.places |= found
    refuse(unknown, f'{folder}: not parameters of a T5 whose layers share their positions')
    self.tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, place in self.places.items():
      leaf = self.leaf(place.name)
      dtype = np.dtype(leaf.dtype if isinstance(leaf, np.ndarray) else leaf.dtype.numpy_dtype).name
      self.tensors[name] = self.shape(place), NAMES.get(dtype, dtype)

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Reads a tensor as transformers has it -> tensor[index]. Raises ConvertError where a file is shorter than its
    array."""
    place = self.places[name]
    leaf = self.leaf(place.name)
    if not isinstance(leaf, np.ndarray):
      self.check_size(place.name, leaf)
    if place.layer is not None:
      leaf = leaf[:, place.layer]
    x = leaf if isinstance(leaf, np.ndarray) else leaf.read().result()
    x = x.reshape(matrix(place.name, x.shape))
    return (x if place.name == TABLE else x.T)[... if index is None else index]

  def shape(self, place: Place) -> tuple[int, ...]:
    """Returns the shape that transformers has: the transpose, but of the table of tokens."""
    shape = tuple(self.leaf(place.name).shape)
    shape = matrix(place.name, shape if place.layer is None else (shape[0], *shape[2:]))
    return shape if place.name == TABLE else shape[::-1]

  def leaf(self, name: str) -> Any:
    """Returns an array, or one that is open and not read."""
    spec = self.leaves[name]
    if not isinstance(spec, Mapping):
      return spec
    if name not in self.stores:
      import tensorstore  # of orbax; here, as nothing else needs it
      path = self.path(spec)
      if spec['driver'] not in DRIVERS:
        raise ConvertError(f'{self.folder}: {name:.100} is read by {brief(spec["driver"])}, expected one of '
                           f'{", ".join(DRIVERS)}')
      try:
        self.stores[name] = tensorstore.open(
            {'driver': spec['driver'], 'kvstore': {'driver': 'file', 'path': f'{path}/'}}, read=True).result()
      except ValueError as error:
        raise ConvertError(f'{self.folder}: {name:.100} cannot be read from {path.name}: {outside(error)}') from error
    return self.stores[name]

  def path(self, spec: Mapping[str, Any]) -> pathlib.Path:
    """Returns the path of an array. Paths in the file are those of the bucket or the folder that it was written to."""
    return inside(self.folder, pathlib.PurePosixPath(spec['kvstore']['path'].rstrip('/')).name)

  def check_size(self, name: str, leaf: Any) -> None:
    """Raises ConvertError where an array is far larger than its files: what is not there would be read as zeros."""
    path = self.path(self.leaves[name])
    there = sum(file.stat().st_size for file in path.rglob('*') if file.is_file() and file.name not in DESCRIBED)
    size = leaf.dtype.numpy_dtype.itemsize
    said, chunk = math.prod(leaf.shape) * size, math.prod(leaf.chunk_layout.read_chunk.shape) * size
    if said > max(PACKED * there, ALWAYS * (there > 0)):
      raise ConvertError(f'{path} describes {said:,} bytes of numbers, in files of {there:,} bytes')
    # The library makes room for a whole one, and ends the process where there is none.
    if chunk > max(2 * said, ALWAYS):
      raise ConvertError(f'{path} describes {said:,} bytes of numbers, in chunks of {chunk:,} bytes')

  def named(self, name: str) -> Iterator[tuple[str, Place]]:
    """Yields (transformers' name, where it comes from) of each tensor in one of T5X's; none where it is not known."""
    if name in WHOLE:
      yield WHOLE[name], Place(name)
    found = LAYER.fullmatch(name)
    if found and found[3] in PARTS:
      side, number, part, sub, leaf = found.groups()
      one = sub[0] if part.endswith('attention') and sub else sub
      end = PARTS[part].format(m=2 if side == 'decoder' else 1) + (f'.{one}' if leaf == 'kernel' else '')
      shape = list(self.leaf(name).shape) if number is None else []
      if number is None and (len(shape) < 2 or shape[1] > LAYERS):
        raise ConvertError(f'{self.folder}: {name} has the shape {shape}, expected at most {LAYERS} layers along '
                           'its second axis')
      layers = range(shape[1]) if number is None else [None]
      for layer in layers:
        yield f'{side}.block.{number if layer is None else layer}.{end}.weight', Place(name, layer)

  def described(self) -> dict[str, Any]:
    """Returns the configuration, which a checkpoint does not hold, by its shapes."""
    shapes = {name: shape for name, (shape, _) in self.tensors.items()}
    first = 'encoder.block.0.layer'
    needed = ('shared.weight', f'{first}.0.SelfAttention.q.weight',
              f'{first}.0.SelfAttention.relative_attention_bias.weight')
    refuse([name for name in needed if name not in shapes], f'{self.folder} is no checkpoint of a T5: it has no tensor')
    (vocab, width), (joined, _), (buckets, heads) = (shapes[name] for name in needed)
    layers = {side: len({name.split('.')[2] for name in shapes if name.startswith(f'{side}.block.')})
              for side in ('encoder', 'decoder')}
    gated = f'{first}.1.DenseReluDense.wi_0.weight' in shapes
    return {
        'model_type': 't5', 'architectures': ['T5ForConditionalGeneration'], 'vocab_size': vocab, 'd_model': width,
        'd_kv': joined // heads, 'num_heads': heads, 'relative_attention_num_buckets': buckets,
        'd_ff': shapes[f'{first}.1.DenseReluDense.wo.weight'][1], 'num_layers': layers['encoder'],
        'num_decoder_layers': layers['decoder'], 'feed_forward_proj': 'gated-gelu' if gated else 'relu',
        'tie_word_embeddings': 'lm_head.weight' not in shapes}


def is_t5x(folder: epath.Path | pathlib.Path) -> bool:
  """Tells whether a folder has the file, and it is not the text that TensorFlow keeps under the same name."""
  path = folder / FILE
  if not ordinary(path):
    return False
  with path.open('rb') as file:
    return not file.read(32).startswith((b'model_checkpoint_path', b'all_model_checkpoint'))


def target(folder: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """Yields (name, array or where it is) of each parameter."""
  content = storage.read_bytes(folder / FILE, limit=WHOLE_FILE, error=ConvertError)
  with understood(folder / FILE, 'a checkpoint of T5X', ConvertError):
    tree: Any = serialization.msgpack_restore(content)
    tree = tree.get('optimizer', tree)['target']
    flat: Mapping[Any, Any] = flatten_dict(tree, is_leaf=lambda _, x: set(x) >= SPEC)
    for path, leaf in flat.items():
      if not isinstance(leaf, Mapping | np.ndarray) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind not in 'fV'):
        raise ConvertError(f'{folder / FILE}: {"/".join(path)!r:.100} is {brief(leaf)}, expected an array of numbers')
      yield '/'.join(path), leaf


def matrix(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the shape of a kernel of attention where heads and their sizes are one axis, as in most files."""
  if len(shape) == 3:
    return (math.prod(shape[:2]), shape[2]) if name.endswith('out/kernel') else (shape[0], math.prod(shape[1:]))
  return shape
