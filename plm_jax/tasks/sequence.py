"""Classes, or a number, of a text or of a pair of texts (Devlin et al. 2019, section 4.1)."""
from collections.abc import Sequence
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.objectives.mlm import classification
from plm_jax.tasks.contract import Task, softmax
from plm_jax.tasks.examples import Example, Features, Ragged
from plm_jax.tasks.metrics import METRICS
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import Vocab


class Classified(NamedTuple):
  """What is said of a text."""

  label: int | float
  """number of the class; of a regression the value"""
  probabilities: np.ndarray
  """of each class [C]; of a regression none [0]"""


@dataclasses.dataclass(frozen=True)
class SequenceTask(Task):
  """Classification or regression: of one text, or of two, by the token that stands for the row."""

  head: ClassVar[str] = 'label'
  per: ClassVar = 'slot'

  regression: bool = False
  """the label is a number, learned by the squared error"""
  measures: tuple[str, ...] = ('accuracy',)
  """names of metrics (`tasks.metrics.METRICS`), by the first of which the best checkpoint is chosen"""

  def conflict(self, option):
    """Says which metrics there are."""
    unknown = [name for name in self.measures if name not in METRICS]
    return f'{option("measures")} are of {", ".join(METRICS)}, got {", ".join(unknown)}' if unknown else None

  @property
  def reads(self):
    """Texts with a class, or with a number."""
    return 'regression' if self.regression else 'classification'

  @property
  def classes(self):
    """A number a class, or one."""
    return 1 if self.regression else max(2, len(self.labels))

  def features(self, examples, tokenizer, length):
    """Makes a row of each example. Raises ConfigError for an example of more than two texts."""
    for example in examples:
      if len(example.texts) not in (1, 2):
        raise ConfigError(f'{example.where}: expected a text or two, got {len(example.texts)}')
    ids = iter(tokenizer.encode_batch([text for example in examples for text in example.texts]))
    return self.made(examples, [[next(ids) for _ in example.texts] for example in examples], tokenizer.vocab, length)

  def made(self, examples: Sequence[Example], texts: Sequence[Sequence[Sequence[int]]], vocab: Vocab, length: int
           ) -> Features:
    """Makes a row of each example, of the ids of its texts."""
    rows = [self.form.row(of, vocab, length, self.cut) for of in texts]
    label = np.array([example.label or 0 for example in examples], np.float32 if self.regression else np.int32)
    return Features(
        Ragged.of(row.tokens for row in rows), {'types': Ragged.of(row.types for row in rows)},
        {'stand': np.array([row.stand for row in rows], np.int32), 'label': label, 'weight': known(examples)},
        np.arange(len(rows), dtype=np.int32),
        clipped=sum(row.kept != [len(text) for text in of] for row, of in zip(rows, texts, strict=True)))

  def judged(self, outputs, batch):
    """Returns the cross-entropy and accuracy of the slots [B, E], or their squared error."""
    logits, weight = outputs['label'], batch['weight']
    if not self.regression:
      return classification('label', logits, batch['label'], weight)
    error = jnp.square(logits[..., 0].astype(jnp.float32) - batch['label'])
    return {'label': ((error * weight).sum(), weight.sum())}

  def answers(self, outputs, batch):
    """Returns the classes, against which the accuracy is held."""
    del outputs
    return {} if self.regression else {'label': (batch['label'], batch['weight'])}

  def predict(self, examples, features, outputs):
    """Returns the likeliest class, or the value."""
    del examples, features
    if self.regression:
      return [Classified(float(x[0]), np.zeros(0)) for x in outputs]
    return [Classified(int(np.argmax(x)), softmax(x)) for x in outputs]

  def scores(self, examples, predictions):
    """Measures by each of `measures`."""
    return measured(self.measures, [example.label for example in examples], [found.label for found in predictions])


def known(examples: Sequence[Example]) -> np.ndarray:
  """Returns 1.0 for each example with a label [N]."""
  return np.array([example.label is not None for example in examples], np.float32)


def measured(names: Sequence[str], truth: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
  """Computes metrics of labels by their names, in percent."""
  return {name: float(METRICS[name](np.asarray(truth), np.asarray(found))) for name in names}


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
  """Encodes texts, each of which may come several times, once."""
  every = list(dict.fromkeys(texts))
  ids = dict(zip(every, tokenizer.encode_batch(every), strict=True))
  return [ids[text] for text in texts]
