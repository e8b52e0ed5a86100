"""Checkpoints of other libraries: transformers both ways, the original TensorFlow ones and T5X's in.

    imported = conversion.load('bert-base-uncased/')
    outputs = imported.model().apply({'params': imported.params}, batch)
    conversion.save('out/', imported.config, imported.params, imported.tokenizer)

What differs between families is data beside their models (`plm_jax.conversion.rules.Family`). Whatever a file holds
beyond that is refused by name. Parameters are float32 here; a float16 or bfloat16 file is widened exactly.
"""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from etils import epath
import flax.linen as nn
from flax.traverse_util import unflatten_dict
import numpy as np

from plm_jax import checked, storage
from plm_jax.conversion import attributes, elmo, files, folders, rules, vocabulary
from plm_jax.conversion.families import (
  asks_words,
  boxed_shapes,
  family_of,
  flat_dict,
  head_of,
  parameter_shapes,
  with_parts,
)
from plm_jax.conversion.lazy import Lazy
from plm_jax.conversion.megatron import of_megatron
from plm_jax.conversion.opening import (
  CONFIG,
  check_layers,
  choose_heads,
  is_tensorflow,
  of_fairseq,
  open_checkpoint,
  rename,
  states,
)
from plm_jax.conversion.rules import ConvertError, Family
from plm_jax.conversion.t5x import is_t5x
from plm_jax.errors import understood
from plm_jax.layers.heads import WithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import brief

__all__ = ['LABELLED', 'ConvertError', 'Imported', 'Lazy', 'Like', 'asks_words', 'counterpart', 'family_of', 'head_of',
           'is_checkpoint', 'load', 'save', 'tensors', 'with_parts']


@dataclasses.dataclass(frozen=True, eq=False)
class Imported:
  """A checkpoint in our terms."""

  config: Any
  """of the backbone"""
  params: Any
  """numpy float32, or `Lazy`; the tree of `model()`"""
  tokenizer: Tokenizer | None
  """None where the folder has none"""
  heads: Mapping[str, nn.Module]
  """the heads whose parameters there are"""
  missing: tuple[str, ...]
  """heads that were asked for and are not in the file"""
  family: str
  """model_type of transformers"""
  extra: Mapping[str, Any]
  """attributes of their configuration that have no place in ours: labels, ids of special tokens, ..."""
  form: Mapping[str, tuple[str, str]]
  """tensor in the file -> (its name in the rules, its type): what an export needs to give back the same"""

  @property
  def labels(self) -> tuple[str, ...]:
    """Names of the classes, where the configuration says them (id2label)."""
    names = self.extra.get('id2label') or {}
    names = names if isinstance(names, Mapping) else dict(enumerate(names))
    return tuple(str(names[number]) for number in sorted(names, key=int))

  def model(self) -> WithHeads:
    """Makes the module: the backbone with the heads that were read."""
    return WithHeads(family_of(self.family).backbone(self.config), dict(self.heads))

  def shapes(self) -> Any:
    """Returns the shapes of the parameters, with their logical axes (flax boxes)."""
    return boxed_shapes(self.model(), family_of(self.family).reads(self.config))


@dataclasses.dataclass(frozen=True)
class Like:
  """A family, and what its configuration is to say of classes."""

  family: str
  """model_type of transformers"""
  labels: tuple[str, ...] = ()
  """names of the classes, in their order; none: LABEL_0, LABEL_1, ..."""
  around: vocabulary.Around | None = None
  """ids before the first text, between two and behind the last; None: what texts have in pre-training"""
  beside: Callable[[pathlib.Path], None] | None = None
  """writes what else is to be in the folder"""


