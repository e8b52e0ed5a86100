"""plm_jax: pre-trained language models in JAX, from raw text to a checkpoint that others can load.

    import plm_jax
    bert = plm_jax.load('runs/bert_base-laptop')
    plm_jax.fill_mask(bert, 'Returns the [MASK] of the array.')

`plm_jax.api` and `plm_jax.transfer` describe each function. They are imported when they are first asked for.
"""
import importlib
from typing import TYPE_CHECKING, Any

from plm_jax import environment as _environment

_environment.settle()

if TYPE_CHECKING:
  from plm_jax.api import (
      GenerationConfig,
      MeshConfig,
      convert,
      encode,
      export,
      fill_mask,
      generate,
      load,
      perplexity,
      prepare,
      recipe,
      score,
      stream,
      train,
  )
  from plm_jax.transfer import answer, finetune, predict, tag

TRANSFER = ('answer', 'finetune', 'predict', 'tag')

__all__ = ['GenerationConfig', 'MeshConfig', 'answer', 'convert', 'encode', 'export', 'fill_mask', 'finetune',
           'generate', 'load', 'perplexity', 'predict', 'prepare', 'recipe', 'score', 'stream', 'tag', 'train']


def __getattr__(name: str) -> Any:
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module('plm_jax.transfer' if name in TRANSFER else 'plm_jax.api'), name)


def __dir__() -> list[str]:
  return [*__all__]
