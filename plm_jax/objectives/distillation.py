"""Distillation: a student learns what a teacher that is trained already makes of a text."""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures.deberta import DebertaConfig
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.checked import within
from plm_jax.layers.dense import Dense
from plm_jax.layers.heads import WithHeads
from plm_jax.objectives import Objective
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.inner import Layerwise, Relations, seen
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single


@dataclasses.dataclass(frozen=True)
class Distillation(Objective):
  """Sanh et al. 2019, sections 2 and 3: soft targets, language modelling, cosine of the last hidden states.

  Factors and temperature are those of the released training command, which the paper does not give. Differs from that
  code in this: it prefers rare tokens when it masks, here all are alike, as in the paper. `inner` is what is learned of
  the teacher's layers besides, or instead: with factors of 0 no logits are computed, and no heads are there.
  """

  limits = within(temperature='(0, inf)')

  teacher: str = ''
  """what is learned from: the folder of a run, or a checkpoint of transformers, with the same tokenizer"""
  model: EncoderConfig | DebertaConfig | DecoderConfig | None = None
  """the teacher's architecture; as its folder says, where a teacher is given"""
  task: MaskedLM | CausalLM = MaskedLM(pair=Single())
  """what both do with text: how it is masked, or how rows of a decoder are made"""
  temperature: float = 2.0
  """divides the logits of both before they become soft targets (Hinton et al. 2015)"""
  soft: float = 5.0
  """factor of the soft targets' loss, itself times temperature squared"""
  hard: float = 2.0
  """factor of language modelling"""
  cosine: float = 1.0
  """factor of 1 - cosine of the last hidden states"""
  inner: Layerwise | Relations | None = None
  """what is learned of the teacher's layers"""
  targets: Literal['all', 'predicted'] = 'all'
  """tokens that have soft targets: all of the text, or those that are predicted"""
  positions: Literal['trained', 'fixed'] = 'trained'
  """whether the student's table of positions learns. The released student's does not: sinusoidal_pos_embds of its
  configuration takes away its gradient, whatever is read into it (--freeze_pos_embs is for RoBERTa and GPT-2 alone)"""
  copied: bool = True
  """begin with the teacher's embeddings, head and layers, of which as many as the student has, evenly spaced"""

  def conflict(self, option):
    """Says what a student cannot do: answer a question about pairs, or learn by losses that are all 0."""
    if isinstance(self.task, MaskedLM) and self.task.pair.question and (self.soft or self.hard):
      return f'a student is asked nothing about pairs: {option("task.pair")} is {self.task.pair}'
    if self.soft and isinstance(self.task, CausalLM) and self.task.loss_blocks > 1:
      return f'{option("soft")} targets are of whole logits: {option("task.loss_blocks")} is 1, or soft is 0'
    if not self.terms:
      return (f'{option("soft")}, {option("hard")} and {option("cosine")} are all 0, and there is no '
              f'{option("inner")}: there is nothing to learn')
    return None

  @property
  def terms(self) -> Mapping[str, float]:
    """The factors of the losses, but for those that are 0."""
    hard = {name: self.hard * factor for name, factor in self.task.terms.items()}
    factors = {'soft': self.soft, **hard, 'cosine': self.cosine, **(self.inner.terms if self.inner else {})}
    return {name: factor for name, factor in factors.items() if factor}

  @property
  def one_document(self) -> bool:
    """Whether the way to make rows takes sentences of one document."""
    return self.task.one_document

  @property
  def frozen(self) -> tuple[str, ...]:
    """The teacher."""
    return 'teacher', *['backbone/embeddings/positions'] * (self.positions == 'fixed')

  def of_pairs(self, corpus: int) -> bool:
    """Tells whether a corpus is of translations."""
    return self.task.of_pairs(corpus)

  def unfit(self, corpora: Sequence[str], model) -> str | None:
    """Says what does not go with the way to make rows."""
    return self.task.unfit(corpora, model)

  @property
  def paced(self) -> bool:
    """Whether masked language modelling does not mask the same share everywhere."""
    return self.task.paced

  def window(self, length: int) -> int:
    """Returns what language modelling takes."""
    return self.task.window(length)

  def predictions(self, length: int) -> int:
    """Returns what language modelling predicts; the other losses may be of all positions."""
    return self.task.predictions(length)

  def corrupt(self, key, windows, vocab):
    """Makes the rows of language modelling: student and teacher read the same."""
    return self.task.corrupt(key, windows, vocab)

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns the student's head, that of language modelling, where logits count."""
    return self.task.heads(model) if self.soft or self.hard else {}

  def with_teacher(self, describe):
    """Returns the objective with the teacher's configuration. Raises ValueError where no teacher is given."""
    if not self.teacher:
      raise ValueError('a student needs a teacher: give --objective.teacher the folder of a run, or of a checkpoint of '
                       'transformers, whose tokenizer --data.prepare.tokenizer then has to name')
    return dataclasses.replace(self, model=describe(self.teacher))

  def build(self, model, packed: bool) -> nn.Module:
    """Builds student and teacher side by side. Raises ValueError for sizes that do not go together."""
    teacher = self.model
    if teacher is None:
      raise ValueError('the architecture of the teacher is not known: give --objective.teacher')
    for name, own, other in (('vocab', model.vocab, teacher.vocab), ('block.width', model.block.width,
                                                                     teacher.block.width)):
      if own != other and (name == 'vocab' or self.cosine):
        raise ValueError(f"the student's {name} is {own}, its teacher's {other}: give --model.{name} {other}")
    if self.inner and (wrong := self.inner.refuses(model, teacher)):
      raise ValueError(wrong)
    heads = {**(self.task.heads(teacher) if self.soft else {}), **({'hidden': Hidden()} if self.cosine else {}),
             **({'inside': Within()} if self.inner else {})}
    block, fit = model.block, None
    if self.inner and self.inner.projects:
      fit = Dense((teacher.block.width,), ('width', None), True, block.compute, block.init.plain)
    return StudentTeacher(
        model.backbone(packed), self.heads(model), WithHeads(teacher.backbone(packed), heads, self.inner is not None),
        self, model, fit)

  def step_flops(self, model, length: int) -> int:
    """Counts the FLOPs of the student's step, and of the teacher's forward pass."""
    asked = length if self.targets == 'all' else self.predictions(length)
    taught = self.model.forward_flops(length, asked if self.soft else 0) if self.model else 0
    return 3 * model.forward_flops(length, asked if self.soft or self.hard else 0) + taught

  def initial_params(self, params, load):
    """Loads the teacher, and copies every other layer of it into the student. Raises ValueError for other shapes."""
    _, found = load(self.teacher)
    taught = {name: found[name] for name in params['teacher'] if name in found}
    if shapes(taught) != shapes(params['teacher']):
      raise ValueError(f'a teacher has {", ".join(params["teacher"])}, of the shapes that its configuration says; '
                       f'{self.teacher} has {", ".join(found)}')
    if not self.copied:
      return {**params, 'teacher': taught}
    own = {name: x for name, x in params.items() if name not in ('teacher', 'fit')}
    own = jax.tree_util.tree_map_with_path(lambda path, x: copied(taught, path, x), own)
    return {**params, **own, 'teacher': taught}

  def exported_params(self, params):
    """Returns the student's parameters."""
    return {name: x for name, x in params.items() if name not in ('teacher', 'fit')}

  def loss(self, outputs: Mapping[str, Any], batch):
    """Returns soft, the KL divergence of the student from its teacher, mlm or clm, the cosine, and what `inner` has;
    the first and the cosine are means over the text's tokens."""
    text, losses = (batch['segments'] > 0).astype(jnp.float32), {}
    if self.soft:
      asked = text if self.targets == 'all' else batch['weights']
      logits, taught = (outputs[name].astype(jnp.float32) / self.temperature for name in ('logits', 'taught_logits'))
      taught = jax.nn.log_softmax(taught)
      divergence = (jnp.exp(taught) * (taught - jax.nn.log_softmax(logits))).sum(-1) * self.temperature ** 2
      losses['soft'] = (divergence * asked).sum(), asked.sum()
    if self.cosine:
      losses['cosine'] = ((1 - cosine(outputs['hidden'], outputs['taught_hidden'])) * text).sum(), text.sum()
    if self.inner:
      mask = seen(batch, causal=isinstance(self.task, CausalLM))
      losses |= self.inner.losses(outputs['own'], outputs['taught'], mask)
    return losses | (self.task.loss(outputs, batch) if self.soft or self.hard else {})

  def answers(self, outputs, batch):
    """Returns the labels of language modelling, where logits count."""
    return self.task.answers(outputs, batch) if self.soft or self.hard else {}


