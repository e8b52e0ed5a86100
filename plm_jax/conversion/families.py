"""The families that the converter knows, by transformers' name, with their heads and the shapes of their parameters."""
from collections.abc import Mapping, Sequence
import importlib
from typing import Any

import flax.linen as nn
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp

from plm_jax import checked
from plm_jax.conversion.rules import ConvertError, Family, Head
from plm_jax.layers.heads import WithHeads
from plm_jax.tokenizers.contract import brief

# model_type of transformers -> the module that holds FAMILY, and ORIGINAL for checkpoints older than transformers.
FAMILIES = {
    'bert': 'plm_jax.models.bert',
    'roberta': 'plm_jax.models.roberta',
    'xlm-roberta': 'plm_jax.models.xlm_roberta',
    'spanbert': 'plm_jax.models.spanbert',
    'modernbert': 'plm_jax.models.modernbert',
    'neobert': 'plm_jax.models.neobert',
    'mosaicbert': 'plm_jax.models.mosaicbert',
    'gptbert': 'plm_jax.models.gpt_bert',
    'ltgbert': 'plm_jax.models.ltg_bert',
    'crammedBERT': 'plm_jax.models.crammed',
    'albert': 'plm_jax.models.albert',
    'distilbert': 'plm_jax.models.distilbert',
    'xlnet': 'plm_jax.models.xlnet',
    'deberta-v2': 'plm_jax.models.deberta_v2',
    'deberta': 'plm_jax.models.deberta',
    'electra': 'plm_jax.models.electra',
    'openai-gpt': 'plm_jax.models.gpt',
    'megatron-bert': 'plm_jax.models.megatron_bert',
    'cpt': 'plm_jax.models.cpt',
    'xlm': 'plm_jax.models.xlm',
    'ernie': 'plm_jax.models.ernie',
    'gpt2': 'plm_jax.models.gpt2',
    'gpt3': 'plm_jax.models.gpt3',
    'gpt_neo': 'plm_jax.models.gpt_neo',
    'llama': 'plm_jax.models.llama',
    'cohere': 'plm_jax.models.palm',
    'glm': 'plm_jax.models.glm',
    't5': 'plm_jax.models.t5',
    'mt5': 'plm_jax.models.mt5',
    'bart': 'plm_jax.models.bart',
    'mbart': 'plm_jax.models.mbart',
    'marian': 'plm_jax.models.transformer',
    'elmo': 'plm_jax.conversion.elmo',
}
# Of a batch, by one model or head or another.
READ = ('tokens', 'segments', 'decoder_tokens', 'decoder_segments', 'left', 'right', 'offset')


def family_of(name: str, original: bool = False) -> Family:
  """Returns the family of a model_type; original: of the authors' own code. Raises ConvertError for one that is not
  known."""
  if not isinstance(name, str) or name not in FAMILIES:
    raise ConvertError(f'models of type {brief(name)} are not known; known are {", ".join(FAMILIES)}')
  module = importlib.import_module(FAMILIES[name])
  return module.ORIGINAL if original else module.FAMILY


def head_of(family: str, name: str, config: Any, classes: int, words: Sequence[int] = ()) -> nn.Module:
  """Makes the head of a family, as transformers has it, for a backbone with this configuration.

  words: of GLM, which says a class by a word, the id of each. Raises ConvertError where the family has no such head, or
  the backbone not what it reads, and for other words than there are classes.
  """
  head = known_head(family, name)
  if lacking := [part for part in head.parts if not getattr(config, part)]:
    raise ConvertError(f'the head {name!r} of models of type {family} reads what the model does not have: give it '
                       f'{", ".join(f"{part}=True" for part in lacking)}')
  if not head.words:
    return head.make(config, classes)
  if len({*words}) != classes or not all(0 <= word < config.vocab for word in words):
    raise ConvertError(f'models of type {family} say a class by a word that is one token: give {classes} ids below '
                       f'{config.vocab:,}, each another, got {brief(list(words))}')
  return head.make(config, classes, words=tuple(words))


def with_parts(family: str, name: str, config: Any) -> Any:
  """Returns the configuration of a backbone with what the head of a family reads: a pooler. Raises ConvertError where
  the family has no such head."""
  return checked.replaced(config, dict.fromkeys(known_head(family, name).parts, True))


def asks_words(family: str, name: str) -> bool:
  """Tells whether a head of a family says a class by a word (GLM)."""
  head = family_of(family).heads.get(name)
  return head is not None and head.words


def known_head(family: str, name: str) -> Head:
  """Returns a head of a family. Raises ConvertError where it has no such head."""
  heads = family_of(family).heads
  if name not in heads:
    raise ConvertError(f'models of type {family} have no head {name!r}, they have {", ".join(heads) or "none"}')
  return heads[name]


def parameter_shapes(family: Family, config: Any, heads: Mapping[str, nn.Module]) -> dict[str, tuple[int, ...]]:
  """Returns 'a/b/c' -> shape of every parameter of the model with these heads."""
  shapes = boxed_shapes(WithHeads(family.backbone(config), dict(heads)), family.reads(config))
  return {name: x.shape for name, x in flat_dict(nn.unbox(shapes)).items()}


def boxed_shapes(model: nn.Module, reads: Mapping[str, tuple[int, ...]]) -> Any:
  """Returns the shapes of a model's parameters, in boxes with their logical axes; nothing is computed. reads: those
  of a family."""
  shapes = dict.fromkeys(READ, (1, 8)) | dict(reads)
  batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}
  return jax.eval_shape(model.init, jax.random.key(0), batch)['params']


def flat_dict(tree: Any) -> dict[str, Any]:
  """Flattens a tree of dictionaries: 'a/b/c' -> leaf."""
  return dict(flatten_dict(tree, sep='/'))
