"""Formats of other libraries' checkpoints: detect and open one, and choose the heads to read."""
from collections.abc import Iterable, Mapping, Sequence, Sized
import importlib
import pathlib
import re
from typing import Any

from etils import epath

from plm_jax import storage
from plm_jax.conversion import composer, fairseq, files
from plm_jax.conversion.fairseq import FairseqCheckpoint
from plm_jax.conversion.flax_msgpack import FlaxCheckpoint, is_flax
from plm_jax.conversion.folders import PathType, child_path, is_regular_file
from plm_jax.conversion.megatron import MegatronCheckpoint, find_megatron
from plm_jax.conversion.t5x import T5XCheckpoint, is_t5x
from plm_jax.conversion.torch_pickle import PICKLED, PICKLED_INDEX, PytorchBin, TorchPickle
from plm_jax.layers.stack import StackConfig
from plm_jax.models.families import FAMILIES, get_family
from plm_jax.models.rules import ConvertError, Family, Source, raise_problems
from plm_jax.tokenizers.contract import abbreviate

CONFIG, ADAPTER = 'config.json', 'adapter_config.json'
ADAPTER_WEIGHTS = 'adapter_model.safetensors', 'adapter_model.bin'
ORIGINAL_CONFIGS = {
    'bert_config.json': 'bert', 'albert_config.json': 'albert', 'xlnet_config.json': 'xlnet'}
"""configuration files of the authors' own code in TensorFlow -> family; ELECTRA's has none"""
ELMO_OPTIONS = 'options.json'
"""end of the name of an ELMo's configuration"""
GLM_STATES = 'mp_rank_{:02}_model_states.pt'
"""files of GLM's own code, one for each process that had a part of the model"""
ALIASES = {
    'camembert': ('roberta', 'Camembert', 'Roberta'), 'mistral': ('llama', 'Mistral', 'Llama'),
    'new': ('gte', 'New', 'Gte')}
"""model_type whose models are those of another family -> (family, their prefix of classes, ours)

An attribute in which such a model differs (a sliding window of Mistral) is refused by its name.
"""
LATEST = ('latest_checkpointed_iteration.txt', 'latest')
"""files of GLM's own code that name a step"""

Opened = tuple[pathlib.Path, Family, dict[str, Any], Source]
"""(folder, family, contents of config.json, tensors)"""


def open_checkpoint(path: pathlib.Path, kind: str = composer.MODEL) -> Opened:
  """Open a checkpoint of any known format.

  Args:
    path: of the file or folder.
    kind: tensors of a checkpoint of Composer: parameters, or moments of the optimizer.

  Raises:
    ConvertError: the format is not known, or has no moments.
  """
  if composer.is_composer(path):
    hf_config = rename_alias(files.read_json(path.parent / CONFIG))
    source = composer.ComposerCheckpoint(path, kind)
    return path.parent, get_family(resolve_model_type(hf_config)), hf_config, source
  if kind != composer.MODEL:
    raise ConvertError(
        f'{path} has no moments of an optimizer: give a file .pt of Composer next to the '
        f'{CONFIG} and the tokenizer of the model, or a run')

  # GLM's own code.
  folder = find_glm_folder(path)
  if folder:
    return open_glm(folder)

  # TensorFlow 1.
  prefix = path
  if path.is_dir() and is_tensorflow(path):
    found = sorted(path.glob('*.index'))
    if len(found) != 1:
      raise ConvertError(
          f'{path} has {len(found)} TensorFlow checkpoints (*.ckpt.index), expected one: name it')
    prefix = found[0].with_suffix('')
  if prefix.with_name(f'{prefix.name}.index').exists() and not prefix.is_dir():
    return open_tensorflow(prefix)

  # Pickles of Megatron-LM and fairseq, and T5X.
  for find, checkpoint in (
      (find_megatron, MegatronCheckpoint), (find_fairseq, FairseqCheckpoint)):
    pickled = find(path)
    if pickled:
      source = checkpoint(pickled)
      family = get_family(source.hf_config['model_type'])
      return pickled.parent, family, source.hf_config, source
  if is_t5x(path):
    source = T5XCheckpoint(path)
    stated = (path / CONFIG).exists()
    hf_config = files.read_json(path / CONFIG) if stated else source.infer_hf_config()
    return path, get_family(resolve_model_type(hf_config)), hf_config, source

  # Folders of transformers.
  if path.is_file():
    if path.suffix in files.UNSUPPORTED_SUFFIXES:
      raise ConvertError(files.describe_unsupported(str(path)))
    raise ConvertError(f'{path} is a file: give the folder that holds it, with its {CONFIG}')
  if message := describe_adapter(path):
    raise ConvertError(message)
  if not path.is_dir():
    raise ConvertError(f'there is no folder {path}')
  if not (path / CONFIG).exists():
    names = ' nor a '.join(ORIGINAL_CONFIGS)
    raise ConvertError(f'{path} has neither a {CONFIG} nor a {names}')
  hf_config = rename_alias(files.read_json(path / CONFIG))
  family = get_family(resolve_model_type(hf_config))
  safetensors = (files.SINGLE_FILE, files.INDEX_FILE)
  if not any((path / name).exists() for name in safetensors):
    if any((path / name).exists() for name in (PICKLED, PICKLED_INDEX)):
      return path, family, hf_config, PytorchBin(path)
    if is_flax(path):
      return path, family, hf_config, FlaxCheckpoint(path)
  return path, family, hf_config, files.SafeTensorsFolder(path)


