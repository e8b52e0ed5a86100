"""What a warm start reads: the parameters of a run or checkpoint, or those of two decoders."""
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plm_jax import conversion
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.config.run import FinetuneRun, RunConfig
from plm_jax.conversion import sentence_transformers
from plm_jax.loading.loaded_model import find_tokenizer, load_model, read_model_config, read_run
from plm_jax.optim import adapters
from plm_jax.training import decoder_adaptation, vocabulary_replacement
from plm_jax.training.vocabulary_replacement import Replacement

LM_HEADS = {'heads_lm': 'heads_mlm', 'heads_mlm': 'heads_lm'}
"""the language model heads of decoders and encoders, which take over each other's parameters"""


def open_parameters(
    config: RunConfig, params, mesh, replacement: Replacement | None = None) -> tuple[Any, Any]:
  """Find the parameters that a run starts from, as its model names them.

  Pre-training takes over the language model head from a decoder to an encoder, and back (Ettin:
  Weller et al. 2025).

  Args:
    config: the run.
    params: its fresh parameters.
    mesh: its devices.
    replacement: new rows of the token tables, for another tokenizer; None: the same tokenizer.

  Returns:
    (arrays, or None where each host reads by itself what it needs; the arrays or their shapes).
  """
  folder = config.warm_start
  if config.tuning.decoder:
    imported = open_decoders(config, mesh)
    return imported, imported
  imported, shapes = open_folder(config, folder, mesh, replacement)
  for name, other in LM_HEADS.items():
    if name not in params or name in shapes or other not in shapes:
      continue
    if not isinstance(config, FinetuneRun) and not shape_differences(params[name], shapes[other]):
      known = load_model(folder, mesh).params if imported is None else imported
      imported = {**known, name: known[other]}
      return imported, imported
  return imported, shapes


def read_model(config: RunConfig) -> Any:
  """Read the configuration of the model that a run starts from, as one of the run's kind."""
  found = read_model_config(config.warm_start)[1]
  if not config.tuning.decoder:
    return found
  return decoder_adaptation.adapt_config(found, read_model_config(config.tuning.decoder)[1])


def find_new_parts(config: RunConfig, backbone) -> list[str]:
  """List the parts of a run's backbone that are new where the parameters to start from lack them.

  Args:
    config: the run.
    backbone: of the parameters that it starts from, or their shapes.
  """
  found = [part for part in config.model.new_parts if part not in backbone]
  if config.tuning.decoder and 'cross' not in backbone['decoder']['stack']['layers']['block']:
    found += [f'decoder/stack/layers/block/{part}' for part in decoder_adaptation.CROSS]
  return found


def open_decoders(config: RunConfig, mesh) -> Any:
  """Open the decoders of an adaptation, arranged as an encoder-decoder.

  Raises CheckpointError where their tokenizers differ.
  """
  folders = config.warm_start, config.tuning.decoder
  first, second = (find_tokenizer(folder) for folder in folders)
  if first and second and first.pieces != second.pieces:
    raise CheckpointError(f'{folders[0]} and {folders[1]} have different tokenizers: both sides of '
                          'an encoder-decoder read the same one')
  trees = []
  for folder in dict.fromkeys(folders):
    arrays, _ = open_folder(config, folder, mesh)
    trees.append(load_model(folder, mesh).params if arrays is None else arrays)
  return decoder_adaptation.adapt_params(trees[0], trees[-1])


def open_folder(
    config: RunConfig, folder: str, mesh, replacement: Replacement | None = None
) -> tuple[Any, Any]:
  """Find the parameters of the run or checkpoint in `folder`, from which a run starts.

  Returns:
    (arrays, or None where each host reads by itself what it needs; the arrays or their shapes).
  """
  is_checkpoint = conversion.is_checkpoint(folder)
  if is_checkpoint or replacement:
    loaded = conversion.load(folder, lazy=True) if is_checkpoint else load_model(folder, mesh)
    imported = dict(loaded.params)
    late = sentence_transformers.read_late_interaction(folder) if is_checkpoint else None
    if late:
      imported['heads_embedding'] = late.params
    if replacement:
      def mix(rows: np.ndarray) -> np.ndarray:
        return replacement.mix(rows, config.model.vocab, config.seed)
      size = read_model_config(folder)[1].vocab
      imported = vocabulary_replacement.map_token_rows(imported, size, mix)
    return imported, imported
  other, _, boxed = read_run(folder)
  shapes: Any = nn.unbox(boxed)
  def export(params):
    return adapters.merge(other.training_objective.lifecycle.exported(params))
  exported = jax.eval_shape(export, shapes)
  if not shape_differences(shapes['backbone'], exported['backbone']):
    return None, shapes
  # Some objectives keep tables elsewhere while they train.
  imported = load_model(folder, mesh).params
  return imported, imported


def shape_differences(own, theirs):
  """List (path, our shape, their shape) where two trees of arrays differ; None: missing."""
  def shapes(tree):
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator='/'): list(np.shape(x))
            for path, x in leaves}
  ours, others = shapes(own), shapes(theirs)
  return [(path, ours.get(path), others.get(path))
          for path in sorted(ours | others) if ours.get(path) != others.get(path)]
