"""Knowledge distillation (DistilBERT, TinyBERT, MiniLM): a student learns from a trained
teacher."""
from collections.abc import Mapping
import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.heads import ModelWithHeads, make_dense
from plm_jax.objectives import (
    Objective,
    OptimizerHints,
    ParameterLifecycle,
    Requirements,
    StepTraits,
    TextLayout,
)
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.layer_distillation import Layerwise, Relations, comparison_mask
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.validation import intervals


@dataclasses.dataclass(frozen=True)
class Distillation(Objective):
  """Knowledge distillation in pre-training (DistilBERT: Sanh et al. 2019, sections 2 and 3).

  The loss combines soft targets, language modeling, and the cosine of the last hidden states.
  Factors and temperature are those of the released training command; the paper does not give
  them. That code prefers rare tokens for masking; here all are alike, as in the paper. `inner`
  adds or substitutes what is learned of the teacher's layers: with factors of 0 there are no
  logits and no heads.
  """

  limits = intervals(temperature='(0, inf)')

  teacher: str = ''
  """Teacher model: run folder or transformers checkpoint, with the same tokenizer."""
  model: EncoderConfig | DebertaConfig | DecoderConfig | None = None
  """Architecture of the teacher, which is read from its folder."""
  task: MaskedLM | CausalLM = MaskedLM(pair=Single())
  """Language modeling of both models: how text is masked, or how sequences of a decoder are
  made."""
  temperature: float = 2.0
  """Temperature: divides the logits of both models before they become soft targets (Hinton et al.
  2015)."""
  soft: float = 5.0
  """Factor of the loss of the soft targets, itself times temperature squared."""
  hard: float = 2.0
  """Factor of the loss of language modeling."""
  cosine: float = 1.0
  """Factor of 1 - cosine of the last hidden states."""
  inner: Layerwise | Relations | None = None
  """Distillation of intermediate layers."""
  targets: Literal['all', 'predicted'] = 'all'
  """Tokens that have soft targets: all of the text, or those that are predicted."""
  positions: Literal['trained', 'fixed'] = 'trained'
  """Whether the student's position embeddings are trained. Those of the released student are not:
  sinusoidal_pos_embds of its configuration removes their gradient, whatever is loaded into them
  (--freeze_pos_embs is for RoBERTa and GPT-2 alone)."""
  copied: bool = True
  """Whether the student starts with the teacher's embeddings, head and layers, of which it takes as
  many as it has, evenly spaced."""

  def conflict(self, option):
    has_logits = self.soft or self.hard
    if isinstance(self.task, MaskedLM) and self.task.pair.pair_task and has_logits:
      return f'a student is asked nothing about pairs: {option("task.pair")} is {self.task.pair}'
    if self.task.step_traits.keeps_statistics:
      return (f'{option("task.masking.kind")} adaptive is for masked language modeling alone: '
              'leave it out')
    if self.soft and isinstance(self.task, CausalLM) and self.task.loss_blocks > 1:
      return (f'{option("soft")} targets are of whole logits: {option("task.loss_blocks")} is 1, '
              'or soft is 0')
    if not self.terms:
      return (f'{option("soft")}, {option("hard")} and {option("cosine")} are all 0, and there is '
              f'no {option("inner")}: there is nothing to learn')
    return None

  @property
  def terms(self) -> Mapping[str, float]:
    factors = {'soft': self.soft}
    factors |= {name: self.hard * factor for name, factor in self.task.terms.items()}
    factors['cosine'] = self.cosine
    if self.inner:
      factors |= self.inner.terms
    return {name: factor for name, factor in factors.items() if factor}

  @property
  def has_logits(self) -> bool:
    """Whether a loss is of logits, so that there are heads."""
    return bool(self.soft or self.hard)

  @property
  def layout(self) -> TextLayout:
    return self.task.layout

  @property
  def requirements(self) -> Requirements:
    architectures = 'EncoderConfig', 'DebertaConfig', 'DecoderConfig'
    return dataclasses.replace(self.task.requirements, architectures=architectures)

  @property
  def step_traits(self) -> StepTraits:
    return self.task.step_traits

  @property
  def optimizer_hints(self) -> OptimizerHints:
    """The teacher is frozen, and the student's position embeddings where they are fixed."""
    if self.positions == 'fixed':
      return OptimizerHints(frozen=('teacher', 'backbone/embeddings/positions'))
    return OptimizerHints(frozen=('teacher',))

  @property
  def lifecycle(self) -> ParameterLifecycle:
    return StudentParameters(self)

  @property
  def starts_every_row(self) -> bool:
    return self.task.starts_every_row

  def text_length(self, length: int) -> int:
    return self.task.text_length(length)

  def max_predictions(self, length: int) -> int:
    """Return the predictions of language modeling; the other losses may be of all positions."""
    return self.task.max_predictions(length)

  def corrupt(self, key, windows, vocab):
    return self.task.corrupt(key, windows, vocab)

  def module_inputs(self, model):
    return self.task.module_inputs(model)

  def heads(self, model) -> dict[str, nn.Module]:
    return self.task.heads(model) if self.has_logits else {}

  def build(self, model, packed: bool) -> nn.Module:
    """Build student and teacher side by side. Raises ConfigError for sizes that do not match."""
    teacher = self.model
    if teacher is None:
      raise ConfigError('the architecture of the teacher is not known: give '
                        f'{name_field("objective.teacher")}')
    sizes = {'vocab': (model.vocab, teacher.vocab)}
    if self.cosine:
      sizes['block.width'] = model.block.width, teacher.block.width
    for name, (own, other) in sizes.items():
      if own != other:
        raise ConfigError(
            f"the student's {name} is {own}, its teacher's {other}: give "
            f'{name_field(f"model.{name}")} {other}')
    if self.inner and (wrong := self.inner.find_mismatch(model, teacher)):
      raise ConfigError(wrong)

    # The teacher gives logits, the last hidden states, and the states of its layers, as needed.
    heads: dict[str, nn.Module] = {}
    if self.soft:
      heads |= self.task.heads(teacher)
    if self.cosine:
      heads['hidden'] = HiddenStatesHead()
    if self.inner:
      heads['inside'] = LayerStatesHead()
    teacher_module = ModelWithHeads(teacher.backbone(packed), heads, self.inner is not None)

    projects = self.inner and self.inner.projects_student
    fit = make_dense(model.block, teacher.block.width) if projects else None
    return StudentTeacher(
        model.backbone(packed), self.heads(model), teacher_module, self, model, fit)

  def step_flops(self, model, length: int) -> int:
    """Count the FLOPs of the student's step, and of the teacher's forward pass."""
    asked = length if self.targets == 'all' else self.max_predictions(length)
    taught = 0
    if self.model:
      taught = self.model.forward_flops(length, asked if self.soft else 0)
    return 3 * model.forward_flops(length, asked if self.has_logits else 0) + taught

  def loss(self, outputs: Mapping[str, Any], batch):
    """Compute soft targets, the cosine, the losses of `inner`, and mlm or clm.

    `soft` is the KL divergence of the student from its teacher. It and the cosine are means over
    the text's tokens.
    """
    text, losses = (batch['segments'] > 0).astype(jnp.float32), {}
    if self.soft:
      asked = text if self.targets == 'all' else batch['weights']
      logits = outputs['logits'].astype(jnp.float32) / self.temperature
      taught = outputs['taught_logits'].astype(jnp.float32) / self.temperature
      taught = jax.nn.log_softmax(taught)
      divergence = (jnp.exp(taught) * (taught - jax.nn.log_softmax(logits))).sum(-1)
      divergence *= self.temperature ** 2
      losses['soft'] = (divergence * asked).sum(), asked.sum()
    if self.cosine:
      similarity = cosine_similarity(outputs['hidden'], outputs['taught_hidden'])
      losses['cosine'] = ((1 - similarity) * text).sum(), text.sum()
    if self.inner:
      mask = comparison_mask(batch, causal=isinstance(self.task, CausalLM))
      losses |= self.inner.losses(outputs['own'], outputs['taught'], mask)
    if self.has_logits:
      losses |= self.task.loss(outputs, batch)
    return losses

  def accuracy_targets(self, outputs, batch):
    return self.task.accuracy_targets(outputs, batch) if self.has_logits else {}


