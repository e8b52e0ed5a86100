"""What a run begins with: fresh parameters, or those of another run or checkpoint."""
from collections.abc import Sequence
import dataclasses
from typing import Any

from etils import epath
import flax.linen as nn
import jax
import numpy as np

from plm_jax import conversion
from plm_jax.checked import shortened
from plm_jax.config import ConfigError, FineTuning, Run
from plm_jax.inference.loading import load, place, read_config, read_run, tokenizer_of
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import adapters
from plm_jax.training.checkpoint import CheckpointError, check_finite, of_run, restore_params
from plm_jax.training.selection import heights
from plm_jax.training.step import Learner


def with_teacher(config: Run) -> Run:
  """Returns the configuration with what its objective has to know of other models. Raises ConfigError."""
  def describe(folder):
    known = conversion.is_checkpoint(folder)
    return conversion.load(folder, heads=(), lazy=True).config if known else read_config(folder).model
  try:
    return dataclasses.replace(config, objective=config.objective.with_teacher(describe))
  except ValueError as error:
    raise ConfigError(str(error)) from error


def start(config: Run, learner: Learner, tokenizer: Tokenizer, params, layout):
  """Turns fresh parameters into those that a run begins with, in the shardings of `layout`.

  A warm start gives all that this run has too; then the objective has its say. Raises CheckpointError for parameters of
  other shapes, or for other pieces of text.
  """
  if config.warm_start:
    if knows_ids(config):
      same_tokenizer(config.warm_start, tokenizer_of(config.warm_start), tokenizer)
    again = config.tuning.reinitialise
    fresh = jax.tree.map(jax.numpy.copy, adapters.without(params)) if again else None
    plain = adapters.without(params)
    plain = {**plain, **warm(config, plain, adapters.without(layout))}
    plain = reinitialised(plain, fresh, again) if again else plain
    params = adapters.beside(plain, params)
    if learner.adapter.kind == 'dora':
      params = jax.jit(adapters.begun, out_shardings=layout, donate_argnums=0)(params)
  def found(folder):
    other = load(folder)
    same_tokenizer(folder, other.tokenizer, tokenizer)
    return other.model, other.params
  try:
    begun = learner.objective.initial_params(params, found)
  except ValueError as error:
    raise CheckpointError(str(error)) from error
  return params if begun is params else jax.tree.map(place, begun, layout)


def knows_ids(config: Run) -> bool:
  """Tells whether what a run begins with has parameters for the ids of a tokenizer: most have; of a backbone that reads
  words by their characters only the task of a run that has learned one."""
  folder = config.warm_start
  return not config.objective.own_words or (bool(folder) and (
      not conversion.is_checkpoint(folder) and read_config(folder).objective.own_words))


def reinitialised(params, fresh, n: int) -> Any:
  """Returns parameters whose pooler and n layers nearest to the head are those of `fresh` (Zhang et al. 2021, section
  4, who find that the top of a pre-trained model is not where to begin from)."""
  def leaf(path, old, new, height):
    if path[0].key != 'backbone':
      return old
    afresh = np.asarray(height <= n + 1)
    return jax.numpy.where(afresh.reshape(-1, *[1] * (old.ndim - 1)), new, old) if afresh.ndim else (
        new if afresh else old)
  return jax.tree_util.tree_map_with_path(leaf, params, fresh, heights(params))


