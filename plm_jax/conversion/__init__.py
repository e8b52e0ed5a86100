"""Conversion of checkpoints: transformers both ways, the original TensorFlow ones and T5X's in.

    imported = conversion.load('bert-base-uncased/')
    outputs = imported.model().apply({'params': imported.params}, batch)
    conversion.save('out/', imported.config, imported.params, imported.tokenizer)

What differs between families is data next to their models (`plm_jax.models.rules.Family`). A file
that holds anything beyond that is refused, with the names. Parameters are float32 here; a float16
or bfloat16 file is widened exactly.
"""
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from etils import epath
import flax.linen as nn
from flax.traverse_util import unflatten_dict
import numpy as np

from plm_jax import storage, validation
from plm_jax.conversion import (
  attributes,
  composer,
  files,
  folders,
  generation,
  pylate,
  sentence_transformers,
  tokenizer_files,
)
from plm_jax.conversion.files import LazyParameter
from plm_jax.conversion.megatron import find_megatron
from plm_jax.conversion.source_formats import (
  CONFIG,
  check_layers,
  choose_heads,
  find_fairseq,
  find_glm_folder,
  find_wrapper,
  is_elmo,
  is_tensorflow,
  open_checkpoint,
  rename_tensor,
)
from plm_jax.conversion.t5x import is_t5x
from plm_jax.errors import parse_errors_as
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.models import rules
from plm_jax.models.families import (
  boxed_parameter_shapes,
  build_head,
  enable_required_parts,
  flatten_tree,
  get_family,
  parameter_shapes,
  uses_verbalizer,
)
from plm_jax.models.rules import ConvertError, Family
from plm_jax.storage import hub
from plm_jax.tokenizers import Tokenizer

__all__ = [
    'LABELED_HEADS',
    'ConvertError',
    'ExportTemplate',
    'ImportedCheckpoint',
    'LazyParameter',
    'build_head',
    'enable_required_parts',
    'export_tensors',
    'exportable_params',
    'get_family',
    'is_checkpoint',
    'load',
    'save',
    'uses_verbalizer',
]

ELMO = 'elmo'
LABELED_HEADS = ('label', 'tags')
"""heads whose classes have names"""


@dataclasses.dataclass(frozen=True, eq=False)
class ImportedCheckpoint:
  """A checkpoint of another library, converted to our configuration and parameters."""

  config: Any
  """of the backbone"""
  params: Any
  """numpy float32 arrays or `LazyParameter`; the tree of `model()`"""
  tokenizer: Tokenizer | None
  """None where the folder has none"""
  heads: Mapping[str, nn.Module]
  """the heads whose parameters the file has"""
  missing_heads: tuple[str, ...]
  """heads that were requested and are not in the file"""
  family: str
  """model_type of transformers"""
  extra: Mapping[str, Any]
  """attributes of config.json without a place in ours: labels, ids of special tokens, ..."""
  tensor_origins: Mapping[str, tuple[str, str]]
  """tensor in the file -> (its name in the rules, its type); an export writes the same"""
  generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  """contents of generation_config.json; {}: there is none"""
  end_ids: tuple[int, ...] = ()
  """ids of the tokens that end a text, as its files state them; (): they state none"""
  length: int = 0
  """maximum tokens per row that its tokenizer's files state; 0: they state none"""

  @property
  def labels(self) -> tuple[str, ...]:
    """Names of the classes (id2label), LABEL_0, LABEL_1, ... if only their number is stated."""
    unnamed = [f'LABEL_{number}' for number in range(self.extra.get('num_labels') or 0)]
    stated = self.extra.get('id2label') or unnamed
    names = stated if isinstance(stated, Mapping) else dict(enumerate(stated))
    return tuple(str(names[number]) for number in sorted(names, key=int))

  def model(self) -> ModelWithHeads:
    """Make the module: the backbone with the heads that were read."""
    return ModelWithHeads(get_family(self.family).backbone(self.config), dict(self.heads))

  def shapes(self) -> Any:
    """Return the shapes of the parameters, with their logical axes (flax boxes)."""
    input_shapes = get_family(self.family).input_shapes(self.config)
    return boxed_parameter_shapes(self.model(), input_shapes)


