"""Fine-tuning of any model on any task, with the hyperparameters that its authors published.

    python -m plm_jax finetune --init=FOLDER --task=sst2
    python -m plm_jax finetune --init=FOLDER --task=classification --train=mine.tsv --dev=other.tsv
    python -m plm_jax finetune --task=classification --scale=laptop  # on built-in examples: minutes

FOLDER is a run, a transformers checkpoint, or an ELMo, whose features a tagger or a classifier then
reads (`--vectors=FILE` concatenates these word vectors). Hyperparameters come from
`recipes.hyperparameters`. A task is a name in `tasks.registry`, which also names its data in TFDS.
For your own data it is a kind: classification, multilabel, regression, tagging, answers, choice,
rerank, embedding.

`--sweep learning-rate=1e-5,2e-5 --sweep batch=16,32 --seeds=3` compares settings.
"""
from collections.abc import Container, Mapping
import dataclasses
import difflib
from typing import Any, NamedTuple

from plm_jax import conversion, validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.config.run import ConfigError, FinetuneRun, Phase, Scale, TrainConfig
from plm_jax.conversion import sentence_transformers
from plm_jax.layers.pooling import VectorConfig
from plm_jax.layers.recurrent_heads import ReaderConfig
from plm_jax.layers.token_vectors import TokenVectorConfig
from plm_jax.loading.loaded_model import read_config, read_model_config
from plm_jax.models import bert
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.tuning import TuningConfig
from plm_jax.recipes import sentence_vectors
from plm_jax.recipes.hyperparameters import published_hyperparameters
from plm_jax.recipes.scale_presets import resize_run, unroll_layers
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.kinds import KINDS
from plm_jax.tasks.labeled_data import LabeledConfig
from plm_jax.tasks.late_interaction import LateInteractionTask
from plm_jax.tasks.registry import TASKS, TaskSpec
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tokenizers.whole_words import SPECIALS

# Learning rates of small models: BASE_RATE at width 768, higher for smaller widths, MAX_RATE at
# most; and the minimum number of updates on few examples. Chosen on four data sets, see
# `benchmarks.defaults` and benchmarks/RESULTS.md.
BASE_RATE, WIDTH_POWER, MAX_RATE, MIN_STEPS = 2e-5, 1.8, 1e-3, 1000
# Settings of all kinds of task on data of the user, which is mostly small: Mosbach et al. 2021
# (section 6) and Zhang et al. 2021 (sections 4 and 6) find that runs on few examples fail with few
# updates and without bias correction. `early` is in evaluations, see `LabeledConfig.evaluations`.
OWN_DATA = {'warmup': 0.1, 'bias_correction': True, 'least_steps': MIN_STEPS, 'early': 10}
HEAD_RATE = 3e-3
"""learning rate of a head on a frozen backbone: chosen on three data sets, see
benchmarks/results/quality.md"""
TEXT_HEADS = 'label', 'choice'
"""heads that read one vector per text"""
OPTIM_FIELDS = {field.name for field in dataclasses.fields(AdamW)}


class InitialModel(NamedTuple):
  """The model that fine-tuning starts from."""

  folder: str = ''
  family: str = 'bert'
  model: Any = None
  """configuration of the backbone; None: BERT base, or smaller, depending on the scale"""
  pooling: str = ''
  """pooling of token states that it was trained with; '': none is known"""
  late: TokenVectorConfig | None = None
  """token vectors that it was trained with; None: none"""

  @property
  def name(self) -> str:
    """The last part of the folder, without the revision of a model of the Hugging Face hub."""
    return self.folder.rstrip('/').rpartition('/')[2].partition('@')[0]


def read_initial_model(folder: str) -> InitialModel:
  """Read the family, the configuration and the pooling of a run or another library's checkpoint."""
  family, model = read_model_config(folder)
  if conversion.is_checkpoint(folder):
    late = sentence_transformers.read_late_interaction(folder)
    pooling = sentence_transformers.declared_pooling(folder)
    vector: Any = late.vector if late else None
    return InitialModel(folder, family, model, pooling, vector)
  vector = getattr(read_config(folder).objective, 'vector', None)
  if isinstance(vector, TokenVectorConfig):
    return InitialModel(folder, family, model, late=vector)
  poolings = vector.pooling if isinstance(vector, VectorConfig) else ()
  return InitialModel(folder, family, model, poolings[0] if len(poolings) == 1 else '')


