"""Settings of folders of PyLate, which have token vectors for late interaction (ColBERT).

Such a folder is one of sentence-transformers without pooling; `conversion.sentence_transformers`
reads and writes it. It also reads folders of the authors' code (stanford-futuredata/ColBERT).
"""
from collections.abc import Mapping, Sequence
import string
from typing import Any

from plm_jax import storage
from plm_jax.layers.pooling import DenseConfig
from plm_jax.layers.token_vectors import TokenVectorConfig
from plm_jax.models.rules import ConvertError
from plm_jax.tokenizers.contract import abbreviate

MODEL_TYPE = 'ColBERT'
DENSE_CLASS = 'pylate.models.Dense.Dense'
DEFAULT_LENGTH = 180
ORIGINAL_CLASS, METADATA, LINEAR = 'HF_ColBERT', 'artifact.metadata', 'linear.weight'
"""class, settings and dense layer in folders of the authors' code"""
FIELDS = {
    'query_length': ('query_length', 32), 'do_query_expansion': ('expand', True),
    'attend_to_expansion_tokens': ('attend', False), 'query_prefix': ('query_token', '[Q] '),
    'document_prefix': ('document_token', '[D] '),
    'skiplist_words': ('skip', list(string.punctuation))}
"""name in the settings of a folder -> our field, PyLate's default"""


def has_token_vectors(modules: Sequence[str], settings: Mapping[str, Any]) -> bool:
  """Tell whether a folder with these modules is one of PyLate."""
  names_it = settings.get('model_type') == MODEL_TYPE or 'query_prefix' in settings
  return names_it and 'Pooling' not in modules


def list_other_tensors(hf_config: Mapping[str, Any]) -> tuple[str, ...]:
  """List the tensors of a checkpoint of the authors' code that are not its encoder's."""
  return (LINEAR,) if ORIGINAL_CLASS in (hf_config.get('architectures') or ()) else ()


def read_metadata(file: Any) -> dict[str, Any]:
  """Read the settings of the authors' code, as those of PyLate."""
  found = storage.read_json(file, error=ConvertError)
  return {
      'query_prefix': found.get('query_token_id') or '[unused0]',
      'document_prefix': found.get('doc_token_id') or '[unused1]',
      'query_length': found.get('query_maxlen'),
      'document_length': found.get('doc_maxlen') or DEFAULT_LENGTH,
      'attend_to_expansion_tokens': found.get('attend_to_mask_tokens')}


def read_token_vectors(
    file: Any, settings: Mapping[str, Any], layers: Sequence[DenseConfig]) -> TokenVectorConfig:
  """Read the configuration of token vectors.

  Args:
    file: of the settings, for messages.
    settings: its contents.
    layers: dense layers of the folder.

  Raises:
    ConvertError: a setting has another type, or there is no dense layer.
  """
  if not layers:
    raise ConvertError(f'{file.parent}: a model of token vectors has a dense layer, and there is '
                       'none')
  fields: dict[str, Any] = {}
  for name, (field, default) in FIELDS.items():
    value = settings.get(name)
    value = default if value is None else value
    if type(value) is not type(default):
      raise ConvertError(f'{file}: {name} is {abbreviate(value)}, expected '
                         f'{type(default).__name__}')
    fields[field] = tuple(map(str, value)) if isinstance(value, list) else value
  fields['attend'] = fields['attend'] and fields['expand']
  first, *more = layers
  return TokenVectorConfig(
      dense=first.size, activation=first.activation, dense_bias=first.bias, more=tuple(more),
      **fields)


def make_settings(vector: TokenVectorConfig, length: int) -> dict[str, Any]:
  """Make the settings of a folder. length: maximum tokens of a document."""
  settings = {name: getattr(vector, field) for name, (field, _) in FIELDS.items()}
  return settings | {
      'skiplist_words': list(vector.skip), 'document_length': length or DEFAULT_LENGTH,
      'model_type': MODEL_TYPE, 'similarity_fn_name': 'MaxSim'}