def load(path: epath.PathLike, heads: Sequence[str] | None = None, lazy: bool = False) -> Imported:
  """Loads the checkpoint in folder `path`, local or in a bucket: config.json with safetensors or
  flax_model.msgpack, the authors' own in TensorFlow (bert_config.json, albert_config.json or xlnet_config.json with
  *.ckpt.*, electra_*), fairseq's model.pt, Megatron-LM's model_optim_rng.pt, T5X's checkpoint_STEP, or an ELMo's
  options.json with .hdf5.

  heads: names of those wanted (`plm_jax.models`: FAMILY.heads); None: all that the file has. lazy: parameters are
  `Lazy`, which read a part of a file when it is asked for. Raises ConvertError for whatever is not understood, naming
  every tensor and attribute; TokenizerError for a damaged vocabulary.
  """
  place = folders.local(path)
  if elmo.is_elmo(place):
    config, backbone = elmo.load(place)
    return Imported(config, {'backbone': backbone}, None, {}, tuple(heads or ()), elmo.FAMILY.name, {}, {})
  with understood(path, 'a checkpoint', ConvertError):
    folder, family, hf_config, source = open_checkpoint(place)
    attributes.check(family, hf_config)
    hf_config = family.to_current(hf_config)
    original: dict[str, str] = {name: new for name in source.tensors if (new := rename(family, name)) is not None}
    renamed = files.Renamed(source, original.get, folder)
    config = attributes.read(family, hf_config)
    config = checked.replaced(config, {field: name in renamed.tensors for field, name in family.parts.items()})
    config = family.infer_from_tensors(config, renamed.tensors)
    check_layers(config, source.tensors)
    named = family.of(config)
    chosen, missing = choose_heads(named, hf_config, renamed.tensors, heads)
    modules = {name: attributes.make_head(family.heads[name], config, hf_config) for name in chosen}
    shapes = parameter_shapes(family, config, modules)
    used = [*named.rules, *(rule for name in chosen for rule in named.heads[name].rules)]
    known = {name for head in family.heads.values() for rule in head.rules for name in rule.names(())}
    params: dict[str, Any] = {
        name: Lazy(rule, renamed, shapes[name], copies)
        for name, (rule, copies) in rules.match(used, shapes, renamed, known).items()}
    if not lazy:
      params = {name: np.asarray(x) for name, x in params.items()}
  extra = {name: value for name, value in hf_config.items() if name in attributes.IGNORED | family.ignored}
  # Names of another library than the one that is written are of no use to an export.
  form = {} if family is not family_of(family.name) else {
      name: (new, source.tensors[name][1]) for name, new in original.items()}
  tokenizer = vocabulary.load(folder)
  return Imported(
      config, unflatten_dict(params, sep='/'), tokenizer, modules, missing, family.name, extra, form)


def save(
    folder: epath.PathLike,
    config: Any,
    params: Any,
    tokenizer: Tokenizer | None = None,
    dtype: str | None = None,
    like: 'Imported | Like | str' = 'bert',
    shard_bytes: int = 5 << 30,
) -> None:
  """Writes what transformers reads with AutoModelForPreTraining and its like, and AutoTokenizer: all of it or nothing.

  params: the tree of WithHeads, 'backbone' and 'heads_NAME'. dtype: float32, float16 or bfloat16; None: as in `like`,
  else float32. like: a family; one with the names of its classes; or an import, whose names of tensors, types, labels
  and special ids are used again, so that the export of an import is the same to the bit. shard_bytes: size above which
  a file is split. Of ELMo it is AllenNLP. Raises ConvertError for what they cannot hold, or a folder not empty.
  """
  like = Like(like) if isinstance(like, str) else like
  if like.family == elmo.FAMILY.name:
    return elmo.save(folder, config, params['backbone'], dtype)
  before = like if isinstance(like, Imported) else None
  kind = family_of(like.family)
  if {name.removeprefix('heads_') for name in params if name.startswith('heads_')} & kind.encoding:
    config = dataclasses.replace(config, decoder=StackConfig(0))
    params = {**params, 'backbone': {name: x for name, x in params['backbone'].items() if name != 'decoder'}}
  kind = kind.of(config)
  hf_config, arrays = describe(kind, config, params, tokenizer, like), tensors(kind, params, copies=bool(before))
  types = {found.name: short for short, found in rules.DTYPES.items()}
  if dtype is not None and dtype not in types:
    raise ConvertError(f'dtype is one of {", ".join(types)}, got {dtype!r}')
  targets: dict[str, list[tuple[str, str]]] = {}
  for name, (new, old_type) in (before.form if before else {}).items():
    targets.setdefault(new, []).append((name, old_type))
  cls = hf_config['architectures'][0]
  bare = not kind.classes.get(cls, [name for name in params if name.startswith('heads_')])
  of_heads = {name for head in kind.heads.values() for rule in head.rules if rule.ours.startswith('heads_')
              for name in rule.names(())}
  every = [*kind.rules, *(rule for head in kind.heads.values() for rule in head.rules)]
  # Copies of others are written only where an import had them.
  copies = {name for rule in rules.promoted(every, targets) if rule.copy for name in rule.names((0,))}

  def pairs():
    for name, x in arrays:
      plain = name.removeprefix(kind.prefix) if bare else name
      if cls in kind.within and name not in of_heads:
        plain = kind.within[cls] + name.removeprefix(kind.prefix)
      places = targets.get(name, [(plain, 'F32')] if name not in copies else [])
      for place, old_type in places:
        short = types[dtype] if dtype and old_type in rules.DTYPES else old_type
        yield place, files.cast(place, x, short)

  with folders.fresh_folder(folder) as draft:
    files.write_safetensors(draft, pairs(), shard_bytes)
    if tokenizer:
      vocabulary.save(draft, tokenizer, config.max_length)
      if isinstance(like, Like) and like.around:
        vocabulary.surround(draft, tokenizer, like.around, types=getattr(config, 'types', 0) > 1)
    hf_config['dtype'] = dtype or (before and before.extra.get('dtype', before.extra.get('torch_dtype'))) or 'float32'
    files.write_json(draft / CONFIG, hf_config)
    if isinstance(like, Like) and like.beside:
      like.beside(draft)


