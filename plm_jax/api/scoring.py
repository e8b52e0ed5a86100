"""Public API for likelihoods of continuations, and for perplexity.

See `plm_jax.api.models` for what all functions share.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from plm_jax.api.models import Model, ensure_loaded, mesh_context
from plm_jax.errors import ConfigError

# Other modules are imported by the function that needs them: all together take a second.
if TYPE_CHECKING:
  from plm_jax.evaluation.perplexity import Perplexity


def score(model: Model, pairs: Sequence[tuple[str, str]], start: bool = True) -> np.ndarray:
  """Compute log-likelihoods of continuations, or of the fillers of blanks.

  >>> pairs = [('Returns the', ' array'), ('Returns the', ' giraffe')]
  >>> plm_jax.score('runs/gpt2_small-laptop', pairs).tolist()
  [-..., -...]

  Args:
    model: a decoder, or a GLM
    pairs: (context, continuation), where the context may be empty; for a GLM (text with one blank,
      filler)
    start: whether a text begins with the token that begins texts in training

  Returns:
    [N] natural log-likelihoods, summed over the tokens of each continuation.
    `plm_jax.evaluation.scoring` has more detail.

  Raises:
    CheckpointError: the model gives no likelihood for text.
    ConfigError: a continuation without tokens.
  """
  from plm_jax.evaluation import scoring
  from plm_jax.inference import glm_infill
  trained = ensure_loaded(model)
  with mesh_context(trained):
    if trained.model.kind == 'infilling':
      return glm_infill.score_blanks(trained, pairs)
  scorer = scoring.make_scorer(trained, start, trained.mesh)
  return np.array([found.logprob for found in scorer.score(pairs)])


def perplexity(
    model: Model, texts: str | Sequence[str], length: int = 0, stride: int = 0, start: bool = True,
    samples: int = 0, seed: int = 0,
) -> Perplexity:
  """Measure the perplexity of texts under a decoder, by a sliding window.

  For a model of masked diffusion it is an upper bound, estimated from random masks of windows that
  do not overlap.

  >>> found = plm_jax.perplexity('runs/gpt2_small-laptop', 'corpus.txt', length=32)
  >>> print(f'per token {found.per_token:.1f}, per byte {found.per_byte:.1f}')
  per token ..., per byte ...

  Args:
    model: a decoder, or a model of masked diffusion
    texts: files and globs, separated by commas, where each file is a text, and each line of a
      .jsonl file; or a list of texts
    length: tokens per window; 0: as many as the model reads
    stride: tokens between the starts of two windows; 0: half of the length
    start: whether a text begins with the token that begins texts in training; without it, the
      first token of a text is not predicted
    samples: random masks per window of a masked language model; 0: 16 for a model of masked
      diffusion. With a number, any masked language model is measured
    seed: random seed of the masks

  Returns:
    Perplexity per token, per word and per byte, and their counts.

  Raises:
    CheckpointError: the model gives no likelihood for text.
    ConfigError, SourceError: a window that does not fit, missing files, or texts with nothing to
      predict.
  """
  from plm_jax.evaluation import diffusion_bound, scoring
  from plm_jax.evaluation import perplexity as sliding
  trained = ensure_loaded(model)
  masked = trained.generates_by_unmasking or samples != 0
  if masked and trained.lm_head_name:
    raise ConfigError('samples is for masked language models, and this model predicts next tokens: '
                      'leave samples out')
  if masked and (stride or not start or samples < 0):
    raise ConfigError('a masked language model is measured on windows that do not overlap, with 1 '
                      f'sample or more: leave stride and start out (got stride {stride}, start '
                      f'{start}, samples {samples})')
  if not masked:
    scorer = scoring.make_scorer(trained, start, trained.mesh)
  if isinstance(texts, str):
    texts = sliding.read_texts(texts)
  if masked:
    return diffusion_bound.estimate_bound(trained, texts, length, samples, seed)
  return sliding.perplexity(scorer, texts, length, stride)