@dataclasses.dataclass(frozen=True)
class ExportTemplate:
  """The form of a new export: its family, and what its files state besides the parameters."""

  family: str
  """model_type of transformers"""
  labels: tuple[str, ...] = ()
  """names of the classes, in their order; (): LABEL_0, LABEL_1, ..."""
  frame: tokenizer_files.TextFrame | None = None
  """special tokens around texts: ids before the first text, between two and after the last

  None: those of pre-training.
  """
  length: int = 0
  """maximum tokens per row that the export states; 0: that of the model"""
  attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  """further attributes of config.json"""


def load(
    path: epath.PathLike, heads: Sequence[str] | None = None, lazy: bool = False,
    kind: str = composer.MODEL,
) -> ImportedCheckpoint:
  """Load a checkpoint of another library from a local folder or a bucket.

  Args:
    path: folder with config.json and safetensors or flax_model.msgpack; the authors' own in
      TensorFlow (bert_config.json, albert_config.json or xlnet_config.json with *.ckpt.*,
      electra_*); fairseq's model.pt; Megatron-LM's model_optim_rng.pt; T5X's checkpoint_STEP; a
      .pt of Composer next to config.json; or an ELMo's options.json with .hdf5. Or the name of a
      model of the Hugging Face hub.
    heads: names of the heads to read (`FAMILY.heads` in `plm_jax.models`); None: all in the file.
    lazy: whether parameters are `LazyParameter`, which read only the parts that are used.
    kind: `composer.FIRST` or `composer.SECOND`: moments of the optimizer in place of parameters.

  Raises:
    ConvertError: for whatever is not understood, with the name of every tensor and attribute.
    TokenizerError: for a damaged vocabulary.
  """
  place = folders.copy_if_remote(path)
  if is_elmo(place):
    from plm_jax.conversion import elmo_hdf5
    config, backbone = elmo_hdf5.load(place)
    return ImportedCheckpoint(
        config, {'backbone': backbone}, None, {}, tuple(heads or ()), ELMO, {}, {})
  with parse_errors_as(path, 'a checkpoint', ConvertError):
    # Configuration and names of tensors.
    folder, family, hf_config, source = open_checkpoint(place, kind)
    hf_config = {**hf_config, **sentence_transformers.cross_encoder_attributes(folder)}
    attributes.check_hf_config(family, hf_config)
    hf_config = family.normalize_hf_config(hf_config)
    wrapper = find_wrapper(family, source.tensors)
    if wrapper:
      source = files.RenamedSource(source, lambda name: name.removeprefix(wrapper), folder)
    pairs = ((name, rename_tensor(family, name)) for name in source.tensors)
    ignored = pylate.list_other_tensors(hf_config)
    original = {name: new for name, new in pairs if new is not None and name not in ignored}
    renamed = files.RenamedSource(source, original.get, folder)
    config = attributes.parse_hf_config(family, hf_config)
    parts = {field: tensor in renamed.tensors for field, tensor in family.part_tensors.items()}
    config = family.infer_from_tensors(validation.with_paths(config, parts), renamed.tensors)
    check_layers(config, source.tensors)

    # Heads and parameters.
    named = family.specialize(config)
    chosen, missing = choose_heads(named, hf_config, renamed.tensors, heads)
    for name in chosen:  # a part that is not in the file is then named as missing
      config = validation.with_paths(config, dict.fromkeys(family.heads[name].required_parts, True))
    modules = {name: attributes.make_head(family.heads[name], config, hf_config) for name in chosen}
    used = list(named.rules)
    for name in chosen:
      used += named.heads[name].rules
    known: set[str] = set()
    for head in family.heads.values():
      known.update(*(rule.names(()) for rule in head.rules))
    shapes = parameter_shapes(family, config, modules)
    matches = rules.match_tensors(used, shapes, renamed, known)
  params: dict[str, Any] = {
      name: LazyParameter(rule, renamed, shapes[name], copies)
      for name, (rule, copies) in matches.items()}
  if not lazy:
    params = {name: np.asarray(x) for name, x in params.items()}
  kept = attributes.IGNORED | family.ignored
  extra = {name: value for name, value in hf_config.items() if name in kept}
  # Names of another library than is written help no export.
  names = original.items() if family is get_family(family.name) else ()
  origins = {name: (new, source.tensors[name][1]) for name, new in names
             if not name.startswith(family.authors_prefixes)}
  tokenizer, settings = tokenizer_files.load(folder), generation.read_generation_config(folder)
  return ImportedCheckpoint(
      config, unflatten_dict(params, sep='/'), tokenizer, modules, missing, family.name, extra,
      origins, settings, generation.end_ids(folder, hf_config, settings, tokenizer),
      sentence_transformers.read_max_length(folder))


