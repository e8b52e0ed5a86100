"""Tasks on an ELMo: a learned mix of its layers and word vectors, read by bidirectional LSTMs.

Peters et al. 2018.
"""
from collections.abc import Sequence
import dataclasses
import itertools
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax import unicode_words
from plm_jax.architectures.elmo import CachedWordLayers
from plm_jax.errors import ConfigError, name_field
from plm_jax.layers import char_ids
from plm_jax.layers.recurrent_heads import ReaderConfig, RecurrentClassifier, RecurrentTagger
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import PER_TOKEN, FeatureCache, Task
from plm_jax.tasks.features import Features, Ragged, row_offsets
from plm_jax.tasks.input_formats import truncated_lengths
from plm_jax.tasks.regularizers import Plain
from plm_jax.tasks.sequence_classification import SequenceTask, label_array, label_weights
from plm_jax.tasks.token_classification import TaggingTask, TagPrediction
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.whole_words import WordTokenizer

DEFAULT_DROPOUT = 0.5  # section 4 and AllenNLP's ner_elmo, from memory


@dataclasses.dataclass(frozen=True)
class WordLayerCache(FeatureCache):
  """Caches the layers of an ELMo for every word."""

  reads_layers: bool
  """False: only word vectors are read"""

  def states(self, output):
    """Return the layers of each word [B, L, N + 1, 2P]; none if only word vectors are read."""
    return output.words if self.reads_layers else output.words[:, :, :0]

  def make_output(self, kept):
    return CachedWordLayers(kept)


@dataclasses.dataclass(frozen=True)
class RecurrentTask(Task):
  """A task on an ELMo, whose rows are the words of one text.

  A batch also has `characters` [B, L, 50], which the backbone reads, for unknown words too.
  `tokens` are ids of words, by which the head looks up its own word vectors.
  """

  own_vocabulary: ClassVar = True

  reader: ReaderConfig = ReaderConfig()
  """word vectors and LSTMs between the ELMo and the task"""

  def get_words(self, example: Example) -> Sequence[str]:
    """Return the words of an example. Raises ConfigError for an example that does not fit."""
    return example.texts

  def conflict(self, option):
    if self.auxiliary:
      return f'{option("auxiliary")} is for decoders, and an ELMo is none'
    if self.regularizer.perturbs_inputs:
      return f'{option("regularizer")} moves the vectors of tokens, and an ELMo reads characters'
    return super().conflict(option)

  @property
  def feature_cache(self):
    return WordLayerCache('token', self.reader.features)

  def heads(self, model) -> dict[str, nn.Module]:
    """Return the head, with a vector for each word of the tokenizer."""
    kind = RecurrentTagger if self.output_unit == 'token' else RecurrentClassifier
    return {self.head: kind(self.reader, model.vocab, self.classes, DEFAULT_DROPOUT)}

  @property
  def loss_arrays(self):
    return {**super().loss_arrays, 'characters': (PER_TOKEN, self.reader.longest)}

  def run_conflict(self, run):
    tuning, optim, data = run.tuning, run.optim, run.data
    if run.model.kind != 'recurrent':
      return (f'{type(self).__name__} reads the layers of an ELMo, and {name_field("family")} is '
              f'{run.family}')
    if run.model.characters.longest != self.reader.longest:
      return (f'the ELMo reads {run.model.characters.longest} characters of a word: '
              f'{name_field("objective.reader.longest")}')
    if data.pack:
      return (f'{name_field("data.pack")}: LSTMs and a CRF read a row from end to end, so that it '
              'is one text')
    if data.augment.share:
      return (f'{name_field("data.augment")} changes ids of words, and an ELMo reads the '
              'characters of the text')
    if tuning.adapter.kind != 'none':
      return (f'{name_field("tuning.adapter.kind")}: an ELMo has no adapters; '
              f'{name_field("tuning.top")}=-1 trains all of it, 0 none')
    by_layer = tuning.top > 0 or tuning.reinitialize or optim.layer_decay != 1
    if by_layer or optim.unfreeze or data.unfreeze:
      return (f'{name_field("tuning.top")} above 0, {name_field("tuning.reinitialize")}, '
              f'{name_field("optim.layer_decay")} and {name_field("data.unfreeze")} tell layers '
              f'apart, and an ELMo is trained whole ({name_field("tuning.top")}=-1) or not at all '
              '(0)')
    return None

  def encode_words(
      self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer) -> tuple[Ragged, Ragged]:
    """Encode the words of rows -> (word ids, character ids).

    Raises ConfigError if the tokenizer is not a list of words.
    """
    if not isinstance(tokenizer, WordTokenizer):
      raise ConfigError('a task of an ELMo has a list of words for its tokenizer, got '
                        f'{tokenizer.kind}: leave out {name_field("data.tokenizer")}')
    words = list(itertools.chain.from_iterable(rows))
    offsets = row_offsets(len(row) for row in rows)
    ids = np.array(tokenizer.lookup_ids(words), np.int32)
    characters = char_ids.encode_words(words, self.reader.longest)
    return Ragged(ids, offsets), Ragged(characters, offsets)


