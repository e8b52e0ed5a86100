"""Multiple choice: which of several texts goes with a context (Devlin et al. 2019, section 4.4)."""
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.objectives.mlm import classification_losses
from plm_jax.tasks.choice_format import CHOICE
from plm_jax.tasks.contract import softmax
from plm_jax.tasks.grouped_rows import GroupedTask
from plm_jax.tasks.input_formats import Truncation
from plm_jax.tasks.outputs import Choice
from plm_jax.tasks.sequence_classification import (
  compute_label_metrics,
  encode_texts,
  label_array,
  label_weights,
)


@dataclasses.dataclass(frozen=True)
class ChoiceTask(GroupedTask):
  """Multiple choice: a row per choice, one score each, and a softmax over the rows.

  A row is the context, then the question with the choice. Questions with fewer choices are padded
  with empty ones, which have probability 0.
  """

  head: ClassVar[str] = 'choice'

  cut: Truncation = 'first'

  @property
  def loss_arrays(self):
    return {'label': (1,), 'real': (1,)}

  @property
  def example_format(self):
    return CHOICE

  @property
  def classes(self):
    """One score per row."""
    return 1

  def features(self, examples, tokenizer, length):
    """Make a row per choice. Raises ConfigError for an example without choices."""
    for example in examples:
      if len(example.texts) != 2 or len(example.choices) < 2:
        raise ConfigError(
            f'{example.where}: expected a context, a question and two choices or more, got '
            f'{len(example.texts)} texts and {len(example.choices)} choices')
    contexts = encode_texts(tokenizer, [example.texts[0] for example in examples])
    seconds = iter(encode_texts(tokenizer, [
        f'{example.texts[1]} {choice}'.strip() for example in examples for choice in example.choices
    ]))
    groups = [[[context, next(seconds)] for _ in example.choices]
              for example, context in zip(examples, contexts, strict=True)]
    values = {'label': label_array(examples, np.int32), 'weight': label_weights(examples)}
    return self.make_groups(
        groups, values, range(len(examples)), tokenizer.vocab, length, self.cut)

  def loss(self, outputs, batch):
    scores = choice_scores(outputs, batch)
    return classification_losses('choice', scores, batch['label'][:, 0], batch['weight'][:, 0])

  def logits_and_weights(self, outputs, batch):
    return choice_scores(outputs, batch), batch['weight'][:, 0]

  def predict(self, examples, features, outputs):
    """Return the most likely choice of each question; outputs: score of each row."""
    scores = np.asarray(outputs, np.float64).reshape(len(examples), -1)
    predictions = []
    for row, example in zip(scores, examples, strict=True):
      shares = softmax(row[:len(example.choices)]).tolist()
      number = int(np.argmax(shares))
      predictions.append(Choice(example.choices[number], number, shares[number], shares))
    return predictions

  def compact_prediction(self, prediction):
    return prediction._replace(choice='', probabilities=[])

  def scores(self, examples, predictions):
    return compute_label_metrics(['accuracy'], examples, [found.label for found in predictions])


def choice_scores(outputs, batch):
  """Return the scores of choices [B, C] float32, -1e9 for padding choices."""
  scores = outputs['choice'].reshape(batch['tokens'].shape[:2]).astype(jnp.float32)
  return jnp.where(jnp.arange(scores.shape[1]) < batch['real'][:, :1], scores, -1e9)