@dataclasses.dataclass(frozen=True)
class StudentParameters(ParameterLifecycle):
  """Loads the teacher, starts the student from it, and exports the student."""

  objective: Distillation

  def resolve_teacher(self, describe):
    """Return the objective with the teacher's configuration. Raises ConfigError without a
    teacher."""
    if not self.objective.teacher:
      raise ConfigError(
          f'a student needs a teacher: give {name_field("objective.teacher")} the folder of a run, '
          'or of a checkpoint of transformers, whose tokenizer '
          f'{name_field("data.prepare.tokenizer")} then has to name')
    return dataclasses.replace(self.objective, model=describe(self.objective.teacher))

  def initial(self, params, load):
    """Load the teacher, and copy evenly spaced layers of it into the student.

    Raises:
      ConfigError: parameters have other shapes.
    """
    _, found = load(self.objective.teacher)
    taught = {name: found[name] for name in params['teacher'] if name in found}
    if tree_shapes(taught) != tree_shapes(params['teacher']):
      raise ConfigError(
          f'a teacher has {", ".join(params["teacher"])}, of the shapes that its configuration '
          f'says; {self.objective.teacher} has {", ".join(found)}')
    if not self.objective.copied:
      return {**params, 'teacher': taught}
    own = self.exported(params)
    own = jax.tree_util.tree_map_with_path(lambda path, x: copy_from_teacher(taught, path, x), own)
    return {**params, **own, 'teacher': taught}

  def exported(self, params):
    return {name: x for name, x in params.items() if name not in ('teacher', 'fit')}


