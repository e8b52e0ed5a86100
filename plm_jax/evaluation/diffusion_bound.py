"""Upper bound of the negative log-likelihood of texts under a masked language model.

    estimate_bound(load_model('runs/mdlm_strict'), ['A text ...'], samples=16)

A masked language model defines one autoregressive model per order of the tokens. The mean of their
negative log-likelihoods is the evidence bound of masked diffusion. It is estimated from random
masks: n of a window's L tokens are masked, n is uniform from 1 to L, and the cross-entropy of the
masked tokens has the weight L / n (LLaDA: Nie et al. 2025, equation 14; Ou et al. 2024). The
samples of a window have evenly spaced n, and the result depends on the seed and the texts alone.
"""
from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh
import numpy as np
import optax

from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.errors import ConfigError, name_field
from plm_jax.evaluation.perplexity import Perplexity, keep_texts
from plm_jax.evaluation.pseudo_likelihood import MaskedLogits, score_rows
from plm_jax.evaluation.scoring import local_mesh, replicate_params
from plm_jax.evaluation.token_losses import cut_rows
from plm_jax.inference import prompts
from plm_jax.loading.loaded_model import LoadedModel, has_shifted_targets
from plm_jax.objectives.masked_diffusion import suppress_mask

DEFAULT_SAMPLES = 16
TOKENS = 4096
"""maximum number of tokens per device and call, padding included"""
LOGITS = 1 << 26
"""maximum number of logits per device and call, which limits memory"""


