"""Sentence vectors: texts of like meaning get like vectors (Reimers and Gurevych 2019)."""
import collections
from collections.abc import Sequence
import dataclasses
from typing import ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax.checked import within
from plm_jax.embeddings.losses import CosineRegression, Group, Loss, Softmax
from plm_jax.embeddings.measures import retrieval
from plm_jax.errors import ConfigError
from plm_jax.layers.dense import Dense
from plm_jax.layers.heads import WithHeads
from plm_jax.layers.pooling import SentenceVector, VectorConfig
from plm_jax.tasks.examples import Example, Features, Ragged
from plm_jax.tasks.grouped import GroupedTask, flattened
from plm_jax.tasks.regularize import Plain
from plm_jax.tasks.sequence import encoded, known, measured

STS = ('spearman', 'pearson')


class Compared(NamedTuple):
  """What is said of texts."""

  label: float
  """cosine of the first two"""
  vectors: np.ndarray
  """of all [C, W]"""


class Relation(nn.Module):
  """Logits of the classes of a pair from its vectors (u, v, |u - v|), for the whole of them and for each prefix."""

  classes: int
  prefixes: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, vectors):
    """vectors [B, C, W] -> [B, K], or of prefixes [B, 1 + prefixes, K], what is behind each prefix being 0."""
    dense = Dense((self.classes,), ('width', None), True, jnp.float32, name='dense')
    def logits(size):
      kept = vectors if size is None else vectors * (jnp.arange(vectors.shape[-1]) < size)
      u, v = kept[:, 0], kept[:, 1]
      return dense(jnp.concatenate([u, v, jnp.abs(u - v)], -1))
    if not self.prefixes:
      return logits(None)
    return jnp.stack([logits(size) for size in (None, *self.prefixes)], 1)


class SentenceEncoder(WithHeads):
  """A backbone and heads: arrays of a batch [B, C, L] -> the vectors of the texts [B, C, W], and what is said of
  them."""

  def __call__(self, batch, rows=None):
    groups, size = batch['tokens'].shape[:2]
    flat, rows = flattened(batch, rows)
    vectors = self.heads['embedding'](self.backbone(flat, rows), flat, rows).reshape(groups, size, -1)
    return {'embedding': vectors, **({'relation': self.heads['relation'](vectors)} if 'relation' in self.heads else {})}


