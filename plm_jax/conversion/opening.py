"""What lies in a folder of another library: its family, configuration and tensors, and which heads those are of."""
from collections.abc import Mapping, Sequence, Sized
import importlib
import pathlib
import re
from typing import Any

from plm_jax import storage
from plm_jax.conversion import fairseq, files, rules
from plm_jax.conversion.fairseq import Fairseq
from plm_jax.conversion.families import FAMILIES, family_of
from plm_jax.conversion.flax_msgpack import FlaxMsgpack, is_flax
from plm_jax.conversion.folders import Place, inside, ordinary
from plm_jax.conversion.megatron import Megatron, of_megatron
from plm_jax.conversion.rules import ConvertError, Family
from plm_jax.conversion.t5x import T5X, is_t5x
from plm_jax.conversion.torch_pickle import PICKLED, TorchPickle
from plm_jax.layers.stack import StackConfig

CONFIG = 'config.json'
# Of the authors' own code in TensorFlow: the file beside a checkpoint -> the family. ELECTRA's have none.
ORIGINAL_CONFIGS = {'bert_config.json': 'bert', 'albert_config.json': 'albert', 'xlnet_config.json': 'xlnet'}
# Of GLM's own code: a file for each process that had a part of the model, and files that name a step.
STATES, LATEST = 'mp_rank_{:02}_model_states.pt', ('latest_checkpointed_iteration.txt', 'latest')


def open_checkpoint(path: pathlib.Path):
  """Opens a checkpoint -> (folder, family, contents of the config, source of tensors)."""
  if folder := states(path):
    return folder, *open_states(folder)
  prefix = path
  if path.is_dir() and is_tensorflow(path):
    found = sorted(path.glob('*.index'))
    if len(found) != 1:
      raise ConvertError(f'{path} has {len(found)} TensorFlow checkpoints (*.ckpt.index), expected one: name it')
    prefix = found[0].with_suffix('')
  if prefix.with_name(f'{prefix.name}.index').exists() and not prefix.is_dir():
    return prefix.parent, *open_tensorflow(prefix)
  if pickled := of_megatron(path):
    source = Megatron(pickled)
    return pickled.parent, family_of(source.described['model_type']), source.described, source
  if pickled := of_fairseq(path):
    source = Fairseq(pickled)
    return pickled.parent, family_of(source.described['model_type']), source.described, source
  if is_t5x(path):
    source = T5X(path)
    hf_config = files.read_json(path / CONFIG) if (path / CONFIG).exists() else source.described()
    return path, family_of(model_type(hf_config)), hf_config, source
  if path.is_file():
    raise ConvertError(files.advice(str(path)) if path.suffix in files.FOREIGN else
                       f'{path} is a file: give the folder that holds it, with its {CONFIG}')
  if not (path / CONFIG).exists():
    raise ConvertError(f'{path} has neither a {CONFIG} nor a {" nor a ".join(ORIGINAL_CONFIGS)}' if path.is_dir() else
                       f'there is no folder {path}')
  hf_config = files.read_json(path / CONFIG)
  family = family_of(model_type(hf_config))
  if family.pickled and (path / PICKLED).exists() and not (path / files.SINGLE).exists():
    return path, family, hf_config, TorchPickle(path / PICKLED)
  if is_flax(path) and not any((path / name).exists() for name in (files.SINGLE, files.INDEX)):
    return path, family, hf_config, FlaxMsgpack(path)
  return path, family, hf_config, files.SafeTensors(path)


def is_tensorflow(path: Place) -> bool:
  """Tells whether a folder is one of the authors' own code in TensorFlow, with the file that describes it, or with
  tensors of ELECTRA's."""
  if (path / CONFIG).exists():
    return False
  return any((path / name).exists() for name in ORIGINAL_CONFIGS) or any(path.glob('electra*.index'))


def of_fairseq(path: Place) -> pathlib.Path | None:
  """Finds a checkpoint of fairseq: a file .pt, or the one of a folder without a configuration."""
  found = path if path.suffix == '.pt' else path / fairseq.FILE
  return pathlib.Path(found) if found.is_file() and not (found.parent / CONFIG).exists() else None


def open_tensorflow(prefix: pathlib.Path) -> tuple[Family, dict[str, Any], files.TensorFlow]:
  """Opens a checkpoint of TensorFlow -> (family, contents of the config, source of tensors)."""
  folder, source = prefix.parent, files.TensorFlow(prefix)
  for name, family in ORIGINAL_CONFIGS.items():
    if (folder / name).exists():
      return family_of(family, original=True), files.read_json(folder / name), source
  module = importlib.import_module(FAMILIES['electra'])
  return family_of('electra', original=True), module.described(source.tensors), source