class StudentTeacher(nn.Module):
  """batch -> what the objective's losses are of: mlm [B, M, V] or lm [B, L, V]; logits and taught_logits [B, L or M,
  V]; hidden and taught_hidden [B, L, D]; own and taught, what `inner` reads.

  Parameters: the student's `backbone` and its head; `fit`, a matrix from its width to its teacher's, where `inner`
  has one; `teacher`, through which no gradient flows.
  """

  backbone: nn.Module
  heads: Mapping[str, nn.Module]
  teacher: nn.Module
  objective: Distillation
  model: Any  # the student's configuration
  fit: Any = None

  def __call__(self, batch, rows=None):
    objective = self.objective
    asked = batch if objective.targets == 'predicted' else {
        name: x for name, x in batch.items() if name != 'positions'}
    output = self.backbone(batch, rows, **({'within': True} if objective.inner else {}))
    taught = jax.lax.stop_gradient(self.teacher(asked))
    outputs = {'hidden': output.hidden, 'taught_hidden': taught['hidden']} if objective.cosine else {}
    for name, head in self.heads.items():
      logits = head(output, asked, rows)
      outputs[name] = jnp.take_along_axis(logits, batch['positions'][..., None], axis=1) if (
          'positions' in batch and objective.targets == 'all') else logits
      if objective.soft:
        outputs |= {'logits': logits, 'taught_logits': taught[name]}
    if objective.inner:
      outputs['own'] = objective.inner.own(output.inside, self.model, self.fit)
      outputs['taught'] = objective.inner.taught(taught['inside'], objective.model, self.model)
    return outputs


