"""Fine-tuning on labelled rows of text, of a decoder as GPT does (Radford et al. 2018, section 3.3), of an
encoder-decoder as BART does (Lewis et al. 2020, section 3).

    task = RowTask('entailment', classes=3)
    trained = fine_tune(loading.load('runs/gpt_base'), task, examples)
    accuracy = (predict(trained, task, others).argmax(-1) == labels).mean()

Every task is rows of texts, what stands around which is the model's form (`forms`); the last token of a row is read:

    classification  start text end
    entailment      start premise delimiter hypothesis end
    similarity      both orders of the two texts, a row each; what is read is added up
    choice          start context delimiter answer end, a row for each answer; softmax over the rows
    tagging         start words end; the first token of every word is read
"""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import within
from plm_jax.config import ConfigError
from plm_jax.inference.loading import Trained
from plm_jax.layers.heads import NextTokens, TokenClasses, WithHeads
from plm_jax.objectives import Objective
from plm_jax.objectives.mlm import classification
from plm_jax.tasks.former_forms import BothSides, Decoded, Delimiters, form_of, row
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.optim import OptimConfig, make_optimizer
from plm_jax.training.step import Learner, init_state, train_step

Kind = Literal['classification', 'entailment', 'similarity', 'choice', 'tagging']
LONGEST = 512  # tokens in a row, of a model that takes any number


@dataclasses.dataclass(frozen=True)
class Example:
  """One question."""

  texts: tuple[str, ...]
  """of classification one, of entailment and similarity two, of choice the context and each answer, of tagging words"""
  label: int | tuple[int, ...] = 0
  """number of the class, or of the answer; of tagging, of the class of each word"""


