"""Late interaction: vectors of tokens, compared by MaxSim (ColBERT: Khattab and Zaharia 2020)."""
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError, name_field
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.token_vectors import (
  EXPANSION,
  SCORED,
  SKIPPED,
  InteractionVectors,
  TokenVectorConfig,
  TokenVectors,
)
from plm_jax.tasks.contract import PER_TOKEN
from plm_jax.tasks.embedding_losses import ExampleGroup, InBatch, Loss
from plm_jax.tasks.features import Features, Ragged
from plm_jax.tasks.grouped_rows import MODEL_INPUTS, collect_groups
from plm_jax.tasks.input_formats import InputFormat, InputRow
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class InteractionFormat:
  """Rows of texts: [CLS] [Q] query [SEP] [MASK] ... [MASK], and [CLS] [D] document [SEP]."""

  config: TokenVectorConfig
  input_format: InputFormat
  tokenizer: Tokenizer

  def __post_init__(self):
    lacking = [name for name in self.config.markers if self.tokenizer.find_token(name) < 0]
    if lacking:
      raise ConfigError(f'the tokenizer has no {" and no ".join(lacking)}, which '
                        'the rows of the model need')
    if self.config.expand and self.tokenizer.vocab.mask < 0:
      raise ConfigError(f'the tokenizer has no [MASK], with which queries are filled up: '
                        f'{name_field("objective.vector.expand")}=False')

  def make_row(self, ids: Sequence[int], is_query: bool, length: int) -> InputRow:
    """Make the row of a text. length: maximum tokens of a document."""
    config, vocab = self.config, self.tokenizer.vocab
    marker = config.query_token if is_query else config.document_token
    longest = config.query_length if is_query else length
    row = self.input_format.make_row([ids], vocab, longest - bool(marker))
    tokens, types = list(row.tokens), list(row.token_types)
    if marker:
      tokens.insert(1, self.tokenizer.find_token(marker))
      types.insert(1, 0)
    if is_query and config.expand:
      missing = longest - len(tokens)
      tokens += [vocab.mask] * missing
      types += [0] * missing
    return row._replace(tokens=tokens, token_types=types)

  def score_tokens(self, tokens: Sequence[int] | np.ndarray, is_query: bool) -> np.ndarray:
    """Return the kind of each token of a row: see `layers.token_vectors`."""
    ids, vocab = np.asarray(tokens), self.tokenizer.vocab
    if is_query:
      hidden = (ids == vocab.mask) & (not self.config.attend)
      return np.where(hidden, EXPANSION, SCORED).astype(np.int32)
    return np.where(np.isin(ids, self.skipped_ids), SKIPPED, SCORED).astype(np.int32)

  @functools.cached_property
  def skipped_ids(self) -> list[int]:
    """Ids of skipped tokens; as in PyLate, one that the vocabulary lacks is the unknown token."""
    found = [self.tokenizer.find_token(name) for name in self.config.skip]
    return [self.tokenizer.vocab.unk if number < 0 else number for number in found]

  def add_scored(self, features: Features) -> Features:
    """Add the kinds of tokens to the features of groups, whose first rows are queries."""
    kinds = [self.score_tokens(features.tokens[number], number % features.group == 0)
             for number in range(len(features))]
    return dataclasses.replace(
        features, aligned={**features.aligned, 'scored': Ragged.concat(kinds)})


class InteractionEncoder(ModelWithHeads):
  """Encoder of token vectors: arrays of a batch [B, C, L] -> {'embedding': [B, C, L, W]}.

  The first row of a group is a query. Where documents are much longer, queries are encoded apart.
  """

  def __call__(self, batch, rows=None):
    _, size, length = batch['tokens'].shape
    row_ids = None if rows is None else rows[:, None] * size + jnp.arange(size)
    inputs = {name: x for name, x in batch.items() if name in MODEL_INPUTS}
    query_length = self.heads['embedding'].cfg.query_length
    if length <= 2 * query_length:
      return {'embedding': self.encode(inputs, row_ids)}
    queries = self.encode({name: x[:, :1, :query_length] for name, x in inputs.items()},
                          None if row_ids is None else row_ids[:, :1])
    documents = self.encode({name: x[:, 1:] for name, x in inputs.items()},
                            None if row_ids is None else row_ids[:, 1:])
    queries = jnp.pad(queries, ((0, 0), (0, 0), (0, length - query_length), (0, 0)))
    return {'embedding': jnp.concatenate([queries, documents], 1)}

  def encode(self, inputs: dict[str, Any], row_ids: Any) -> Any:
    """Encode rows [B, C, L] -> [B, C, L, W]."""
    shape = inputs['tokens'].shape
    flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in inputs.items()}
    row_ids = None if row_ids is None else row_ids.ravel()
    flat = hide_expansion(flat)
    vectors = self.heads['embedding'](self.backbone(flat, row_ids), flat, row_ids)
    return vectors.reshape(*shape, -1)


