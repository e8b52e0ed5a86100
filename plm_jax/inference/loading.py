"""What has learned, here or elsewhere, under one form."""
import dataclasses
from typing import Any

from etils import epath
import flax.linen as nn
import jax
from jax.sharding import Mesh
import numpy as np

from plm_jax import config as config_lib
from plm_jax import config_file, conversion, storage
from plm_jax.config import ConfigError, Run
from plm_jax.embeddings import exchange
from plm_jax.sharding import from_host, shardings
from plm_jax.tasks.contract import Task
from plm_jax.tasks.embedding import EmbeddingTask
from plm_jax.tasks.imported import task_of as imported_task
from plm_jax.tokenizers import Tokenizer, TokenizerError
from plm_jax.tokenizers import load as load_tokenizer
from plm_jax.training import adapters
from plm_jax.training.checkpoint import CheckpointError, newest_meta, of_run, restore_params
from plm_jax.training.learner import make_learner, shapes


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Trained:
  """A model that can be used as it is, or trained further. `repr` says what it is, and what it can do."""

  family: str
  """model_type of transformers, whose form `export` writes"""
  model: Any
  """configuration of the backbone"""
  heads: dict[str, nn.Module]
  """the heads whose parameters there are"""
  params: Any
  """`backbone`, and `heads_NAME` each"""
  tokenizer: Tokenizer | None
  """None where a checkpoint has none"""
  source: str = ''
  """the folder that it is from"""
  mesh: Mesh | None = None
  """the devices that share its parameters; None: one"""
  labels: tuple[str, ...] = ()
  """names of the classes that a head of a task tells apart"""
  task: Any = None
  """the downstream task that it has learned (`tasks.contract.Task`); None: it has not"""
  length: int = 0
  """tokens of the rows that it has learned it in; 0: not known"""

  @property
  def writer(self) -> str:
    """The head that predicts what comes next; '': it has none."""
    return 'lm' if 'lm' in self.heads else 'mlm' if 'mlm' in self.heads and shifted(self.model) else ''

  @property
  def can(self) -> tuple[str, ...]:
    """What can be asked of it: names of functions of `plm_jax`."""
    kind, lm = self.model.kind, bool(self.writer)
    reads = self.task.reads if self.task else None
    able = {
        'encode': True,
        'similar': isinstance(self.task, EmbeddingTask),
        'search': isinstance(self.task, EmbeddingTask),
        'predict': reads is not None,
        'answer': reads == 'answers',
        'tag': reads == 'tagging',
        'fill_mask': 'mlm' in self.heads or (lm and kind == 'infilling'),
        'generate': lm,
        'stream': lm,
        'score': lm and kind != 'encoder-decoder',
        'perplexity': lm and kind in ('decoder', 'encoder'),
        **dict.fromkeys(('likelihood', 'minimal_pairs'), 'mlm' in self.heads or (lm and kind == 'decoder'))}
    return (*(name for name, so in able.items() if so and self.tokenizer), 'export')

  def __repr__(self) -> str:
    model = self.model
    if model.kind == 'recurrent':
      layers, width = f'{model.layers}', model.width
    else:
      sides = (model.stack, model.decoder) if model.kind == 'encoder-decoder' else (model.stack,)
      layers, width = ' + '.join(f'{side.blocks}' for side in sides), model.block.width
    parameters = sum(x.size for x in jax.tree.leaves(nn.unbox(self.params)))
    tokenizer = 'no tokenizer'
    if self.tokenizer:
      tokenizer = f'{self.tokenizer.kind.replace("_", "-")} tokenizer of {self.tokenizer.vocab.size:,} pieces'
    return '\n'.join((
        f'<{self.family}, {model.kind}: {layers} layers of {width}, {parameters:,} parameters',
        f' heads: {", ".join(self.heads) or "none"}; {tokenizer}',
        f' from {self.source or "memory"}; can {", ".join(self.can)}>'))


def shifted(model: Any) -> bool:
  """Tells whether a backbone with this configuration predicts a token where the one before it stands (GPT-BERT)."""
  return getattr(model, 'shifted', False)


def load(folder: epath.PathLike, mesh: Mesh | None = None) -> Trained:
  """Loads the newest parameters of the run in `folder`, or another library's checkpoint. Raises CheckpointError,
  ConvertError.

  mesh: each of its devices gets its part of the parameters, and a host reads no more than its devices need.
  """
  given = exchange.read(folder)
  if given or conversion.is_checkpoint(folder):
    imported = conversion.load(given.root if given else folder, lazy=mesh is not None)
    params = imported.params
    if mesh is not None:
      params = jax.tree.map(place, params, shardings(imported.shapes(), mesh))
    trained = Trained(imported.family, imported.config, dict(imported.heads), params, imported.tokenizer,
                      str(folder), mesh, imported.labels, imported_task(imported))
    return with_vectors(trained, given) if given else trained
  config, tokenizer, boxed = read_run(folder)
  params = restore_params(
      of_run(folder), nn.unbox(boxed), None if mesh is None else shardings(boxed, mesh))
  objective = config.objective
  return Trained(
      config.family, config.model, objective.heads(config.model), adapters.merged(objective.exported_params(params)),
      tokenizer, str(folder), mesh, getattr(objective, 'labels', ()),
      **({'task': objective, 'length': config.train.phases[-1].length} if isinstance(objective, Task) else {}))


