"""LoRA adapters in the format of the library peft: in a folder next to a transformers checkpoint.

    base = AutoModelForSequenceClassification.from_pretrained(base, num_labels=C)
    model = PeftModel.from_pretrained(base, folder)

adapter_config.json states which matrices have an adapter. adapter_model.safetensors has lora_A
[r, in] and lora_B [out, r] of each, DoRA's lora_magnitude_vector [out], and the modules that were
trained in full, such as the head.
"""
from collections.abc import Iterator
import dataclasses
from typing import Any

from etils import epath
import flax.linen as nn
import numpy as np

from plm_jax.conversion import export_tensors, files, folders
from plm_jax.errors import name_field
from plm_jax.models.families import flatten_tree, get_family
from plm_jax.models.layouts import Linear, Packed
from plm_jax.models.rules import ConvertError, Family, Rule, raise_problems

PEFT_PREFIX = 'base_model.model.'
POOLER = 'pooler'
"""part of a backbone that a base model without one initializes at random"""
TASK_TYPES = {'label': 'SEQ_CLS', 'tags': 'TOKEN_CLS', 'span': 'QUESTION_ANS'}
"""head -> peft's task_type"""


def save_adapter(
    folder: epath.PathLike, family: str, config: Any, params: Any, adapter: Any, base: str = '',
) -> None:
  """Write the adapter of a run; the folder appears whole or not at all.

  Kernels that transformers keeps in one matrix (GPT-2's c_attn) have one adapter there.

  Args:
    folder: a new or empty folder.
    family: model_type.
    config: of the backbone.
    params: `backbone` and `heads_NAME`, with adapters.
    adapter: the `AdapterConfig` that the adapters were made with.
    base: folder or name of the checkpoint that they belong to.

  Raises:
    ConvertError: for a folder that is not empty, and where peft has no adapter of a matrix.
  """
  kind = get_family(family).specialize(config)
  arrays = dict(adapter_tensors(kind, params))
  heads = [name for name in params if name.startswith('heads_')]
  full = {name: params[name] for name in heads}
  if POOLER in params['backbone']:
    full['backbone'] = {POOLER: params['backbone'][POOLER]}
  full = dict(export_tensors(kind, full))

  # Ranks. The factor on a product is alpha / rank, for rslora alpha / sqrt(rank): alpha_pattern
  # keeps the factor where a packed matrix has a larger rank.
  ranks = {name.partition('.lora_')[0]: len(x) for name, x in arrays.items()
           if name.endswith('lora_A.weight') and len(x) != adapter.rank}
  power = 0.5 if adapter.kind == 'rslora' else 1
  alphas = {name: adapter.alpha * (rank / adapter.rank) ** power for name, rank in ranks.items()}
  types = (TASK_TYPES.get(name.removeprefix('heads_')) for name in heads)
  task_type = next(filter(None, types), None)
  about = {
      'peft_type': 'LORA', 'task_type': task_type, 'base_model_name_or_path': base,
      'r': adapter.rank, 'lora_alpha': adapter.alpha, 'lora_dropout': adapter.dropout,
      'rank_pattern': ranks, 'alpha_pattern': alphas,
      'target_modules': sorted({name.partition('.lora_')[0] for name in arrays}),
      'modules_to_save': sorted({saved_module(name, kind) for name in full}),
      'use_rslora': adapter.kind == 'rslora', 'use_dora': adapter.kind == 'dora', 'bias': 'none',
      'fan_in_fan_out': not all(map(is_transposed, find_adapted_rules(kind, params))),
      'inference_mode': True}
  with folders.atomic_folder(folder) as draft:
    tensors = {PEFT_PREFIX + name: np.ascontiguousarray(x, np.float32)
               for name, x in {**arrays, **full}.items()}
    files.save_shard(tensors, draft / 'adapter_model.safetensors')
    files.write_json(draft / 'adapter_config.json', about)


def find_adapted_rules(kind: Family, params: Any) -> list[Rule]:
  """Find the rules of the kernels that have an adapter.

  Raises ConvertError if there is none, and for a layout that peft has no adapter for.
  """
  down = '/adapter/down'
  paths = [path for path in flatten_tree(nn.unbox(params)) if path.endswith(down)]
  kernels = {path.removesuffix(down) + '/kernel' for path in paths}
  found, wrong = [], []
  for rule in kind.rules:
    if rule.ours not in kernels or rule.copy:
      continue
    found.append(rule)
    if not isinstance(rule.layout, Linear | Packed):
      wrong.append(
          f'{rule.ours}: {kind.name} keeps it in {rule.theirs} in a form without an adapter in '
          f'peft: choose other {name_field("tuning.adapter.targets")}, or export the model with '
          'the adapter merged')
  raise_problems(wrong, 'the adapter cannot be written')
  if not found:
    raise ConvertError('the model has no adapter')
  return found


