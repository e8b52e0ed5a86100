"""What a model knows of language: how likely it finds texts, and which of two it finds likelier.

Part of the front door (`plm_jax.api`), whose way to say things it shares.
"""
from collections.abc import Sequence

import numpy as np

from plm_jax.api import Model, on, opened, several
from plm_jax.errors import ConfigError
from plm_jax.evaluation import minimal_pairs as pairing
from plm_jax.evaluation import pseudo, scoring
from plm_jax.evaluation.minimal_pairs import Judged, Pair
from plm_jax.evaluation.pseudo import How
from plm_jax.inference.loading import Trained


def likelihood(model: Model, texts: str | Sequence[str], how: How = 'pll', start: bool = True) -> np.ndarray:
  """Scores whole texts: by their likelihood where a model reads from left to right, by their pseudo-likelihood where it
  fills masks.

  >>> good, bad = plm_jax.likelihood('runs/bert_base-laptop', ['Returns the array.', 'Returns the the.'])

  Args:
    model: a decoder, or an encoder with a masked language model head
    texts: of a row at most, where an encoder reads them
    how: of an encoder: 'pll' masks each token in turn (Salazar et al. 2020), 'pll-word-l2r' those of its word behind
      it too (Kauf and Ivanova 2023)
    start: of a decoder: a text begins with the token that begins texts in training

  Returns:
    [N] logarithms, natural, of all tokens of a text together.

  Raises:
    CheckpointError: the model gives texts no probability.
    ConfigError: a text without tokens, or too long.
  """
  trained = opened(model)
  return np.array(scorer(trained, how, start)(several(texts)))


def minimal_pairs(model: Model, pairs: str | Sequence[tuple[str, str]], how: How = 'pll', start: bool = True,
                  limit: int = 0) -> list[Judged]:
  """Judges pairs of sentences, of which the first should be likelier than the second.

  >>> judged, = plm_jax.minimal_pairs('runs/bert_base-laptop', [('Returns the array.', 'Returns the the.')])
  >>> judged.right == (judged.good > judged.bad)
  True

  Args:
    model, how, start: as of `likelihood`
    pairs: files of BLiMP's form, by commas; or a list of two texts each
    limit: of files, pairs of a paradigm at most; 0: all

  Returns:
    The pairs with what both got, in their order; `plm_jax.evaluation.minimal_pairs` counts them by paradigm.

  Raises:
    CheckpointError: the model gives texts no probability.
    ConfigError, SourceError: a text without tokens, or too long; a file without pairs.
  """
  trained = opened(model)
  found = [*pairing.read(pairs, limit)] if isinstance(pairs, str) else [
      Pair(good, bad, 'pairs', '', '') for good, bad in pairs]
  return pairing.evaluate(scorer(trained, how, start), found)


def scorer(trained: Trained, how: How, start: bool):
  """Makes what scores texts -> a list of numbers. Raises CheckpointError, ConfigError."""
  if 'mlm' in trained.heads:
    asked = pseudo.of(trained, how)
    return lambda texts: [found.logprob for found in asked.score(texts)]
  if how != 'pll':
    raise ConfigError(f'{how} is of models that fill masks: a {trained.family} reads from left to right')
  with on(trained):
    reads = scoring.of(trained, start, trained.mesh)
  return lambda texts: [found.logprob for found in reads.score([('', text) for text in texts])]
