"""Multiple choice: which of several texts goes with a context (Devlin et al. 2019, section 4.4)."""
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.objectives.mlm import classification
from plm_jax.tasks.contract import softmax
from plm_jax.tasks.examples import Features, Ragged
from plm_jax.tasks.forms import Cut
from plm_jax.tasks.grouped import Grouped, GroupedTask
from plm_jax.tasks.sequence import Classified, encoded, known, measured


@dataclasses.dataclass(frozen=True)
class ChoiceTask(GroupedTask):
  """A row for each choice, context first, then the question with the choice; a score each, softmax over the rows.

  Questions may have different numbers of choices: those of a question that has fewer are made up by empty ones, which
  no probability goes to.
  """

  head: ClassVar[str] = 'choice'
  of_rows: ClassVar = ('label', 'real')

  cut: Cut = 'first'

  @property
  def reads(self):
    """Choices, one of which is right."""
    return 'choice'

  @property
  def classes(self):
    """One number a row."""
    return 1

  def build(self, model, packed):
    """Builds the module, whose rows come in groups."""
    return Grouped(model.backbone(packed), self.heads(model))

  def features(self, examples, tokenizer, length):
    """Makes a row of each choice. Raises ConfigError for an example without choices."""
    size, vocab = max((len(example.choices) for example in examples), default=0), tokenizer.vocab
    for example in examples:
      if len(example.texts) != 2 or len(example.choices) < 2:
        raise ConfigError(f'{example.where}: expected a context, a question and two choices or more, got '
                          f'{len(example.texts)} texts and {len(example.choices)} choices')
    contexts = encoded(tokenizer, [example.texts[0] for example in examples])
    seconds = iter(encoded(tokenizer, [
        f'{example.texts[1]} {choice}'.strip() for example in examples for choice in example.choices]))
    rows, clipped = [], 0
    for example, context in zip(examples, contexts, strict=True):
      of = [self.form.row([context, second], vocab, length, self.cut)
            for second in (next(seconds) for _ in example.choices)]
      clipped += any(row.kept[0] < len(context) for row in of)
      rows += of + of[:1] * (size - len(of))  # of which nothing is read: see `real`
    values = {
        'stand': np.array([row.stand for row in rows], np.int32),
        'label': np.repeat(np.array([example.label or 0 for example in examples], np.int32), size),
        'real': np.array([len(example.choices) for example in examples], np.int32).repeat(size),
        'weight': np.repeat(known(examples), size)}
    return Features(
        Ragged.of(row.tokens for row in rows), {'types': Ragged.of(row.types for row in rows)}, values,
        np.repeat(np.arange(len(examples), dtype=np.int32), size), group=size, clipped=clipped)

  def judged(self, outputs, batch):
    """Returns the cross-entropy and accuracy of the choices [B, C]."""
    return classification('choice', chosen(outputs, batch), batch['label'][:, 0], batch['weight'][:, 0])

  def compared(self, outputs, batch):
    """Returns the scores of choices [B, C], and what each question weighs."""
    return chosen(outputs, batch), batch['weight'][:, 0]

  def answers(self, outputs, batch):
    """Returns the choices that are right."""
    del outputs
    return {'choice': (batch['label'][:, 0], batch['weight'][:, 0])}

  def predict(self, examples, features, outputs):
    """Returns the likeliest choice of each question; outputs: of each row its score."""
    del features
    scores = np.asarray(outputs, np.float64).reshape(len(examples), -1)
    found = [score[:len(example.choices)] for score, example in zip(scores, examples, strict=True)]
    return [Classified(int(np.argmax(x)), softmax(x)) for x in found]

  def scores(self, examples, predictions):
    """Counts the questions that are answered right."""
    return measured(['accuracy'], [example.label for example in examples], [found.label for found in predictions])


def chosen(outputs, batch):
  """Returns the scores [B, C], those of empty choices too low to be taken."""
  scores = outputs['choice'].reshape(batch['tokens'].shape[:2]).astype(jnp.float32)
  return jnp.where(jnp.arange(scores.shape[1]) < batch['real'][:, :1], scores, -1e9)