def with_vectors(trained: Trained, given: exchange.Given) -> Trained:
  """Returns the encoder of a folder of sentence-transformers with the head that makes sentence vectors."""
  task = EmbeddingTask(family=trained.family, vector=given.vector)
  params = {**trained.params, **({'heads_embedding': given.params} if given.params else {})}
  longest = [length for length in (given.length, trained.model.max_length) if length]
  return dataclasses.replace(
      trained, heads={**trained.heads, **task.heads(trained.model)}, params=params, task=task,
      length=min(longest, default=0))


def with_adapter(folder: epath.PathLike) -> tuple[Run, Any]:
  """Reads a run and its parameters, with what was trained beside kernels apart from them. Raises ConfigError where
  nothing was, or where it began with no model that others could have too."""
  config, _, boxed = read_run(folder)
  if config.tuning.adapter.kind == 'none' or not config.warm_start:
    lacks = '--tuning.adapter.kind' if config.tuning.adapter.kind == 'none' else '--warm-start'
    raise ConfigError(f'{folder} was trained without {lacks}: it has no adapter of a model')
  return config, restore_params(of_run(folder), nn.unbox(boxed))


def described(folder: epath.PathLike) -> tuple[str, Any]:
  """Reads the family and the configuration of the backbone of a run, or of another library's checkpoint."""
  if conversion.is_checkpoint(folder):
    imported = conversion.load(folder, heads=(), lazy=True)
    return imported.family, imported.config
  config = read_config(folder)
  return config.family, config.model


def read_run(folder: epath.PathLike) -> tuple[Run, Tokenizer, Any]:
  """Reads a run -> (its configuration, its tokenizer, the shapes of its parameters, with their logical axes).

  Raises CheckpointError where the first two are not those that the newest checkpoint tells of.
  """
  folder, config = storage.path_of(folder), read_config(folder)
  tokenizer = load_tokenizer(folder / 'tokenizer')
  if strange := unlike(folder, config, tokenizer, newest_meta(of_run(folder))):
    raise CheckpointError('; '.join(strange))
  learner = make_learner(config, tokenizer.vocab)
  return config, tokenizer, shapes(config, learner).params


def read_config(folder: epath.PathLike) -> Run:
  """Reads what a run is. Raises CheckpointError for a folder of none, ConfigError for a configuration that cannot be
  read."""
  path = storage.path_of(folder) / 'config.json'
  with storage.explained(path, 'read', CheckpointError):
    if not path.exists():
      raise CheckpointError(f'{folder} is not the folder of a run: it has no config.json')
  config = config_file.from_json(storage.read_json(path, error=ConfigError), str(path))
  if not isinstance(config, Run):
    raise ConfigError(f'{path} describes a {type(config).__name__}, expected a Run (word vectors are loaded by '
                      'plm_jax.vectors.load)')
  return config


def tokenizer_of(folder: epath.PathLike) -> Tokenizer | None:
  """Loads the tokenizer of a run or checkpoint, None where it has none."""
  if conversion.is_checkpoint(folder):
    return conversion.load(folder, heads=(), lazy=True).tokenizer
  try:
    return load_tokenizer(folder)
  except TokenizerError:
    return None


def unlike(folder: epath.Path, config: Run, tokenizer: Tokenizer, told: dict[str, Any]) -> list[str]:
  """Lists what is wrong with config.json and the tokenizer of a run, by what a checkpoint tells of them."""
  problems = []
  if told.get('tokenizer') != tokenizer.hash:
    problems.append(f'{folder / "tokenizer"} is damaged: it is not the tokenizer that the run was trained with')
  # How long a run is may change after its newest checkpoint.
  changed = [line for line in config_lib.differences(config_file.from_json(told.get('config')), config)
             if line.partition(':')[0] not in config_lib.COURSE]
  if changed:
    problems.append(f'{folder / "config.json"} is damaged: it is not what the run was trained with ({changed[0]})')
  return problems


def place(x, sharding):
  """Puts an array that every host has whole, or can read in parts, on the mesh."""
  if isinstance(x, jax.Array) and x.sharding == sharding:
    return x
  return from_host(x if isinstance(x, conversion.Lazy) else np.asarray(x), sharding)
