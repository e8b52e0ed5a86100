"""Define the configuration of a run, and check it.

Configurations are frozen dataclasses. The command line and a run's config.json are made from their
fields, and the docstring of a field is its `--help`.
"""
from collections.abc import Sequence
import dataclasses
import itertools
import os
from typing import Any, ClassVar, Literal

from plm_jax import storage, validation
from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.elmo import ElmoConfig
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.architectures.xlnet import XLNetConfig
from plm_jax.data.mixtures import CYCLE_SLOTS
from plm_jax.data.window_rules import WindowRule
from plm_jax.distributed.hosts import HostsConfig
from plm_jax.errors import ConfigError, name_field
from plm_jax.objectives import Objective, check_mask_rates, set_mask_rate
from plm_jax.objectives.bilm import BidirectionalLM
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.condenser import CoCondenser, Condenser
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.masked_diffusion import MaskedDiffusion
from plm_jax.objectives.masked_permuted import MaskedPermutedLM
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.mntp import MaskedNextToken
from plm_jax.objectives.plm import PermutationLM
from plm_jax.objectives.retro_mae import DupMAE, RetroMAE
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.objectives.span_corruption import MixtureOfDenoisers
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.objectives.tsdae import SentenceAutoencoder
from plm_jax.optim.optimizers import AdamW, OptimConfig
from plm_jax.optim.tuning import TuningConfig
from plm_jax.preparation.prepare_config import TextConfig, heldout_problem
from plm_jax.sharding import MeshConfig
from plm_jax.tasks.kinds import Tasks
from plm_jax.tasks.labeled_data import LabeledConfig
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.validation import ValidatedConfig, intervals

Scale = Literal['paper', 'laptop', 'test']
PretrainScale = Literal['paper', 'gpu', 'laptop', 'test']
Mode = Literal['train', 'evaluate', 'prepare', 'compile']
# The command line needs to know every configuration of `architectures`.
Model = (
    EncoderConfig | XLNetConfig | DebertaConfig | DecoderConfig | EncoderDecoderConfig | ElmoConfig)
Objectives = (
    MaskedLM | PermutationLM | ReplacedTokenDetection | Distillation | SpanBoundary | CausalLM |
    BlankInfilling | MixtureOfDenoisers | DenoisingAutoencoder | TextToText | BidirectionalLM |
    MaskedNextToken | MaskedDiffusion | MaskedPermutedLM | RetroMAE | DupMAE | Condenser |
    CoCondenser | SentenceAutoencoder)


@dataclasses.dataclass(frozen=True)
class DataConfig(ValidatedConfig):
  """Corpora, data mixture and packing strategy of pre-training."""

  limits = intervals(
      temperature='[0.05, inf]', unimax_epochs='[0, 1e9]', cap='[0, 1e18]', block='[1, inf)')

  path: tuple[str, ...] = ('embedded',)
  """corpora: text files, globs, folders, folders of token records, tfds:NAME, embedded (the
  built-in corpus), or task:NAME:FILES for text-to-text tasks, such as task:sst2:FILE. Commas join
  files into one corpus; several corpora make a data mixture"""
  heldout_path: tuple[str, ...] = ()
  """held-out text for evaluation (validation set): one per corpus, in the order and the forms of
  --data.path; an empty one stands for --data.prepare.heldout. All of it is evaluated, and the
  corpus is trained on as a whole. Default: a share of the documents of each corpus, chosen by a
  hash (--data.prepare.heldout)"""
  weights: tuple[float, ...] = ()
  """weight of each corpus in the data mixture. Default: weights follow from the sizes of the
  corpora"""
  cap: int = 0
  """if weights follow from sizes: maximum size that a corpus counts with, in windows (for tasks, in
  examples); 0: no limit"""
  temperature: float = 1.0
  """if weights follow from sizes: weight = size ^ (1 / temperature); inf: equal weights (mT5:
  3.3)"""
  unimax_epochs: float = 0.0
  """UniMax, in place of weights by size (umT5): the run reads the same amount of every corpus, each
  at most this many times. A warning tells where that is impossible. 0: off"""
  prepare: TextConfig = TextConfig()
  """how text becomes token records; a new tokenizer gets a vocabulary of --model.vocab tokens"""
  assembly: Literal['document', 'sentences', 'packed', 'examples'] = 'document'
  """packing strategy: windows of whole sentences from one document (document), of whole sentences
  across documents (sentences), packed full (packed), or of whole task examples (examples)"""
  block: int = 64
  """shuffling: blocks of this many consecutive windows are shuffled. 1 shuffles single windows;
  larger blocks are faster to read from buckets"""

  @property
  def corpora(self) -> list[tuple[str, str]]:
    """(text, held-out text or '') of each corpus."""
    return list(zip(self.path, self.heldout_path or [''] * len(self.path), strict=True))

  @property
  def several_texts(self) -> bool:
    """Whether a sequence may hold several texts.

    The objective gives each text a segment of its own if they must not attend to each other.
    """
    return self.assembly != 'document'


