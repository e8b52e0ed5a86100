"""plm_jax: pre-trained language models in JAX, from raw text to a checkpoint that others can load.

    import plm_jax
    bert = plm_jax.load('runs/bert_base-laptop')
    plm_jax.fill_mask(bert, 'Returns the [MASK] of the array.')

`plm_jax.api`, `plm_jax.corpus`, `plm_jax.transfer`, `plm_jax.similarity` and `plm_jax.knowledge` describe each
function. They are imported when they are first asked for.
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
    export,
    fill_mask,
    generate,
    history,
    load,
    perplexity,
    recipe,
    score,
    stream,
    train,
  )
  from plm_jax.corpus import clean, inspect, prepare
  from plm_jax.knowledge import attention, likelihood, losses, minimal_pairs, neighbours, probe
  from plm_jax.similarity import distil, encode, search, similar
  from plm_jax.transfer import answer, finetune, predict, tag

# Where a function is, if not in `plm_jax.api`.
ELSEWHERE = {**dict.fromkeys(('answer', 'finetune', 'predict', 'tag'), 'plm_jax.transfer'),
             **dict.fromkeys(('clean', 'inspect', 'prepare'), 'plm_jax.corpus'),
             **dict.fromkeys(('attention', 'likelihood', 'losses', 'minimal_pairs', 'neighbours',
                              'probe'), 'plm_jax.knowledge'),
             **dict.fromkeys(('distil', 'encode', 'search', 'similar'), 'plm_jax.similarity')}

__all__ = ['GenerationConfig', 'MeshConfig', 'answer', 'attention', 'clean', 'convert', 'distil', 'encode', 'export',
           'fill_mask', 'finetune', 'generate', 'history', 'inspect', 'likelihood', 'load', 'losses', 'minimal_pairs',
           'neighbours', 'perplexity', 'predict', 'prepare', 'probe', 'recipe', 'score', 'search', 'similar', 'stream',
           'tag', 'train']


def __getattr__(name: str) -> Any:
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(ELSEWHERE.get(name, 'plm_jax.api')), name)


def __dir__() -> list[str]:
  return [*__all__]