def recipe(
    task: str, start: InitialModel = InitialModel(), scale: Scale | None = None,
    train: tuple[str, ...] = (), dev: tuple[str, ...] = (),
) -> FinetuneRun:
  """Build the fine-tuning run of a task.

  Args:
    task: name or kind of the task.
    start: the model.
    scale: paper: the published hyperparameters of the family; None: depends on the size of the
      model (`choose_scale`).
    train: sources of training examples; (): the task's own, or of a kind the built-in examples.
    dev: sources of development examples, with the same defaults.

  Raises:
    ConfigError: the task is unknown, or has no data.
  """
  name, known = find_task(task)
  wants_own_settings = scale != 'paper'  # not the published ones
  values, scale = choose_hyperparameters(name, start, scale)
  if task not in TASKS and start.model and scale != 'test' and wants_own_settings:
    values = {'epochs': 3.0, **values, **OWN_DATA}
    values.pop('steps', None)

  # Data. With files of the user, class names are those of the files, unless the task names them.
  if scale != 'paper' and not train and task in sentence_vectors.BUILTIN_SOURCES:
    train, dev = (sentence_vectors.BUILTIN_SOURCES[task],), dev or ('embedded:similarity:dev',)
  if not train and not known.train:
    raise ConfigError(f'TFDS does not have {task}: give --train and --dev')
  own = bool(train)
  if not own:
    train, dev = known.train, dev or known.dev

  # Model and objective.
  model, learned = build_model_and_task(task, known, own and name != task, start)
  for field in ('head_dropout', 'stride'):
    if field in values and hasattr(learned, field):
      learned = dataclasses.replace(learned, **{field: values[field]})

  # Warmup below 1 is a share of the run; otherwise a number of updates.
  warmup_share, warmup_updates = 0.0, int(values['warmup'])
  if values['warmup'] < 1:
    warmup_share, warmup_updates = values['warmup'], 0
  optim: dict[str, Any] = {field: value for field, value in values.items() if field in OPTIM_FIELDS}
  optim['warmup'] = warmup_updates
  epochs, on_error, tokenizer, tuning = 0.0, 'refuse', start.folder, TuningConfig()
  if 'steps' not in values:
    epochs = values['epochs']
  if name in sentence_vectors.TASKS:
    on_error = 'skip'
  if model.kind == 'recurrent':  # its vocabulary is that of the data, and it is not trained
    tokenizer, tuning = '', TuningConfig(top=0)
  if name == 'llm2vec':
    tuning = TuningConfig(adapter=sentence_vectors.LLM2VEC_ADAPTER)
  data = LabeledConfig(
      train=train, dev=dev, columns=known.columns, epochs=epochs, warmup=warmup_share,
      least_steps=values.get('least_steps', 0), evaluations=values.get('evaluations', 1.0),
      on_error=on_error, tokenizer=tokenizer)
  phase = Phase(values.get('steps', 1), values['length'], values['batch'])
  run_name = f'finetune_{task}'
  if start.name:
    run_name += f'-{start.name}'
  config = FinetuneRun(
      run_name, family=start.family, warm_start=start.folder, model=model, objective=learned,
      tuning=tuning, data=data, optim=AdamW(**optim),
      train=TrainConfig(phases=(phase,), log_every=50, best='main', early=values.get('early', 0)))
  return shrink_run(limit_length(config), scale, fresh=start.model is None)


OTHER_NAMES = {
    'ner': 'tagging', 'token-classification': 'tagging', 'text-classification': 'classification',
    'sequence-classification': 'classification', 'sentiment': 'classification',
    'qa': 'answers', 'question-answering': 'answers', 'multiple-choice': 'choice',
    'similarity': 'embedding', 'retrieval': 'embedding', 'reranking': 'rerank'}
"""names of kinds of task in other libraries -> ours"""


def find_task(task: str) -> tuple[str, TaskSpec]:
  """Find the specification of a task or of a kind of task -> (name in the registry, or kind; it).

  Raises:
    ConfigError: the task is unknown.
  """
  name = f'embedded_{task}' if f'embedded_{task}' in TASKS else task
  if name in TASKS:
    return name, TASKS[name]
  if task not in KINDS:
    names = dict.fromkeys([*KINDS, *(name.removeprefix('embedded_') for name in TASKS)])
    other = OTHER_NAMES.get(task.lower().replace('_', '-'))
    near = [other] if other else difflib.get_close_matches(task, names, 3, 0.6)
    advice = f'did you mean {" or ".join(near)}?' if near else f'there are {", ".join(names)}'
    raise ConfigError(f'there is no task {validation.short_repr(task)}: {advice}')
  return task, TaskSpec(task, measures=KINDS[task].format.measures)  # without built-in examples


