"""Their config.json to our configuration and back."""
from collections.abc import Mapping
import math
from typing import Any

import flax.linen as nn

from plm_jax import checked
from plm_jax.conversion.rules import Attribute, ConvertError, Family, Head, refuse
from plm_jax.tokenizers.contract import brief

# Of every model of transformers: attributes that change nothing about an encoder's outputs. Labels and ids of special
# tokens among them are kept and written back.
IGNORED = frozenset({
    '_attn_implementation', '_attn_implementation_autoset', '_commit_hash', '_name_or_path', 'architectures',
    'attn_implementation', 'bad_words_ids', 'begin_suppress_tokens', 'bos_token_id', 'chunk_size_feed_forward',
    'classifier_dropout', 'cls_token_id', 'decoder_start_token_id', 'diversity_penalty', 'do_sample', 'dtype',
    'early_stopping', 'encoder_no_repeat_ngram_size', 'eos_token_id', 'exponential_decay_length_penalty',
    'finetuning_task', 'forced_bos_token_id', 'forced_eos_token_id', 'gradient_checkpointing', 'id2label',
    'initializer_factor', 'label2id', 'language', 'length_penalty', 'mask_token_id', 'max_length', 'min_length',
    'model_type', 'name', 'no_repeat_ngram_size', 'num_beam_groups', 'num_beams', 'num_labels',
    'num_return_sequences', 'output_attentions', 'output_hidden_states', 'output_past', 'output_scores',
    'pad_token_id', 'prefix', 'problem_type', 'remove_invalid_values', 'repetition_penalty', 'return_dict',
    'return_dict_in_generate', 'sep_token_id', 'suppress_tokens', 'task_specific_params', 'temperature',
    'tf_legacy_loss', 'tokenizer_class', 'top_k', 'top_p', 'torch_dtype', 'torchscript', 'transformers_version',
    'typical_p', 'unk_token_id', 'use_bfloat16', 'use_cache', 'use_return_dict',
})
# Of every model of transformers: attributes that we know at their default only.
FIXED = {
    'add_cross_attention': False, 'auto_map': {}, 'cross_attention_hidden_size': None, 'is_decoder': False,
    'is_encoder_decoder': False, 'pruned_heads': {}, 'tie_encoder_decoder': False,
    'tie_word_embeddings': True,
}
# Fields of ours that say how a model is computed or begins, not which one it is; and the longest row of a model without
# a table of positions.
FREE = {'block.dtype', 'block.attention.out_dropout', 'block.init.out_std', 'block.init.tables', 'block.init.matrices',
        'stack.scan', 'stack.remat', 'stack.frozen', 'decoder.scan', 'decoder.remat', 'decoder.frozen', 'max_length'}


LAYERS = 1000  # at most; released models have up to 126
SIZE = 1 << 24  # of anything else, a vocabulary or the longest row: none has come near


def check(family: Family, hf_config: Mapping[str, Any]) -> None:
  """Raises ConvertError for what a config.json says in another form than all of transformers, or beyond all sizes."""
  wrong = []
  def expect(name, kind, wanted):
    if not (hf_config.get(name) is None or kind(hf_config[name])):
      wrong.append(f'attribute {name} is {brief(hf_config[name])}, expected {wanted}')
  expect('architectures', lambda x: isinstance(x, list) and all(type(name) is str for name in x), 'a list of names')
  expect('id2label', lambda x: isinstance(x, dict | list), 'an object')
  counts = {'num_labels', *(name for head in family.heads.values() for name in head.sizes)}
  for name in sorted(counts):
    expect(name, lambda x: type(x) is int and 0 < x <= SIZE, f'a number from 1 to {SIZE:,}')
  for name in sorted({head.dropout for head in family.heads.values()} - {''}):
    expect(name, lambda x: isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < 1, 'a share below 1')
  for attribute in family.attributes:
    most = LAYERS if attribute.ours.endswith('layers') else SIZE
    expect(attribute.theirs, lambda x, most=most: not isinstance(x, int) or abs(x) <= most, f'at most {most:,}')
  refuse(wrong, 'cannot convert the configuration')