@dataclasses.dataclass(frozen=True, repr=False)
class Phase(ValidatedConfig):
  """A part of a run with one sequence length, batch size, mask rate and data mixture."""

  limits = intervals(
      steps='[1, inf)', length='[1, 16777216]', batch='[1, 16777216]', mask_rate='(0, 1)',
      temperature='[0.05, inf]', corpora='[0, inf)')

  steps: int
  """number of updates"""
  length: int
  """sequence length in tokens, special tokens included"""
  batch: int
  """batch size: sequences per update over all devices, gradient accumulation included"""
  mask_rate: float | None = None
  """mask rate of this phase. None: that of the objective"""
  weights: tuple[float, ...] = ()
  """weight of each corpus in this phase. Default: --data.weights"""
  temperature: float | None = None
  """temperature of the data mixture in this phase. None: --data.temperature"""
  corpora: int = 0
  """number of corpora in this phase: the first ones of --data.path, such as the languages that
  training begins with. 0: all"""

  def __repr__(self) -> str:
    """Show what a reader of a message needs: the fields that have no default, or another value."""
    values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
    shown = [f'{field.name}={value!r}' for field, value in values if value != field.default]
    return f'Phase({", ".join(shown)})'

  @property
  def mixture(self) -> tuple[tuple[float, ...], float | None, int]:
    """What this phase changes in the data mixture."""
    return self.weights, self.temperature, self.corpora


@dataclasses.dataclass(frozen=True)
class TrainConfig(ValidatedConfig):
  """The training loop: phases, gradient accumulation, evaluation, checkpoints, early stopping."""

  limits = intervals(
      accumulate='[1, inf)', log_every='[1, inf)', eval_every='[1, inf)', eval_batches='[1, inf)',
      save_every='[1, inf)', keep='[1, inf)', max_nonfinite_steps='[1, inf)')
  counts_with: ClassVar = {'early': ('best', None)}

  phases: tuple[Phase, ...] = (Phase(900_000, 128, 256), Phase(100_000, 512, 256))
  """parts of the run, one after another, under one learning-rate schedule"""
  accumulate: int = 1
  """gradient accumulation: micro-batches that each update is split into, to save memory"""
  log_every: int = 100
  """steps between lines of training metrics"""
  eval_every: int = 10_000
  """steps between evaluations on held-out text"""
  eval_batches: int = 64
  """maximum number of held-out batches per evaluation; a text of --data.heldout-path is evaluated
  as a whole"""
  save_every: int = 1000
  """steps between checkpoints"""
  keep: int = 3
  """number of checkpoints to keep"""
  best: str = ''
  """held-out metric that selects the best checkpoint, which is kept and becomes the result of the
  run. main: the main metric of the task; empty: the last checkpoint is the result"""
  early: int = 0
  """early stopping: end the run after this many evaluations in a row without an improvement of the
  metric in --train.best. 0: no early stopping"""
  max_nonfinite_steps: int = 10
  """number of consecutive steps with a non-finite loss or gradient after which the run stops; these
  steps are skipped"""
  wandb: str = ''
  """also send metrics to this Weights & Biases project (needs the wandb package)"""
  resume: Literal['newest', 'whole'] = 'newest'
  """checkpoint to resume from. newest: the newest; whole: the newest that is not damaged, after
  damaged ones are moved away"""
  changed_data: Literal['refuse', 'accept'] = 'refuse'
  """whether a run may continue on data that differs from the data of its checkpoint"""

  @property
  def steps(self) -> int:
    """Number of updates in all phases."""
    return sum(phase.steps for phase in self.phases)

  @property
  def steps_and_tokens(self) -> tuple[tuple[int, int], ...]:
    """(updates, tokens per update) of each phase."""
    return tuple((phase.steps, phase.length * phase.batch) for phase in self.phases)


