"""Warm start: the parameters with which a run begins, fresh or from another run or checkpoint."""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from etils import epath
from flax.traverse_util import unflatten_dict
import google_crc32c
import jax
import numpy as np

from plm_jax import conversion, storage
from plm_jax.checkpoints.checkpoint import CheckpointError, check_finite
from plm_jax.checkpoints.restore import find_run_checkpoints, restore_params
from plm_jax.config.run import FinetuneRun, RunConfig
from plm_jax.distributed import hosts
from plm_jax.errors import ConfigError, name_field, print_line
from plm_jax.loading.loaded_model import (
  find_tokenizer,
  load_model,
  place_on_mesh,
  read_config,
  read_model_config,
)
from plm_jax.models.families import flatten_tree
from plm_jax.objectives.metric_names import term_name
from plm_jax.optim import adapters
from plm_jax.optim.trainable import depths_below_head
from plm_jax.storage import hub
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import (
  decoder_adaptation,
  vocabulary_expansion,
  vocabulary_replacement,
  warm_sources,
)
from plm_jax.training.step import Learner
from plm_jax.training.vocabulary_replacement import Replacement
from plm_jax.training.warm_sources import shape_differences
from plm_jax.validation import differences, short_repr

FINGERPRINT_BYTES = 1 << 20
"""Bytes at each end of a file that its fingerprint reads."""
IGNORED_FILES = {'.lock', 'metrics.jsonl', 'tensorboard', 'report.html'}
"""Files of a run that do not matter for a warm start."""
NOT_COMPUTED = {
    'dropout', 'last_dropout', 'out_dropout', 'dropped', 'dtype', 'frozen', 'init', 'max_length',
    'pooler', 'pooling', 'remat', 'scan', 'vocab'}
"""Options of a model, and sections of them, with which a warm start computes the same outputs."""
VOCAB_AXES = {'embeddings/tokens': 0, 'kernel': 1, 'bias': 0}
"""Parameters with a row per token id, in the backbone and in heads, and the axis of these rows."""


def resolve_models(config: RunConfig) -> RunConfig:
  """Fill in the configurations that other models determine. Raises ConfigError.

  These are the teacher that the objective needs, and the model of an adaptation of decoders, which
  a run that has started has in its folder.
  """
  def describe(folder):
    return read_model_config(folder)[1]
  objective = config.training_objective.lifecycle.resolve_teacher(describe) or config.objective
  model = config.model
  if config.tuning.decoder and (storage.resolve_path(config.folder) / 'config.json').exists():
    model = read_config(config.folder).model
  elif config.tuning.decoder:
    model = decoder_adaptation.adapt_model(
        model, describe(config.warm_start), describe(config.tuning.decoder))
  return dataclasses.replace(config, objective=objective, model=model)


