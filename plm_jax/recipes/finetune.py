"""Fine-tuning of any model for any task, with the settings that its authors published (`tasks.settings`).

    python -m plm_jax finetune --init=FOLDER --task=sst2
    python -m plm_jax finetune --init=FOLDER --task=classification --train=mine.tsv --dev=other.tsv
    python -m plm_jax finetune --task=classification --scale=laptop        # on examples that every machine has: minutes

FOLDER is that of a run, of a checkpoint of transformers, or of an ELMo, whose features a tagger or a classifier then
reads (`--vectors=FILE`: beside these word vectors). A task is one of `tasks.table`, which says where TFDS has
its data, or the kind of your own: classification, regression, tagging, answers, choice, embedding.
"""
import dataclasses
from typing import Any, NamedTuple, get_args

from plm_jax import checked, conversion
from plm_jax.config import ConfigError, FineTuning, Phase, Scale, Tasks, TrainConfig
from plm_jax.layers.reader import ReaderConfig
from plm_jax.models import bert
from plm_jax.recipes import vectors
from plm_jax.tasks.answers import AnswerTask
from plm_jax.tasks.choice import ChoiceTask
from plm_jax.tasks.embedding import EmbeddingTask
from plm_jax.tasks.examples import Kind
from plm_jax.tasks.labelled import LabelledConfig
from plm_jax.tasks.recurrent import RecurrentSequence, RecurrentTagging
from plm_jax.tasks.sequence import SequenceTask
from plm_jax.tasks.settings import settings
from plm_jax.tasks.table import TASKS, Published
from plm_jax.tasks.tagging import TaggingTask
from plm_jax.tokenizers.words import SPECIALS
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import resized
from plm_jax.training.tuning import TuningConfig

# Of vectors no family has a head.
HEADS = {'classification': 'label', 'regression': 'label', 'tagging': 'tags', 'answers': 'span', 'choice': 'choice'}
OPTIM = {field.name for field in dataclasses.fields(OptimConfig)}


class Start(NamedTuple):
  """What a run starts from."""

  folder: str = ''
  family: str = 'bert'
  model: Any = None
  """configuration of the backbone; None: BERT base, or smaller, by the scale"""

  @property
  def name(self) -> str:
    """Last part of the folder."""
    return self.folder.rstrip('/').rpartition('/')[2]


def recipe(task: str, start: Start = Start(), scale: Scale = 'paper', train: tuple[str, ...] = (),
           dev: tuple[str, ...] = ()) -> FineTuning:
  """Builds the run of a task. train, dev: sources; empty: the task's own, or, of a kind, examples that every machine
  has. Raises ConfigError for a task that is not known."""
  name = task
  if task in get_args(Kind):
    name = f'embedded_{task}' if f'embedded_{task}' in TASKS else task
  elif task not in TASKS:
    raise ConfigError(f'--task is one of {", ".join((*get_args(Kind), *TASKS))}, got {checked.shortened(task)}')
  known = TASKS.get(name, Published('regression', measures=('pearson', 'spearman')))  # of which nothing is embedded
  values = settings(name if name in TASKS else 'stsb', start.family, size_of(start.model))
  if scale != 'paper' and not train and task in vectors.EMBEDDED:
    train, dev = (vectors.EMBEDDED[task],), dev or ('embedded:similarity:dev',)
  if not train and not known.train:
    raise ConfigError(f'TFDS does not have {task}: give --train and --dev')
  own = bool(train)  # names of classes are then those of the files, unless the task says them
  phase = Phase(values.get('steps', 1), values['length'], values['batch'])
  warmup = values['warmup']
  model = start.model or bert.base()
  recurrent = model.kind == 'recurrent'
  if recurrent:
    model = dataclasses.replace(model, vocab=len(SPECIALS) + 1)  # as many words as the task turns out to have
  elif known.kind in HEADS:
    model = conversion.with_parts(start.family, HEADS[known.kind], model)
  config = FineTuning(
      '-'.join(filter(None, (f'finetune_{task}', start.name))), family=start.family, warm_start=start.folder,
      model=model,
      objective=(objective_of_elmo(known, own and name != task, start.family, model) if recurrent else
                 vectors.task_of(task, start.family, model.block.width) if known.kind == 'embedding' else
                 objective(known, own and name != task, start.family, values)),
      tuning=TuningConfig(top=0 if recurrent else -1),
      data=LabelledConfig(
          train=train or known.train, dev=dev or (() if own else known.dev), columns=known.columns,
          epochs=0.0 if 'steps' in values else values['epochs'], warmup=warmup if warmup < 1 else 0.0,
          evaluations=values.get('evaluations', 1.0), on_error='skip' if name in vectors.TASKS else 'refuse',
          tokenizer='' if recurrent else start.folder),
      optim=OptimConfig(**{'warmup': 0, **{name: value for name, value in values.items() if name in OPTIM and
                                           name != 'warmup'}, **({'warmup': int(warmup)} if warmup >= 1 else {})}),
      train=TrainConfig(phases=(phase,), log_every=50,
                        best='f1' if known.measures[0] == 'entities' else known.measures[0]))
  return scaled(fitted(config), scale, fresh=start.model is None)