def adapter_tensors(kind: Family, params: Any) -> Iterator[tuple[str, np.ndarray]]:
  """Yield (peft's name without its prefix, array) of the tensors of adapters, layer by layer."""
  flat = flatten_tree(nn.unbox(params))
  found = find_adapted_rules(kind, params)
  for rule in found:
    if isinstance(rule.layout, Packed):
      packed = [other for other in found if other.theirs == rule.theirs]
      if rule is packed[0]:
        yield from packed_adapter_tensors(kind, packed, flat)
      continue
    own = adapter_arrays(rule, flat)
    # peft's matrices are torch's, also next to a Conv1D. The layout of the kernel's outputs is that
    # of theirs.
    inputs = rule.layout.inputs
    up = dataclasses.replace(rule.layout, inputs=1, transposed=True)
    for layer, name in enumerate(rule.names(own['down'].shape)):
      place = name.removesuffix('.weight')
      yield f'{place}.lora_A.weight', Linear(inputs).export_array(own['down'][layer])
      yield f'{place}.lora_B.weight', up.export_array(own['up'][layer])
      if 'magnitude' in own:
        magnitude = up.export_array(own['magnitude'][layer][None])
        yield f'{place}.lora_magnitude_vector', magnitude[:, 0]


def adapter_arrays(rule: Rule, flat: dict[str, Any]) -> dict[str, np.ndarray]:
  """Return the arrays of the adapter of a kernel: down, up, and magnitude where there is one."""
  found = {}
  for name in ('down', 'up', 'magnitude'):
    path = rule.ours.removesuffix('kernel') + f'adapter/{name}'
    if path in flat:
      found[name] = np.asarray(flat[path])
  return found


def packed_adapter_tensors(
    kind: Family, packed: list[Rule], flat: dict[str, Any],
) -> Iterator[tuple[str, np.ndarray]]:
  """Yield the adapter of one matrix of theirs that packs several kernels, such as c_attn.

  Its rank is the sum of the kernels' ranks. lora_A has their matrices one below another. lora_B is
  zero except where a kernel's outputs meet its own share of the rank.

  Args:
    kind: specialized to the model's configuration.
    packed: rules of the kernels that have an adapter.
    flat: path of a parameter -> array.
  """
  layout = packed[0].layout
  owns = [adapter_arrays(rule, flat) for rule in packed]
  inputs = layout.layout.inputs
  up_layout = dataclasses.replace(
      layout, layout=dataclasses.replace(layout.layout, inputs=1, transposed=True))
  every = {rule.layout.part: rule for rule in kind.rules
           if rule.theirs == packed[0].theirs and not rule.copy}
  rank = owns[0]['down'].shape[-1]
  slots = {rule.layout.part: slot for slot, rule in enumerate(packed)}
  for layer, name in enumerate(packed[0].names(owns[0]['down'].shape)):
    place = name.removesuffix('.weight')
    ups, lengths = [], []
    for part in range(layout.parts):
      up = np.zeros((rank * len(packed), *owns[0]['up'].shape[2:]), np.float32)
      slot = slots.get(part)
      if slot is None:  # a kernel without an adapter: DoRA's magnitude is the length of its columns
        kernel = np.asarray(flat[every[part].ours])[layer].astype(np.float64)
        lengths.append(np.sqrt((kernel ** 2).sum(tuple(range(inputs)))))
      else:
        own = owns[slot]
        up[slot * rank:(slot + 1) * rank] = own['up'][layer]
        lengths.append(own['magnitude'][layer] if 'magnitude' in own else up[0])
      ups.append(up)
    downs = [Linear(inputs).export_array(own['down'][layer]) for own in owns]
    yield f'{place}.lora_A.weight', np.concatenate(downs)
    yield f'{place}.lora_B.weight', up_layout.export_array(*ups)
    if 'magnitude' in owns[0]:
      rows = [x[None].astype(np.float32) for x in lengths]
      yield f'{place}.lora_magnitude_vector', up_layout.export_array(*rows)[:, 0]


def is_transposed(rule: Rule) -> bool:
  """Tell whether their matrix is [out, in], as torch's Linear has it."""
  layout: Any = rule.layout
  if isinstance(layout, Packed):
    layout = layout.layout
  return layout.transposed


def saved_module(name: str, kind: Family) -> str:
  """Return their module of a tensor that is saved in full: of the head, or the pooler."""
  prefix = kind.prefix if name.startswith(kind.prefix) else ''
  return prefix + name.removeprefix(prefix).split('.')[0]
