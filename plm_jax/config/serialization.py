"""Read and write configurations as JSON: config.json of a run, and the copy in a checkpoint.

A dataclass is written with its class under 'is', and the whole with a format number:

    {"format": 4, "is": "plm_jax.config.run:PretrainRun", "name": "bert_base", ...}

A file with an older format number, or none, is migrated before it is read, one format after
another, by `MIGRATIONS`. Add the next format number when you move or rename a class or a field, or
add a field whose default differs from earlier behavior. An entry maps the class, as the previous
format names it, to a function of its saved fields ('is' among them), which returns the fields of
the new format. Values inside have been migrated already. To change OptimConfig and others:

    5: {'plm_jax.optim.optimizers:OptimConfig': add_fields(heads='apart'),
        'plm_jax.objectives.plm:PermutationLM':
            rename_class('plm_jax.objectives.permutation:PermutationLM'),
        'plm_jax.objectives.mlm:MaskedLM':
            lambda saved: rename_fields(add_fields(duplicates=1)(saved), rate='share')},

A new field whose default is the earlier behavior needs no entry, and neither does a renamed field
whose value stays: its class names it in `renamed`, for files of any format and for options.
"""
from collections.abc import Callable, Mapping
import dataclasses
import importlib
import json
from typing import Any

from plm_jax import validation
from plm_jax.errors import ConfigError
from plm_jax.validation import ValidatedConfig

SavedConfig = dict[str, Any]
"""a dataclass as JSON: its fields, and its class under 'is'"""
Migration = Callable[[SavedConfig], SavedConfig]


def rename_class(name: str) -> Migration:
  """Make a migration that changes the class, or the module it is in, to 'module:Class'."""
  return lambda saved: {**saved, 'is': name}


def add_fields(**old: Any) -> Migration:
  """Make a migration that adds new fields with the JSON values that describe earlier behavior."""
  return lambda saved: {**old, **saved}


def rename_fields(saved: SavedConfig, **names: str) -> SavedConfig:
  """Return the saved fields with old='new' names."""
  return {names.get(key, key): value for key, value in saved.items()}


def split_block_config(saved: SavedConfig) -> SavedConfig:
  """Migrate BlockConfig of format 1, which held the fields of all its parts, and 0 for None."""
  saved = dict(saved)

  def take_part(place: str, **fields: str) -> SavedConfig:
    """Take fields new='old' out of `saved` for the class at a place in plm_jax.layers."""
    inner = {}
    for new, old in fields.items():
      if old in saved:
        inner[new] = saved.pop(old)
    return {'is': f'plm_jax.layers.{place}', **inner}

  def zero_to_none(part: SavedConfig, *names: str) -> SavedConfig:
    cleared = {}
    for name in names:
      if name in part:
        cleared[name] = part[name] or None
    return part | cleared

  biased = saved.pop('bias', True)
  inputs = saved.pop('fan_in', False)
  average = saved.pop('fan_out', False)
  attention = take_part('attention:AttentionConfig', bias='attention_bias', scale='logit_scale',
                        dropout='attention_dropout', position='position')
  mlp = take_part('mlp:MlpConfig', activation='activation', gated='gated', bias='mlp_bias',
                  dropout='mlp_dropout')
  norm = take_part('norm:NormConfig', kind='norm', eps='norm_eps')
  init = take_part('init:InitConfig', std='init_std', out_std='out_std')
  attention, init = zero_to_none(attention, 'scale'), zero_to_none(init, 'out_std')
  init['fan'] = 'none'
  if inputs:
    init['fan'] = 'average' if average else 'in'
  if not biased:
    attention['bias'], mlp['bias'] = [], False
  parts = {'attention': attention, 'mlp': mlp, 'norm': norm, 'init': init}
  return zero_to_none(saved, 'head_size', 'kv_heads') | parts


EMBEDDING_FIELDS_IN_6 = {
    'types': 'types', 'absolute': 'absolute', 'languages': 'languages', 'tasks': 'tasks',
    'embed_dim': 'width', 'norm_embedded': 'norm'}