@dataclasses.dataclass(frozen=True)
class EmbeddingTask(GroupedTask):
  """A row for each text of an example; the loss compares their vectors.

  It learns from pairs with a class or a number, or from texts that belong together, as the loss has it, and answers
  pairs by their cosine.
  """

  head: ClassVar[str] = 'embedding'
  of_rows: ClassVar = ('label', 'real')
  limits = within(prefixes='[1, 1048576]')

  vector: VectorConfig = VectorConfig()
  """how the states of a text's tokens become its vector"""
  loss_of: Loss = CosineRegression()
  """what vectors are to be like"""
  prefixes: tuple[int, ...] = ()
  """beginnings of vectors, of so many numbers, that are to be vectors too: each has a loss of its own (Kusupati et al.
  2022, Matryoshka)"""
  entailment: str = ''
  """class of the pairs whose texts belong together, where such texts are learned from pairs with a class; empty: texts
  are given together"""
  contradiction: str = ''
  """class of those whose second text is a hard negative of the first; empty: none is"""
  measured_by: Literal['similarity', 'retrieval'] = 'similarity'
  """development sets: pairs with a number, by the correlation of cosines with it, or texts that belong together, by
  where the second is among all second ones"""

  def conflict(self, option):
    """Says what goes with other tasks only."""
    if self.auxiliary or not isinstance(self.regularizer, Plain):
      return f'{option("auxiliary")} and {option("regularizer")} are for other tasks than sentence vectors'
    if isinstance(self.loss_of, Softmax) and self.entailment:
      return f'{option("entailment")} is for losses of texts that belong together'
    return None

  @property
  def reads(self):
    """Pairs with a number, or texts that belong together."""
    return 'regression' if self.measured_by == 'similarity' else 'embedding'

  @property
  def learns(self):
    """What the loss takes; texts that belong together may be made of pairs with a class."""
    return 'classification' if self.entailment else self.loss_of.learns

  @property
  def whole(self):
    """Whether the loss compares the examples of a batch."""
    return self.loss_of.whole

  @property
  def classes(self):
    """Those of a pair."""
    return max(2, len(self.labels))

  @property
  def typical(self):
    """Texts of an example, three at most."""
    return max(2, min(3, self.loss_of.texts[0]))

  @property
  def terms(self):
    """The loss of the vectors, and those of their prefixes, alike."""
    return {'embedding': 1.0, **{f'embedding_{size}': 1.0 for size in self.prefixes}}

  def heads(self, model):
    """Returns what makes the vector of a row, and what tells the classes of pairs where they are learned."""
    heads: dict[str, nn.Module] = {'embedding': SentenceVector(self.vector)}
    if isinstance(self.loss_of, Softmax):
      heads['relation'] = Relation(self.classes, self.prefixes)
    width = self.vector.dense or model.block.width * len(self.vector.pooling)
    if too_long := [size for size in self.prefixes if size >= width]:
      raise ConfigError(f'--objective.prefixes are shorter than the vector, which has {width} numbers, got {too_long}')
    return heads

  def build(self, model, packed):
    """Builds the module, whose rows come in groups."""
    return SentenceEncoder(model.backbone(packed), self.heads(model))

  def lessons(self, examples):
    """Returns texts that belong together, of pairs with classes where these say which do. Raises ConfigError for an
    example with too few texts or too many, or whose number no cosine stands for."""
    if self.entailment:
      examples = triplets(examples, self.labels, self.entailment, self.contradiction, self.loss_of.texts[0])
    least, most = self.loss_of.texts
    name = type(self.loss_of).__name__
    for example in examples:
      if not least <= len(example.texts) <= most:
        wanted = f'{least}' if least == most else f'{least} to {most}'
        raise ConfigError(f'{example.where}: {name} learns from examples of {wanted} texts, got {len(example.texts)}: '
                          'a text, one that belongs to it, and negatives')
      full = self.loss_of.full if isinstance(self.loss_of, CosineRegression) else 1.0
      number = example.label if self.loss_of.learns == 'regression' and name != 'CoSent' else 0
      if not isinstance(number, int | float) or not 0 <= number <= full:
        raise ConfigError(f'{example.where}: {name} learns from numbers from 0 to {full:g}, got {number}: '
                          '--objective.loss-of.full is that of texts that mean the same')
    return examples

  def features(self, examples, tokenizer, length):
    """Makes a row of each text. Raises ConfigError for an example of one text where pairs are compared."""
    for example in examples:
      if not example.texts or (len(example.texts) < 2 and not self.alone):
        raise ConfigError(f'{example.where}: expected two texts, which are compared, got {len(example.texts)}')
    # A text alone is its own positive: with another dropout its vector is another one.
    groups = [example.texts * 2 if len(example.texts) == 1 else example.texts for example in examples]
    size, vocab = max(map(len, groups), default=2), tokenizer.vocab
    ids = iter(encoded(tokenizer, [text for texts in groups for text in texts]))
    rows, clipped = [], 0
    for texts in groups:
      of = [next(ids) for _ in texts]
      made = [self.form.row([text], vocab, length, 'longest') for text in of]
      clipped += any(row.kept[0] < len(text) for row, text in zip(made, of, strict=True))
      rows += made + made[:1] * (size - len(made))  # of which nothing is read: see `real`
    values = {
        'stand': np.array([row.stand for row in rows], np.int32),
        'label': np.array([example.label or 0 for example in examples], np.float32).repeat(size),
        'real': np.array(list(map(len, groups)), np.int32).repeat(size),
        'weight': (np.ones(len(groups), np.float32) if self.learns == 'embedding' else known(examples)).repeat(size)}
    return Features(
        Ragged.of(row.tokens for row in rows), {'types': Ragged.of(row.types for row in rows)}, values,
        np.arange(len(groups), dtype=np.int32).repeat(size), group=size, clipped=clipped)

  @property
  def alone(self) -> bool:
    """Whether an example may be a text alone."""
    return self.loss_of.texts[0] == 1

  def judged(self, outputs, batch):
    """Returns the loss of the vectors [B, C, W], and of each of their prefixes."""
    vectors, relation = outputs['embedding'].astype(jnp.float32), outputs.get('relation')
    losses = {}
    for number, (name, size) in enumerate(zip(self.terms, (vectors.shape[-1], *self.prefixes), strict=True)):
      logits = relation[:, number] if relation is not None and self.prefixes else relation
      target = batch['target'][:, 0, :size] if 'target' in batch else None
      group = Group(batch['weight'][:, 0], batch['real'][:, 0], batch['label'][:, 0], logits, target)
      losses[name] = self.loss_of(vectors[..., :size], group)
    return losses

  def heldout(self, outputs, batch):
    """Returns nothing: development sets are of another kind than what is learned from."""
    del outputs, batch
    return {}

  def predict(self, examples, features, outputs):
    """Returns the vectors of each example, and the cosine of the first two; outputs: of each row its vector."""
    vectors = np.asarray(outputs, np.float32).reshape(len(examples), features.group, -1)
    pair = vectors[:, :2].astype(np.float64)
    pair /= np.maximum(np.linalg.norm(pair, axis=-1, keepdims=True), 1e-12)
    return [Compared(float(cosine), some[:max(2, len(example.texts))])
            for cosine, some, example in zip((pair[:, 0] * pair[:, 1]).sum(-1), vectors, examples, strict=True)]

  def scores(self, examples, predictions):
    """Measures similarity by Spearman's and Pearson's correlation, or retrieval by where the second texts are found."""
    if self.measured_by == 'similarity':
      return measured(STS, [example.label for example in examples], [found.label for found in predictions])
    texts = list(dict.fromkeys(example.texts[1] for example in examples))
    vectors = {example.texts[1]: found.vectors[1] for example, found in zip(examples, predictions, strict=True)}
    return retrieval(np.stack([found.vectors[0] for found in predictions]), np.stack([vectors[text] for text in texts]),
                     [{texts.index(example.texts[1])} for example in examples])


