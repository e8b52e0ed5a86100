"""What trajectories of transformers' classes for downstream tasks train: the tasks, with rows that are made already."""
import dataclasses

import jax.numpy as jnp

from parity import decoder, encoder, encoder_decoder, xlnet
from parity.shared import Unsupported
from plm_jax.layers.heads import standing
from plm_jax.tasks.answers import AnswerTask
from plm_jax.tasks.choice import ChoiceTask, Grouped
from plm_jax.tasks.sequence import SequenceTask
from plm_jax.tasks.tagging import TaggingTask

ROWS = {'input_ids', 'attention_mask', 'token_type_ids', 'position_ids', 'decoder_input_ids', 'decoder_attention_mask'}
DECODERS, BOTH = ('openai-gpt', 'gpt2', 'gpt_neo', 'llama'), ('t5', 'mt5', 'bart', 'mbart', 'marian')


class Given:
  """A task whose rows are arranged already."""

  def corrupt(self, key, windows, vocab):
    del key, vocab
    return windows

  def model(self, imported):
    return imported.model()


def rows_of(rows, said):
  """transformers' arguments under our names, and the token that stands for each row, by the kind of the model."""
  kind, given = said['model_type'], {name: x for name, x in rows.items() if name in ROWS}
  if kind in BOTH:
    return encoder_decoder.make_batch(given, said, generates=False)
  if kind in DECODERS:
    return decoder.make_batch(given, said)
  if kind == 'xlnet':
    batch = xlnet.make_batch(given, said)
    places = jnp.broadcast_to(jnp.arange(batch['tokens'].shape[1]), batch['tokens'].shape)
    return batch | {'extract': standing(places[..., None], {}, batch['segments'])}
  return encoder.make_batch(given) | {'extract': jnp.zeros((given['input_ids'].size // given['input_ids'].shape[-1], 1),
                                                           jnp.int32)}


@dataclasses.dataclass(frozen=True)
class GivenClasses(Given, SequenceTask):
  """A class of a row, or a number, by which of them the labels are."""

  known = ROWS | {'labels'}

  @classmethod
  def of(cls, inputs, said):
    classes, kind = len(said.get('id2label') or ()) or said.get('num_labels', 2), said.get('problem_type')
    kind = kind or ('regression' if classes == 1 else 'single_label_classification')
    if (inputs['labels'].dtype.kind == 'f' and classes > 1) or kind == 'multi_label_classification':
      raise Unsupported('training with several labels, or numbers, a row')
    return cls(regression=kind == 'regression')

  def batch(self, rows, said):
    batch = rows_of(rows, said)
    label = rows['labels'].reshape(-1, 1)
    return batch | {'label': label, 'weight': jnp.ones(label.shape, jnp.float32)}


@dataclasses.dataclass(frozen=True)
class GivenTags(Given, TaggingTask):
  """A class of each token."""

  known = ROWS | {'labels'}

  @classmethod
  def of(cls, inputs, said):
    del inputs, said
    return cls()

  def batch(self, rows, said):
    labels = rows['labels']
    return rows_of(rows, said) | {
        'tags': jnp.maximum(labels, 0), 'marks': (labels != -100).astype(jnp.float32)}


@dataclasses.dataclass(frozen=True)
class GivenChoices(Given, ChoiceTask):
  """One of several rows."""

  known = ROWS | {'labels'}

  @classmethod
  def of(cls, inputs, said):
    del inputs, said
    return cls()

  def model(self, imported):
    model = imported.model()
    return Grouped(model.backbone, model.heads)

  def batch(self, rows, said):
    groups, size = rows['input_ids'].shape[:2]
    batch = {name: x.reshape(groups, size, *x.shape[1:]) for name, x in rows_of(rows, said).items()}
    if 'visible' in batch:
      raise Unsupported('choices with masks of pairs of tokens')
    ones = jnp.ones((groups, 1))
    return batch | {'label': rows['labels'].reshape(-1, 1), 'weight': ones, 'real': (ones * size).astype(jnp.int32)}


@dataclasses.dataclass(frozen=True)
class GivenSpans(Given, AnswerTask):
  """Where an answer starts and ends; answers behind the row do not count."""

  known = ROWS | {'start_positions', 'end_positions'}

  @classmethod
  def of(cls, inputs, said):
    del inputs, said
    return cls()

  def batch(self, rows, said):
    places = {name: rows[f'{name}_positions'].reshape(-1, 1) for name in ('start', 'end')}
    return rows_of(rows, said) | places | {'weight': jnp.ones(places['start'].shape, jnp.float32)}


KINDS = {
    'ForSequenceClassification': GivenClasses, 'ForTokenClassification': GivenTags, 'ForMultipleChoice': GivenChoices,
    'ForQuestionAnswering': GivenSpans, 'ForQuestionAnsweringSimple': GivenSpans}
