"""Conversion of configurations: a transformers config.json to ours and back."""
from collections.abc import Mapping, Sequence
import math
from typing import Any

import flax.linen as nn

from plm_jax import validation
from plm_jax.errors import name_field
from plm_jax.models.families import own_pooling
from plm_jax.models.rules import Attribute, ConvertError, Family, HeadSpec, raise_problems
from plm_jax.tokenizers.contract import abbreviate

IGNORED = frozenset({
    '_attn_implementation', '_attn_implementation_autoset', '_commit_hash', '_name_or_path',
    'architectures', 'attn_implementation', 'bad_words_ids', 'begin_suppress_tokens',
    'bos_token_id', 'calibration_temperature', 'chunk_size_feed_forward', 'classifier_dropout',
    'cls_token_id',
    'decoder_start_token_id', 'diversity_penalty', 'do_sample', 'dtype', 'early_stopping',
    'encoder_no_repeat_ngram_size', 'eos_token_id', 'exponential_decay_length_penalty',
    'finetuning_task', 'forced_bos_token_id', 'forced_eos_token_id', 'gradient_checkpointing',
    'id2label', 'initializer_factor', 'label2id', 'language', 'length_penalty', 'mask_token_id',
    'max_length', 'min_length', 'model_type', 'name', 'no_repeat_ngram_size', 'num_beam_groups',
    'num_beams', 'num_labels', 'num_return_sequences', 'output_attentions',
    'output_hidden_states', 'output_past', 'output_scores', 'pad_token_id', 'prefix',
    'problem_type', 'remove_invalid_values', 'repetition_penalty', 'return_dict',
    'return_dict_in_generate', 'sbert_ce_default_activation_function', 'sentence_transformers',
    'sep_token_id', 'suppress_tokens', 'task_specific_params', 'temperature', 'tf_legacy_loss',
    'thresholds', 'tokenizer_class', 'top_k', 'top_p', 'torch_dtype',
    'torchscript', 'transformers_version', 'typical_p', 'unk_token_id', 'use_bfloat16',
    'use_cache', 'use_return_dict',
})
"""attributes of any model of transformers that change nothing about an encoder's outputs

Labels and ids of special tokens among them are kept and written back.
"""
FIXED = {
    'add_cross_attention': False, 'auto_map': {}, 'cross_attention_hidden_size': None,
    'is_decoder': False, 'is_encoder_decoder': False, 'pruned_heads': {},
    'tie_encoder_decoder': False, 'tie_word_embeddings': True,
}
"""attributes of any model of transformers that are supported at their default only"""
UNCOMPARED_FIELDS = {
    'block.dtype', 'block.attention.out_dropout', 'block.init.out_std', 'block.init.tables',
    'block.init.matrices', 'max_length',
    *(f'{stack}.{name}' for stack in ('stack', 'decoder', 'source')
      for name in ('scan', 'remat', 'frozen'))}
"""fields of ours that may be lost in an export

They state how a model is computed or initialized, not which model it is. max_length is among them
for models without a table of positions.
"""
MAX_LAYERS = 1000
"""released models have up to 126 layers"""
MAX_SIZE = 1 << 24
"""limit of any other size, such as the vocabulary; no model comes near it"""


