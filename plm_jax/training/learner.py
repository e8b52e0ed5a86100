"""From a run's configuration to what learns; and what has learned before, here or elsewhere, under one form."""
import dataclasses
from typing import Any

from etils import epath
import flax.linen as nn
import jax
from jax.sharding import Mesh
import numpy as np

from plm_jax import config as config_lib
from plm_jax import config_file, convert, storage
from plm_jax.config import ConfigError, Experiment
from plm_jax.errors import Expected, outside
from plm_jax.sharding import from_host, shardings
from plm_jax.tokenizers import Tokenizer, TokenizerError
from plm_jax.tokenizers import load as load_tokenizer
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.checkpoint import CheckpointError, check_finite, newest_meta, restore_params
from plm_jax.training.optim import make_optimizer
from plm_jax.training.step import Learner, init_state, window_shapes


def make_learner(config: Experiment, vocab: Vocab) -> Learner:
  """Raises ConfigError for a tokenizer that the model has no room for."""
  padding = config.model.padding
  if padding not in (-1, vocab.pad):
    raise ConfigError(
        f'the model knows padding by the id {padding} and gives it no position, the tokenizer pads with {vocab.pad}: '
        f'give --model.padding {vocab.pad}')
  if vocab.size > config.model.vocab:
    raise ConfigError(
        f'the tokenizer has {vocab.size} pieces, the model has room for {config.model.vocab}: '
        f'give --model.vocab {vocab.size} or more')
  objective = config.objective
  if lacking := [name for name in objective.needs if getattr(vocab, name) < 0]:
    raise ConfigError(
        f'the objective needs special tokens that the tokenizer does not have: {", ".join(lacking)}. One that is '
        'trained for GLM or T5 has theirs: --data.prepare.layout glm or t5')
  try:
    model = objective.wire(config.model, packed=config.data.assembly != 'document')
  except ValueError as error:
    raise ConfigError(str(error)) from error
  except (AttributeError, TypeError) as error:  # of a file: the command line has recipes whose parts go together
    raise ConfigError(f'{type(objective).__name__} is not for {type(config.model).__name__}: {error}') from error
  optimizer = make_optimizer(config.optim, config.train.steps, objective.frozen, config.train.pace)
  return Learner(model, objective, optimizer, vocab, config.seed, config.train.accumulate)


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
  """A model that can be used as it is, or trained further."""

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


def load(folder: epath.PathLike, mesh: Mesh | None = None) -> Trained:
  """Loads the newest parameters of the run in `folder`, or another library's checkpoint. Raises CheckpointError,
  ConvertError.

  mesh: each of its devices gets its part of the parameters, and a host reads no more than its devices need.
  """
  if convert.is_checkpoint(folder):
    imported = convert.load(folder, lazy=mesh is not None)
    params = imported.params
    if mesh is not None:
      params = jax.tree.map(place, params, shardings(imported.shapes(), mesh))
    return Trained(imported.family, imported.config, dict(imported.heads), params, imported.tokenizer)
  config, tokenizer, boxed = read_run(folder)
  params = restore_params(
      epath.Path(folder) / 'checkpoints', nn.unbox(boxed), None if mesh is None else shardings(boxed, mesh))
  objective = config.objective
  return Trained(config.family, config.model, objective.heads(config.model), objective.finished(params), tokenizer)


def meet(config: Experiment) -> Experiment:
  """Returns the configuration with what its objective has to know of other models. Raises ConfigError."""
  def describe(folder):
    known = convert.is_checkpoint(folder)
    return convert.load(folder, heads=(), lazy=True).config if known else read_config(folder).model
  try:
    return dataclasses.replace(config, objective=config.objective.meet(describe))
  except ValueError as error:
    raise ConfigError(str(error)) from error


def start(config: Experiment, learner: Learner, tokenizer: Tokenizer, params, layout):
  """Turns fresh parameters into those that a run begins with, in the shardings of `layout`.

  A warm start gives all that this run has too; then the objective has its say. Raises CheckpointError for parameters of
  other shapes, or for other pieces of text.
  """
  if config.warm_start:
    same_tokenizer(config.warm_start, tokenizer_of(config.warm_start), tokenizer)
    params = {**params, **warm(config, params, layout)}
  def found(folder):
    other = load(folder)
    same_tokenizer(folder, other.tokenizer, tokenizer)
    return other.model, other.params
  try:
    begun = learner.objective.begin(params, found)
  except ValueError as error:
    raise CheckpointError(str(error)) from error
  return params if begun is params else jax.tree.map(place, begun, layout)


def tokenizer_of(folder: epath.PathLike) -> Tokenizer | None:
  """Loads the tokenizer of a run or checkpoint, None where it has none."""
  if convert.is_checkpoint(folder):
    return convert.load(folder, heads=(), lazy=True).tokenizer
  try:
    return load_tokenizer(folder)
  except TokenizerError:
    return None


def same_tokenizer(folder: epath.PathLike, other: Tokenizer | None, tokenizer: Tokenizer) -> None:
  """Raises CheckpointError where the checkpoint in `folder` reads other pieces than this run's tokenizer."""
  if other and other.pieces != tokenizer.pieces:
    raise CheckpointError(f'{folder} has another tokenizer than the text of this run: prepare it with '
                          f'--data.prepare.tokenizer={folder}')