@dataclasses.dataclass(frozen=True, eq=False)
class BoundEstimator:
  """Estimates the evidence bound of windows of tokens."""

  logits: Callable[[Any, dict[str, jax.Array]], jax.Array]
  """(params, batch with tokens and segments [batch, length]) -> logits [batch, length, vocab]"""
  params: Any
  vocab: Any
  """the tokenizer's `Vocab`"""
  length: int
  """maximum sequence length of the model; 0: no limit"""
  mesh: Mesh
  """the devices of the parameters; they share the batch"""
  logit_size: int
  """number of logits per token"""

  def estimate(
      self, windows: Sequence[Sequence[int]], samples: int, seed: int = 0) -> np.ndarray:
    """Estimate the bound of each window in nats, float64 [windows].

    Args:
      windows: token ids without special tokens, at least one each.
      samples: random masks per window.
      seed: random seed.
    """
    masks = [draw_masks(np.random.default_rng((seed, number)), len(window), samples)
             for number, window in enumerate(windows)]
    sizes = np.repeat([len(window) + 2 for window in windows], samples).tolist()
    room = max(1, min(TOKENS, LOGITS // self.logit_size))
    def make_batch(numbers, rows, length):
      examples = [(windows[i // samples], masks[i // samples][i % samples]) for i in numbers]
      return self.make_batch(examples, rows, length)
    def compute(*batch):
      return weighted_losses(self.logits, self.params, *batch, self.vocab.mask)
    nats = score_rows(sizes, self.length, room, self.mesh, 'sequences', make_batch, compute)
    return nats.reshape(-1, samples).mean(1)

  def make_batch(
      self, examples: Sequence[tuple[Sequence[int], np.ndarray]], rows: int, length: int,
  ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Make a batch of masked windows between [CLS] and [SEP].

    Args:
      examples: (ids, True at masked tokens) of each row, at most `rows`.
      rows: number of rows.
      length: padded length of the rows.

    Returns:
      (batch, labels, weights), the last two [rows, length].
    """
    vocab = self.vocab
    tokens = np.full((rows, length), max(vocab.pad, 0), np.int32)
    segments, labels = np.zeros_like(tokens), np.zeros_like(tokens)
    weights = np.zeros((rows, length), np.float32)
    for row, (ids, masked) in enumerate(examples):
      size = len(ids)
      tokens[row, 0], tokens[row, size + 1], segments[row, :size + 2] = vocab.cls, vocab.sep, 1
      tokens[row, 1:size + 1] = np.where(masked, vocab.mask, ids)
      labels[row, 1:size + 1] = ids
      weights[row, 1:size + 1] = masked * (size / masked.sum())
    return {'tokens': tokens, 'segments': segments}, labels, weights


def draw_masks(random: np.random.Generator, size: int, samples: int) -> np.ndarray:
  """Sample masks of a window of `size` tokens, bool [samples, size].

  The numbers of masked tokens are uniform from 1 to `size`, and stratified over the samples.
  """
  times = (random.random() + np.arange(samples)) / samples
  numbers = np.minimum(np.floor(times * size).astype(int), size - 1) + 1
  masks = np.zeros((samples, size), bool)
  for mask, number in zip(masks, numbers, strict=True):
    mask[random.permutation(size)[:number]] = True
  return masks


@functools.partial(jax.jit, static_argnums=(0, 5))
def weighted_losses(
    logits_of: Callable[[Any, Any], jax.Array], params: Any, batch: Any, labels, weights, mask: int,
) -> jax.Array:
  """Compute the weighted cross-entropy of each row, [rows]; see `BoundEstimator.logits`."""
  logits = suppress_mask(logits_of(params, batch).astype(np.float32), mask)
  return (optax.softmax_cross_entropy_with_integer_labels(logits, labels) * weights).sum(-1)


def estimate_bound(
    trained: LoadedModel, texts: Sequence[str], length: int = 0, samples: int = 0, seed: int = 0,
) -> Perplexity:
  """Estimate the perplexity bound of independent texts.

  A text that is longer than a window is cut into several, which are scored independently.

  Args:
    trained: a model of masked diffusion, or any masked language model.
    texts: the texts.
    length: tokens per window, with two special ones; 0: the model's maximum, or 514 if it has none.
    samples: random masks per window; 0: 16.
    seed: random seed.

  Raises:
    CheckpointError: the model does not fill masks.
    ConfigError: the window does not fit the model, or there is no text.
  """
  estimator = make_estimator(trained)
  texts = keep_texts(texts)
  if length and (length < 3 or (estimator.length and length > estimator.length)):
    most = f' and at most {estimator.length}' if estimator.length else ''
    raise ConfigError(f'{name_field("length")} is at least 3{most} tokens, [CLS] and [SEP] '
                      f'included, got {length}')
  assert trained.tokenizer
  room = (length or estimator.length or 514) - 2
  windows = cut_rows(trained.tokenizer.encode_batch(texts), room)
  if not windows:
    raise ConfigError('there is no token to predict: give a text')
  nats = estimator.estimate(windows, samples or DEFAULT_SAMPLES, seed)
  return Perplexity(
      nats=float(nats.sum()), tokens=sum(map(len, windows)),
      words=sum(len(text.split()) for text in texts),
      bytes=sum(len(text.encode()) for text in texts), is_bound=True)


def make_estimator(trained: LoadedModel) -> BoundEstimator:
  """Make the estimator of a masked language model, on its devices or on those of this process.

  Raises:
    CheckpointError: the model does not fill masks, or predicts tokens at other positions.
  """
  model, tokenizer = trained.model, trained.tokenizer
  usable = 'mlm' in trained.heads and not has_shifted_targets(model) and not model.cls_last
  if not usable or not tokenizer:
    lacking = 'tokenizer' if usable else 'masked language model head that predicts masks in place'
    raise CheckpointError(f'the model has no {lacking}: the bound cannot be estimated without it')
  prompts.require_tokens(tokenizer.vocab, prompts.BERT_TOKENS, 'tokens cannot be masked')
  parts = 'backbone', 'heads_mlm'
  params = trained.device_params(*parts) if trained.mesh else replicate_params(trained, *parts)
  head: nn.Module = trained.heads['mlm']
  return BoundEstimator(
      MaskedLogits(model, head), params, tokenizer.vocab, model.max_length,
      trained.mesh or local_mesh(), model.vocab)