@dataclasses.dataclass(frozen=True)
class RunConfig(ValidatedConfig):
  """A training run. The same command again resumes it from its newest checkpoint."""

  limits = intervals(seed='[0, 4294967295]')
  counts_with: ClassVar = {f'tuning.{name}': ('warm_start', None) for name in (
      'decoder', 'expand', 'moments', 'reinitialize', 'vocabulary')}

  name: str
  """name of the run"""
  family: str = 'bert'
  """model_type of the exported model in transformers"""
  scale: Scale = 'paper'
  """Scale of the run. paper: as published; laptop: a small model that trains in 2 to 48 minutes on
  two cores; test: seconds. Other options override the values that the scale sets."""
  mode: Mode = 'train'
  """What to do. train: train the model; evaluate: evaluate the newest checkpoint on held-out text;
  prepare: only write the token records; compile: only compile the training step."""
  topology: str = ''
  """TPU pod to compile for, such as v2:4x4, or 2xv5e:4x4 for two slices; it need not be attached
  (with mode compile)"""
  search: bool = False
  """compile candidate meshes, gradient accumulation and activation checkpointing (remat), and print
  the fastest (with mode compile)"""
  output: str = ''
  """run folder for checkpoints, metrics and report, local or gs://; runs/NAME by default, with
  -SCALE appended for scales other than paper"""
  warm_start: str = ''
  """initial parameters: run folder, transformers checkpoint, original checkpoint, or ORG/NAME of
  the Hugging Face hub. Its tokenizer is also used, unless --data.prepare.tokenizer is set"""
  seed: int = 0
  """random seed for initialization, data order, masking and dropout"""
  model: Model = EncoderConfig()
  objective: Any = None
  data: Any = None
  optim: OptimConfig = AdamW()
  train: TrainConfig = TrainConfig()
  tuning: TuningConfig = TuningConfig()
  mesh: MeshConfig = MeshConfig()
  hosts: HostsConfig = HostsConfig()
  prompts: tuple[str, ...] = ()
  """prompts whose outputs are shown in the report: sentences with a [MASK], or for a decoder
  beginnings of texts"""

  @property
  def training_objective(self) -> Objective:
    """The objective of the training step: `objective` itself, or the one made from its task."""
    return self.objective

  @property
  def folder(self) -> str:
    """Folder of the run: `output`, or runs/TITLE."""
    return os.fspath(storage.resolve_path(self.output)) if self.output else f'runs/{self.title}'

  @property
  def title(self) -> str:
    """Name of the run for people: bert_base, or bert_base-laptop at the scale of a laptop.

    A name that already ends with the scale, as that of a fine-tuned run, gets no second one.
    """
    is_complete = self.scale == 'paper' or self.name.endswith(f'-{self.scale}')
    return self.name if is_complete else f'{self.name}-{self.scale}'