def describe_adapter(path: PathType) -> str:
  """Return an error message for a folder with an adapter of peft; '': it has none.

  A folder with a whole model and the weights of an adapter is refused as well: which of the two is
  meant cannot be told. A configuration that was left behind after merging has no weights.
  """
  if not (path / ADAPTER).exists():
    return ''
  if (path / CONFIG).exists():
    weights = [name for name in ADAPTER_WEIGHTS if (path / name).exists()]
    if not weights:
      return ''
    return (
        f'{path} has a model and an adapter of peft ({ADAPTER}, {weights[0]}): merge the adapter '
        'into the model with peft, model.merge_and_unload().save_pretrained(FOLDER), or move both '
        'files away to read the model without it')
  contents = storage.read_json(path / ADAPTER, error=ConvertError)
  base = contents.get('base_model_name_or_path') or 'its base model'
  return (
      f'{path} is an adapter of peft for {abbreviate(base)}, not a model ({ADAPTER}): merge it '
      'into the base model with peft, '
      'model.merge_and_unload().save_pretrained(FOLDER), and give that folder')


def is_tensorflow(path: PathType) -> bool:
  """Tell whether a folder is one of the authors' own code in TensorFlow.

  It has the configuration file of that code, or tensors of ELECTRA.
  """
  if (path / CONFIG).exists():
    return False
  if any((path / name).exists() for name in ORIGINAL_CONFIGS):
    return True
  return any(path.glob('electra*.index'))


def find_fairseq(path: PathType) -> pathlib.Path | None:
  """Find a checkpoint of fairseq: a file .pt, or the one of a folder without config.json."""
  found = path if path.suffix == '.pt' else path / fairseq.FILE
  is_there = found.is_file() and not (found.parent / CONFIG).exists()
  return pathlib.Path(found) if is_there else None


def open_tensorflow(prefix: pathlib.Path) -> Opened:
  """Open a checkpoint of TensorFlow 1."""
  folder, source = prefix.parent, files.TensorFlowCheckpoint(prefix)
  for name, model_type in ORIGINAL_CONFIGS.items():
    if (folder / name).exists():
      family = get_family(model_type, original=True)
      return folder, family, files.read_json(folder / name), source
  electra = importlib.import_module(FAMILIES['electra'])
  family = get_family('electra', original=True)
  return folder, family, electra.infer_hf_config(source.tensors), source


def find_glm_folder(path: PathType) -> PathType | None:
  """Find the folder of GLM's own code that has the parameters; None: there is none.

  It is this one, or that of the step which a file in it names as the newest.
  """
  if (path / GLM_STATES.format(0)).exists():
    return path
  steps = [storage.read_text(path / name, 1 << 10, ConvertError).strip()
           for name in LATEST if is_regular_file(path / name)]
  for step in steps:
    place = child_path(path, step)
    if (place / GLM_STATES.format(0)).exists():
      return place
  return None


def open_glm(folder: pathlib.Path) -> Opened:
  """Open a file of GLM's own code, whose configuration is inferred where there is none."""
  if (folder / GLM_STATES.format(1)).exists():
    raise ConvertError(f'{folder} holds the parts of a model that was split between processes: put '
                       'it together first, with change_mp.py of the original code')
  source = TorchPickle(folder / GLM_STATES.format(0), inside='module')
  glm = importlib.import_module(FAMILIES['glm'])
  stated = (folder / CONFIG).exists()
  hf_config = files.read_json(folder / CONFIG) if stated else glm.infer_hf_config(source.tensors)
  return folder, get_family('glm'), hf_config, source


def resolve_model_type(hf_config: Mapping[str, Any]) -> str:
  """Return the name of the family of a configuration.

  Configurations from before 2020 state no model_type. Then the class tells, or an attribute that no
  other family has. Raises ConvertError where nothing does.
  """
  classes = hf_config.get('architectures') or ()
  stated = hf_config.get('model_type')
  for name in ('mosaicbert', 'jina-bert'):
    if stated == 'bert' and get_family(name).marker_attributes & hf_config.keys():
      return name
  if stated == 'bart' and any(name in get_family('cpt').classes for name in classes):
    return 'cpt'
  if 'model_type' in hf_config:
    return hf_config['model_type']
  for name in FAMILIES:
    family = get_family(name)
    if set(classes) & set(family.classes) or family.marker_attributes & hf_config.keys():
      return name
  raise ConvertError(f'{CONFIG} has no model_type')