def load_moments(path: epath.PathLike) -> tuple[int, Any, Any]:
  """Load the moments of Adam from a checkpoint of Composer.

  Returns:
    (number of updates, first moments, second moments), lazily, in the tree of the parameters.

  Raises:
    ConvertError: the checkpoint has none.
  """
  first, second = (
      load(path, lazy=True, kind=kind).params for kind in (composer.FIRST, composer.SECOND))
  source = composer.ComposerCheckpoint(folders.copy_if_remote(path), composer.FIRST)
  return source.count, first, second


def save(
    folder: epath.PathLike,
    config: Any,
    params: Any,
    tokenizer: Tokenizer | None = None,
    dtype: str | None = None,
    like: 'ImportedCheckpoint | ExportTemplate | str' = 'bert',
    shard_bytes: int = 5 << 30,
    write_extra: Callable[[pathlib.Path], None] | None = None,
) -> None:
  """Export a model for transformers' AutoModel classes and AutoTokenizer, or an ELMo for AllenNLP.

  The folder appears whole or not at all.

  Args:
    folder: a new or empty folder, local or in a bucket.
    config: of the backbone.
    params: the tree of ModelWithHeads, 'backbone' and 'heads_NAME'.
    tokenizer: None: the export has none.
    dtype: float32, float16 or bfloat16; None: as in `like`, else float32.
    like: a family; or a template with the names of its classes; or an import, whose names of
      tensors, types, labels and special ids are used again, so that the export of an import is
      identical to the bit.
    shard_bytes: size above which a file is split.
    write_extra: writes further files into the folder.

  Raises:
    ConvertError: for what the other library cannot hold, and for a folder that is not empty.
  """
  if isinstance(like, str):
    like = ExportTemplate(like)
  if like.family == ELMO:
    from plm_jax.conversion import elmo_hdf5
    return elmo_hdf5.save(folder, config, params['backbone'], dtype)
  before = like if isinstance(like, ImportedCheckpoint) else None
  kind = get_family(like.family)
  if {f'heads_{name}' for name in kind.encoder_only_heads} & params.keys():
    config = dataclasses.replace(config, decoder=StackConfig(0))
    backbone = {name: x for name, x in params['backbone'].items() if name != 'decoder'}
    params = {**params, 'backbone': backbone}
  kind = kind.specialize(config)
  hf_config = build_hf_config(kind, config, params, tokenizer, like)
  short_names = {found.name: short for short, found in rules.DTYPES.items()}
  if dtype is not None and dtype not in short_names:
    raise ConvertError(f'dtype is one of {", ".join(short_names)}, got {dtype!r}')
  cls, stated = hf_config['architectures'][0], None
  if before:
    stated = before.extra.get('dtype', before.extra.get('torch_dtype'))
  arrays = file_tensors(kind, cls, params, short_names.get(dtype or ''), before)
  with folders.atomic_folder(folder) as draft:
    files.write_safetensors(draft, arrays, shard_bytes)
    if tokenizer:
      frame, roles = None, {}
      if isinstance(like, ExportTemplate):
        frame = like.frame or generation.text_frame(config.kind, tokenizer.vocab)
        roles = generation.special_ids(config.kind, tokenizer.vocab)
      types = config.kind == 'encoder' and (config.cls_last or getattr(config, 'types', 0) > 1)
      lengths = [length for length in (like.length, config.max_length) if length]
      tokenizer_files.save(draft, tokenizer, min(lengths, default=0), frame, types, roles)
      if roles and 'lm' in kind.classes.get(cls, ()):
        settings = generation.build_generation_config(hf_config, tokenizer.vocab, config.vocab)
        files.write_json(draft / generation.FILE, settings)
    if before and before.generation:
      files.write_json(draft / generation.FILE, before.generation)
    hf_config['dtype'] = dtype or stated or 'float32'
    files.write_json(draft / CONFIG, hf_config)
    if write_extra:
      write_extra(draft)