def initialize_params(
    config: RunConfig, learner: Learner, tokenizer: Tokenizer, params, layout,
    token_vectors: Callable[[Tokenizer], Any] | None = None):
  """Turn fresh parameters into those with which a run begins.

  A warm start gives all that this run has too; then the objective changes what it needs, such as a
  teacher.

  Args:
    config: the run.
    learner: its learner.
    tokenizer: its tokenizer.
    params: fresh parameters.
    layout: their shardings, which the result has too.
    token_vectors: makes auxiliary vectors of the tokens (`Feed.token_vectors`).

  Returns:
    (parameters, names of the parts that are initialized at random).

  Raises:
    CheckpointError: the checkpoint has parameters of other shapes, or another tokenizer.
  """
  fresh_parts = list(params)
  with hosts.barrier('checkpoints to start from'):
    files = checkpoint_fingerprints(config)
  hosts.check_agreement(
      'parameters to start from', files,
      'Copy the same checkpoint to all machines, or give a folder that all machines see')

  # Warm start: the backbone and heads of another model, without this run's adapters.
  if config.warm_start:
    replacement = make_replacement(config, tokenizer, token_vectors)
    layers = config.tuning.reinitialize
    fresh = jax.tree.map(jax.numpy.copy, adapters.remove(params)) if layers else None
    plain = adapters.remove(params)
    loaded, fresh_parts = load_warm_start(
        config, plain, adapters.remove(layout), replacement)
    for head in config.training_objective.requirements.pretrained_heads:
      if f'heads_{head}' in fresh_parts:
        raise CheckpointError(
            f'{config.warm_start} has no {term_name(head)} head, from which this run must start: '
            'give a model that was trained with it')
    plain = {**plain, **loaded}
    if layers:
      fresh_parts.append('the top layers')
      plain = reinitialize_top(plain, fresh, layers)
    params = adapters.attach(plain, params)
    if learner.adapter.kind == 'dora':
      init = jax.jit(adapters.init_magnitudes, out_shardings=layout, donate_argnums=0)
      params = init(params)

  # The objective's own changes.
  def load_other(folder):
    other = load_model(folder)
    check_same_tokenizer(folder, other.tokenizer, tokenizer)
    return other.model, other.params
  try:
    initial = learner.objective.lifecycle.initial(params, load_other)
  except ConfigError as error:
    raise CheckpointError(error.marked) from error
  if initial is not params:
    initial = jax.tree.map(place_on_mesh, initial, layout)
  return initial, fresh_parts


def checkpoint_fingerprints(config: RunConfig) -> dict[str, str]:
  """Compute fingerprints of the checkpoints on a disk from which a run starts.

  In a job of several processes each reads its own files.

  Returns:
    file -> size, and checksum of its ends; {} with a single process.
  """
  if jax.process_count() == 1:
    return {}
  found = {}
  teacher = getattr(config.objective, 'teacher', '')
  for name in (config.warm_start, config.tuning.decoder, teacher):
    root = pathlib.Path(name).expanduser()
    if not name or storage.is_remote(name) or not root.exists():
      continue
    for path in [root] if root.is_file() else sorted(root.rglob('*')):
      # Parameters, and the files that describe how to read them.
      if not path.is_file() or IGNORED_FILES & set(path.relative_to(root).parts):
        continue
      size = path.stat().st_size
      with path.open('rb') as file:
        ends = file.read(FINGERPRINT_BYTES)
        file.seek(max(0, size - FINGERPRINT_BYTES))
        ends += file.read()
      checksum = google_crc32c.value(ends)
      found[f'{name}/{path.relative_to(root)}'] = f'{size} bytes, checksum {checksum:08x}'
  return found


def has_token_params(config: RunConfig) -> bool:
  """Tell whether what a run begins with has parameters per token id.

  Most have. Of a backbone that reads words by their characters, only the task of a run that has
  learned one has.
  """
  if not config.training_objective.requirements.own_vocabulary:
    return True
  folder = config.warm_start
  if not folder or conversion.is_checkpoint(folder):
    return False
  return read_config(folder).training_objective.requirements.own_vocabulary


def reinitialize_top(params, fresh, layers: int) -> Any:
  """Re-initialize the pooler and the top layers (Zhang et al. 2021, section 4).

  The paper finds that the top of a pre-trained model is not a good start.

  Args:
    params: parameters of the warm start.
    fresh: fresh parameters.
    layers: number of layers, from the top.
  """
  def leaf(path, old, new, depth):
    if path[0].key != 'backbone':
      return old
    in_top = np.asarray(depth <= layers + 1)
    if in_top.ndim:
      return jax.numpy.where(in_top.reshape(-1, *[1] * (old.ndim - 1)), new, old)
    return new if in_top else old
  return jax.tree_util.tree_map_with_path(leaf, params, fresh, depths_below_head(params))