def choose_hyperparameters(
    name: str, start: InitialModel, scale: Scale | None) -> tuple[dict[str, Any], Scale]:
  """Choose (hyperparameters, scale) of a task, for the size of the model."""
  is_chosen_here = scale is None
  if scale is None:
    scale = choose_scale(start.model)
    if name in sentence_vectors.TASKS:  # published whatever the size of the model
      is_chosen_here, scale = False, 'paper'
  # The one kind without built-in examples is regression, as STS-B is.
  published = name if name in TASKS else 'stsb'
  values = published_hyperparameters(published, start.family, published_size(start.model))
  if start.model and (is_chosen_here or scale != 'paper'):
    values = adapt_to_size(values, start.model, scale)
  return values, scale


def build_model_and_task(
    task: str, known: TaskSpec, unnamed: bool, start: InitialModel) -> tuple[Any, Any]:
  """Build the configuration of the model, with all that the head needs, and the task.

  Args:
    task: name or kind of the task.
    known: what is published of it.
    unnamed: whether class names are those of the training examples.
    start: the initial model.

  Raises:
    ConfigError: an ELMo does not learn this kind of task.
  """
  model: Any = start.model or bert.base()
  kind = KINDS[known.kind]
  labels = () if unnamed else known.labels
  fields: dict[str, Any] = {'family': start.family, 'cut': known.cut, 'labels': labels}
  if model.kind == 'recurrent':
    if kind.recurrent is None:
      raise ConfigError(f'an ELMo learns tagging, classification and regression, not {known.kind}')
    reader = ReaderConfig(longest=model.characters.longest)
    model = dataclasses.replace(model, vocab=len(SPECIALS) + 1)  # that of the task's data
    return model, kind.recurrent.from_spec(known, **fields, reader=reader)
  if known.kind == 'embedding':  # losses are published with their task
    learned = sentence_vectors.make_task(task, start.family, model.block.width)
    if task == 'llm2vec' and isinstance(model, DecoderConfig):
      # simcse_dropout of train_configs/simcse/Sheared-Llama.json, which is of attention.
      model = validation.with_paths(model, {'causal': False, 'block.attention.dropout': 0.3})
    if isinstance(learned, LateInteractionTask):
      return model, dataclasses.replace(learned, vector=start.late or learned.vector)
    if start.pooling and task not in TASKS and not learned.is_sparse:
      learned = validation.with_paths(learned, {'vector.pooling': (start.pooling,)})
    return model, learned
  model = conversion.enable_required_parts(start.family, kind.task.head, model)
  if start.pooling and kind.task.head in TEXT_HEADS:
    model = validation.with_paths(model, {'head.pooling': start.pooling})
  return model, kind.task.from_spec(known, **fields)


def follow_options(config: FinetuneRun, given: Container[str]) -> FinetuneRun:
  """Return a run with the defaults that follow from the options that are given.

  A head on a frozen backbone has a learning rate of its own. Epochs that are given are trained,
  without a minimum of updates and without early stopping.

  Args:
    config: the run with the given options.
    given: fields that are given, such as 'data.epochs'.
  """
  changes: dict[str, Any] = {}
  if config.tuning.top == 0 and config.model.kind != 'recurrent' and config.scale != 'test':
    changes['optim.peak'] = HEAD_RATE
  if 'data.epochs' in given:
    changes |= {'data.least_steps': 0, 'train.early': 0}
  return validation.with_paths(
      config, {name: value for name, value in changes.items() if name not in given})


def intermediate_task_hint(task: str, start: InitialModel) -> str:
  """Describe the intermediate task on which the authors of a family fine-tuned first.

  '': there is none, or the name of the model contains it.
  """
  if task not in TASKS:
    return ''
  values = published_hyperparameters(task, start.family, published_size(start.model))
  first = values.get('start', '')
  if not first or first in start.name:
    return ''
  return (f'published results on {task} begin with a model that was fine-tuned on {first}: give '
          'its folder to --init')