def file_tensors(
    family: Family, cls: str, params: Any, dtype: str | None, before: ImportedCheckpoint | None,
) -> Iterator[tuple[str, np.ndarray]]:
  """Yield (name in the file, array) of every tensor of an export.

  Args:
    family: specialized to the model's configuration.
    cls: class of transformers that reads the file.
    params: 'backbone' and 'heads_NAME'.
    dtype: safetensors' name of the type; None: as in `before`, else F32.
    before: the import whose names and types are used again.
  """
  # Names in the rules -> names and types in the imported file.
  targets: dict[str, list[tuple[str, str]]] = {}
  if before:
    for name, (new, old_type) in before.tensor_origins.items():
      targets.setdefault(new, []).append((name, old_type))
  every = list(family.rules)
  of_heads: set[str] = set()
  for head in family.heads.values():
    every += head.rules
    of_heads.update(*(rule.names(()) for rule in head.rules if rule.ours.startswith('heads_')))
  # Copies of tied weights are written only where an import had them.
  promoted = rules.promote_copies(every, targets)
  copies = set().union(
      *(rule.names((0,)) for rule in promoted if rule.copy and not rule.unused))
  heads = [name for name in params if name.startswith('heads_')]
  bare = not family.classes.get(cls, heads)
  for name, x in export_tensors(family, params, copies=bool(before)):
    if name not in targets:
      if name in copies:
        continue
      plain = name
      if cls in family.class_prefixes and name not in of_heads:
        plain = family.class_prefixes[cls] + name.removeprefix(family.prefix)
      elif bare:
        plain = name.removeprefix(family.prefix)
      targets[name] = [(plain, 'F32')]
    for target, target_type in targets[name]:
      if dtype and target_type in rules.DTYPES:
        target_type = dtype
      yield target, files.cast_array(target, x, target_type)


def head_names(params: Mapping[str, Any]) -> list[str]:
  """Return the names of the heads that parameters have."""
  return [name.removeprefix('heads_') for name in params if name.startswith('heads_')]


def exportable_params(
    family: str, params: Mapping[str, Any],
) -> tuple[dict[str, Any], list[str]]:
  """Split parameters into those that transformers has and heads that it does not have.

  Returns:
    The tree that `save` takes, and the names of the heads that are left out.
  """
  spec = get_family(family)
  classes = [set(names) for names in spec.classes.values()]
  names = head_names(params)
  lost = [name for name in names if name not in spec.heads]
  left = set(names) - set(lost)
  if left not in classes and left - {'lm'} in classes:
    lost.append('lm')  # it was trained next to a task's head
  dropped = {f'heads_{name}' for name in lost}
  return {name: tree for name, tree in params.items() if name not in dropped}, lost