def triplets(examples: Sequence[Example], labels: Sequence[str], entailment: str, contradiction: str, least: int
             ) -> list[Example]:
  """Makes texts that belong together of pairs with classes: a first text, what it entails, and what contradicts it
  (Gao et al. 2021, section 4).

  least: texts of an example: with 3, first texts that nothing contradicts are left out. Raises ConfigError for a class
  that no example has, or where no examples are left.
  """
  for name in filter(None, (entailment, contradiction)):
    if name not in labels:
      raise ConfigError(f'there is no class {name!r} among {", ".join(labels)}')
  found: dict[str, dict[str, list[Example]]] = collections.defaultdict(lambda: collections.defaultdict(list))
  for example in examples:
    found[example.texts[0]][labels[int(example.label)]].append(example)  # pyright: ignore
  made = []
  for of in found.values():
    against = of[contradiction] if contradiction else []
    for number, example in enumerate(of[entailment]):
      negative = (against[number % len(against)].texts[1],) if against else ()
      if len(example.texts) + len(negative) >= least:
        made.append(dataclasses.replace(example, texts=example.texts + negative, label=None))
  if not made:
    raise ConfigError(f'no first text has a pair of class {entailment!r}'
                      + (f' and one of class {contradiction!r}' if least > 2 else ''))
  return made