def warm(config: Run, params, layout):
  """Returns the part of `params` that the run or checkpoint in config.warm_start has. The head of another task, with
  other classes, is not taken over."""
  folder, imported, shapes = config.warm_start, None, None
  if conversion.is_checkpoint(folder):
    imported = shapes = conversion.load(folder, lazy=True).params
  else:
    other, _, boxed = read_run(folder)
    shapes: Any = nn.unbox(boxed)
    # Some objectives keep tables elsewhere while they train; what does not is read as it lies, each host its part.
    exported = jax.eval_shape(lambda params: adapters.merged(other.objective.exported_params(params)), shapes)
    if differing(shapes['backbone'], exported['backbone']):
      shapes = None
  if shapes is None:
    imported = shapes = load(folder, jax.tree.leaves(layout)[0].mesh).params
  foreign = of_other_classes(config, params, shapes)
  names = [name for name in params if name in shapes and name not in foreign]
  if 'backbone' not in names:
    raise CheckpointError(f'{folder} has {", ".join(shapes)}, of which this run could take over nothing')
  new = [part for part in config.model.added if part not in shapes['backbone']]
  def shared(tree):
    return {name: {part: x for part, x in tree[name].items() if name != 'backbone' or part not in new}
            for name in names}
  own = shared(params)
  # What they have and this run has not, such as a pooler, stays behind.
  theirs = within(shapes, own)
  grown = [name for name in names if isinstance(config, FineTuning) and has_more_ids(own[name], theirs[name])]
  if grown and all(name in grown or not differing(own[name], theirs[name]) for name in names):
    imported = theirs = longer(own, within(load(folder).params, own))
    if jax.process_index() == 0:
      print(f'{", ".join(grown)}: of more ids than in {folder}, whose rows begin afresh', flush=True)
  wrong = [f'{path}: {theirs}, here {ours}' for path, ours, theirs in differing(own, theirs)]
  if wrong:
    raise CheckpointError(f'{folder} is of another model than this run:\n  ' + '\n  '.join(wrong))
  afresh = [name for name in params if name not in shapes] + [f'backbone/{part}' for part in new]
  if jax.process_index() == 0 and afresh:
    print(f'{", ".join(afresh)}: not in {folder}, begun afresh', flush=True)
  for name, classes in foreign.items() if jax.process_index() == 0 else ():
    print(f'{name}: in {folder} it is for {classes}, begun afresh', flush=True)
  chosen = shared(layout)
  # What is there to be replaced makes room first.
  jax.tree.map(lambda x: x.delete(), own)
  if imported is not None:
    found = jax.tree.map(place, theirs, chosen)
    check_finite(found, folder)
  else:
    found = restore_params(of_run(folder), theirs, chosen)
  return {**found, 'backbone': {**params['backbone'], **found['backbone']}}


def of_other_classes(config: Run, params, shapes) -> dict[str, str]:
  """Finds the heads that what a task begins with has for other classes: name -> which."""
  if not isinstance(config, FineTuning):
    return {}
  heads = [name for name in params if name.startswith('heads_') and name != 'heads_lm' and name in shapes]
  found = {name: 'other classes' for name in heads if differing(params[name], within(shapes[name], params[name]))}
  name, before = f'heads_{config.objective.head}', ()
  if name in shapes and not conversion.is_checkpoint(config.warm_start):
    before = getattr(read_config(config.warm_start).objective, 'labels', ())
  if before and before != config.objective.labels:
    found[name] = f'the classes {shortened(", ".join(before))}'
  return found


TABLES = {'embeddings/tokens': 0, 'kernel': 1, 'bias': 0}
"""parameters with a row for each id, in the backbone and in heads that predict them, and the axis of these rows"""


def has_more_ids(own, theirs) -> bool:
  """Tells whether a part of the model differs from what it starts from in ids alone, of which it has more."""
  wrong = differing(own, theirs)
  return bool(wrong) and all(more_rows(ours or [], other or [], TABLES.get(path)) for path, ours, other in wrong)


def more_rows(ours: Sequence[int], theirs: Sequence[int], axis: int | None) -> bool:
  """Tells whether two shapes differ in one axis, in which ours is longer."""
  return axis is not None and len(ours) == len(theirs) and ours[axis] > theirs[axis] and all(
      n == m for place, (n, m) in enumerate(zip(ours, theirs, strict=True)) if place != axis)


def longer(own, theirs):
  """Returns their parameters, where they have fewer ids with the last rows of ours behind."""
  def leaf(ours, x):
    axis = next((axis for axis, (n, m) in enumerate(zip(ours.shape, x.shape, strict=True)) if n != m), None)
    if axis is None:
      return x
    rest = np.take(np.asarray(ours), range(x.shape[axis], ours.shape[axis]), axis)
    return np.concatenate([np.asarray(x), rest], axis)
  return jax.tree.map(leaf, own, theirs)


def same_tokenizer(folder: epath.PathLike, other: Tokenizer | None, tokenizer: Tokenizer) -> None:
  """Raises CheckpointError where the checkpoint in `folder` reads other pieces than this run's tokenizer."""
  if other and other.pieces != tokenizer.pieces:
    raise CheckpointError(f'{folder} has another tokenizer than the text of this run: prepare it with '
                          f'--data.prepare.tokenizer={folder}')


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
