"""Checkpoints of Composer, which trained ModernBERT and mmBERT: parameters and moments of Adam.

The pickle of a file .pt holds {'state': {'model': tensors, 'optimizers': {class: {'state': {name of
a parameter: moments}, 'param_groups': [...]}}}}, as in composer/core/state.py (State.state_dict)
and composer/checkpoint/state_dict.py (get_optim_state_dict) of mosaicml/composer@64051888.
config.json and the tokenizer of the released model are in the same folder.
"""
import pathlib
from typing import Any
import zipfile

import numpy as np

from plm_jax.conversion.files import RenamedPickle
from plm_jax.conversion.torch_pickle import TensorView, TorchPickle
from plm_jax.models.layouts import Index
from plm_jax.models.rules import ConvertError

MODEL, FIRST, SECOND, STEP = 'model', 'exp_avg', 'exp_avg_sq', 'step'
"""kinds of tensors: parameters, moments, and numbers of updates"""
NAMES = ((r'^model\.bert\.encoder\.', 'model.'), (r'^model\.bert\.', 'model.'),
         (r'^model\.(head|decoder)\.', r'\1.'))
"""patterns of names in ModernBERT's repository (AnswerDotAI/ModernBERT@8c57a0f0,
src/bert_layers/model.py, FlexBertForMaskedLM) -> transformers' names"""

TABLE, DECODER = 'model.embeddings.tok_embeddings.weight', 'decoder.weight'
"""a table of tokens that is tied to the output, under both of its names"""


def is_composer(path: pathlib.Path) -> bool:
  """Tell whether a path may be a file of Composer: a .pt of torch next to a config.json."""
  beside = path.suffix == '.pt' and (path.parent / 'config.json').exists()
  return beside and path.is_file() and zipfile.is_zipfile(path)


class ComposerCheckpoint(RenamedPickle):
  """The parameters of a checkpoint, or a moment of each, under transformers' names."""

  def __init__(self, path: pathlib.Path, kind: str = MODEL):
    """Open a file.

    Args:
      path: of the file.
      kind: MODEL, FIRST or SECOND: which tensors.

    Raises:
      ConvertError: the file is not Composer's, or has no such tensors.
    """
    self.path = path
    self.groups: list[dict[str, Any]] = []
    """hyperparameters of the optimizer, by groups of parameters"""
    self.unnamed = False
    """whether moments have numbers in place of names"""
    super().__init__(TorchPickle(path, choose=self.choose_tensors), path)
    for name, described in self.source.tensors.items():
      one, _, parameter = name.partition('/')
      if one == kind:
        self.add_tensor(parameter, NAMES, (name, None), described)
    if TABLE not in self.tensors and DECODER in self.tensors:
      # torch's get_optimizer_state_dict calls a tied parameter by the last of its names.
      self.places[TABLE] = self.places.pop(DECODER)
      self.tensors[TABLE] = self.tensors.pop(DECODER)
    if not self.tensors:
      raise ConvertError(
          f'{path}: the moments of the optimizer have numbers in place of the names of parameters, '
          'as a run of one process writes them: which is whose cannot be told' if self.unnamed
          else f'{path} has no moments of an optimizer')
    self.factor = 1.0 if kind == MODEL else self.bias_factor(kind)

  def choose_tensors(self, content: Any) -> dict[str, TensorView]:
    """Return the tensors of a pickle under the names KIND/PARAMETER, and keep the groups."""
    state = content.get('state') if isinstance(content, dict) else None
    if not isinstance(state, dict) or not isinstance(state.get(MODEL), dict):
      raise ConvertError(f'{self.path} is no checkpoint of Composer: it has no model in its state')
    found = {f'{MODEL}/{name}': x for name, x in state[MODEL].items()}
    for optimizer in (state.get('optimizers') or {}).values():
      self.groups = optimizer['param_groups']
      for number, group in enumerate(self.groups):
        if isinstance(group.get(STEP), TensorView):
          found[f'{STEP}/{number}'] = group[STEP]
      for parameter, moments in optimizer['state'].items():
        if not isinstance(parameter, str):
          self.unnamed = True
          break
        for kind in (FIRST, SECOND, STEP):
          if isinstance(moments.get(kind), TensorView):
            found[f'{kind}/{parameter}'] = moments[kind]
    return found

  @property
  def count(self) -> int:
    """Number of updates of the optimizer. Raises ConvertError where the file does not state it."""
    steps = [name for name in self.source.tensors if name.startswith(f'{STEP}/')]
    if not steps:
      raise ConvertError(f'{self.path} does not state the number of updates of its optimizer')
    return max(int(self.source.read(name)) for name in steps)

  def bias_factor(self, kind: str) -> float:
    """Return the factor that makes a moment one of Adam before bias correction.

    optimi's StableAdamW, the optimizer of ModernBERT, keeps moments after bias correction (its
    debias_beta) and names its rates beta1 and beta2.
    """
    rate = self.groups[0].get({FIRST: 'beta1', SECOND: 'beta2'}[kind])
    return 1.0 if rate is None else 1 - rate ** self.count

  def read(self, name: str, index: Index | None = None) -> np.ndarray:
    """Read tensor[index]."""
    x = super().read(name, index)
    return x if self.factor == 1 else x * np.asarray(self.factor, x.dtype)