class Hidden(nn.Module):
  """The last hidden states themselves."""

  def __call__(self, output, batch, rows=None):
    """-> [B, L, D]."""
    del batch, rows
    return output.hidden


class Within(nn.Module):
  """What the layers do."""

  def __call__(self, output, batch, rows=None):
    """-> `Inside`."""
    del batch, rows
    return output.inside


def cosine(a, b):
  """Returns the cosine of a and b [..., D] -> [...], in float32."""
  a, b = (x.astype(jnp.float32) for x in (a, b))
  lengths = jnp.sqrt(jnp.square(a).sum(-1) * jnp.square(b).sum(-1))
  return (a * b).sum(-1) / jnp.maximum(lengths, 1e-8)


def copied(taught: Any, path, x):
  """Returns the student's parameter x, from the teacher's of the same name: of 12 layers 6 are 0, 2, 4, 7, 9, 11."""
  for entry in path:
    if entry.key not in taught:
      return x
    taught = taught[entry.key]
  if 'layers' in {entry.key for entry in path} and np.shape(taught)[1:] == np.shape(x)[1:]:
    taught = np.asarray(taught)[np.linspace(0, len(taught) - 1, len(x)).round().astype(int)]
  if np.shape(taught) != np.shape(x):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    raise ValueError(f"the teacher's {name} is {list(np.shape(taught))}, the student's {list(np.shape(x))}: it cannot "
                     'begin with it; give --objective.copied False, or the student the same sizes')
  return taught


def shapes(tree) -> Any:
  """Returns the shapes of a tree of arrays."""
  return jax.tree.map(np.shape, tree)