def check_hf_config(family: Family, hf_config: Mapping[str, Any]) -> None:
  """Raise ConvertError for attributes of another form than transformers has, or beyond limits."""
  wrong = []
  def expect(name, accepts, wanted):
    value = hf_config.get(name)
    if value is not None and not accepts(value):
      wrong.append(f'attribute {name} is {abbreviate(value)}, expected {wanted}')

  def has_all_numbers(value):
    is_object = isinstance(value, dict) and {*value} == {str(n) for n in range(len(value))}
    return is_object or isinstance(value, list)

  expect('architectures', lambda x: isinstance(x, list) and all(type(name) is str for name in x),
         'a list of names')
  expect('id2label', has_all_numbers, 'an object with a name for each of the numbers 0, 1, ...')
  counts, rates = {'num_labels'}, set()
  for head in family.heads.values():
    counts |= set(head.sizes)
    rates |= {head.dropout}
  for name in sorted(counts):
    expect(name, lambda x: type(x) is int and 0 < x <= MAX_SIZE, f'a number from 1 to {MAX_SIZE:,}')
  for name in sorted(rates - {''}):
    expect(name, lambda x: is_number(x) and 0 <= x < 1, 'a share below 1')
  for attribute in family.attributes:
    most = MAX_LAYERS if attribute.ours.endswith('layers') else MAX_SIZE
    expect(attribute.theirs, lambda x, most=most: not isinstance(x, int) or abs(x) <= most,
           f'at most {most:,}')
  raise_problems(wrong, 'cannot convert the configuration')


def is_number(value: Any) -> bool:
  """Tell whether a JSON value is a number, which true and false are not."""
  return isinstance(value, int | float) and not isinstance(value, bool)


def parse_hf_config(family: Family, hf_config: Mapping[str, Any]) -> Any:
  """Turn the contents of a config.json into our configuration of the backbone.

  An unknown attribute that is off (null, false, 0 or empty) is left out: transformers reads none
  that its class does not have, and files have those of later versions and of training programs.

  Raises ConvertError with every other attribute that is unknown, not at the supported value, or of
  another type.
  """
  handled = {attribute.theirs for attribute in family.attributes}
  fixed = {**FIXED, **family.fixed}
  fixed = {name: value for name, value in fixed.items() if name not in handled}
  known = handled | fixed.keys() | IGNORED | family.ignored
  wrong = []
  for name, value in hf_config.items():
    # null also means no.
    if name in fixed and value != fixed[name] and (value is not None or fixed[name]):
      wrong.append(f'attribute {name} is {abbreviate(value)}, only {fixed[name]!r} is supported')
  wrong += [f'unknown attribute {abbreviate(name)[1:-1]}: {abbreviate(value)}'
            for name, value in hf_config.items() if name not in known and value]
  values = {}
  for attribute in family.attributes:
    value = hf_config.get(attribute.theirs, attribute.default)
    if attribute.values:
      # Not a dictionary: some of these values are lists, which cannot be keys.
      found = [ours for theirs, ours in attribute.values
               if theirs == value and isinstance(value, type(theirs))]
      if found:
        value = found[0]
      else:
        names = ', '.join(repr(theirs) for theirs, _ in attribute.values)
        wrong.append(f'attribute {attribute.theirs} is {abbreviate(value)}, known are {names}')
    elif not is_valid_none(family.config, attribute.ours, value):
      expected = describe_expected(get_field(family.config, attribute.ours), value)
      if expected:
        wrong.append(f'attribute {attribute.theirs} is {abbreviate(value)}, expected {expected}')
    values[attribute.ours] = value
  raise_problems(wrong, 'cannot convert the configuration')
  try:
    config = validation.with_paths(family.config, values)
    offsets = {
        one.ours: get_field(config, one.ours) - get_field(config, one.offset_field)
        for one in family.attributes if one.offset_field}
    return validation.with_paths(config, offsets)
  except ValueError as error:
    raise ConvertError(f'cannot convert the configuration: {error}') from error


def is_valid_none(config: Any, path: str, value: Any) -> bool:
  """Tell whether value is None, and the field at `path` may be None."""
  parent, _, name = path.rpartition('.')
  if value is not None:
    return False
  owner = get_field(config, parent) if parent else config
  return validation.matches_type(None, validation.field_types(type(owner))[name])