def warm(config: Experiment, params, layout):
  """Returns the part of `params` that the run or checkpoint in config.warm_start has."""
  folder, imported, shapes = config.warm_start, None, None
  if convert.is_checkpoint(folder):
    imported = shapes = convert.load(folder, lazy=True).params
  else:
    other, _, boxed = read_run(folder)
    shapes: Any = nn.unbox(boxed)
    # Some objectives keep tables elsewhere while they train; what does not is read as it lies, each host its part.
    if differing(shapes['backbone'], jax.eval_shape(other.objective.finished, shapes)['backbone']):
      shapes = None
  if shapes is None:
    imported = shapes = load(folder).params
  names = [name for name in params if name in shapes]
  if 'backbone' not in names:
    raise CheckpointError(f'{folder} has {", ".join(shapes)}, of which this run could take over nothing')
  new = [part for part in getattr(config.model, 'added', ()) if part not in shapes['backbone']]
  def shared(tree):
    return {name: {part: x for part, x in tree[name].items() if name != 'backbone' or part not in new}
            for name in names}
  own = shared(params)
  # What they have and this run has not, such as a pooler, stays behind.
  theirs = within(shapes, own)
  wrong = [f'{path}: {theirs}, here {ours}' for path, ours, theirs in differing(own, theirs)]
  if wrong:
    raise CheckpointError(f'{folder} is of another model than this run:\n  ' + '\n  '.join(wrong))
  afresh = [name for name in params if name not in names] + [f'backbone/{part}' for part in new]
  if jax.process_index() == 0 and afresh:
    print(f'{", ".join(afresh)}: not in {folder}, begun afresh', flush=True)
  chosen = shared(layout)
  # What is there to be replaced makes room first.
  jax.tree.map(lambda x: x.delete(), own)
  if imported is not None:
    found = jax.tree.map(place, theirs, chosen)
    check_finite(found, folder)
  else:
    found = restore_params(epath.Path(folder) / 'checkpoints', theirs, chosen)
  return {**found, 'backbone': {**params['backbone'], **found['backbone']}}


def within(tree, other):
  """Returns the part of `tree` that has a counterpart in `other`, two trees of dictionaries."""
  return {name: within(part, other[name]) if isinstance(part, dict) else part
          for name, part in tree.items() if name in other}


def differing(own, theirs):
  """Yields (path, our shape, their shape or None) where two trees of arrays differ."""
  flat, other = (dict((jax.tree_util.keystr(path, simple=True, separator='/'), list(np.shape(x)))
                      for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]) for tree in (own, theirs))
  return [(path, flat.get(path), other.get(path)) for path in sorted({*flat, *other})
          if flat.get(path) != other.get(path)]


def place(x, sharding):
  """Puts an array that every host has whole, or can read in parts, on the mesh."""
  if isinstance(x, jax.Array) and x.sharding == sharding:
    return x
  return from_host(x if isinstance(x, convert.Lazy) else np.asarray(x), sharding)


def read_run(folder: epath.PathLike) -> tuple[Experiment, Tokenizer, Any]:
  """Reads a run -> (its configuration, its tokenizer, the shapes of its parameters, with their logical axes).

  Raises CheckpointError where the first two are not those that the newest checkpoint tells of.
  """
  folder, config = storage.path_of(folder), read_config(folder)
  tokenizer = load_tokenizer(folder / 'tokenizer')
  if strange := unlike(folder, config, tokenizer, newest_meta(folder / 'checkpoints')):
    raise CheckpointError('; '.join(strange))
  learner = make_learner(config, tokenizer.vocab)
  return config, tokenizer, shapes(config, learner).params


def stand_in(config: Experiment) -> Vocab:
  """Makes a vocabulary for shapes alone: ids of special tokens change none."""
  size = config.model.vocab
  return Vocab(size, max(config.model.padding, 0), unk=1, cls=2, sep=3, mask=4, bos=5, eos=6, sop=7, eop=8, gmask=9,
               smask=10, sentinel=size - 1, sentinels=getattr(config.objective, 'sentinels', 1000), language=11)


def unlike(folder: epath.Path, config: Experiment, tokenizer: Tokenizer, told: dict[str, Any]) -> list[str]:
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


def shapes(config: Experiment, learner: Learner, rows: int = 2):
  """Returns the shapes of a run's state, with their logical axes. Raises ConfigError where the options make no
  model."""
  try:
    windows = window_shapes(rows, config.objective.window(config.train.phases[0].length))
    return jax.eval_shape(lambda w: init_state(learner, w), windows)
  except Expected:
    raise
  except Exception as error:  # whatever modules and JAX say to sizes that do not go together
    raise ConfigError(
        f'the options of {config.name} do not make a model that can be built: {outside(error)}') from error


def read_config(folder: epath.PathLike) -> Experiment:
  """Reads what a run is. Raises CheckpointError for a folder of none, ConfigError for a configuration that cannot be
  read."""
  path = storage.path_of(folder) / 'config.json'
  with storage.explained(path, 'read', CheckpointError):
    if not path.exists():
      raise CheckpointError(f'{folder} is not the folder of a run: it has no config.json')
  config = config_file.from_json(storage.read_json(path, error=ConfigError), str(path))
  if not isinstance(config, Experiment):
    raise ConfigError(f'{path} describes a {type(config).__name__}, expected an Experiment')
  return config
