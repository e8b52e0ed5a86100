"""What a run is: frozen dataclasses, from which the command line and a run's config.json are made."""
import dataclasses
import importlib
import json
from typing import Any, Literal

from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.architectures.xlnet import XLNetConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.data.windows import Assembly
from plm_jax.errors import Expected
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.plm import PermutationLM
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.optim import OptimConfig
from plm_jax.sharding import MeshConfig

Scale = Literal['paper', 'laptop', 'test']
Mode = Literal['train', 'evaluate', 'prepare', 'compile']
# The configurations in `architectures`, and the objectives: the command line has to know them.
Model = EncoderConfig | XLNetConfig | DebertaConfig | DecoderConfig | EncoderDecoderConfig
Task = (MaskedLM | PermutationLM | ReplacedTokenDetection | Distillation | SpanBoundary | CausalLM | BlankInfilling |
        MixtureOfDenoisers | DenoisingAutoencoder | TextToText)


class ConfigError(Expected):
  """A configuration that cannot work, found before anything is computed or written."""


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """From text to windows."""

  path: tuple[str, ...] = ('embedded',)
  """corpora: text files, globs, folders, tfds:NAME, embedded, task:NAME:FILES (data/examples.py has names), or folders
  of finished records; several make a mixture"""
  weights: tuple[float, ...] = ()
  """shares of the corpora in a mixture; none: by their sizes"""
  cap: int = 0
  """windows, or examples of a task, that a corpus counts for at most where shares go by sizes; 0: all"""
  temperature: float = 1.0
  """there, shares are of sizes to the power of 1 / temperature; inf: all alike (mT5: 3.3)"""
  prepare: TextConfig = TextConfig()
  """how text becomes token records; a tokenizer that is trained gets --model.vocab pieces"""
  assembly: Assembly = 'document'
  """windows of whole sentences of one document, of whole sentences across documents, packed full, or of whole examples
  of tasks"""
  block: int = 64
  """windows read together: 1 is a perfect shuffle, more suits buckets"""


@dataclasses.dataclass(frozen=True)
class Phase:
  """A part of the run with rows of one length."""

  steps: int
  """updates"""
  length: int
  """tokens in a row, special tokens included"""
  batch: int
  """rows in an update, over all devices and micro-steps"""


def ramp(tokens: int, length: int, batch: int, first: int, over: int, pieces: int = 16) -> tuple[Phase, ...]:
  """Phases of `tokens` in all: the batch grows with what was seen, linearly from `first` rows to `batch` over the first
  `over` tokens, in as many pieces, each of a multiple of `first` rows (Brown et al. 2020, section 2.3)."""
  middles = (first + (batch - first) * (piece + 0.5) / pieces for piece in range(pieces))
  sizes = [max(1, round(rows / first)) * first for rows in middles]
  steps = {rows: round(sizes.count(rows) * over / pieces / (rows * length)) for rows in sorted(set(sizes))}
  rest = tokens - sum(rows * number * length for rows, number in steps.items())
  steps[batch] = steps.get(batch, 0) + rest // (batch * length)
  return tuple(Phase(number, length, rows) for rows, number in steps.items())


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """The loop."""

  phases: tuple[Phase, ...] = (Phase(900_000, 128, 256), Phase(100_000, 512, 256))
  """one after another, in one run and under one learning-rate schedule"""
  accumulate: int = 1
  """micro-steps that an update is split into, to save memory"""
  log_every: int = 100
  """steps between lines of metrics"""
  eval_every: int = 10_000
  """steps between evaluations on held-out text"""
  eval_batches: int = 64
  """batches of held-out text in an evaluation, at most"""
  save_every: int = 1000
  """steps between checkpoints"""
  keep: int = 3
  """checkpoints to keep"""
  patience: int = 10
  """steps in a row with a loss or gradient that is not finite (each is skipped) before the run stops"""

  @property
  def steps(self) -> int:
    return sum(phase.steps for phase in self.phases)

  @property
  def pace(self) -> tuple[tuple[int, int], ...]:
    """Of each phase: its updates, and tokens in an update."""
    return tuple((phase.steps, phase.length * phase.batch) for phase in self.phases)


@dataclasses.dataclass(frozen=True)
class HostsConfig:
  """Several processes, each with devices of its own."""

  distributed: bool = False
  """meet the other processes first; on a TPU pod or under Slurm the rest is found out"""
  coordinator: str = ''
  """address:port of process 0, where it cannot be found out"""
  count: int = 0
  """number of processes, where it cannot be found out"""
  index: int = -1
  """number of this process, from 0, where it cannot be found out"""


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One run. Give the same command again and it goes on from its newest checkpoint."""

  name: str
  """of the run"""
  family: str = 'bert'
  """model_type of transformers under which `export` writes the model"""
  scale: Scale = 'paper'
  """paper: as published; laptop: minutes on two cores; test: seconds. Other options change the values it sets"""
  mode: Mode = 'train'
  """train; evaluate the newest checkpoint on held-out text; only prepare the token records; only compile the step"""
  topology: str = ''
  """TPU pod to compile for, which need not be there, such as v2:4x4 (with mode compile)"""
  output: str = ''
  """folder of the run: checkpoints, metrics, report; local or gs://. Empty: runs/NAME, and -SCALE below paper"""
  warm_start: str = ''
  """what a fresh run starts from: the folder of another run, or a checkpoint of transformers or the original code; its
  tokenizer is used too, unless another is given"""
  seed: int = 0
  """of initial parameters, order of text, corruption and dropout"""
  model: Model = EncoderConfig()
  objective: Task = MaskedLM()
  data: DataConfig = DataConfig()
  optim: OptimConfig = OptimConfig()
  train: TrainConfig = TrainConfig()
  mesh: MeshConfig = MeshConfig()
  hosts: HostsConfig = HostsConfig()
  prompts: tuple[str, ...] = ()
  """for the report, besides held-out text: sentences with a [MASK], or for a decoder beginnings of texts"""

  @property
  def folder(self) -> str:
    return self.output or f'runs/{self.name}' + (f'-{self.scale}' if self.scale != 'paper' else '')