def objective(known: Published, unnamed: bool, family: str, values: dict[str, Any]) -> Tasks:
  """Makes the objective of a task. unnamed: its classes are called as the training examples call them."""
  common: dict[str, Any] = {'family': family, 'cut': known.cut, 'labels': () if unnamed else known.labels}
  if known.kind == 'tagging':
    return TaggingTask(**common, measures=known.measures[0])  # pyright: ignore
  if known.kind == 'answers':
    return AnswerTask(**common, unanswerable=known.unanswerable, script=known.script, stride=values['stride'])
  if known.kind == 'choice':
    return ChoiceTask(**common)
  return SequenceTask(**common, regression=known.kind == 'regression', measures=known.measures)


def objective_of_elmo(known: Published, unnamed: bool, family: str, model: Any) -> RecurrentTagging | RecurrentSequence:
  """Makes the objective of a task on an ELMo. Raises ConfigError for a kind that none is made for."""
  labels, reader = () if unnamed else known.labels, ReaderConfig(longest=model.characters.longest)
  if known.kind == 'tagging':
    return RecurrentTagging(family, labels, measures=known.measures[0], reader=reader)  # pyright: ignore
  if known.kind in ('classification', 'regression'):
    return RecurrentSequence(family, labels, cut=known.cut, regression=known.kind == 'regression',
                             measures=known.measures, reader=reader)
  raise ConfigError(f'an ELMo learns tagging, classification and regression, not {known.kind}')


def size_of(model: Any) -> str:
  """Tells published sizes apart, as `tasks.settings` calls them."""
  if model is None or model.kind == 'recurrent':
    return ''
  size = 'large' if model.block.width >= 1024 else 'base' if model.block.width >= 768 else 'small'
  return f'v3-{size}' if model.vocab >= 128_000 else size


def fitted(config: FineTuning) -> FineTuning:
  """Shortens rows to what the model reads."""
  phase, longest = config.train.phases[0], config.model.max_length
  if not longest or phase.length <= longest:
    return config
  task: Any = config.objective
  if isinstance(task, AnswerTask):
    task = dataclasses.replace(task, stride=min(task.stride, longest // 3), question_length=min(64, longest // 3))
  phase = dataclasses.replace(phase, length=longest)
  return dataclasses.replace(config, objective=task, train=dataclasses.replace(config.train, phases=(phase,)))


def scaled(paper: FineTuning, scale: Scale, fresh: bool) -> FineTuning:
  """Returns the run as it is, in minutes on two cores, or in seconds. fresh: its model may be made smaller."""
  if scale == 'paper':
    return paper
  layers, width, vocab, length, epochs = (2, 128, 4096, 128, 4.0) if scale == 'laptop' else (2, 32, 1024, 64, 1.0)
  config = resized(paper, layers, width, 2, vocab, length) if fresh else paper
  task: Any = config.objective
  backbone: Any = config.model
  phase = dataclasses.replace(config.train.phases[0], length=min(length, config.train.phases[0].length), batch=16)
  if isinstance(task, AnswerTask):
    task = dataclasses.replace(task, stride=phase.length // 3, question_length=phase.length // 4)
  if isinstance(task, EmbeddingTask) and config.data.train == ('embedded:similarity',) and task.entailment:
    task = dataclasses.replace(task, entailment='same', contradiction='other')
  if isinstance(task, EmbeddingTask) and task.vector.dense:
    task = dataclasses.replace(task, vector=dataclasses.replace(task.vector, dense=backbone.block.width))
  optim = dataclasses.replace(config.optim, peak=1e-3, warmup=0) if fresh else config.optim
  if fresh:
    config = dataclasses.replace(config, model=checked.replaced(config.model, {'block.init.std': 0.08}))
  return dataclasses.replace(
      config, scale=scale, objective=task, optim=optim, data=dataclasses.replace(config.data, epochs=epochs),
      train=dataclasses.replace(config.train, phases=(phase,)))