def states(path: Place) -> Place | None:
  """Finds the folder of GLM's own code in which the parameters are: this one, or of the step that it names as its
  newest."""
  if (path / STATES.format(0)).exists():
    return path
  named = [storage.read_text(path / name, 1 << 10, ConvertError).strip()
           for name in LATEST if ordinary(path / name)]
  return next((place for step in named if ((place := inside(path, step)) / STATES.format(0)).exists()), None)


def open_states(folder: pathlib.Path):
  """Opens a file of GLM's own code -> (family, contents of the config, which the original has not, source of
  tensors)."""
  if (folder / STATES.format(1)).exists():
    raise ConvertError(f'{folder} holds the parts of a model that was split between processes: put it together first, '
                       'with change_mp.py of the original code')
  source, module = TorchPickle(folder / STATES.format(0), inside='module'), importlib.import_module(FAMILIES['glm'])
  hf_config = files.read_json(folder / CONFIG) if (folder / CONFIG).exists() else module.described(source.tensors)
  return family_of('glm'), hf_config, source


def model_type(hf_config: Mapping[str, Any]) -> str:
  """Configurations from before 2020 do not say; their class does, or an attribute that no other family has."""
  if hf_config.get('model_type') == 'bert' and family_of('mosaicbert').marks & hf_config.keys():
    return 'mosaicbert'
  if hf_config.get('model_type') == 'bart' and any(
      name in family_of('cpt').classes for name in hf_config.get('architectures') or ()):
    return 'cpt'
  if 'model_type' in hf_config:
    return hf_config['model_type']
  for name in FAMILIES:
    family = family_of(name)
    if set(hf_config.get('architectures') or ()) & set(family.classes) or family.marks & hf_config.keys():
      return name
  raise ConvertError(f'{CONFIG} says no model_type')


def rename(family: Family, name: str) -> str | None:
  """Returns a tensor's name in the rules; None for what is no parameter."""
  if any(re.search(pattern, name) for pattern in family.skipped):
    return None
  return files.renamer(family.aliases)(name)


def check_layers(config: Any, names: Sized) -> None:
  """Raises ConvertError for more layers than there are tensors, each of which a layer would have of its own: some
  models are laid out layer by layer before anything is compared."""
  stacks = [getattr(config, name, None) for name in ('stack', 'decoder')]
  layers = sum(stack.layers for stack in stacks if isinstance(stack, StackConfig) and not stack.groups)
  if layers > len(names):
    raise ConvertError(f'the configuration makes {layers:,} layers, the file has {len(names):,} tensors')


def choose_heads(family: Family, hf_config: Mapping[str, Any], names: Mapping[str, Any], wanted: Sequence[str] | None):
  """Returns the heads to read, and those that are wanted and not there."""
  rules.refuse([f'{name!r}; known are {", ".join(family.heads)}' for name in wanted or () if name not in family.heads],
               'no such head')
  own = {name: {rule.theirs for rule in head.rules if not rule.copy} for name, head in family.heads.items()}
  declared = wanted if wanted is not None else [
      name for cls in hf_config.get('architectures') or () for name in family.classes.get(cls, ())]
  present = [name for name in family.heads if own[name] & set(names) or name in family.free & set(declared)]
  # Of heads that begin alike, those whose own part is there.
  def beaten(name, other):
    more, less = own[other] - own[name], own[name] - own[other]
    return own[name] & own[other] and more & set(names) and not less & set(names)
  present = [name for name in present if not any(beaten(name, other) for other in present)]
  # One name, several meanings: `classifier.weight` is of whichever head the caller or the configuration says.
  for name in list(present):
    rivals = [other for other in present if own[other] & own[name]]
    if len(rivals) > 1:
      keep = [other for other in rivals if other in declared]
      if len(keep) != 1 and wanted is None:
        raise ConvertError(f'{", ".join(sorted(own[name]))} may be of the heads {", ".join(rivals)}, and the '
                           'configuration names no class that tells: give heads=')
      present = [other for other in present if other not in rivals or other in keep[:1]]
  if wanted is None:
    return present, ()
  return [name for name in present if name in wanted], tuple(name for name in wanted if name not in present)