def make_replacement(
    config: RunConfig, tokenizer: Tokenizer, token_vectors: Callable[[Tokenizer], Any] | None
) -> Replacement | None:
  """Compute how the token embeddings of a warm start become those of another tokenizer.

  Args:
    config: the run.
    tokenizer: its tokenizer.
    token_vectors: makes auxiliary vectors of its tokens, given the earlier tokenizer.

  Returns:
    None if the warm start has the same tokenizer, or none, or no parameters per token; and in
    fine-tuning, where a tokenizer may only have further tokens.

  Raises:
    CheckpointError: fine-tuning with another tokenizer than that of the model.
    ConfigError: options that do not allow another tokenizer.
  """
  folder = config.warm_start
  before = find_tokenizer(folder) if has_token_params(config) else None
  if before is None or before.pieces == tokenizer.pieces:
    return None
  if isinstance(config, FinetuneRun):
    check_same_tokenizer(folder, before, tokenizer, may_grow=True)
    return None
  for name in ('moments', 'decoder'):
    if getattr(config.tuning, name):
      raise ConfigError(f'{name_field(f"tuning.{name}")} is for the same tokenizer as that of '
                        f'{folder}, and this run has another one')
  found = vocabulary_replacement.match_vocabularies(before, tokenizer)
  if token_vectors and config.tuning.vocabulary == 'focus':
    found = vocabulary_replacement.apply_focus(found, token_vectors(before))
  elif token_vectors and config.tuning.vocabulary == 'wechsel':
    found = vocabulary_replacement.apply_wechsel(found, *token_vectors(before))
  if jax.process_index() == 0:
    print_line(f'another tokenizer than that of {folder} ({name_field("tuning.vocabulary")}='
               f'{config.tuning.vocabulary}): {found.describe()}')
  return found


def load_warm_start(config: RunConfig, params, layout, replacement: Replacement | None = None):
  """Load the part of `params` that the run or checkpoint in config.warm_start has -> (it, names of
  the parts that are lacking). The head of another task, with other classes, is not loaded.

  Args:
    config: the run.
    params: fresh parameters; those that are replaced are deleted to make room.
    layout: their shardings.
    replacement: new rows of the token tables, for another tokenizer; None: the same tokenizer.

  Raises:
    CheckpointError: the parameters have other shapes, or nothing in common.
  """
  folder, first_process = config.warm_start, jax.process_index() == 0
  mesh = jax.tree.leaves(layout)[0].mesh
  imported, shapes = warm_sources.open_parameters(config, params, mesh, replacement)

  # What both have. Parts that this run has not, such as a pooler, are left out.
  foreign = find_other_class_heads(config, params, shapes)
  names = [name for name in params if name in shapes and name not in foreign]
  if 'backbone' not in names:
    raise CheckpointError(
        f'{folder} has {", ".join(shapes)}, of which this run could take over nothing')
  new = warm_sources.find_new_parts(config, shapes['backbone'])
  prefixes = tuple(f'backbone/{part}/' for part in new)
  def shared(tree):
    flat = flatten_tree({name: tree[name] for name in names})
    kept = {path: x for path, x in flat.items() if not f'{path}/'.startswith(prefixes)}
    return unflatten_dict(kept, sep='/')
  own = shared(params)
  theirs = common_subtree(shapes, own)

  # Vocabulary expansion: fine-tuning may have more token ids, whose rows are fresh.
  may_grow = isinstance(config, FinetuneRun)
  grown = [name for name in names if may_grow and has_more_ids(own[name], theirs[name])]
  others = [name for name in names if name not in grown]
  if grown and not any(shape_differences(own[name], theirs[name]) for name in others):
    known = load_model(folder).params if imported is None else imported
    imported = theirs = extend_tables(own, common_subtree(known, own))
    if first_process:
      names_text = ', '.join(grown)
      print(f'{names_text}: of more ids than in {folder}: the further rows are new', flush=True)

  # Tiling: a smaller model of the same architecture fills this one.
  unequal = shape_differences(own, theirs)
  missing = any(None in (ours, other) for _, ours, other in unequal)
  if config.tuning.expand == 'tile' and unequal and not missing:
    smaller = theirs if replacement else common_subtree(load_model(folder).params, own)
    try:
      imported = theirs = vocabulary_expansion.tile_params(own, smaller)
    except ConfigError as error:
      raise CheckpointError(
          f'{folder} cannot be expanded to this model ({name_field("tuning.expand")}=tile): '
          f'{error}') from error
    if first_process:
      print(f'{", ".join(names)}: tiled from the smaller model in {folder}', flush=True)

  unequal = shape_differences(own, theirs)
  if unequal:
    lines = [f'{path}: {other}, here {ours}' for path, ours, other in unequal]
    raise CheckpointError(
        f'{folder} is of another model than this run:\n  ' + '\n  '.join(lines))
  fresh = [name for name in params if name not in shapes] + [f'backbone/{part}' for part in new]
  if first_process:
    report_differences(config, fresh, foreign)

  # Load it. The parameters that are replaced make room first.
  chosen = shared(layout)
  jax.tree.map(lambda x: x.delete(), own)
  if imported is not None:
    found = jax.tree.map(place_on_mesh, theirs, chosen)
    check_finite(found, folder)
  else:
    found = restore_params(find_run_checkpoints(folder, job=True), theirs, chosen, job=True)
  whole = flatten_tree({name: params[name] for name in names}) | flatten_tree(found)
  return unflatten_dict(whole, sep='/'), [*fresh, *foreign]