@dataclasses.dataclass(frozen=True)
class PretrainRun(RunConfig):
  """A pre-training run, which learns from text."""

  counts_with: ClassVar = {'hours': ('scale', ('gpu',))}

  scale: PretrainScale = 'paper'
  """Scale of the run. paper: as published; gpu: fitted to these devices and to `hours`; laptop:
  minutes on two cores; test: seconds. Other options override its values."""
  hours: float = 0.0
  """time of the whole command with scale gpu, from which the number of steps follows"""
  objective: Objectives = MaskedLM()
  data: DataConfig = DataConfig()

  def rule(self, phase: Phase, corpus: int = 0) -> WindowRule:
    """Return how the text of a corpus is cut into windows in a phase."""
    objective = phase_objective(self, phase)
    layout, text_length = objective.layout, objective.text_length(phase.length)
    assembly = 'pairs' if layout.has_text_pairs(corpus) else self.data.assembly
    separators = layout.separators if assembly in ('sentences', 'packed') else 0
    return WindowRule(assembly, text_length, layout.target_tokens, separators)

  def rules(self, *corpora: int) -> tuple[WindowRule, ...]:
    """Return the distinct window rules of all phases, for these corpora or for all of them."""
    pairs = itertools.product(corpora or range(len(self.data.path)), self.train.phases)
    return tuple(dict.fromkeys(self.rule(phase, corpus) for corpus, phase in pairs))

  @property
  def text_tokens(self) -> int:
    """Tokens of text that the run reads, without special tokens, if every sequence is full."""
    return sum(phase.steps * phase.batch * self.rule(phase).length for phase in self.train.phases)


@dataclasses.dataclass(frozen=True)
class FinetuneRun(RunConfig):
  """A fine-tuning run, which learns a task from labeled examples."""

  counts_with: ClassVar = {
      'train.phases.0.steps': ('data.epochs', (0,)), 'train.eval_every': ('data.epochs', (0,)),
      'train.save_every': ('data.epochs', (0,)), 'train.best': ('data.dev', None),
      'train.early': ('data.dev', None), 'data.warmup': ('optim.warmup', (0,)),
      'optim.unfreeze': ('data.unfreeze', (False,))}

  family: str = 'bert'
  """model_type of transformers: sets the task heads, the input format and the type of the exported
  model"""
  objective: Tasks = SequenceTask()
  data: LabeledConfig = LabeledConfig()

  @property
  def training_objective(self):
    return TaskObjective(self.objective)


def phase_objective(config: RunConfig, phase: Phase) -> Any:
  """Return the objective of a run with the mask rate of a phase."""
  objective, rate = config.training_objective, phase.mask_rate
  return objective if rate is None else set_mask_rate(objective, rate)


def check(config: RunConfig) -> None:
  """Raise ConfigError for options that contradict each other, before anything is read or built."""
  validation.check(config)
  mode, topology = name_field('mode'), name_field('topology')
  if (config.mode == 'compile') != bool(config.topology):
    raise ConfigError(f'{mode}=compile and {topology}=NAME (of a TPU pod, such as v2:4x4) go '
                      'together')
  if config.search and config.mode != 'compile':
    raise ConfigError(f'{name_field("search")} goes with {mode}=compile and {topology}=NAME')
  if isinstance(config, PretrainRun):
    if config.scale == 'gpu' and (not config.hours or config.mode in ('prepare', 'compile')):
      raise ConfigError(f'{name_field("scale")}=gpu trains for a given time: it needs '
                        f'{name_field("hours")}=8, say, and {mode} train')
    if wrong := config.objective.requirements.incompatibility(config.data.path, config.model):
      raise ConfigError(wrong)
    check_assembly(config.data, config.objective)
    check_corpora(config.data, getattr(config.objective, 'languages', ()))
    for number, phase in enumerate(config.train.phases):
      check_mixture(config.data, phase, f'train.phases.{number}')
    check_continuous_rows(config)
  elif isinstance(config, FinetuneRun):
    check_labeled_run(config)
  check_lengths(config)
  check_mask_rates(config.train.phases, config.objective)
  check_optimizer(config)
  masks = config.training_objective.mask_tokens(config.model)
  for prompt in config.prompts:
    if masks and not any(mark in prompt for mark in (*masks, '<mask>')):
      raise ConfigError(f'there is no {" or ".join(masks)} in {name_field("prompts")} {prompt!r}: '
                        'put one in place of the word to predict')