def check(config: Experiment) -> None:
  """Raises ConfigError for what can be seen to fail from the configuration alone."""
  if (config.mode == 'compile') != bool(config.topology):
    raise ConfigError('--mode=compile and --topology=NAME (of a TPU pod, such as v2:4x4) go together')
  longest = max((phase.length for phase in config.train.phases), default=0)
  if not longest or config.train.steps < 1:
    raise ConfigError(f'a run needs at least one step, got phases {config.train.phases}')
  if config.model.max_length and longest > config.model.max_length:
    raise ConfigError(
        f'rows of {longest} tokens do not fit the model: --model.max-length is {config.model.max_length}')
  shortest = min(phase.length for phase in config.train.phases)
  if config.objective.window(shortest) < 2 or shortest < 8:
    raise ConfigError(f'rows of {shortest} tokens leave no room for text: use 8 or more')
  if config.objective.one_document and config.data.assembly != 'document':
    raise ConfigError(
        f'--data.assembly {config.data.assembly} joins documents, but the objective makes rows of sentences of '
        'one document: use --data.assembly document')
  if bool(config.objective.room) != (config.data.assembly == 'examples'):
    raise ConfigError(f'--data.assembly is {config.data.assembly}, but examples is for objectives of tasks as text to '
                      'text, and for no others')
  for path in config.data.path:
    if path.startswith('task:') and not config.objective.room:
      raise ConfigError(f'--data.path={path} is a task as text to text, which an encoder-decoder learns with the '
                        'objective TextToText (experiments/t5_small_tasks.py): give text, or another recipe')
  if not config.data.temperature > 0 or config.data.cap < 0:
    raise ConfigError(f'--data.temperature is above 0 and --data.cap not below, got {config.data.temperature} and '
                      f'{config.data.cap}')
  languages = getattr(config.objective, 'languages', ())
  if languages and len(languages) != len(config.data.path):
    raise ConfigError(f'--objective.languages gives {languages} for {len(config.data.path)} corpora: one each')
  weights = config.data.weights
  if weights and (config.data.cap or config.data.temperature != 1):
    raise ConfigError('--data.weights are shares as they are: leave out --data.cap and --data.temperature')
  if weights and (len(weights) != len(config.data.path) or min(weights) < 0 or not sum(weights)):
    raise ConfigError(
        f'--data.weights gives {weights} for {len(config.data.path)} corpora: one share each, not negative')


# What may differ between a run and its continuation: where it runs and what it reports, not what it computes.
FREE = {'mode', 'topology', 'output', 'mesh', 'hosts', 'prompts', 'warm_start', 'train.log_every', 'train.eval_every',
        'train.eval_batches', 'train.save_every', 'train.keep', 'train.patience', 'train.accumulate',
        'data.prepare.workers'}
FREE |= {f'{model}.{stack}.{how}' for model in ('model', 'objective.model') for stack in ('stack', 'decoder', 'source')
         for how in ('remat', 'scan')}


def differences(old: Any, new: Any, path: str = '') -> list[str]:
  """Fields outside FREE in which two configurations differ, as 'field: old -> new'."""
  if path in FREE:
    return []
  if dataclasses.is_dataclass(old) and type(old) is type(new):
    return [line for f in dataclasses.fields(old) for line in differences(
        getattr(old, f.name), getattr(new, f.name), f'{path}.{f.name}'.lstrip('.'))]
  return [] if old == new else [f'{path}: {old} -> {new}']


def to_json(value: Any) -> Any:
  """A configuration -> JSON values; each dataclass carries its class under 'is'."""
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    name = f'{type(value).__module__}:{type(value).__qualname__}'
    return {'is': name, **{f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}}
  return [to_json(item) for item in value] if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
  """The inverse of `to_json`. Raises ConfigError for a class or field that this version does not have."""
  if isinstance(value, list):
    return tuple(from_json(item) for item in value)
  if not isinstance(value, dict):
    return value
  if 'is' not in value:
    raise ConfigError(f'a configuration without a class: {value}')
  module, _, name = value['is'].partition(':')
  if not module.startswith('plm_jax.'):
    raise ConfigError(f'a configuration names the class {value["is"]}, which is not one of plm_jax')
  try:
    cls = getattr(importlib.import_module(module), name)
  except (ImportError, AttributeError) as error:
    raise ConfigError(f'this version of plm_jax has no {value["is"]}') from error
  if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
    raise ConfigError(f'{value["is"]} is not a configuration')
  fields = {key: from_json(item) for key, item in value.items() if key != 'is'}
  known = {f.name for f in dataclasses.fields(cls)}
  if set(fields) - known:
    raise ConfigError(f'{name} has no field {sorted(set(fields) - known)} in this version of plm_jax')
  try:
    return cls(**fields)
  except TypeError as error:
    raise ConfigError(f'{value} does not make a {name}: {error}') from error


def dump(config: Experiment) -> str:
  return json.dumps(to_json(config), indent=1, ensure_ascii=False) + '\n'