def counterpart(family: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
  """Returns (what transformers has of `params`, the tree that `save` takes; names of the heads that it does not
  have)."""
  heads, classes = family_of(family).heads, [set(names) for names in family_of(family).classes.values()]
  lost = [name for name in params if name.startswith('heads_') and name.removeprefix('heads_') not in heads]
  left = {name.removeprefix('heads_') for name in params if name.startswith('heads_') and name not in lost}
  if left not in classes and left - {'lm'} in classes:
    lost.append('heads_lm')  # which was trained beside a task's
  return ({name: tree for name, tree in params.items() if name not in lost},
          [name.removeprefix('heads_') for name in lost])


def tensors(family: Family, tree: Any, copies: bool = False):
  """Yields our parameters, or gradients alike, as (their name, numpy array in their layout) pairs; `family` is that
  `of` the model's configuration where numbers of layers depend on it."""
  flat = flat_dict(nn.unbox(tree))
  heads = [head for name, head in family.heads.items() if f'heads_{name}' in tree or name in family.free]
  return rules.write([*family.rules, *(rule for head in heads for rule in head.rules)], flat, copies)


def is_checkpoint(folder: epath.PathLike) -> bool:
  """Tells whether the folder, or TensorFlow's prefix x.ckpt, looks like another library's checkpoint, not like a
  run."""
  path = storage.path_of(folder)
  with understood(path, 'the folder of a run or of a checkpoint', ConvertError):
    if not path.is_dir():
      return path.suffix in files.FOREIGN
    if not (path / CONFIG).exists():
      return (is_tensorflow(path) or of_fairseq(path) is not None or states(path) is not None or is_t5x(path)
              or elmo.is_elmo(path) or of_megatron(path) is not None)
    return 'is' not in storage.read_json(path / CONFIG, error=ConvertError)


def describe(family: Family, config: Any, params: Any, tokenizer: Tokenizer | None, like: Imported | Like) -> dict:
  """Returns the contents of their config.json. Raises ConvertError where the parameters are not of this
  configuration."""
  heads = [name.removeprefix('heads_') for name in params if name.startswith('heads_')]
  rules.refuse([f'head {name} has no counterpart there' for name in heads if name not in family.heads])
  # Heads without parameters are not to be seen in them: those of an import, else as many as a class of theirs has.
  before = like if isinstance(like, Imported) else None
  free = family.free & set(before.heads) if before else family.free
  classes = sorted((cls for cls, names in family.classes.items()
                    if set(names) - free == set(heads) - family.beside and (not before or free <= set(names))),
                   key=lambda cls: -len(family.classes[cls])) or (before and before.extra.get('architectures'))
  if not classes:
    raise ConvertError(f'transformers has no {family.name} class with the heads {", ".join(heads)}: leave one out')
  hf_config = {**family.says, **(before.extra if before else {}), 'model_type': family.name,
               'architectures': [*classes][:1], **attributes.write(family, config)}
  if heads:
    hf_config['architectures'] = [*classes][:1]  # whatever a bare backbone of the kind would be
  hf_config.pop('torch_dtype', None)
  ids = {role: getattr(tokenizer.vocab, role) for role in family.ids} if tokenizer else {}
  for role, number in ids.items():
    hf_config.setdefault(f'{role}_token_id', number if number >= 0 else None)
  hf_config.setdefault('pad_token_id', 0)
  labels = [np.shape(params[f'heads_{name}']['dense']['kernel'])[-1] for name in heads if name in LABELLED]
  names = like.labels if isinstance(like, Like) else ()
  if labels and names and len({*names}) != labels[0]:
    raise ConvertError(f'the head has {labels[0]} classes, for which there are {len({*names})} names: '
                       f'{brief(list(names))}')
  if labels and len(hf_config.get('id2label') or ()) != labels[0]:
    names = names or [f'LABEL_{number}' for number in range(labels[0])]
    hf_config['id2label'] = {str(number): name for number, name in enumerate(names)}
    hf_config['label2id'] = {name: number for number, name in enumerate(names)}
    if 'label' in heads:
      hf_config['problem_type'] = 'regression' if labels[0] == 1 else 'single_label_classification'
  modules = {name: family.heads[name].make(config, labels[0] if labels else 2) for name in heads}
  shapes = parameter_shapes(family, config, modules)
  found = {name: np.shape(x) for name, x in flat_dict(nn.unbox(params)).items()}
  rules.refuse([f'{name}: {list(found[name]) if name in found else "missing"}, expected '
                f'{list(shapes[name]) if name in shapes else "nothing"}'
                for name in sorted(found.keys() | shapes.keys()) if found.get(name) != shapes.get(name)],
               'the parameters are not those of the configuration')
  return hf_config


LABELLED = ('label', 'tags')  # heads whose classes have names