def check_optimizer(config: RunConfig) -> None:
  """Raise ConfigError for a warmup longer than the run, and for an epsilon that divides by 0."""
  optim, length = config.optim, config.train.steps
  if optim.clock == 'tokens':
    length = sum(steps * tokens for steps, tokens in config.train.steps_and_tokens)
  if optim.warmup > length and config.mode == 'train' and optim.schedule != 't5':
    raise ConfigError(f'{name_field("optim.warmup")} is {optim.warmup:,} {optim.clock}, and the '
                      f'run has {length:,}: its learning rate would never reach '
                      f'{name_field("optim.peak")}')
  eps = getattr(optim, 'eps', 1.0)
  if eps < 1e-30:
    raise ConfigError(
        f'{name_field("optim.eps")} is 1e-30 or more, got {eps}: where a gradient is 0, as for '
        'tokens that do not occur, 0 would be divided by 0')


def check_lengths(config: RunConfig) -> None:
  """Raise ConfigError for sequences that are too long for the model or too short for text."""
  if not config.train.phases:
    raise ConfigError(f'{name_field("train.phases")}: a run needs at least one, of one step or '
                      'more')
  lengths = [phase.length for phase in config.train.phases]
  if config.model.max_length and max(lengths) > config.model.max_length:
    advice = f'. {length_advice(config, max(lengths))}' if config.warm_start else ''
    raise ConfigError(f'sequences of {max(lengths)} tokens do not fit the model: '
                      f'{name_field("model.max_length")} is {config.model.max_length}{advice}')
  if config.training_objective.text_length(min(lengths)) < 2 or min(lengths) < 8:
    raise ConfigError(f'sequences of {min(lengths)} tokens leave no room for text: use 8 or more')


def length_advice(config: RunConfig, length: int) -> str:
  """Return a sentence on how the model can read sequences of `length` tokens."""
  option = f'{name_field("train.phases.0.length")}={length}'
  if not config.model.max_length or length <= config.model.max_length:
    return f'{option} reads more'
  if config.warm_start and getattr(config.model, 'absolute', 'none') not in ('none', False):
    return (f'It has position embeddings for {config.model.max_length} tokens: one that is '
            f'pre-trained with {name_field("model.max_length")}={length} reads more')
  return f'{name_field("model.max_length")}={length} {option} reads more'


def check_assembly(data: DataConfig, objective: Any) -> None:
  """Raise ConfigError for a packing strategy that the objective cannot use."""
  layout = objective.layout
  if layout.one_document and data.assembly != 'document':
    raise ConfigError(
        f'{name_field("data.assembly")} {data.assembly} joins documents, but the objective makes '
        f'rows of sentences of one document: use {name_field("data.assembly")} document')
  if bool(layout.target_tokens) != (data.assembly == 'examples'):
    raise ConfigError(f'{name_field("data.assembly")} is {data.assembly}, but examples is for '
                      'objectives of tasks as text to text, and for no others')
  for corpus, path in enumerate(data.path):
    learns_tasks = layout.target_tokens or layout.has_text_pairs(corpus)
    if path.startswith('task:') and not learns_tasks:
      raise ConfigError(
          f'{name_field("data.path")}={path} is a task as text to text, which an encoder-decoder '
          'learns with the objective TextToText (recipe t5_small_tasks): give text, or another '
          'recipe')


def check_continuous_rows(config: PretrainRun) -> None:
  """Raise ConfigError where state is carried from batch to batch but rows do not continue."""
  if config.objective.carry(config.model, 1) is None:
    return
  if config.data.assembly != 'packed' or len(config.data.path) > 1:
    raise ConfigError('the objective reads one continuous text: give '
                      f'{name_field("data.assembly")} packed and one {name_field("data.path")}')
  if len({phase.batch for phase in config.train.phases}) > 1:
    raise ConfigError(f'{name_field("train.phases")}: rows continue from batch to batch, so all '
                      'phases need the same batch size')