def describe_expected(ours: Any, value: Any) -> str:
  """Return what is expected in place of `value`, by the type of our field; '': it is right."""
  right, wanted = True, ''  # of other types are values that `normalize_hf_config` has made
  if isinstance(ours, bool):
    right, wanted = isinstance(value, bool), 'true or false'
  elif isinstance(ours, int):
    right = type(value) is int and abs(value) <= MAX_SIZE
    wanted = f'a number up to {MAX_SIZE:,}'
  elif isinstance(ours, float):
    right, wanted = is_number(value) and math.isfinite(value), 'a number'
  elif isinstance(ours, str):
    right, wanted = isinstance(value, str), 'a text'
  return '' if right else wanted


def build_hf_attributes(family: Family, config: Any) -> dict[str, Any]:
  """Turn our configuration into attributes of a config.json.

  Raises ConvertError with every field for which they have no attribute.
  """
  # Two spellings mean that layers share no parameters: use the one that they have.
  if config.stack.groups in (0, config.stack.layers):
    has_groups = any(attribute.ours == 'stack.groups' for attribute in family.attributes)
    groups = config.stack.layers if has_groups else 0
    config = validation.with_paths(config, {'stack.groups': groups, 'stack.shared': 'all'})
  values = {one.theirs: export_value(one, config) for one in family.attributes}
  lost = []
  for line in validation.differences(config, parse_hf_config(family, values)):
    line = line.split(' -> ')[0]
    if line.split(':')[0] not in UNCOMPARED_FIELDS | family.part_tensors.keys():
      lost.append(f'{line} has no counterpart there')
      if line.startswith('head.pooling') and config.head.pooling != own_pooling(config):
        lost.append(f'fine-tune with {name_field("model.head.pooling")}={own_pooling(config)} for '
                    'an export')
  raise_problems(lost, f'cannot write this model as a {family.name} of transformers')
  if values.get('is_causal'):  # the default, which older versions of transformers do not know
    del values['is_causal']
  return dict(family.denormalize_hf_config(values))


def make_head(head: HeadSpec, config: Any, hf_config: Mapping[str, Any]) -> nn.Module:
  """Make a head for our configuration of the backbone and the contents of a config.json."""
  classes = len(hf_config.get('id2label') or ()) or hf_config.get('num_labels') or 2
  sizes = {name: hf_config.get(name) or default for name, default in head.sizes.items()}
  module = head.make(config, classes, **sizes)
  rate = hf_config.get(head.dropout) if head.dropout else None
  return module if rate is None else module.clone(dropout=float(rate))


def export_value(attribute: Attribute, config: Any) -> Any:
  """Return the value of an attribute for our configuration.

  Raises ConvertError for a value that transformers does not have.
  """
  value = get_field(config, attribute.ours)
  if attribute.offset_field:
    return value + get_field(config, attribute.offset_field)
  if not attribute.values:
    return value
  for theirs, ours in attribute.values:
    if ours == value:
      return theirs
  raise ConvertError(
      f'{attribute.ours} is {value!r}, which transformers does not have for {attribute.theirs}')


def get_field(config: Any, path: str) -> Any:
  """Return the value under a dotted path such as 'block.width'."""
  for name in path.split('.'):
    config = getattr(config, name)
  return config


def set_labels(
    hf_config: dict[str, Any], heads: Sequence[str], number: int, names: Sequence[str]) -> None:
  """Set the names of the classes and the kind of problem in the contents of a config.json.

  Raises ConvertError where the number of names is not the number of classes.
  """
  if names and len(set(names)) != number:
    raise ConvertError(f'the head has {number} classes, for which there are {len(set(names))} '
                       f'names: {abbreviate(list(names))}')
  if len(hf_config.get('id2label') or ()) == number:
    return
  names = names or [f'LABEL_{place}' for place in range(number)]
  hf_config['id2label'] = {str(place): name for place, name in enumerate(names)}
  hf_config['label2id'] = {name: place for place, name in enumerate(names)}
  if 'label' in heads and number == 1:
    hf_config['problem_type'] = 'regression'
  elif 'label' in heads:
    hf_config['problem_type'] = 'single_label_classification'