class StudentTeacher(nn.Module):
  """Student and teacher of distillation, side by side.

  Outputs: mlm [batch, predictions, vocabulary] or lm [batch, length, vocabulary]; logits and
  taught_logits [batch, length or predictions, vocabulary]; hidden and taught_hidden [batch, length,
  width]; own and taught, the readings of `inner`.

  Parameters: the student's `backbone` and its head; `fit`, the projection to the teacher's width,
  where `inner` has one; `teacher`, through which no gradient flows.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  teacher: nn.Module
  objective: Distillation
  model: Any  # the student's configuration
  fit: Any = None

  def __call__(self, batch, rows=None):
    objective = self.objective
    asked = {name: x for name, x in batch.items()
             if name != 'positions' or objective.targets != 'all'}
    if objective.inner:
      output = self.backbone(batch, rows, within=True)
    else:
      output = self.backbone(batch, rows)
    taught = jax.lax.stop_gradient(self.teacher(asked))
    outputs = {}
    if objective.cosine:
      outputs |= {'hidden': output.hidden, 'taught_hidden': taught['hidden']}
    for name, head in self.heads.items():
      logits = head(output, asked, rows)
      outputs[name] = logits
      if 'positions' in batch and objective.targets == 'all':
        outputs[name] = jnp.take_along_axis(logits, batch['positions'][..., None], axis=1)
      if objective.soft:
        outputs |= {'logits': logits, 'taught_logits': taught[name]}
    if objective.inner:
      outputs['own'] = objective.inner.read_student(output.inside, self.model, self.fit)
      outputs['taught'] = objective.inner.read_teacher(
          taught['inside'], objective.model, self.model)
    return outputs


class HiddenStatesHead(nn.Module):
  """Return the last hidden states themselves, [batch, length, width]."""

  def __call__(self, output, batch, rows=None):
    """Return the hidden states of `output`."""
    del batch, rows
    return output.hidden


class LayerStatesHead(nn.Module):
  """Return the states of the layers, `LayerStates`."""

  def __call__(self, output, batch, rows=None):
    """Return the layer states of `output`."""
    del batch, rows
    return output.inside


def cosine_similarity(a, b):
  """Compute the cosine similarity of a and b [..., width] in float32, [...]."""
  a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  lengths = jnp.sqrt(jnp.square(a).sum(-1) * jnp.square(b).sum(-1))
  return (a * b).sum(-1) / jnp.maximum(lengths, 1e-8)


def copy_from_teacher(taught: Any, path, x):
  """Return the initial value of the student's parameter x, from the teacher's of the same name.

  Of 12 layers 6 are 0, 2, 4, 7, 9, 11. Raises ConfigError for another shape.
  """
  for entry in path:
    if entry.key not in taught:
      return x
    taught = taught[entry.key]
  stacked = 'layers' in {entry.key for entry in path}
  if stacked and np.shape(taught)[1:] == np.shape(x)[1:]:
    layers = np.linspace(0, len(taught) - 1, len(x)).round().astype(int)
    taught = np.asarray(taught)[layers]
  if np.shape(taught) != np.shape(x):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    raise ConfigError(
        f"the teacher's {name} is {list(np.shape(taught))}, the student's {list(np.shape(x))}: it "
        f'cannot begin with it; give {name_field("objective.copied")} False, or the student the '
        'same sizes')
  return taught


def tree_shapes(tree) -> Any:
  """Return the shapes of a tree of arrays."""
  return jax.tree.map(np.shape, tree)