@dataclasses.dataclass(frozen=True)
class RowTask(Objective):
  """What is asked of rows, and what is learned from them: the label, and of a decoder the text (L3 of GPT's paper)."""

  limits = within(classes='[2, inf)')

  kind: Kind = 'classification'
  """how texts become rows"""
  classes: int = 2
  """labels, or answers of each question"""
  language: float = 0.5
  """lambda, factor of the language-modelling loss; 0: none, as an encoder-decoder needs it, which reads what it would
  predict"""

  @property
  def head(self) -> str:
    """Name of the task's head among those of a model."""
    return {'choice': 'choice', 'tagging': 'tag'}.get(self.kind, 'label')

  @property
  def rows(self) -> int:
    """R, of an example."""
    return {'similarity': 2, 'choice': self.classes}.get(self.kind, 1)

  @property
  def terms(self) -> Mapping[str, float]:
    """Weights of the loss: of the label 1, and `language` of the next token."""
    return {'label': 1.0, **({'lm': self.auxiliary} if self.language else {})}

  def window(self, length: int) -> int:
    """Returns the tokens of text that a row of `length` takes: all."""
    return length

  def predictions(self, length: int) -> int:
    """Returns M, the most positions predicted in a row of `length`: all or none."""
    return length if self.auxiliary else 0

  def arrays(self, examples: Sequence[Example], tokenizer: Tokenizer, delimiters: Delimiters, length: int):
    """Makes rows of examples: tokens, segments, labels, weights [B R, length], extract [B R], truth and marks [B], of
    tagging [B, length]: 1.0 where the truth counts; of numpy.

    delimiters: what stands around texts. Texts that are too long lose their ends, the longer one first. Raises
    ConfigError for an example with another number of texts, a label that is none, and words to tag that do not fit.
    """
    self.check(examples)
    if self.kind == 'tagging':
      made = [of_words(tokenizer, example.texts, len(delimiters[0])) for example in examples]
      rows, places = [row([ids], delimiters, len(ids) + length) for ids, _ in made], [places for _, places in made]
      if (longest := max(map(len, rows))) > length:
        raise ConfigError(f'the longest example has {longest} tokens, the model takes {length}: split it')
    else:
      ids = iter(tokenizer.encode_batch([text for example in examples for text in example.texts]))
      rows = [row(parts, delimiters, length) for example in examples
              for parts in self.arrange([next(ids) for _ in example.texts])]
    tokens = np.zeros((len(rows), length), np.int32)
    segments = np.zeros_like(tokens)
    for number, some in enumerate(rows):
      tokens[number, :len(some)], segments[number, :len(some)] = some, 1
    if self.kind == 'tagging':
      truth, marks = np.zeros_like(tokens), np.zeros(tokens.shape, np.float32)
      for number, (example, where) in enumerate(zip(examples, places, strict=True)):
        truth[number, where], marks[number, where] = example.label, 1
    else:
      truth = np.array([example.label for example in examples], np.int32)
      marks = np.ones(truth.shape, np.float32)
    following = np.pad(segments[:, 1:], ((0, 0), (0, 1)))
    return dict(
        tokens=tokens, segments=segments, extract=segments.sum(1, dtype=np.int32)[:, None] - 1,
        labels=np.pad(tokens[:, 1:], ((0, 0), (0, 1))), weights=following.astype(np.float32), truth=truth, marks=marks)

  def check(self, examples: Sequence[Example]) -> None:
    """Raises ConfigError for an example with another number of texts or labels than the task has, or a label that is
    none."""
    tagging = self.kind == 'tagging'
    texts = {'classification': 1, 'choice': 1 + self.classes}.get(self.kind, 2)
    for number, example in enumerate(examples):
      labels = example.label if isinstance(example.label, tuple) else (example.label,)
      wanted = len(labels) if tagging else texts
      if not wanted or len(example.texts) != wanted or not all(0 <= label < self.classes for label in labels) or (
          isinstance(example.label, tuple) != tagging):
        takes = 'words and a label for each' if tagging else f'{texts} texts and labels'
        raise ConfigError(f'example {number} has {len(example.texts)} texts and the label {example.label}: '
                          f'{self.kind} takes {takes} below {self.classes}')

  def arrange(self, parts: list[list[int]]) -> list[list[list[int]]]:
    """Returns the texts of each row of an example: of a choice each answer behind the question, of similarity both
    orders."""
    if self.kind == 'similarity':
      return [parts, parts[::-1]]
    return [[parts[0], answer] for answer in parts[1:]] if self.kind == 'choice' else [parts]

  def corrupt(self, key, windows, vocab):
    """Returns the rows as they are."""
    del key, vocab
    return windows

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns the modules that the loss reads: the task's, and, of a decoder, that of language modelling."""
    classes, choice = (1, True) if self.kind == 'choice' else (self.classes, False)
    heads: dict[str, nn.Module] = {self.head: TokenClasses(model.block, classes) if self.kind == 'tagging' else
                                   form_of(model).head(model, classes, bias=choice)}
    if self.auxiliary:
      heads['lm'] = NextTokens(model.block, model.vocab, model.tied, model.logit_factor)
    return heads

  def logits(self, outputs):
    """Returns logits [B, C], of tagging [B, L, C]. A decoder's layer has no bias, so that sums of logits are logits of
    the sum."""
    if self.kind == 'tagging':
      return outputs[self.head]
    found = outputs[self.head].reshape(-1, self.rows, 1 if self.kind == 'choice' else self.classes)
    return found.sum(-1 if self.kind == 'choice' else 1)

  def loss(self, outputs, batch):
    """Returns (sum, weight) pairs: label, label_accuracy, and those of language modelling where it is trained
    besides."""
    losses = classification('label', self.logits(outputs), batch['truth'], batch['marks'])
    return losses | (classification('lm', outputs['lm'], batch['labels'], batch['weights']) if self.auxiliary else {})


