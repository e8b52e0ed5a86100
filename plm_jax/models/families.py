"""Registry of model families by transformers' model_type, with their heads and parameter shapes."""
from collections.abc import Mapping, Sequence
import importlib
from typing import Any

import flax.linen as nn
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp

from plm_jax import validation
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.pooling import POOLINGS
from plm_jax.models.rules import ConvertError, Family, HeadSpec
from plm_jax.tokenizers.contract import abbreviate

FAMILIES = {
    'bert': 'plm_jax.models.bert',
    'roberta': 'plm_jax.models.roberta',
    'xlm-roberta': 'plm_jax.models.roberta:XLM_ROBERTA',
    'xlm-roberta-xl': 'plm_jax.models.roberta:XLM_ROBERTA_XL',
    'mpnet': 'plm_jax.models.mpnet',
    'spanbert': 'plm_jax.models.bert:SPANBERT',
    'modernbert': 'plm_jax.models.modernbert',
    'modernbert-decoder': 'plm_jax.models.modernbert:DECODER',
    'neobert': 'plm_jax.models.neobert',
    'eurobert': 'plm_jax.models.eurobert',
    'mosaicbert': 'plm_jax.models.mosaicbert',
    'jina-bert': 'plm_jax.models.mosaicbert:JINA_BERT',
    'roformer': 'plm_jax.models.rotary_bert',
    'nomic_bert': 'plm_jax.models.rotary_bert:NOMIC_BERT',
    'gte': 'plm_jax.models.rotary_bert:GTE',
    'jina_embeddings_v3': 'plm_jax.models.rotary_bert:JINA_V3',
    'gptbert': 'plm_jax.models.gpt_bert',
    'ltgbert': 'plm_jax.models.ltg_bert',
    'crammedBERT': 'plm_jax.models.crammed',
    'albert': 'plm_jax.models.albert',
    'distilbert': 'plm_jax.models.distilbert',
    'xlnet': 'plm_jax.models.xlnet',
    'deberta-v2': 'plm_jax.models.deberta:V2',
    'deberta': 'plm_jax.models.deberta',
    'electra': 'plm_jax.models.electra',
    'openai-gpt': 'plm_jax.models.gpt',
    'megatron-bert': 'plm_jax.models.bert:MEGATRON_BERT',
    'cpt': 'plm_jax.models.cpt',
    'xlm': 'plm_jax.models.xlm',
    'flaubert': 'plm_jax.models.xlm:FLAUBERT',
    'ernie': 'plm_jax.models.bert:ERNIE',
    'gpt2': 'plm_jax.models.gpt2',
    'gpt3': 'plm_jax.models.gpt2:GPT3',
    'gpt_neo': 'plm_jax.models.gpt2:GPT_NEO',
    'gpt_neox': 'plm_jax.models.gpt_neox',
    'llama': 'plm_jax.models.llama',
    'qwen3': 'plm_jax.models.qwen3',
    'smollm3': 'plm_jax.models.smollm3',
    'gemma2': 'plm_jax.models.gemma2',
    'gemma3_text': 'plm_jax.models.gemma3',
    'cohere': 'plm_jax.models.palm',
    'glm': 'plm_jax.models.glm',
    't5': 'plm_jax.models.t5',
    'mt5': 'plm_jax.models.t5:MT5',
    'umt5': 'plm_jax.models.t5:UMT5',
    't5gemma': 'plm_jax.models.t5gemma',
    'bart': 'plm_jax.models.bart',
    'mbart': 'plm_jax.models.bart:MBART',
    'marian': 'plm_jax.models.transformer',
    'elmo': 'plm_jax.models.elmo',
}
"""model_type -> the module with FAMILY, or MODULE:NAME of the family; ORIGINAL of the module is for
checkpoints older than transformers"""
BATCH_FIELDS = (
    'tokens', 'segments', 'decoder_tokens', 'decoder_segments', 'left', 'right', 'offset')
"""fields of a batch that one model or head or another reads"""


def get_family(name: str, original: bool = False) -> Family:
  """Return the family of a model_type.

  original: the family of the authors' own code instead. Raises ConvertError for an unknown type.
  """
  if not isinstance(name, str) or name not in FAMILIES:
    raise ConvertError(
        f'models of type {abbreviate(name)} are not known; known are {", ".join(FAMILIES)}')
  module, _, attribute = FAMILIES[name].partition(':')
  return getattr(importlib.import_module(module), 'ORIGINAL' if original else attribute or 'FAMILY')