def check_labeled_run(config: FinetuneRun) -> None:
  """Raise ConfigError for options that do not fit a run on labeled examples."""
  if not config.data.train:
    raise ConfigError(f'{name_field("data.train")} names no source of examples: a file, or '
                      'tfds:NAME:SPLIT')
  if len(config.train.phases) != 1:
    raise ConfigError(f'{name_field("train.phases")}: a run on labeled examples has one phase')
  if config.data.pack and config.objective.output_unit == 'row':
    raise ConfigError(f'{name_field("data.pack")} puts several examples in a row, and here each '
                      'choice, or text, has a row of its own')
  if wrong := config.objective.run_conflict(config):
    raise ConfigError(wrong)
  if config.objective.family != config.family:
    raise ConfigError(f'{name_field("objective.family")} is {config.objective.family}, and '
                      f"{name_field('family')} is {config.family}: the head is the family's")


def check_corpora(data: DataConfig, languages: Sequence[str]) -> None:
  """Raise ConfigError for a data mixture, or languages of its corpora, that do not match."""
  names = 'path', 'heldout_path', 'weights', 'cap', 'temperature'
  paths, heldout_paths, weights, cap, temperature = (name_field(f'data.{name}') for name in names)
  if len(data.path) > CYCLE_SLOTS:
    raise ConfigError(f'{paths} has {len(data.path):,} corpora, and a data mixture has at most '
                      f'{CYCLE_SLOTS:,}: join small corpora with commas')
  if not data.path or '' in data.path:
    raise ConfigError(f'{paths} is a text or a folder, or several, got {data.path}')
  if data.heldout_path and len(data.heldout_path) != len(data.path):
    raise ConfigError(f'{heldout_paths} gives {len(data.heldout_path)} texts for '
                      f'{len(data.path)} corpora: one each, or an empty one')
  share = 0.0 if '' in data.heldout_path else data.prepare.heldout  # an empty one needs the share
  for path, heldout in data.corpora:
    if problem := heldout_problem(path, heldout, share):
      raise ConfigError(f'{heldout_paths} {problem}')
  if languages and len(languages) != len(data.path):
    raise ConfigError(f'{name_field("objective.languages")} gives {languages} for {len(data.path)} '
                      'corpora: one each')
  if data.weights and (data.cap or data.temperature != 1):
    raise ConfigError(f'{weights} are shares as they are: leave out {cap} and {temperature}')
  if data.unimax_epochs and (data.weights or data.cap or data.temperature != 1):
    raise ConfigError(f'{name_field("data.unimax_epochs")} determines the shares: give '
                      f'{temperature}=1, and leave out {weights} and {cap}')
  if data.weights and (len(data.weights) != len(data.path) or not sum(data.weights)):
    raise ConfigError(f'{weights} gives {data.weights} for {len(data.path)} corpora: one share '
                      'each, not all 0')


def check_mixture(data: DataConfig, phase: Phase, path: str) -> None:
  """Raise ConfigError for a phase whose data mixture does not fit the corpora.

  path: field of the phase, such as 'train.phases.0'.
  """
  corpora, shares = len(data.path), name_field('data.weights')
  names = 'corpora', 'weights', 'temperature'
  first, weights, temperature = (name_field(f'{path}.{name}') for name in names)
  if phase.corpora > corpora:
    raise ConfigError(f'{first} is {phase.corpora}, and {name_field("data.path")} has {corpora}')
  if phase.weights and (len(phase.weights) != corpora or not sum(phase.weights)):
    raise ConfigError(f'{weights} gives {phase.weights} for {corpora} corpora: one share each, not '
                      'all 0')
  if phase.weights and (phase.temperature is not None or phase.corpora):
    raise ConfigError(f'{weights} are shares as they are: leave out {temperature} and {first}')
  if data.unimax_epochs and phase.mixture != ((), None, 0):
    raise ConfigError(f'{name_field("data.unimax_epochs")} determines the shares of the whole run: '
                      f'leave out {weights}, {temperature} and {first}')
  if data.weights and phase.temperature is not None:
    raise ConfigError(f'{shares} are shares as they are: leave out {temperature}')
  if data.weights and phase.corpora and not sum(data.weights[:phase.corpora]):
    raise ConfigError(f'{first} is {phase.corpora}, and {shares} gives these corpora no share')