def published_size(model: Any) -> str:
  """Return the published size of a model, as named in `recipes.hyperparameters`.

  The second and third versions of DeBERTa have a vocabulary of 128,000.
  """
  if model is None or model.kind == 'recurrent':
    return ''
  width, layers, many = model.block.width, model.stack.layers, model.vocab >= 128_000
  if many and width >= 1536:
    return 'v2-xlarge' if layers <= 24 else 'v2-xxlarge'
  if many and width < 512:
    size = 'xsmall'
  elif width < 768 or (width < 1024 and many and layers <= 6):
    size = 'small'
  elif width < 1024:
    size = 'base'
  elif layers < 48:
    size = 'large'
  else:
    size = 'xlarge'
  return f'v3-{size}' if many else size


def choose_scale(model: Any) -> Scale:
  """Choose the scale for a given model.

  laptop: below five million parameters without embeddings; test: at most width 32; else paper.
  """
  if model is None or model.kind == 'recurrent':
    return 'paper'
  if 12 * model.stack.layers * model.block.width ** 2 > 5e6:
    return 'paper'
  return 'laptop' if model.block.width > 32 else 'test'


def suggest_rate(model: Any) -> float:
  """Return the peak learning rate for the width of a model, to two digits."""
  rate = BASE_RATE * (768 / model.block.width) ** WIDTH_POWER
  return float(f'{min(MAX_RATE, rate):.1e}')


def adapt_to_size(values: Mapping[str, Any], model: Any, scale: Scale) -> dict[str, Any]:
  """Adapt hyperparameters to a model that is smaller than the published ones.

  Published learning rates, for width 768, are far too low for small models: Turc et al. 2019 search
  from 3e-5 to 3e-4 for widths 512 to 128, and train for 4 epochs. Families that were published in
  small sizes keep their settings at these sizes.
  """
  found = dict(values)
  if model.kind == 'recurrent':
    return found
  width = model.block.width
  # Published with 12 layers and less width: ELECTRA-small and DeBERTa v3 xsmall, among others.
  if width >= 768 or (scale == 'paper' and model.stack.layers >= 12):
    return found
  found['peak'] = max(values['peak'], suggest_rate(model))
  if 'steps' in found:  # published for data sets and models of another size
    del found['steps']
    found |= {'epochs': 4.0, 'warmup': 0.1}
  found['epochs'] = max(4.0, found['epochs'])
  if scale == 'laptop':
    found['least_steps'] = MIN_STEPS
  return found


def limit_length(config: FinetuneRun) -> FinetuneRun:
  """Limit the sequence length to the maximum of the model."""
  phase, longest = config.train.phases[0], config.model.max_length
  if not longest or phase.length <= longest:
    return config
  task: Any = config.objective.limit_length(longest)
  phase = dataclasses.replace(phase, length=longest)
  train = dataclasses.replace(config.train, phases=(phase,))
  return dataclasses.replace(config, objective=task, train=train)


def shrink_run(paper: FinetuneRun, scale: Scale, fresh: bool) -> FinetuneRun:
  """Scale a run down to minutes on two cores (laptop) or seconds (test).

  fresh: the run trains from scratch, so its model may become smaller.
  """
  if scale == 'paper':
    return paper
  if scale == 'laptop':
    layers, width, vocab, length, epochs = 2, 128, 4096, 128, 4.0
  else:
    layers, width, vocab, length, epochs = 2, 32, 1024, 64, 1.0
  config = paper
  if fresh:
    config = resize_run(paper, layers, width, 2, vocab, length)
    config = dataclasses.replace(
        config, model=validation.with_paths(config.model, {'block.init.std': 0.08}),
        optim=dataclasses.replace(config.optim, peak=1e-3, warmup=0))
  elif scale == 'laptop':
    epochs = max(epochs, config.data.epochs)
  if scale == 'laptop':
    config = dataclasses.replace(config, model=unroll_layers(config.model))

  phase = config.train.phases[0]
  phase = dataclasses.replace(phase, length=min(length, phase.length), batch=16)
  task: Any = config.objective
  if isinstance(task, AnswerTask):
    task = dataclasses.replace(
        task, stride=phase.length // 3, question_length=phase.length // 4)
  if isinstance(task, EmbeddingTask):
    if config.data.train == ('embedded:similarity',) and task.entailment:
      task = dataclasses.replace(task, entailment='same', contradiction='other')
    if isinstance(task.vector, VectorConfig) and task.vector.dense:
      backbone: Any = config.model
      vector = dataclasses.replace(task.vector, dense=backbone.block.width)
      task = dataclasses.replace(task, vector=vector)
  return dataclasses.replace(
      config, scale=scale, objective=task, data=dataclasses.replace(config.data, epochs=epochs),
      train=dataclasses.replace(config.train, phases=(phase,)))