def build_head(
    family: str, name: str, config: Any, classes: int, words: Sequence[int] = (),
) -> nn.Module:
  """Make a head of a family, as transformers has it.

  Args:
    family: model_type.
    name: of the head.
    config: of the backbone.
    classes: number of classes.
    words: GLM's verbalizer, the id of the word for each class.

  Raises:
    ConvertError: where the family has no such head, where the backbone lacks a part that the head
      reads, and where the words do not fit the classes.
  """
  head = get_head(family, name)
  missing = [part for part in head.required_parts if not getattr(config, part)]
  if missing:
    raise ConvertError(
        f'the head {name!r} of models of type {family} reads what the model does not have: give it '
        f'{", ".join(f"{part}=True" for part in missing)}')
  if not head.verbalizer:
    return with_pooling(head.make(config, classes), family, config)
  if len(set(words)) != classes or not all(0 <= word < config.vocab for word in words):
    raise ConvertError(
        f'classes of models of type {family} are words of one token: give {classes} different ids '
        f'below {config.vocab:,}, got {abbreviate(list(words))}')
  return head.make(config, classes, words=tuple(words))


def with_pooling(module: nn.Module, family: str, config: Any) -> nn.Module:
  """Return a classification head with the pooling of the backbone's configuration.

  Raises ConvertError for a pooling that the head does not have.
  """
  pooling = own_pooling(config)
  if not hasattr(module, 'pooling') or config.head.pooling == pooling:
    return module
  if config.head.pooling == 'late':
    raise ConvertError(f'models of type {family} have a head per text, not per token: head.pooling '
                       f'is one of {", ".join(POOLINGS)}, got late')
  return module.clone(pooling=config.head.pooling)


def own_pooling(config: Any) -> str:
  """Return the pooling of a family's classification heads, as transformers has them."""
  return 'last' if config.cls_last else 'first'


def enable_required_parts(family: str, name: str, config: Any) -> Any:
  """Return a backbone's configuration with the parts that a head reads, such as a pooler.

  Raises ConvertError where the family has no such head.
  """
  return validation.with_paths(config, dict.fromkeys(get_head(family, name).required_parts, True))


def uses_verbalizer(family: str, name: str) -> bool:
  """Tell whether a head's classes are words of the vocabulary (GLM)."""
  head = get_family(family).heads.get(name)
  return head is not None and head.verbalizer


def get_head(family: str, name: str) -> HeadSpec:
  """Return a head of a family. Raises ConvertError where it has no such head."""
  heads = get_family(family).heads
  if name not in heads:
    raise ConvertError(
        f'models of type {family} have no head {name!r}, they have {", ".join(heads) or "none"}')
  return heads[name]


def parameter_shapes(
    family: Family, config: Any, heads: Mapping[str, nn.Module],
) -> dict[str, tuple[int, ...]]:
  """Return 'a/b/c' -> shape for every parameter of the model with these heads."""
  model = ModelWithHeads(family.backbone(config), dict(heads))
  shapes = boxed_parameter_shapes(model, family.input_shapes(config))
  return {name: x.shape for name, x in flatten_tree(nn.unbox(shapes)).items()}


def boxed_parameter_shapes(model: nn.Module, input_shapes: Mapping[str, tuple[int, ...]]) -> Any:
  """Return the shapes of a model's parameters, boxed with logical axes, without computing them.

  input_shapes: `Family.input_shapes` of the configuration.
  """
  def init(batch):
    return model.init(jax.random.key(0), batch)  # outside, the key would compile a program
  return jax.eval_shape(init, dummy_inputs(input_shapes))['params']


def dummy_inputs(input_shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.ShapeDtypeStruct]:
  """Return shapes of a batch from which a model's parameters take their shapes.

  input_shapes: `Family.input_shapes` of the configuration.
  """
  shapes = dict.fromkeys(BATCH_FIELDS, (1, 8)) | dict(input_shapes)
  return {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}


def flatten_tree(tree: Any) -> dict[str, Any]:
  """Flatten a tree of dictionaries: 'a/b/c' -> leaf."""
  return dict(flatten_dict(tree, sep='/'))