def hide_expansion(batch: dict[str, Any]) -> dict[str, Any]:
  """Let no token attend to those of the kind EXPANSION: they become padding with a position."""
  if 'scored' not in batch:
    return batch
  hidden = batch['scored'] == EXPANSION
  return {**batch, 'segments': jnp.where(hidden, 0, batch['segments'])}


@dataclasses.dataclass(frozen=True)
class LateInteractionTask(EmbeddingTask):
  """Late interaction (ColBERT): a vector per token; MaxSim compares a query with a document.

  The first text of an example is a query, and the others are documents.
  """

  module_class: ClassVar = InteractionEncoder

  vector: TokenVectorConfig = TokenVectorConfig()  # pyright: ignore
  """vectors of tokens"""
  vector_loss: Loss = InBatch(temperature=1.0)
  """loss of the scores: in_batch, margin_mse, kl or kl_in_batch"""
  measured_by: Literal['similarity', 'retrieval'] = 'retrieval'
  """evaluation on development sets: correlation of scores with the label of each pair, or retrieval
  of each second text among all of them"""

  def conflict(self, option):
    if not self.vector_loss.interacts:
      return (f'{option("vector_loss")} of late interaction is in_batch, margin_mse, kl or '
              'kl_in_batch')
    if self.prefixes or self.similarity:
      return (f'{option("prefixes")} and {option("similarity")} are for one vector per text, and '
              'vectors of tokens are compared by MaxSim')
    return super().conflict(option)

  @property
  def compared_by(self):
    return 'maxsim'

  @property
  def added_tokens(self):
    return self.vector.markers

  @property
  def loss_arrays(self):
    return {**super().loss_arrays, 'scored': (PER_TOKEN,)}

  def heads(self, model):
    """Return the head of token vectors. Raises ConfigError for a model without their states."""
    hides = self.vector.expand and not self.vector.attend
    if hides and getattr(model, 'clear', False):
      raise ConfigError(f'models of type {self.family} have no states for [MASK] tokens to which '
                        'no token attends')
    return {'embedding': TokenVectors(self.vector)}

  def make_rows(self, groups, values, tokenizer, length):
    if self.vector.query_length > length:
      raise ConfigError(f'{name_field("objective.vector.query_length")} is at most the sequence '
                        f'length, {length}, got {self.vector.query_length}')
    rows_of = InteractionFormat(self.vector, self.input_format, tokenizer)
    rows = [[rows_of.make_row(ids, place == 0, length) for place, ids in enumerate(group)]
            for group in groups]
    return rows_of.add_scored(collect_groups(rows, values, range(len(groups))))

  def loss(self, outputs, batch):
    """Compute the loss of the scores of the token vectors [B, C, L, W]."""
    vectors, scored = outputs['embedding'], batch['scored'] > 0
    queries = (vectors[:, 0] * scored[:, 0, :, None])[:, :self.vector.query_length]
    texts = batch['texts'][:, 0] if 'texts' in batch else None
    scores = batch['scores'][:, 0] if 'scores' in batch else None
    group = ExampleGroup(
        batch['weight'][:, 0], batch['real'][:, 0], batch['label'][:, 0], texts=texts,
        scores=scores)
    compared = InteractionVectors(queries, vectors[:, 1:], scored[:, 1:])
    return {'embedding': self.vector_loss(compared, group)}

  def group_vectors(self, features, outputs):
    """Return the vectors of tokens of each text of each group, without those that do not count."""
    kinds, size = features.aligned['scored'], features.group
    each = [np.asarray(x, np.float32)[:len(kinds[number])][kinds[number] > 0]
            for number, x in enumerate(outputs)]
    return [each[start:start + size] for start in range(0, len(each), size)]