def fine_tune(
    trained: Trained, task: RowTask, examples: Sequence[Example], epochs: int = 3, batch: int = 32,
    optim: OptimConfig | None = None, seed: int = 0) -> Trained:
  """Trains a model with the head of the task, and of a decoder three tokens more where its tokenizer has none to build
  rows with. optim: the form's, as its paper or its code has it, where none is given.

  Rows are as long as the longest one needs. Raises ConfigError for a model without a form (`form_of`) or a tokenizer,
  fewer examples than a batch, examples that are not of the task, and a language-modelling loss of a model that reads
  what it would predict.
  """
  form = form_of(trained.model)
  if epochs < 1 or batch < 1:
    raise ConfigError(f'epochs and batch are at least 1, got {epochs} and {batch}')
  if len(examples) < batch:
    raise ConfigError(f'there are {len(examples)} examples, fewer than the {batch} of a batch')
  if task.language and not form.language:
    raise ConfigError('an encoder-decoder reads the rows that it would have to predict: give the task language=0')
  trained = prepared(trained, seed)
  data = encode(trained, task, examples)
  steps = epochs * (len(examples) // batch)
  optim = optim or form.optim
  optim = dataclasses.replace(optim, warmup=optim.warmup or round(form.warmup * steps))
  learner = Learner(task.build(trained.model, False), task, make_optimizer(optim, steps), None, seed)
  state = jax.jit(lambda: nn.unbox(init_state(learner, take(task, data, np.arange(1)))))()
  params = {**state.params, **{name: x for name, x in trained.params.items() if name in state.params}}
  params = jax.tree.map(jnp.asarray, params)
  state = state.replace(params=params, opt_state=learner.optimizer.init(params))
  update = jax.jit(lambda state, rows: train_step(learner, state, rows)[0])
  draw = np.random.default_rng(seed)
  for _ in range(epochs):
    order = draw.permutation(len(examples))
    for start in range(0, len(order) - batch + 1, batch):
      state = update(state, take(task, data, order[start:start + batch]))
  return dataclasses.replace(trained, heads=task.heads(trained.model), params=state.params)


def predict(trained: Trained, task: RowTask, examples: Sequence[Example], batch: int = 32) -> Any:
  """Returns probabilities [N, C] of labels or answers; of tagging a list of those of each example's words [W, C].

  Raises ConfigError for a model that has not learned the task, for no examples, and for some that are not of the task.
  """
  if f'heads_{task.head}' not in trained.params or batch < 1 or not examples:
    raise ConfigError("a prediction takes a model with the task's head, which fine_tune gives it, and examples: got "
                      f'heads {sorted(trained.heads)}, {len(examples)} examples, batches of {batch}')
  data = encode(trained, task, examples)
  model = WithHeads(trained.model.backbone(), {task.head: task.heads(trained.model)[task.head]})

  @jax.jit
  def probabilities(params, rows):
    outputs: Any = model.apply({'params': params}, rows)
    return jax.nn.softmax(task.logits(outputs))

  # Of one shape: the last batch is filled up with its first example.
  places = np.arange(-(-len(examples) // batch) * batch)
  places[len(examples):] = 0
  params = {name: trained.params[name] for name in ('backbone', f'heads_{task.head}')}
  parts = [probabilities(params, take(task, data, some)) for some in np.split(places, len(places) // batch)]
  found = np.concatenate(parts)[:len(examples)]
  return [of[marks > 0] for of, marks in zip(found, data['marks'], strict=True)] if task.kind == 'tagging' else found


def prepared(trained: Trained, seed: int = 0) -> Trained:
  """Returns the model with what rows of its form need. Raises ConfigError where there is no tokenizer."""
  if trained.tokenizer is None:
    raise ConfigError('the checkpoint has no tokenizer, which makes rows of texts')
  return form_of(trained.model).ready(trained, trained.tokenizer, seed)


def encode(trained: Trained, task: RowTask, examples: Sequence[Example]) -> dict[str, np.ndarray]:
  """Makes rows of examples, as long as the longest needs, of numpy: see `RowTask.arrays`, and what the model reads
  besides.

  Raises ConfigError for a model without a form or a tokenizer, and for examples that are not of the task.
  """
  form: Decoded | BothSides = form_of(trained.model)
  if trained.tokenizer is None:
    raise ConfigError('the checkpoint has no tokenizer, which makes rows of texts')
  tokenizer = trained.tokenizer
  data = task.arrays(examples, tokenizer, form.delimiters(tokenizer), trained.model.max_length or LONGEST)
  # Columns that no row fills cost as much as others.
  longest = -(-int(data['segments'].sum(1).max()) // 8) * 8
  data = {name: x[:, :longest] if x.ndim == 2 else x for name, x in data.items()}
  return data | form.batch(data['tokens'], data['segments'], tokenizer)


def take(task: RowTask, data: Mapping[str, np.ndarray], examples: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the rows of these examples."""
  rows = (examples[:, None] * task.rows + np.arange(task.rows)).ravel()
  return {name: x[examples if name in ('truth', 'marks') else rows] for name, x in data.items()}


def of_words(tokenizer: Tokenizer, words: Sequence[str], before: int) -> tuple[list[int], np.ndarray]:
  """Encodes words with spaces between: their ids, and in a row with `before` ids before them the place of each one's
  first.

  Raises ConfigError for a word of which the tokenizer makes nothing.
  """
  ids, _, characters = tokenizer.encode_places([' '.join(words)])
  ends = np.cumsum([len(word) + 1 for word in words]) - 1
  numbers, places = np.unique(np.searchsorted(ends, characters, 'right'), return_index=True)
  if lacking := set(range(len(words))) - set(numbers.tolist()):
    raise ConfigError(f'the tokenizer makes nothing of the word {words[min(lacking)]!r}')
  return ids.tolist(), places + before
