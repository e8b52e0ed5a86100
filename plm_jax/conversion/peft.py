"""Adapters by rank as the library peft keeps them: beside a checkpoint of transformers, not in it.

    PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base, num_labels=C), folder)

adapter_config.json says which of its matrices have one; adapter_model.safetensors holds lora_A [r, in], lora_B [out, r]
and DoRA's lora_magnitude_vector [out] of each, and whole what was trained besides: the head.
"""
from collections.abc import Iterator
import dataclasses
from typing import Any

from etils import epath
import flax.linen as nn
import numpy as np

from plm_jax.conversion import files, folders, rules, tensors
from plm_jax.conversion.families import family_of, flat_dict
from plm_jax.conversion.layouts import Linear
from plm_jax.conversion.rules import ConvertError, Family, Rule

BEFORE = 'base_model.model.'
POOLER = 'pooler'  # of a backbone, which a base without one has afresh
TYPES = {'label': 'SEQ_CLS', 'tags': 'TOKEN_CLS', 'span': 'QUESTION_ANS'}


def save(folder: epath.PathLike, family: str, config: Any, params: Any, adapter: Any, base: str = '') -> None:
  """Writes the adapter of a run, all of it or nothing.

  config: of the backbone; params: `backbone` and `heads_NAME`, with adapters; adapter: the `AdapterConfig` of
  `training.adapters` that they were made with; base: folder or name of the checkpoint that they belong to. Raises
  ConvertError where transformers keeps a matrix that has an adapter in one with others, and for a folder that is not
  empty.
  """
  kind = family_of(family).of(config)
  arrays = dict(pairs(kind, params))
  heads = [name for name in params if name.startswith('heads_')]
  plain = {name: params[name] for name in heads}
  if POOLER in params['backbone']:
    plain['backbone'] = {POOLER: params['backbone'][POOLER]}
  whole = dict(tensors(kind, plain))
  about = {
      'peft_type': 'LORA', 'task_type': next((TYPES[name.removeprefix('heads_')] for name in heads
                                              if name.removeprefix('heads_') in TYPES), None),
      'base_model_name_or_path': base, 'r': adapter.rank, 'lora_alpha': adapter.alpha, 'lora_dropout': adapter.dropout,
      'target_modules': sorted({name.partition('.lora_')[0] for name in arrays}),
      'modules_to_save': sorted({module(name, kind) for name in whole}),
      'use_rslora': adapter.kind == 'rslora', 'use_dora': adapter.kind == 'dora', 'bias': 'none',
      'fan_in_fan_out': not all(rule.layout.transposed for rule in adapted(kind, params)), 'inference_mode': True}
  with folders.fresh_folder(folder) as draft:
    every = {BEFORE + name: np.ascontiguousarray(x, np.float32) for name, x in {**arrays, **whole}.items()}
    files.save_shard(every, draft / 'adapter_model.safetensors')
    files.write_json(draft / 'adapter_config.json', about)


def adapted(kind: Family, params: Any) -> list[Rule]:
  """Finds the rules of the kernels that have an adapter. Raises ConvertError for those that are a part of a matrix."""
  flat = flat_dict(nn.unbox(params))
  kernels = {path.removesuffix('/adapter/down') + '/kernel' for path in flat if path.endswith('/adapter/down')}
  found = [rule for rule in kind.rules if rule.ours in kernels and not rule.copy]
  rules.refuse([f'{rule.ours}: {kind.name} keeps it in one matrix with others, {rule.theirs}, and peft has no adapter '
                'of a part: choose other --tuning.adapter.targets, or export the model with the adapter merged'
                for rule in found if not isinstance(rule.layout, Linear)], 'the adapter cannot be written')
  if not found:
    raise ConvertError('the model has no adapter')
  return found


def pairs(kind: Family, params: Any) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the tensors of adapters, layer by layer, as peft calls them behind `base_model.model.`."""
  flat = flat_dict(nn.unbox(params))
  for rule in adapted(kind, params):
    own = {name: np.asarray(flat[path]) for name in ('down', 'up', 'magnitude')
           if (path := rule.ours.removesuffix('kernel') + f'adapter/{name}') in flat}
    # peft's two matrices are torch's, also beside a Conv1D; what a layout does to a kernel's outputs it does to these.
    down, up = (dataclasses.replace(rule.layout, inputs=inputs, transposed=True) for inputs in (rule.layout.inputs, 1))
    for layer, name in enumerate(rule.names(own['down'].shape)):
      place = name.removesuffix('.weight')
      yield f'{place}.lora_A.weight', Linear(down.inputs).theirs(own['down'][layer])
      yield f'{place}.lora_B.weight', up.theirs(own['up'][layer])
      if 'magnitude' in own:
        yield f'{place}.lora_magnitude_vector', up.theirs(own['magnitude'][layer][None])[:, 0]


def module(name: str, kind: Family) -> str:
  """Returns the module of theirs that is kept whole: the head's, or the pooler in the backbone."""
  inside = name.startswith(kind.prefix) and kind.prefix
  return (kind.prefix if inside else '') + name.removeprefix(kind.prefix if inside else '').split('.')[0]