"""fields of EncoderConfig up to format 5, and those of EmbeddingConfig"""


def split_encoder_config(saved: SavedConfig) -> SavedConfig:
  """Migrate EncoderConfig of format 5, which held the fields of its embeddings, and `shifted`."""
  saved = dict(saved)
  embeddings = {'is': 'plm_jax.layers.embeddings:EmbeddingConfig'}
  for old, new in EMBEDDING_FIELDS_IN_6.items():
    if old in saved:
      embeddings[new] = saved.pop(old)
  saved.setdefault('embeddings', embeddings)
  if 'shifted' in saved:
    head = saved.get('head', {'is': 'plm_jax.layers.heads:HeadConfig'})
    saved['head'] = {**head, 'shifted': saved.pop('shifted')}
  return saved


def keep_exact_text(saved: SavedConfig) -> SavedConfig:
  """Migrate TextConfig of format 6, whose `newlines` kept line breaks between paragraphs alone."""
  saved = dict(saved)
  if saved.pop('newlines', False):
    saved['sentences'] = 'none'
  return saved


def drop_reserve(saved: SavedConfig) -> SavedConfig:
  """Migrate an objective of format 6 that kept tokens free for separators of documents."""
  return {name: value for name, value in saved.items() if name != 'reserve'}


RENAMED_IN_5 = {
    'plm_jax.cli.applied:RowsConfig': 'plm_jax.cli.predict:PredictConfig',
    'plm_jax.cli.applied:VectorsConfig': 'plm_jax.cli.encode:EncodeConfig',
    'plm_jax.cli.pairs:PairsConfig': 'plm_jax.cli.minimal_pairs:PairsConfig',
    'plm_jax.config:DataConfig': 'plm_jax.config.run:DataConfig',
    'plm_jax.config:Experiment': 'plm_jax.config.run:PretrainRun',
    'plm_jax.config:FineTuning': 'plm_jax.config.run:FinetuneRun',
    'plm_jax.config:HostsConfig': 'plm_jax.distributed.hosts:HostsConfig',
    'plm_jax.config:Phase': 'plm_jax.config.run:Phase',
    'plm_jax.config:Run': 'plm_jax.config.run:RunConfig',
    'plm_jax.config:TrainConfig': 'plm_jax.config.run:TrainConfig',
    'plm_jax.corpora.examine:CleanConfig': 'plm_jax.corpora.filter_documents:CleanConfig',
    'plm_jax.corpora.filters:Filters': 'plm_jax.corpora.filters:FilterConfig',
    'plm_jax.data.settings:PrepareConfig': 'plm_jax.data.prepare_config:PrepareConfig',
    'plm_jax.data.settings:TextConfig': 'plm_jax.data.prepare_config:TextConfig',
    'plm_jax.embeddings.losses:CoSent': 'plm_jax.tasks.embedding_losses:CoSent',
    'plm_jax.embeddings.losses:Contrastive': 'plm_jax.tasks.embedding_losses:Contrastive',
    'plm_jax.embeddings.losses:CosineRegression': 'plm_jax.tasks.embedding_losses:CosineRegression',
    'plm_jax.embeddings.losses:InBatch': 'plm_jax.tasks.embedding_losses:InBatch',
    'plm_jax.embeddings.losses:Softmax': 'plm_jax.tasks.embedding_losses:Softmax',
    'plm_jax.embeddings.losses:TeacherVectors': 'plm_jax.tasks.embedding_losses:TeacherVectors',
    'plm_jax.embeddings.losses:Triplet': 'plm_jax.tasks.embedding_losses:Triplet',
    'plm_jax.embeddings.losses:VectorLoss': 'plm_jax.tasks.embedding_losses:VectorLoss',
    'plm_jax.layers.buckets:Buckets': 'plm_jax.layers.t5_relative_bias:Buckets',
    'plm_jax.layers.characters:CharacterConfig': 'plm_jax.layers.char_cnn:CharacterConfig',
    'plm_jax.layers.reader:ReaderConfig': 'plm_jax.layers.recurrent_heads:ReaderConfig',
    'plm_jax.objectives.inner:Layerwise': 'plm_jax.objectives.layer_distillation:Layerwise',
    'plm_jax.objectives.inner:Relations': 'plm_jax.objectives.layer_distillation:Relations',
    'plm_jax.objectives.pairs:Consecutive': 'plm_jax.objectives.row_builders:Consecutive',
    'plm_jax.objectives.pairs:FullSentences': 'plm_jax.objectives.row_builders:FullSentences',
    'plm_jax.objectives.pairs:NextSentence': 'plm_jax.objectives.row_builders:NextSentence',
    'plm_jax.objectives.pairs:SentenceOrder': 'plm_jax.objectives.row_builders:SentenceOrder',
    'plm_jax.objectives.pairs:Single': 'plm_jax.objectives.row_builders:Single',
    'plm_jax.objectives.spans:Deshuffling': 'plm_jax.objectives.span_corruption:Deshuffling',
    'plm_jax.objectives.spans:MixtureOfDenoisers':
        'plm_jax.objectives.span_corruption:MixtureOfDenoisers',
    'plm_jax.objectives.spans:PrefixLM': 'plm_jax.objectives.span_corruption:PrefixLM',
    'plm_jax.objectives.spans:SpanCorruption': 'plm_jax.objectives.span_corruption:SpanCorruption',
    'plm_jax.objectives.spans:TokenCorruption':
        'plm_jax.objectives.span_corruption:TokenCorruption',
    'plm_jax.objectives.translations:Translations':
        'plm_jax.objectives.translation_rows:Translations',
    'plm_jax.tasks.answers:AnswerTask': 'plm_jax.tasks.extractive_qa:AnswerTask',
    'plm_jax.tasks.augment:AugmentConfig': 'plm_jax.tasks.text_augmentation:AugmentConfig',
    'plm_jax.tasks.choice:ChoiceTask': 'plm_jax.tasks.multiple_choice:ChoiceTask',
    'plm_jax.tasks.embedding:EmbeddingTask': 'plm_jax.tasks.sentence_embedding:EmbeddingTask',
    'plm_jax.tasks.grouped:GroupedTask': 'plm_jax.tasks.grouped_rows:GroupedTask',
    'plm_jax.tasks.labelled:LabelledConfig': 'plm_jax.tasks.labeled_data:LabeledConfig',
    'plm_jax.tasks.reading:Columns': 'plm_jax.tasks.row_readers:Columns',
    'plm_jax.tasks.recurrent:RecurrentSequence': 'plm_jax.tasks.elmo:RecurrentSequence',
    'plm_jax.tasks.recurrent:RecurrentTagging': 'plm_jax.tasks.elmo:RecurrentTagging',
    'plm_jax.tasks.recurrent:RecurrentTask': 'plm_jax.tasks.elmo:RecurrentTask',
    'plm_jax.tasks.regularize:FGM': 'plm_jax.tasks.regularizers:FGM',
    'plm_jax.tasks.regularize:FreeLB': 'plm_jax.tasks.regularizers:FreeLB',
    'plm_jax.tasks.regularize:Plain': 'plm_jax.tasks.regularizers:Plain',
    'plm_jax.tasks.regularize:RDrop': 'plm_jax.tasks.regularizers:RDrop',
    'plm_jax.tasks.regularize:ScaleInvariant': 'plm_jax.tasks.regularizers:ScaleInvariant',
    'plm_jax.tasks.sequence:SequenceTask': 'plm_jax.tasks.sequence_classification:SequenceTask',
    'plm_jax.tasks.tagging:TaggingTask': 'plm_jax.tasks.token_classification:TaggingTask',
    'plm_jax.training.adapters:AdapterConfig': 'plm_jax.optim.adapters:AdapterConfig',
    'plm_jax.training.optim:OptimConfig': 'plm_jax.optim.optimizers:OptimConfig',
    'plm_jax.training.tuning:TuningConfig': 'plm_jax.optim.tuning:TuningConfig',
    'plm_jax.vectors.classifier:Classifier': 'plm_jax.word_vectors.classifier:ClassifierConfig',
    'plm_jax.vectors.contract:WordModel': 'plm_jax.word_vectors.contract:WordModel',
    'plm_jax.vectors.corpus:WordsConfig': 'plm_jax.word_vectors.word_corpus:WordsConfig',
    'plm_jax.vectors.glove:GloVe': 'plm_jax.word_vectors.glove:GloVe',
    'plm_jax.vectors.ranking:Ranking': 'plm_jax.word_vectors.ranking:Ranking',
    'plm_jax.vectors.subwords:Subwords': 'plm_jax.word_vectors.subwords:Subwords',
    'plm_jax.vectors.train:VectorRun': 'plm_jax.word_vectors.train:VectorRun',
    'plm_jax.vectors.train:VectorTrainConfig': 'plm_jax.word_vectors.train:VectorTrainConfig',
    'plm_jax.vectors.word2vec:Word2Vec': 'plm_jax.word_vectors.word2vec:Word2Vec',
}
"""classes whose module or name changed after format 4, as module:Class"""