@dataclasses.dataclass(frozen=True)
class RecurrentTagging(RecurrentTask, TaggingTask):
  """Token classification by a conditional random field (CRF) on an ELMo.

  Training maximizes the likelihood of whole rows of tags; prediction returns the most likely row
  (Peters et al. 2018, section 4; Lample et al. 2016). The loss is per word.
  """

  head_arrays: ClassVar = ('tags',)

  def conflict(self, option):
    """Describe options that do not go with a CRF: rows are sentences, and tags have no logits."""
    if self.context != 'sentence':
      return f'{option("context")} is sentence: a CRF reads a row as one'
    if self.calibrate:
      return f'{option("calibrate")} needs logits of classes, and a CRF predicts whole rows of tags'
    if self.stride:
      return f'{option("stride")} is 0: a CRF reads a row as one, and rows do not overlap'
    if not isinstance(self.regularizer, Plain):
      return (f'{option("regularizer")} compares classes of words, and a CRF predicts whole rows '
              'of tags')
    return super().conflict(option)

  def decisions(self, examples, predictions):
    """Return None: a CRF has probabilities of rows of tags."""

  def features(self, examples, tokenizer, length):
    """Make a row per sentence; a sentence that is too long becomes several."""
    parts = []
    for number, example in enumerate(examples):
      starts = range(0, len(example.texts), length)
      parts += [(number, slice(start, start + length)) for start in starts]
    words = [examples[number].texts[part] for number, part in parts]
    tokens, characters = self.encode_words(words, tokenizer)
    tags, marks = [], []
    for example in examples:
      is_labeled = isinstance(example.label, tuple)
      label = example.label if is_labeled else None
      tags.append(label or (0,) * len(example.texts))
      marks.append(np.full(len(example.texts), is_labeled))
    def align(values, dtype):
      return Ragged.concat([values[number][part] for number, part in parts], dtype)
    aligned = {'characters': characters, 'tags': align(tags, np.int32),
               'marks': align(marks, np.float32)}
    return Features(tokens, aligned, {'stand': np.zeros(len(parts), np.int32)},
                    np.array([number for number, _ in parts], np.int32))

  def loss(self, outputs, batch):
    """Compute the negative log-likelihood of rows of tags, and the number of their words."""
    marks = batch['marks'].sum(1)
    loss = -(outputs['tags'].log_likelihood * (marks > 0)).sum()
    return {'tags': (loss, marks.sum())}

  def prediction_inputs(self, outputs):
    """Return the most likely tag of each word and its probability, [B, L, 2]."""
    found = outputs['tags']
    return jnp.stack([found.best_tags.astype(jnp.float32), found.tag_probabilities], -1)

  def predict(self, examples, features, outputs):
    """Return the tags of every word; the rows of a sentence are consecutive."""
    tags = np.concatenate([np.zeros((0, 2))] + list(outputs))
    ends = row_offsets(len(example.texts) for example in examples)
    return [TagPrediction(tags[start:stop, 0].astype(int).tolist(), tags[start:stop, 1].tolist())
            for start, stop in itertools.pairwise(ends)]


@dataclasses.dataclass(frozen=True)
class RecurrentSequence(RecurrentTask, SequenceTask):
  """Classification or regression of one text on an ELMo; `unicode_words` finds its words."""

  def conflict(self, option):
    if self.windows != 'off' or self.stride:
      return (f'{option("windows")} is off and {option("stride")} 0: an ELMo reads rows of any '
              f'length, {name_field("train.phases.0.length")}')
    return super().conflict(option)

  @property
  def windows_advice(self):
    return ''

  def get_words(self, example):
    if len(example.texts) != 1:
      raise ConfigError(
          f'{example.where}: the classifier on an ELMo reads one text, got {len(example.texts)}')
    return [word.text for word in unicode_words.split_words(example.texts[0])]

  def features(self, examples, tokenizer, length):
    all_words = [self.get_words(example) for example in examples]
    rows, clipped, lost = [], 0, 0
    for words in all_words:
      size = truncated_lengths([len(words)], length, self.cut)[0]
      clipped += size < len(words)
      lost += len(words) - size
      rows.append(words[:size])
    tokens, characters = self.encode_words(rows, tokenizer)
    dtype = np.float32 if self.regression else np.int32
    values = {
        'stand': np.zeros(len(rows), np.int32), 'label': label_array(examples, dtype),
        'weight': label_weights(examples)}
    return Features(tokens, {'characters': characters}, values,
                    np.arange(len(rows), dtype=np.int32), clipped=clipped, lost=lost)