def take_over_moments(config: RunConfig, opt_state, layout):
  """Replace the moments of Adam in a fresh optimizer state by those of the warm start, if asked to.

  The number of updates is theirs, too, so that bias correction goes on. The schedule begins anew.

  Args:
    config: the run.
    opt_state: fresh state of its optimizer.
    layout: its shardings.

  Raises:
    CheckpointError: the warm start has no moments, or they are of other parameters.
    ConfigError: the optimizer has no moments of Adam.
  """
  if not config.tuning.moments:
    return opt_state
  import optax
  def is_adam(node) -> bool:
    return isinstance(node, optax.ScaleByAdamState)
  folder = config.warm_start
  if not any(map(is_adam, jax.tree.leaves(opt_state, is_leaf=is_adam))):
    raise ConfigError(
        f'{name_field("tuning.moments")} is for optimizers with the moments of Adam, which '
        f'{name_field("optim.kind")} of this run has not')

  if not conversion.is_checkpoint(folder):
    newest = hub.find_folder(folder) / 'checkpoints'  # the best one has parameters only
    theirs = restore_params(newest, opt_state, layout, job=True, part='opt_state')
    def keep_theirs(fresh, other):
      return other if is_adam(fresh) else fresh
    return jax.tree.map(keep_theirs, opt_state, theirs, is_leaf=is_adam)

  count, *moments = conversion.load_moments(folder)
  def replace(fresh, shardings):
    if not is_adam(fresh):
      return fresh
    trees = []
    for own, tree, sharding in zip(
        (fresh.mu, fresh.nu), moments, (shardings.mu, shardings.nu), strict=True):
      unequal = shape_differences(own, common_subtree(tree, own))
      if unequal:
        lines = [f'{path}: {other}, here {ours}' for path, ours, other in unequal]
        raise CheckpointError(
            f'{folder}: its moments are not of the parameters of this run:\n  '
            + '\n  '.join(lines))
      trees.append(jax.tree.map(place_on_mesh, common_subtree(tree, own), sharding))
    count_array = jax.device_put(np.asarray(count, fresh.count.dtype), shardings.count)
    return optax.ScaleByAdamState(count_array, *trees)
  return jax.tree.map(replace, opt_state, layout, is_leaf=is_adam)


def report_differences(
    config: RunConfig, fresh: Sequence[str], foreign: Mapping[str, str]) -> None:
  """Print what a run does not take over from its warm start, and what its model computes otherwise.

  Args:
    config: the run.
    fresh: parts that the warm start lacks.
    foreign: heads that are there for other classes, and these.
  """
  folder = config.warm_start
  if fresh:
    print(f'{", ".join(fresh)}: not in {folder}, initialized at random', flush=True)
  for name, classes in foreign.items():
    print(f'{name}: in {folder} it is for {classes}, initialized at random', flush=True)
  changed = changed_model_options(warm_sources.read_model(config), config.model)
  if changed:
    print(f'the model of this run computes otherwise than that in {folder}:', flush=True)
  for line in changed:
    print_line(f'  {line}')