def read(family: Family, hf_config: Mapping[str, Any]) -> Any:
  """Turns the contents of their config.json into our configuration of the backbone.

  Raises ConvertError that names every attribute that is unknown, not at the value that we know, or of another type.
  """
  handled = {attribute.theirs for attribute in family.attributes}
  fixed = {name: value for name, value in {**FIXED, **family.fixed}.items() if name not in handled}
  # null is their other way to say no.
  wrong = [f'attribute {name} is {brief(value)}, known at {fixed[name]!r} only' for name, value in hf_config.items()
           if name in fixed and value != fixed[name] and (value is not None or fixed[name])]
  wrong += [f'unknown attribute {brief(name)[1:-1]}: {brief(value)}'
            for name, value in hf_config.items() if name not in handled | fixed.keys() | IGNORED | family.ignored]
  values = {}
  for attribute in family.attributes:
    value = hf_config.get(attribute.theirs, attribute.default)
    # Some that are compared are lists, which no dictionary takes.
    known = [ours for theirs, ours in attribute.values if theirs == value and isinstance(value, type(theirs))]
    if attribute.values and not known:
      wrong.append(f'attribute {attribute.theirs} is {brief(value)}, known are '
                   f'{", ".join(repr(theirs) for theirs, _ in attribute.values)}')
    ours = get(family.config, attribute.ours)
    if not attribute.values and not absent(family.config, attribute.ours, value) and (wanted := mistyped(ours, value)):
      wrong.append(f'attribute {attribute.theirs} is {brief(value)}, expected {wanted}')
    values[attribute.ours] = known[0] if known else value
  refuse(wrong, 'cannot convert the configuration')
  try:
    config = checked.replaced(family.config, values)
    return checked.replaced(config, {attribute.ours: get(config, attribute.ours) - get(config, attribute.besides)
                            for attribute in family.attributes if attribute.besides})
  except ValueError as error:
    raise ConvertError(f'cannot convert the configuration: {error}') from error


def absent(config: Any, path: str, value: Any) -> bool:
  """Tells whether value is None, and the field takes it."""
  place, _, name = path.rpartition('.')
  return value is None and checked.fits(None, checked.annotations(type(get(config, place) if place else config))[name])


def mistyped(ours: Any, value: Any) -> str:
  """Says what is expected in the place of `ours`, a field of our configuration; '' where value is that."""
  if isinstance(ours, bool):
    return '' if isinstance(value, bool) else 'true or false'
  if isinstance(ours, int):
    return '' if type(value) is int and abs(value) <= SIZE else f'a number up to {SIZE:,}'
  if isinstance(ours, float):
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return '' if number else 'a number'
  if isinstance(ours, str):
    return '' if isinstance(value, str) else 'a text'
  return ''  # what `to_current` has made


def write(family: Family, config: Any) -> dict[str, Any]:
  """Turns our configuration into their attributes. Raises ConvertError that names every field they have no attribute
  for."""
  # Two ways to say that nothing is shared: that of ours which they have.
  alone = config.stack.layers if any(attribute.ours == 'stack.groups' for attribute in family.attributes) else 0
  if config.stack.groups in (0, config.stack.layers):
    config = checked.replaced(config, {'stack.groups': alone, 'stack.shared': 'all'})
  values = {attribute.theirs: outward(attribute, config) for attribute in family.attributes}
  lost = [line.split(' -> ')[0] for line in checked.differences(config, read(family, values))]
  refuse([f'{line} has no counterpart there' for line in lost if line.split(':')[0] not in FREE | family.parts.keys()],
         f'cannot write this model as a {family.name} of transformers')
  return dict(family.from_current(values))


def make_head(head: Head, config: Any, hf_config: Mapping[str, Any]) -> nn.Module:
  """Makes `head` for our configuration of the backbone and the contents of their config.json."""
  classes = len(hf_config['id2label']) if hf_config.get('id2label') else hf_config.get('num_labels') or 2
  made = head.make(config, classes, **{name: hf_config.get(name) or default for name, default in head.sizes.items()})
  rate = hf_config.get(head.dropout) if head.dropout else None
  return made if rate is None else made.clone(dropout=float(rate))


def outward(attribute: Attribute, config: Any) -> Any:
  """Returns an attribute's value in their terms. Raises ConvertError for one that transformers does not have."""
  value = get(config, attribute.ours)
  if attribute.besides:
    return value + get(config, attribute.besides)
  if not attribute.values:
    return value
  for theirs, ours in attribute.values:
    if ours == value:
      return theirs
  raise ConvertError(f'{attribute.ours} is {value!r}, which transformers does not have for {attribute.theirs}')


def get(config: Any, path: str) -> Any:
  """Returns the value under a path like 'block.width'."""
  for name in path.split('.'):
    config = getattr(config, name)
  return config