MIGRATIONS: Mapping[int, Mapping[str, Migration]] = {
    2: {'plm_jax.optim:OptimConfig': rename_class('plm_jax.training.optim:OptimConfig'),
        'plm_jax.layers.block:BlockConfig': split_block_config},
    3: {'plm_jax.data.prepare:TextConfig': rename_class('plm_jax.data.settings:TextConfig')},
    4: {'plm_jax.objectives.distillation:Distillation':
            lambda saved: rename_fields(saved, mlm='task')},
    5: {old: rename_class(new) for old, new in RENAMED_IN_5.items()},
    6: {'plm_jax.architectures.encoder:EncoderConfig': split_encoder_config},
    7: {'plm_jax.data.prepare_config:TextConfig': keep_exact_text,
        'plm_jax.data.prepare_config:PrepareConfig': keep_exact_text,
        'plm_jax.objectives.clm:CausalLM': drop_reserve,
        'plm_jax.objectives.mntp:MaskedNextToken': drop_reserve,
        'plm_jax.objectives.row_builders:FullSentences': drop_reserve},
}
FORMAT = max(MIGRATIONS)


def dump(config: Any) -> str:
  """Return the text of a config.json file."""
  return json.dumps(to_json(config), indent=1, ensure_ascii=False) + '\n'


