"""Tasks of an ELMo: its layers, mixed, beside word vectors, read by LSTMs from both sides (Peters et al. 2018)."""
from collections.abc import Sequence
import dataclasses
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.architectures.elmo import Kept
from plm_jax.errors import ConfigError
from plm_jax.layers import spelling
from plm_jax.layers.reader import ReaderConfig, RecurrentClasses, RecurrentTags
from plm_jax.tasks import words
from plm_jax.tasks.contract import Task
from plm_jax.tasks.examples import Example, Features, Ragged
from plm_jax.tasks.forms import fitted
from plm_jax.tasks.regularize import Plain
from plm_jax.tasks.sequence import SequenceTask, known
from plm_jax.tasks.tagging import Tagged, TaggingTask
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.words import Words

DROPOUT = 0.5  # section 4 and AllenNLP's ner_elmo, from memory


@dataclasses.dataclass(frozen=True)
class RecurrentTask(Task):
  """Rows are words, one text each, with `characters` [B, L, 50] beside `tokens`: ids of words, by which these have
  vectors of the task's own, while the backbone reads their characters, those of unknown words too."""

  reader: ReaderConfig = ReaderConfig()
  """what stands between the ELMo and the task"""

  def words_of(self, example: Example) -> Sequence[str]:
    """Returns the words that are read. Raises ConfigError for an example that is not of the task."""
    return example.texts

  def conflict(self, option):
    """Says what an ELMo has not."""
    if self.auxiliary:
      return f'{option("auxiliary")} is for decoders, and an ELMo is none'
    if self.regularizer.moves_inputs:
      return f'{option("regularizer")} moves the vectors of tokens, and an ELMo reads characters'
    return super().conflict(option)

  @property
  def own_words(self):
    """Words have vectors of the task's own."""
    return True

  @property
  def keeps(self):
    """The layers of every word."""
    return 'token'

  def kept(self, output):
    """Returns the layers of each word [B, L, N + 1, 2P], none of them where word vectors alone are read."""
    return output.words if self.reader.features else output.words[:, :, :0]

  def recalled(self, kept):
    """Returns an output of these layers."""
    return Kept(kept)

  def heads(self, model) -> dict[str, nn.Module]:
    """Returns the head, with a vector for each word of the tokenizer."""
    kind = RecurrentTags if self.per == 'token' else RecurrentClasses
    dropout = self.head_dropout if self.head_dropout >= 0 else DROPOUT
    return {self.head: kind(self.reader, model.vocab, self.classes, dropout)}

  def shapes(self, rows, length, layout=None):
    """Returns a batch without its content, with characters."""
    characters = jax.ShapeDtypeStruct((rows, length, self.reader.longest), jnp.int32, sharding=layout)
    return {**super().shapes(rows, length, layout), 'characters': characters}

  def refuses(self, run):
    """Says what of a run does not go with an ELMo."""
    tuning, optim, data = run.tuning, run.optim, run.data
    if run.model.kind != 'recurrent':
      return f'{type(self).__name__} reads the layers of an ELMo, and --family is {run.family}'
    if run.model.characters.longest != self.reader.longest:
      return f'the ELMo reads {run.model.characters.longest} characters of a word: --objective.reader.longest'
    if data.pack:
      return '--data.pack: LSTMs and a CRF read a row from end to end, so that it is one text'
    if data.augment.share:
      return '--data.augment changes ids of words, and an ELMo reads the characters of the text'
    if tuning.adapter.kind != 'none':
      return '--tuning.adapter.kind: an ELMo has no adapters; --tuning.top=-1 trains all of it, 0 none'
    if tuning.top > 0 or tuning.reinitialise or optim.layer_decay != 1 or optim.unfreeze or data.unfreeze:
      return ('--tuning.top above 0, --tuning.reinitialise, --optim.layer-decay and --data.unfreeze tell layers apart, '
              'and an ELMo is trained whole (--tuning.top=-1) or not at all (0)')
    return None

  def laid(self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer) -> tuple[Ragged, Ragged]:
    """Returns ids of the words of rows, and their characters. Raises ConfigError for another tokenizer than a list of
    words."""
    if not isinstance(tokenizer, Words):
      raise ConfigError(f'a task of an ELMo has a list of words for its tokenizer, got {tokenizer.kind}: leave out '
                        '--data.tokenizer')
    every = [word for row in rows for word in row]
    offsets = np.cumsum([0, *map(len, rows)])
    return (Ragged(np.array(tokenizer.numbered(every), np.int32), offsets),
            Ragged(spelling.spelled(every, self.reader.longest), offsets))


