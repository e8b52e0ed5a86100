"""Batches of a fine-tuning run, and the evaluation of its development sets."""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import conversion, sharding
from plm_jax.architectures import Output
from plm_jax.config.run import FinetuneRun
from plm_jax.distributed import hosts
from plm_jax.finetuning.augmentation import make_augmented_batches
from plm_jax.finetuning.predict import compute_outputs, put_on_mesh
from plm_jax.finetuning.word_vectors import set_word_vectors
from plm_jax.layers.heads import pool_texts
from plm_jax.models.families import own_pooling
from plm_jax.tasks.batches import BatchShape, FeatureBatches
from plm_jax.tasks.features import Features
from plm_jax.tasks.labeled_data import LabeledDataset
from plm_jax.tasks.regularizers import Plain
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.feed import Feed
from plm_jax.training.step import Learner


def document_frequencies(features: Features, vocab: int) -> np.ndarray:
  """Compute the inverse document frequency of each token [vocab] in the documents of examples.

  It is that of BM25. The first text of an example is its query.
  """
  numbers = np.arange(len(features))
  places = numbers % features.group
  documents = numbers[(places > 0) & (places < features.values['real'])]
  counts = np.zeros(vocab)
  for number in documents:
    counts[np.unique(features.tokens[number])] += 1
  return np.log(1 + (len(documents) - counts + 0.5) / (counts + 0.5))


class LabeledFeed(Feed):
  """Batches of training examples, and development sets evaluated by the task's metrics."""

  def __init__(
      self, config: FinetuneRun, train: LabeledDataset, dev: Mapping[str, LabeledDataset],
      tokenizer: Tokenizer, mesh):
    """Make the batches of training examples.

    Args:
      config: of the run.
      train: training examples.
      dev: development sets by name; metrics of a named set have the prefix NAME_.
      tokenizer: of the run.
      mesh: of devices.
    """
    self.config, self.train, self.dev = config, train, dev
    self.tokenizer, self.mesh = tokenizer, mesh
    self.phase = config.train.phases[0]
    data, shape = config.data, self.shape(config.train.accumulate, config.data.pack)
    if data.augment.share:
      self.batches: FeatureBatches = make_augmented_batches(config, train, tokenizer, shape)
    else:
      self.batches = FeatureBatches(train.features, shape, config.seed, data.by_length)

  def shape(self, accumulate: int, pack: bool) -> BatchShape:
    """Return the layout of rows, for the given number of gradient accumulation steps."""
    shards = sharding.count_batch_shards(self.mesh)
    pad = max(self.tokenizer.vocab.pad, 0)
    return BatchShape(self.phase.batch, self.phase.length, shards * accumulate, pad, pack)

  def first_window(self):
    return self.batches.batch(0)[0]

  def on_start(self, learner, params, mesh):
    """Cache the features of the training examples if the backbone is frozen."""
    self.batches = self.with_cached_features(self.batches, learner, params)

  def prepare_params(self, params):
    """Set the initial word vectors of a task on an ELMo, or the weights of query tokens."""
    task: Any = self.config.objective
    if 'query_tokens' in self.train.features.values:
      weights = document_frequencies(self.train.features, task.vector.size(self.config.model))
      head = params['heads_embedding']
      old = head['query_weights']
      weights = jax.device_put(weights.astype(old.dtype), old.sharding)
      return {**params, 'heads_embedding': {**head, 'query_weights': weights}}
    return set_word_vectors(task, self.tokenizer, params)

  def with_cached_features(
      self, batches: FeatureBatches, learner: Learner, params: Any) -> FeatureBatches:
    """Return batches with cached features if the backbone is frozen, unchanged ones otherwise."""
    if not backbone_frozen(self.config):
      return batches
    return cache_features(batches, self.config, learner, params, self.mesh)

  def stream(self, start, mesh):
    """Yield batches from step `start`, with as many rows and tokens as each needs."""
    for step in range(start, self.phase.steps):
      windows = self.batches.batch(step)[0]
      *rows, length = windows['tokens'].shape
      phase = dataclasses.replace(self.phase, batch=int(np.prod(rows)), length=length)
      yield step, phase, put_on_mesh(windows, mesh)

  def make_evaluator(self, learner, mesh):
    outputs, cached = compile_forward(learner), {}
    def evaluate(params, phase) -> dict[str, float]:
      figures: dict[str, float] = {}
      task: Any = self.config.objective
      for name, data in self.dev.items():
        if name not in cached:
          batches = FeatureBatches(data.features, self.shape(1, self.config.data.pack))
          cached[name] = self.with_cached_features(batches, learner, params)
        found, losses = compute_outputs(outputs, params, cached[name], mesh, task.output_unit)
        predictions = task.predict(data.examples, data.features, found)
        values = task.scores(data.examples, predictions)
        if task.head in losses:
          values['loss'] = losses[task.head]
        prefix = f'{name}_' if name else ''
        figures |= {f'{prefix}{figure}': value for figure, value in values.items()}
      return hosts.broadcast(figures, 'figures of the development sets')
    return evaluate

  def read_batch(self, step):
    return self.batches.batch(step)[0]

  def record(self):
    digests = {'training': self.train.features.digest}
    for name, data in self.dev.items():
      digests[f'development {name}'.strip()] = data.features.digest
    return {'digests': digests}

  def describe_batch(self, step):
    """List the numbers of the examples of a batch."""
    placement = self.batches.batch(step)[1]
    examples = np.unique(self.batches.features.example[placement.number])
    return f'the training examples {np.array2string(examples, max_line_width=100, threshold=32)}'

  @property
  def evaluates_start(self):
    return bool(self.dev)

  def epochs(self, done):
    """Divide the steps by those of an epoch."""
    return done / self.batches.steps