def to_json(config: Any) -> SavedConfig:
  """Convert a configuration to JSON values, with the format number."""
  return {'format': FORMAT, **to_plain(config)}


def to_plain(value: Any) -> Any:
  """Convert the value of a field to JSON values; each dataclass has its class under 'is'."""
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    saved = {'is': f'{type(value).__module__}:{type(value).__qualname__}'}
    for field in dataclasses.fields(value):
      saved[field.name] = to_plain(getattr(value, field.name))
    return saved
  if isinstance(value, tuple):
    return [to_plain(item) for item in value]
  return value


def flatten(value: Any, path: str = '') -> SavedConfig:
  """Flatten the JSON values of a configuration to {option: value}, such as --optim.peak."""
  items: list[tuple[str, Any]] = []
  if isinstance(value, dict):
    for key, item in value.items():
      name = key.replace('_', '-')
      name_path = f'--{name}'
      if path:
        name_path = f'{path}.{name}'
      items.append((name_path, item))
  elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
    items = [(f'{path}.{number}', item) for number, item in enumerate(value)]
  else:
    return {path: value}
  found = {}
  for place, item in items:
    found |= flatten(item, place)
  return found


def from_json(value: Any, where: str = 'config.json') -> Any:
  """Build a configuration from JSON values, also from those that older versions wrote.

  Args:
    value: the JSON values.
    where: the file, for messages.

  Raises:
    ConfigError: this version does not have the format, a class or a field; or a field does not
      take its value.
  """
  if not isinstance(value, dict):
    raise ConfigError(f'{where}: this is no configuration: {validation.short_repr(value)}')
  if 'is' not in value and ('model_type' in value or 'architectures' in value):
    raise ConfigError(f'{where} belongs to a transformers checkpoint, expected the folder of a run')
  fields = dict(value)
  fields.pop('format', None)
  with validation.defer_checks():
    config = build_config(upgrade(fields, value.get('format', 1), where), where)
  validation.check(config, lambda path: f'{where}: {path}')
  return config