def rename_tensor(family: Family, name: str) -> str | None:
  """Return a tensor's name in the rules; None for a tensor that is no parameter."""
  if any(re.search(pattern, name) for pattern in family.skip_patterns):
    return None
  for pattern, replacement in family.aliases:
    name = re.sub(pattern, replacement, name)
  return name


def rename_alias(hf_config: dict[str, Any]) -> dict[str, Any]:
  """Return a configuration under the name of its family, where it is one of `ALIASES`."""
  stated = hf_config.get('model_type')
  if not isinstance(stated, str) or stated not in ALIASES:
    return hf_config
  family, theirs, ours = ALIASES[stated]
  classes = [str(name).replace(theirs, ours) for name in hf_config.get('architectures') or ()]
  return {**hf_config, 'model_type': family, 'architectures': classes}


def find_wrapper(family: Family, names: Iterable[str]) -> str:
  """Find the prefix of a module that held the model when its tensors were saved; '': none.

  Such modules are `module.` (DataParallel), `_orig_mod.` (torch.compile), and the attribute of a
  LightningModule or of a class of one's own. It is the shortest prefix without which names are
  known; where some are known with it, nothing is wrapped. The prefix of another family is no
  wrapper: such a file is not what its configuration says.
  """
  rules = list(family.rules)
  for head in family.heads.values():
    rules += head.rules
  known = {re.sub(r'{n}|\d+', '#', rule.theirs) for rule in rules}

  def is_known(name):
    new = rename_tensor(family, name)
    return new is not None and re.sub(r'\d+', '#', new) in known

  found = set()
  for name in names:
    parts = name.split('.')
    for depth in range(min(len(parts), 5)):
      if is_known('.'.join(parts[depth:])):
        found.add(''.join(f'{part}.' for part in parts[:depth]))
        break
  wrapper = min(found, key=len, default='')
  inner = f'.{wrapper}'.split('.')[-2]
  return '' if inner in FAMILIES and f'{inner}.' != family.prefix else wrapper


def check_layers(config: Any, names: Sized) -> None:
  """Raise ConvertError for more layers than the file has tensors.

  Some models are laid out layer by layer before anything is compared, so this comes first.
  """
  stacks = [getattr(config, name, None) for name in ('stack', 'decoder')]
  layers = sum(one.layers for one in stacks if isinstance(one, StackConfig) and not one.groups)
  if layers > len(names):
    raise ConvertError(
        f'the configuration makes {layers:,} layers, the file has {len(names):,} tensors')


def choose_heads(
    family: Family, hf_config: Mapping[str, Any], names: Mapping[str, Any],
    wanted: Sequence[str] | None,
) -> tuple[list[str], tuple[str, ...]]:
  """Choose the heads to read from a file.

  Args:
    family: specialized to the configuration.
    hf_config: contents of config.json, whose classes name heads.
    names: of the tensors.
    wanted: names of heads; None: all that the file has.

  Returns:
    The heads to read, and those that are wanted and not in the file.

  Raises:
    ConvertError: for heads that the family does not have, and where a tensor may belong to several
      heads and nothing tells which.
  """
  unknown = [f'{name!r}; known are {", ".join(family.heads)}'
             for name in wanted or () if name not in family.heads]
  raise_problems(unknown, 'no such head')
  own = {name: {rule.theirs for rule in head.rules if not rule.copy}
         for name, head in family.heads.items()}
  declared = list(wanted or ())
  if wanted is None:
    for cls in hf_config.get('architectures') or ():
      declared += family.classes.get(cls, ())
  free = family.parameterless_heads & set(declared)
  present = [name for name in family.heads if own[name] & set(names) or name in free]

  # Of heads that share tensors, keep those whose other tensors are in the file, too.
  def is_beaten(name):
    for other in present:
      more, less = own[other] - own[name], own[name] - own[other]
      if own[name] & own[other] and more & set(names) and not less & set(names):
        return True
    return False
  present = [name for name in present if not is_beaten(name)]

  # One tensor may have several meanings: `classifier.weight` belongs to whichever head the caller
  # or the configuration names.
  for name in list(present):
    rivals = [other for other in present if own[other] & own[name]]
    if len(rivals) > 1:
      keep = [other for other in rivals if other in declared]
      if len(keep) != 1 and wanted is None:
        raise ConvertError(
            f'{", ".join(sorted(own[name]))} may be of the heads {", ".join(rivals)}, and the '
            'configuration names no class that tells: give heads=')
      present = [other for other in present if other not in rivals or other in keep[:1]]
  if wanted is None:
    return present, ()
  missing = tuple(name for name in wanted if name not in present)
  return [name for name in present if name in wanted], missing


def is_elmo(folder: epath.PathLike) -> bool:
  """Tell whether a folder has files of an ELMo, NAMEoptions.json, and none of another library."""
  folder = storage.resolve_path(folder)
  if storage.is_remote(folder) or not folder.is_dir():
    return False
  return any(folder.glob(f'*{ELMO_OPTIONS}')) and not (folder / 'config.json').exists()