def export_tensors(
    family: Family, tree: Any, copies: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
  """Yield parameters, or gradients alike, as (name in the rules, array in their layout) pairs.

  Args:
    family: specialized to the model's configuration, if names depend on its number of layers.
    tree: 'backbone' and 'heads_NAME'.
    copies: whether copies of tied weights are included.
  """
  used = list(family.rules)
  for name, head in family.heads.items():
    if f'heads_{name}' in tree or name in family.parameterless_heads:
      used += head.rules
  return rules.export_arrays(used, flatten_tree(nn.unbox(tree)), copies)


def is_checkpoint(folder: epath.PathLike) -> bool:
  """Tell whether a folder looks like another library's checkpoint, not like a run.

  folder: also the prefix x.ckpt of a TensorFlow checkpoint.
  """
  path = hub.find_folder(folder)
  with parse_errors_as(path, 'the folder of a run or of a checkpoint', ConvertError):
    if not path.is_dir():
      return path.suffix in files.UNSUPPORTED_SUFFIXES
    if (path / CONFIG).exists():
      # The config.json of a run names the classes of its values.
      return 'is' not in storage.read_json(path / CONFIG, error=ConvertError)
    return (is_tensorflow(path) or find_fairseq(path) is not None
            or find_glm_folder(path) is not None or is_t5x(path) or is_elmo(path)
            or find_megatron(path) is not None)


def build_hf_config(
    family: Family, config: Any, params: Any, tokenizer: Tokenizer | None,
    like: ImportedCheckpoint | ExportTemplate,
) -> dict[str, Any]:
  """Return the contents of an export's config.json.

  Raises ConvertError where the parameters are not those of the configuration.
  """
  heads = head_names(params)
  rules.raise_problems([
      f'head {name} has no counterpart there' for name in heads if name not in family.heads])
  before = like if isinstance(like, ImportedCheckpoint) else None
  classes = choose_class(family, heads, before)
  hf_config: dict[str, Any] = dict(family.export_defaults)
  if before:
    hf_config |= before.extra
  hf_config |= {'model_type': family.name, 'architectures': classes}
  hf_config |= attributes.build_hf_attributes(family, config)
  if heads:
    hf_config['architectures'] = classes  # instead of the class of a bare backbone
  hf_config.pop('torch_dtype', None)

  # Special tokens.
  if tokenizer and not before:
    hf_config |= generation.special_ids(config.kind, tokenizer.vocab)
  if tokenizer:
    for role in family.token_roles:
      number = getattr(tokenizer.vocab, role)
      hf_config.setdefault(f'{role}_token_id', number if number >= 0 else None)
  hf_config.setdefault('pad_token_id', 0)
  ids = {name: value for name, value in hf_config.items() if name.endswith('_token_id')}
  for name in family.nested_configs:
    hf_config[name] = {**ids, **hf_config[name]}

  # Labels.
  counts = [np.shape(params[f'heads_{name}']['dense']['kernel'])[-1]
            for name in heads if name in LABELED_HEADS]
  number = counts[0] if counts else 2
  if counts:
    names = like.labels if isinstance(like, ExportTemplate) else ()
    attributes.set_labels(hf_config, heads, number, names)
  if isinstance(like, ExportTemplate):
    hf_config |= like.attributes
  check_shapes(family, config, params, heads, number)
  return hf_config


def check_shapes(
    family: Family, config: Any, params: Any, heads: Sequence[str], number: int) -> None:
  """Raise ConvertError where parameters are not those of the configuration.

  number: classes of the heads that have classes.
  """
  modules = {name: family.heads[name].make(config, number) for name in heads}
  shapes = parameter_shapes(family, config, modules)
  found = {name: np.shape(x) for name, x in flatten_tree(nn.unbox(params)).items()}
  wrong = []
  for name in sorted(found.keys() | shapes.keys()):
    if found.get(name) != shapes.get(name):
      shape = list(found[name]) if name in found else 'missing'
      wanted = list(shapes[name]) if name in shapes else 'nothing'
      wrong.append(f'{name}: {shape}, expected {wanted}')
  rules.raise_problems(wrong, 'the parameters are not those of the configuration')


def choose_class(
    family: Family, heads: Sequence[str], before: ImportedCheckpoint | None,
) -> list[str]:
  """Return a list with the class of transformers that has these heads.

  Parameters do not show heads without parameters of their own. An import tells which it has;
  otherwise the class with the most heads is taken. Raises ConvertError where there is no class.
  """
  free = family.parameterless_heads
  if before:
    free &= set(before.heads)
  wanted = set(heads) - family.extra_heads
  fitting = [cls for cls, names in family.classes.items()
             if set(names) - free == wanted and (not before or free <= set(names))]
  fitting.sort(key=lambda cls: -len(family.classes[cls]))
  if not fitting and before:
    fitting = before.extra.get('architectures') or []
  if not fitting:
    raise ConvertError(f'transformers has no {family.name} class with the heads '
                       f'{", ".join(heads)}: leave one out')
  return [*fitting][:1]
