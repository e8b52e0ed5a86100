"""plm_jax: pre-trained language models in JAX, from raw text to a checkpoint that others can load.

    import plm_jax
    bert = plm_jax.load('runs/bert_base-laptop')
    plm_jax.fill_mask(bert, 'Returns the [MASK] of the array.')

The modules of `plm_jax.api` (models, scoring, corpus, transfer, similarity, retrieval, knowledge,
serving) describe each function. A module is imported when one of its functions is first used.
"""
import importlib
from typing import TYPE_CHECKING, Any

from plm_jax import environment as _environment

_environment.set_defaults()

if TYPE_CHECKING:
  from plm_jax.api.corpus import clean, inspect, prepare
  from plm_jax.api.knowledge import attention, likelihood, losses, minimal_pairs, neighbors, probe
  from plm_jax.api.models import (
    GenerationConfig,
    MeshConfig,
    convert,
    export,
    fill_mask,
    generate,
    history,
    push,
    recipe,
    stream,
    train,
  )
  from plm_jax.api.scoring import perplexity, score
  from plm_jax.api.serving import warm_up
  from plm_jax.api.similarity import distill, encode, load, rerank, search, similar
  from plm_jax.api.transfer import answer, finetune, predict, tag

__version__ = '0.1.0'

MODULE_OF = {'warm_up': 'plm_jax.api.serving'}
"""the module of each function that is not in `plm_jax.api.models`"""
for _name in ('answer', 'finetune', 'predict', 'tag'):
  MODULE_OF[_name] = 'plm_jax.api.transfer'
for _name in ('clean', 'inspect', 'prepare'):
  MODULE_OF[_name] = 'plm_jax.api.corpus'
for _name in ('perplexity', 'score'):
  MODULE_OF[_name] = 'plm_jax.api.scoring'
for _name in ('attention', 'likelihood', 'losses', 'minimal_pairs', 'neighbors', 'probe'):
  MODULE_OF[_name] = 'plm_jax.api.knowledge'
for _name in ('distill', 'encode', 'load', 'rerank', 'search', 'similar'):
  MODULE_OF[_name] = 'plm_jax.api.similarity'

__all__ = [
    'GenerationConfig', 'MeshConfig', 'answer', 'attention', 'clean', 'convert', 'distill',
    'encode', 'export', 'fill_mask', 'finetune', 'generate', 'history', 'inspect', 'likelihood',
    'load', 'losses', 'minimal_pairs', 'neighbors', 'perplexity', 'predict', 'prepare', 'probe',
    'push', 'recipe', 'rerank', 'score', 'search', 'similar', 'stream', 'tag', 'train', 'warm_up']


def __getattr__(name: str) -> Any:
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(MODULE_OF.get(name, 'plm_jax.api.models')), name)


def __dir__() -> list[str]:
  return list(__all__)
