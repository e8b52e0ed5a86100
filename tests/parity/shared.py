"""Shared code of the runners: inputs of a case, its model, its gradients by name, and
`Unsupported`."""
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax import conversion
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.tasks.objective import TaskObjective

Outputs = dict[str, jax.Array]


class Unsupported(Exception):
  """The reason why a runner cannot run a case of its kind, or compute one of its outputs, which is
  then listed as unsupported."""


class Said(dict):
  """Fields of a case, by any of several names; records which of them were read."""

  def __init__(self, said: Mapping[str, Any]):
    super().__init__({name: Said(value) if isinstance(value, dict) else value
                      for name, value in said.items()})
    self.asked: set[str] = set()

  def __getitem__(self, name):
    self.asked.add(name)
    return super().__getitem__(name)

  def get(self, name, default=None):
    self.asked.add(name)
    return super().get(name, default)

  def items(self):
    self.asked |= self.keys()
    return super().items()

  def take(self, *names: str, default: Any = None) -> Any:
    """Return the value of the first of `names` that exists; the others are not marked as
    read."""
    return self[next((name for name in names if name in self),
                     names[0])] if set(names) & self.keys() else default

  def only(self, **known: Any) -> None:
    """Raise Unsupported for values that are not `known`: name -> the only supported value."""
    if other := {name: self[name] for name, value in known.items() if name in self
                 and self[name] != value}:
      raise Unsupported(
          f'{", ".join(f"{name} {value!r}" for name, value in other.items())}: known at '
                        f'{", ".join(repr(known[name]) for name in other)}')

  def left(self) -> list[str]:
    """Return the names that were not read; nested names follow a dot."""
    every = list(super().items())
    inside = (f'{name}.{part}' for name, value in every if isinstance(value, Said)
              for part in value.left())
    return [*(name for name, value in every if name not in self.asked
              and not isinstance(value, Said)), *inside]


class Given:
  """An objective whose rows are arranged already."""

  def corrupt(self, key, windows, vocab):
    del key, vocab
    return windows

  def module(self, imported):
    return imported.model()

  @property
  def objective(self):
    """The objective of the training step."""
    return self


class Opened(NamedTuple):
  """A case that goes through a model once."""

  imported: Any
  inputs: Outputs
  batch: Outputs
  build: Callable[[Any], nn.Module]
  """the module for a configuration of the backbone"""
  read: Callable[[Outputs], Outputs]
  """what transformers returns, of the module's outputs"""


def opened(reading, case, known: Collection[str],
           make_batch: Callable[[Outputs, Any], Outputs]) -> Opened:
  """Reads a case of transformers' classes.

  reading: a class of `fine_tuning`, whose module and loss are taken, or (outputs, inputs,
  config.json) -> what transformers returns, of the heads in the file and the backbone's output,
  `all`.
  """
  imported, task = conversion.load(case.path), None
  if isinstance(reading, type):
    inputs: Any = inputs_of(case, {*known} & reading.known)
    reading = task = reading.of(imported, inputs)
    batch = task.batch(inputs, case.config, make_batch)
  else:
    inputs = inputs_of(case, known)
    batch = make_batch(inputs, case.config)
  def build(config):
    if task:
      return TaskObjective(task).build(config, False)
    heads: Any = {**imported.heads, 'all': Everything()}
    return ModelWithHeads(conversion.get_family(imported.family).backbone(config), heads)
  return Opened(imported, inputs, batch, build,
                lambda outputs: reading(outputs, inputs, case.config))


class Everything:
  """A head that is the backbone's output."""

  def __call__(self, output, batch, rows=None):
    del batch, rows
    return output


class Seen:
  """A model that records intermediate values."""

  def __init__(self, module: nn.Module):
    self.module = module

  def __call__(self, params, batch) -> Any:
    return self.module.apply({'params': params}, batch)

  def intermediates(self, params, batch) -> Any:
    """Return the backbone's intermediate values, and its result as `output`."""
    _, state = self.module.apply({'params': params}, batch, mutable=['intermediates'],
                                 capture_intermediates=lambda module, _: module.name == 'backbone')
    seen = state['intermediates']['backbone']
    return {**seen, 'output': seen['__call__'][0]}

  def inside(self, params, batch) -> Outputs:
    """hidden_states.k and attentions.k, in the order of transformers: the embeddings first."""
    return layers_of(self.intermediates(params, batch))


def layers_of(seen) -> Outputs:
  """Return the same outputs from recorded intermediate values."""
  layers = seen['stack']['layers']['block']
  hidden = [seen['embedded'][0], *layers['hidden'][-1]]
  return {**{f'hidden_states.{k}': x for k, x in enumerate(hidden)},
          **{f'attentions.{k}': x for k, x in enumerate(layers['attention']['probs'][0])}}


def inputs_of(case, known: Collection[str]) -> dict[str, jax.Array]:
  """The reference's arguments, integers as int32. Raises Unsupported where one is not `known`: left
  out, it would make another case of this one."""
  if unknown := set(case.inputs) - set(known):
    raise Unsupported(f'inputs {sorted(unknown)}')
  return {name: jnp.asarray(x, jnp.int32 if x.dtype.kind == 'i' else x.dtype)
          for name, x in case.inputs.items()}


def gradients(case, family, compute: Callable[[], Any]) -> dict[str, Any]:
  """Those that the case gives, of parameters as they are named now, whatever its file calls them;
  compute: -> the gradient as a tree of ours, called where there are any."""
  wanted = [name for name in case.outputs if name.startswith('grad/')]
  given = dict(conversion.export_tensors(family, compute(), copies=True)) if wanted else {}
  return {name: given[new] for name in wanted
          if (new := conversion.rename_tensor(family, name.removeprefix('grad/'))) in given}