def compile_forward(learner: Learner) -> Callable[[Any, Any], Any]:
  """Make a jitted function(params, windows) -> (losses, head outputs), without dropout."""
  objective: Any = learner.objective
  def outputs(params, windows):
    batch = objective.corrupt(learner.key('evaluation'), windows, learner.vocab)
    found: Any = learner.model.apply({'params': params}, batch)
    return objective.heldout(found, batch), objective.task.prediction_inputs(found)
  return jax.jit(outputs)


def backbone_frozen(config: FinetuneRun) -> bool:
  """Tell whether the backbone's outputs are constant during the run and all that the loss needs."""
  task, tuning, data = config.objective, config.tuning, config.data
  is_frozen = tuning.top == 0 and tuning.adapter.kind == 'none' and not config.optim.only
  needs_model = task.auxiliary > 0 or not isinstance(task.regularizer, Plain)
  changes_rows = data.augment.share or data.pack or task.output_unit == 'row'
  # Heads that read every token of a text, or the tokens of an encoder next to a decoder.
  model: Any = config.model
  if task.output_unit == 'slot':
    needs_model |= model.kind != 'recurrent' and model.head.pooling == 'late'
  else:
    needs_model |= model.kind == 'encoder-decoder'
  if not data.cache or not is_frozen or needs_model or changes_rows:
    return False
  return not conversion.uses_verbalizer(config.family, task.head)


@dataclasses.dataclass(frozen=True, eq=False)
class CachedFeatures(FeatureBatches):
  """Batches with cached backbone outputs, so that the backbone does not run again."""

  vectors: Sequence[np.ndarray] = ()
  """per feature: [2, D], hidden state and pooled state of the summary token, or twice the pooled
  tokens (slots); [tokens, ...], what the task caches of each token (tokens)"""
  task: Any = None

  def lay_out(self, units):
    """Lay out units [n] as a batch with `output`; slots have only their values in addition."""
    batch, placement = super().lay_out(units)
    if self.task.feature_cache.unit == 'token':
      states = np.zeros((*batch['tokens'].shape, *self.vectors[0].shape[1:]), np.float32)
      for row, number in zip(placement.row, placement.number, strict=True):
        states[row, :len(self.vectors[number])] = self.vectors[number]
      return batch | {'output': self.task.feature_cache.make_output(states)}, placement
    # Rows of one token, the summary token.
    rows, size = len(batch['weight']), self.vectors[0].shape[-1]
    states = np.zeros((rows, 2, 1, size), np.float32)
    states[placement.row, :, 0] = np.stack([self.vectors[number] for number in placement.number])
    kept = {name: x for name, x in batch.items() if name != 'types'}
    kept['tokens'], kept['segments'] = np.zeros((rows, 1), np.int32), np.ones((rows, 1), np.int32)
    kept['extract'] = np.zeros_like(batch['extract'])
    kept['output'] = Output(states[:, 0], states[:, 1], None)  # pyright: ignore
    return kept, placement


def cache_features(
    batches: FeatureBatches, config: FinetuneRun, learner: Learner, params: Any, mesh
) -> CachedFeatures:
  """Run the frozen backbone on all features once, and cache its outputs."""
  task = config.objective
  @jax.jit
  def outputs(params, windows):
    batch = learner.objective.corrupt(learner.key('evaluation'), windows, learner.vocab)
    output: Any = config.model.backbone(config.data.several_texts).apply({'params': params}, batch)
    if task.feature_cache.unit == 'token':
      return {}, task.feature_cache.states(output)
    model: Any = config.model
    if model.head.pooling != own_pooling(model):
      summary = pool_texts(output, batch, model.head.pooling)
      return {}, jnp.stack([summary, summary], 2)
    summary = jnp.take_along_axis(output.hidden, batch['extract'][..., None], 1)
    pooled = summary if output.pooled is None else output.pooled
    return {}, jnp.stack([summary, pooled], 2)
  plain = FeatureBatches(batches.features, batches.shape)
  vectors, _ = compute_outputs(outputs, params['backbone'], plain, mesh, task.feature_cache.unit)
  return CachedFeatures(
      batches.features, batches.shape, batches.seed, batches.by_length, vectors, task)
