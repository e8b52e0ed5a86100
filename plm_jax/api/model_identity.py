"""Digests that identify a loaded model, for results that are kept."""
from typing import Any

import jax
import numpy as np

from plm_jax.config import serialization
from plm_jax.storage.digests import digest_json, start_digest

FIELDS = 'model', 'length', 'normalize', 'labels', 'prompts', 'default_prompt', 'pools_prompt'
"""fields of models and static vectors that change results, in addition to the parameters"""


def identify_model(model: Any) -> dict[str, str]:
  """Compute digests of everything in a `LoadedModel` or `StaticVectors` that determines results."""
  # The table of static vectors is their only parameter.
  params = model.table if hasattr(model, 'table') else model.params
  fields = [getattr(model, name, None) for name in FIELDS]
  return {
      'model': digest_json([digest_params(params), serialization.to_plain(tuple(fields))]),
      'task': digest_json(serialization.to_plain(getattr(model, 'task', None))),
      'tokenizer': model.tokenizer.hash if model.tokenizer else ''}


def digest_params(params: Any) -> str:
  """Compute the sha256 of parameters, with one array at a time in host memory."""
  digest = start_digest()
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if isinstance(leaf, jax.Array):
      leaf = leaf.copy()  # an array keeps its copy in host memory as long as it exists
    array = np.asarray(leaf)
    digest.update(f'{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n'.encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
  return digest.hexdigest()
