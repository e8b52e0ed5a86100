"""Device parameters of a loaded model: copied to the device once per model, not once per call."""
from collections.abc import Callable, Hashable, Mapping
import dataclasses
import threading
from typing import Any
import weakref

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np


@dataclasses.dataclass
class DerivedCache:
  """Cache of what is derived from the parameters of one model, such as layers split for
  decoding."""

  lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)
  leaves: list[Any] = dataclasses.field(default_factory=list)
  """Arrays from which `forms` are derived."""
  forms: dict[Hashable, Any] = dataclasses.field(default_factory=dict)


# A model has no field for its cache, so that models can be copied, replaced and pickled; the cache
# is released with the model.
CACHES: weakref.WeakKeyDictionary[Any, DerivedCache] = weakref.WeakKeyDictionary()
CACHES_LOCK = threading.Lock()


def device_params(model: Any) -> Any:
  """Return `model.params` with every array on the device; see `derive_once`."""
  return refresh_cache(model)[0]


def derive_once(model: Any, key: Hashable, make: Callable[[Any], Any]) -> Any:
  """Return make(parameters on the device), computed once per model and key.

  Device arrays replace host arrays in the dictionaries that hold them, so the tree stays the only
  copy of the parameters. Entries may be replaced at any time: the next call uses the new arrays
  and derives everything again. Nothing can be written into an array in place, since JAX arrays
  are immutable. Safe to call from several threads.

  Args:
    model: a `LoadedModel`; new host arrays are replicated on its mesh, where it has one.
    key: identifies one of several derived forms of a model.
    make: must not keep a reference to `model`, which would never be released.
  """
  params, cache = refresh_cache(model)
  with cache.lock:
    if key not in cache.forms:
      cache.forms[key] = make(params)
    return cache.forms[key]


def refresh_cache(model: Any) -> tuple[Any, DerivedCache]:
  """Put new arrays on the device, and drop what was derived from the old ones.

  Returns:
    (parameters, cache).
  """
  with CACHES_LOCK:
    cache = CACHES.setdefault(model, DerivedCache())
  with cache.lock:
    if [*map(id, jax.tree.leaves(model.params))] != [*map(id, cache.leaves)]:
      cache.leaves, cache.forms = [], {}  # releases the old arrays before new ones are made
      params = put_on_device(model.params, model.mesh)
      if params is not model.params:
        object.__setattr__(model, 'params', params)
      cache.leaves = jax.tree.leaves(params)
    return model.params, cache


def put_on_device(tree: Any, mesh: Mesh | None) -> Any:
  """Put the host arrays of a tree on the device, in place where the tree is made of
  dictionaries."""
  if isinstance(tree, Mapping):
    found = {name: put_on_device(value, mesh) for name, value in tree.items()}
    if not isinstance(tree, dict):
      return found
    tree.update(found)
    return tree
  if isinstance(tree, jax.Array):
    return tree
  # On a CPU, JAX may use the memory of a host array: a copy keeps what its owner writes later out
  # of the model.
  sharding = NamedSharding(mesh, PartitionSpec()) if mesh else None
  return jax.device_put(np.array(tree), sharding)