def upgrade(saved: SavedConfig, number: Any, where: str) -> Any:
  """Migrate saved values from the format with this number to the newest format."""
  if type(number) is not int or number < 1:
    raise ConfigError(f'{where}: the format is a whole number from 1 on, got '
                      f'{validation.short_repr(number)}')
  if number > FORMAT:
    raise ConfigError(f'{where}: a newer version of plm_jax wrote this, in format {number}: this '
                      f'version reads formats up to {FORMAT}')
  for newer in range(number + 1, FORMAT + 1):
    saved = apply_migrations(saved, MIGRATIONS[newer], where)
  return saved


def apply_migrations(value: Any, changes: Mapping[str, Migration], where: str) -> Any:
  """Apply the migrations of one format to a JSON value, from the inside out."""
  if isinstance(value, list):
    return [apply_migrations(item, changes, where) for item in value]
  if not isinstance(value, dict):
    return value
  value = {key: apply_migrations(item, changes, where) for key, item in value.items()}
  name = value.get('is')
  if not isinstance(name, str) or name not in changes:
    return value
  try:
    return changes[name](value)
  except (KeyError, TypeError, ValueError, AttributeError) as error:
    raise ConfigError(f'{where}: {validation.short_repr(value)} was not written by an earlier '
                      'version') from error


def build_config(value: Any, where: str, path: str = '') -> Any:
  """Build the configurations in a JSON value of the newest format.

  Args:
    value: the JSON value: a dataclass, a list, or the value of a field.
    where: the file, for messages.
    path: the field that the value belongs to, for messages.
  """
  if isinstance(value, list):
    return tuple(build_config(item, where, f'{path}.{number}') for number, item in enumerate(value))
  if not isinstance(value, dict):
    return value
  place = f'{where}: {path.lstrip(".") or "the configuration"}'
  cls = find_class(value.get('is'), place, value)
  renamed = validation.inherited_table(cls, 'renamed')
  fields = {}
  for key, item in value.items():
    if key != 'is':
      key = renamed.get(key, key)
      fields[key] = build_config(item, where, f'{path}.{key}')
  known = {field.name: field for field in dataclasses.fields(cls)}
  if unknown := set(fields) - set(known):
    raise ConfigError(f'{place}: {cls.__name__} has no field '
                      f'{validation.short_repr(sorted(unknown))} in this version of plm_jax')
  missing = []
  for key, field in known.items():
    required = (field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING)
    if required and key not in fields:
      missing.append(key)
  if missing:
    raise ConfigError(f'{place}: {cls.__name__} lacks {missing}')
  try:
    return cls(**fields)
  except TypeError as error:  # an abstract base class
    raise ConfigError(f'{place}: {error}') from error


def find_class(name: Any, place: str, value: SavedConfig) -> type:
  """Find the configuration class that 'module:Class' names.

  Args:
    name: the name, which a file may have made anything.
    place: where the file has it, for messages.
    value: the saved configuration, for messages.

  Raises:
    ConfigError: there is no such class, or it is not a configuration of plm_jax.
  """
  if not isinstance(name, str):
    raise ConfigError(f'{place} is without a class: {validation.short_repr(value)}')
  module, _, attribute = name.partition(':')
  called = validation.short_repr(name)[1:-1]
  if not module.startswith('plm_jax.'):
    raise ConfigError(f'{place} names the class {called}, which is not one of plm_jax')
  try:
    cls = getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise ConfigError(f'{place}: this version of plm_jax has no {called}') from error
  is_config = isinstance(cls, type) and issubclass(cls, ValidatedConfig)
  if not is_config or not dataclasses.is_dataclass(cls):
    raise ConfigError(f'{place}: {called} is not a configuration')
  return cls