@dataclasses.dataclass(frozen=True)
class RecurrentTagging(RecurrentTask, TaggingTask):
  """Tags of words by a CRF: learned by the likelihood of whole rows of them, answered by the likeliest row (Peters et
  al. 2018, section 4; Lample et al. 2016). The loss is a word's share of it."""

  def conflict(self, option):
    """Says that rows are sentences, and that their tags have no classes that passes could be compared by."""
    if self.context != 'sentence':
      return f'{option("context")} is sentence: a CRF reads a row as one'
    if not isinstance(self.regularizer, Plain):
      return f'{option("regularizer")} compares classes of words, and a CRF says whole rows of tags'
    return super().conflict(option)

  def features(self, examples, tokenizer, length):
    """Makes a row of each sentence; one that is longer than a row becomes several."""
    parts = [(number, slice(start, start + length)) for number, example in enumerate(examples)
             for start in range(0, len(example.texts), length)]
    tokens, characters = self.laid([examples[number].texts[part] for number, part in parts], tokenizer)
    labels = [example.label if isinstance(example.label, tuple) else None for example in examples]
    tags = [label or (0,) * len(example.texts) for label, example in zip(labels, examples, strict=True)]
    marks = [np.full(len(example.texts), label is not None) for label, example in zip(labels, examples, strict=True)]
    def aligned(values, dtype):
      return Ragged.of([values[number][part] for number, part in parts], dtype)
    return Features(
        tokens, {'characters': characters, 'tags': aligned(tags, np.int32), 'marks': aligned(marks, np.float32)},
        {'stand': np.zeros(len(parts), np.int32)}, np.array([number for number, _ in parts], np.int32))

  def judged(self, outputs, batch):
    """Returns the negative log-likelihood of rows of tags, and how many words they have."""
    marks = batch['marks'].sum(1)
    return {'tags': (-(outputs['tags'].likelihood * (marks > 0)).sum(), marks.sum())}

  def answers(self, outputs, batch):
    """Returns nothing: no accuracy of single words is learned by."""
    del outputs, batch
    return {}

  def read_off(self, outputs):
    """Returns the likeliest tag of each word and its probability, [B, L, 2]."""
    found = outputs['tags']
    return jnp.stack([found.best.astype(jnp.float32), found.shares], -1)

  def predict(self, examples, features, outputs):
    """Returns the tags of every word; rows of a sentence follow each other."""
    del features
    said = np.concatenate([np.zeros((0, 2)), *outputs])
    ends = np.cumsum([0, *(len(example.texts) for example in examples)])
    return [Tagged(said[start:stop, 0].astype(int).tolist(), said[start:stop, 1].tolist())
            for start, stop in itertools.pairwise(ends)]


@dataclasses.dataclass(frozen=True)
class RecurrentSequence(RecurrentTask, SequenceTask):
  """Classification or regression of one text, which is divided into words as running text is (`tasks.words`)."""

  def words_of(self, example):
    """Returns the words of the text. Raises ConfigError for an example of two."""
    if len(example.texts) != 1:
      raise ConfigError(f'{example.where}: the classifier on an ELMo reads one text, got {len(example.texts)}')
    return [word.text for word in words.split(example.texts[0])]

  def features(self, examples, tokenizer, length):
    """Makes a row of each text. Raises ConfigError for an example of two."""
    every = [self.words_of(example) for example in examples]
    kept = [fitted([len(row)], length, self.cut)[0] for row in every]
    tokens, characters = self.laid([row[:size] for row, size in zip(every, kept, strict=True)], tokenizer)
    label = np.array([example.label or 0 for example in examples], np.float32 if self.regression else np.int32)
    return Features(
        tokens, {'characters': characters},
        {'stand': np.zeros(len(every), np.int32), 'label': label, 'weight': known(examples)},
        np.arange(len(every), dtype=np.int32),
        clipped=sum(size < len(row) for size, row in zip(kept, every, strict=True)))