def changed_model_options(theirs: Any, ours: Any) -> list[str]:
  """List the options in which two models of the same shapes compute different outputs.

  Parameters fit both models, so nothing else shows that, for example, an activation differs.

  Args:
    theirs: configuration of the model that a warm start reads.
    ours: configuration of the run's model.

  Returns:
    'option: their value -> our value'.
  """
  if type(theirs) is not type(ours):
    return [f'{name_field("model")}: {type(theirs).__name__} -> {type(ours).__name__}']
  found = []
  for line in differences(theirs, ours):
    path, _, values = line.partition(': ')
    if not NOT_COMPUTED & set(path.split('.')):
      found.append(f'{name_field(f"model.{path}")}: {values}')
  return found


def find_other_class_heads(config: RunConfig, params, shapes) -> dict[str, str]:
  """Find the heads that a run starts from whose classes are others: name -> classes.

  Classes without names (LABEL_0, LABEL_1, ...) are other classes.
  """
  if not isinstance(config, FinetuneRun):
    return {}
  found = {}
  for name in params:
    is_head = name.startswith('heads_') and name != 'heads_lm'
    if not is_head or name not in shapes:
      continue
    if shape_differences(params[name], common_subtree(shapes[name], params[name])):
      found[name] = 'other classes'
  head, before = config.objective.head, ()
  name = f'heads_{head}'
  if name in shapes and not conversion.is_checkpoint(config.warm_start):
    before = getattr(read_config(config.warm_start).objective, 'labels', ())
  elif name in shapes and head in conversion.LABELED_HEADS:
    before = conversion.load(config.warm_start, lazy=True).labels
    before = before if len(before) > 1 else ()  # one output is a score, whatever its name
  if before and before != config.objective.labels:
    found[name] = f'the classes {short_repr(", ".join(before))}'
  return found


def has_more_ids(own, theirs) -> bool:
  """Tell whether a part of the model differs from what it starts from in more token ids alone."""
  differences = shape_differences(own, theirs)
  for path, *shapes in differences:
    axis, (ours, other) = VOCAB_AXES.get(path), [shape or [] for shape in shapes]
    if axis is None or len(ours) != len(other) or ours[axis] <= other[axis]:
      return False
    if np.delete(ours, axis).tolist() != np.delete(other, axis).tolist():
      return False
  return bool(differences)


def extend_tables(own, theirs):
  """Extend the checkpoint's tables by the last rows of this run's, where it has fewer token ids."""
  def leaf(ours, x):
    for axis, (n, m) in enumerate(zip(ours.shape, x.shape, strict=True)):
      if n != m:
        rest = np.take(np.asarray(ours), range(m, n), axis)
        return np.concatenate([np.asarray(x), rest], axis)
    return x
  return jax.tree.map(leaf, own, theirs)


def check_same_tokenizer(
    folder: epath.PathLike, other: Tokenizer | None, tokenizer: Tokenizer,
    may_grow: bool = False) -> None:
  """Check that a checkpoint has this run's tokenizer, where it has one.

  may_grow: this run's tokenizer may have further tokens.

  Raises:
    CheckpointError: its tokens are different.
  """
  if other and other.pieces != tokenizer.pieces[:len(other.pieces) if may_grow else None]:
    raise CheckpointError(f'{folder} has another tokenizer than the text of this run: prepare it '
                          f'with {name_field("data.prepare.tokenizer")}={folder}')


def common_subtree(tree, other):
  """Return the part of `tree` that has a counterpart in `other`, two trees of dictionaries."""
  common = {}
  for name, part in tree.items():
    if name in other:
      common[name] = part
      if isinstance(part, dict):
        common[name] = common_subtree(part, other[name])
  return common
