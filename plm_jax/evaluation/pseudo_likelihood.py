"""Pseudo-log-likelihood of texts by a masked language model.

    scorer = make_pseudo_scorer(load_model('runs/bert_base'))
    scorer.score(['The cat sat on the mat.'])

Each token is masked, one at a time, and predicted from all others. The sum of the log probabilities
is the pseudo-log-likelihood (Salazar et al. 2020, section 2). A token of a long word is easily
predicted from the later tokens of the word, so rare long words get too high a score. Therefore
'pll-word-l2r' masks these tokens too (Kauf and Ivanova 2023, section 3).
"""
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
from jax.sharding import Mesh
import numpy as np
import optax

from plm_jax import progress
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.data.bucketing import row_steps, split_by_length
from plm_jax.errors import ConfigError, check_finite
from plm_jax.evaluation.scoring import local_mesh, replicate_params
from plm_jax.inference import prompts
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading.loaded_model import LoadedModel, has_shifted_targets
from plm_jax.objectives.masked_diffusion import suppress_mask
from plm_jax.sharding import batch_sharding
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import boundary_ids
from plm_jax.validation import short_repr

MaskingMode = Literal['pll', 'pll-word-l2r', 'causal']
"""what is masked besides the predicted token: pll: nothing; pll-word-l2r: later tokens of its word;
causal: nothing is masked, and tokens are predicted from those before them, by `scoring`"""


class PseudoScore(NamedTuple):
  """The pseudo-log-likelihood of a text."""

  logprob: float
  """sum over all tokens, in nats"""
  tokens: int
  """number of predicted tokens"""


@dataclasses.dataclass(frozen=True, eq=False)
class PseudoScorer:
  """Computes pseudo-log-likelihoods with an encoder."""

  logits: Callable[[Any, dict[str, jax.Array]], jax.Array]
  """(params, batch with tokens and segments [batch, length] and positions [batch, 1]) -> logits
  [batch, 1, vocab]"""
  params: Any
  tokenizer: Tokenizer
  length: int
  """maximum sequence length of the model; 0: no limit"""
  cls_last: bool
  """sequences end with [CLS] (XLNet)"""
  shifted: bool
  """a token is predicted at the position before it, and sequences have no [SEP] (GPT-BERT)"""
  mesh: Mesh
  """the devices of the parameters; they share the batch"""
  masking: MaskingMode = 'pll'
  tokens: int = 4096
  """maximum number of tokens per device and call, padding included"""

  def score(self, texts: Sequence[str]) -> list[PseudoScore]:
    """Score texts, those of similar length together.

    Raises:
      ConfigError: a text has no tokens or is too long.
    """
    return [PseudoScore(float(logprobs.sum()), len(logprobs))
            for logprobs in self.token_logprobs(self.encode(texts))]

  def token_logprobs(
      self, ids: Sequence[Sequence[int]], firsts: Sequence[int] = ()) -> list[np.ndarray]:
    """Compute the log probability of each token of texts, float64 [tokens] per text.

    Args:
      ids: the ids of each text, without special tokens.
      firsts: number of tokens at the beginning of each text that are not predicted; they get 0.
        None given: all tokens are predicted.
    """
    found = [np.zeros(len(text)) for text in ids]
    # One row per token of a text: (text, position).
    masked = [(number, place) for number, text in enumerate(ids)
              for place in range(firsts[number] if firsts else 0, len(text))]
    sizes = [len(ids[number]) + self.specials for number, _ in masked]
    def make_batch(numbers, rows, length):
      return self.make_batch(ids, [masked[number] for number in numbers], rows, length)
    compute = functools.partial(compute_target_logprobs, self.logits, self.params)
    scores = score_rows(
        sizes, self.length, self.tokens, self.mesh, 'tokens', make_batch, compute)
    for (number, place), logprob in zip(masked, scores, strict=True):
      found[number][place] = logprob
    return found

  @property
  def specials(self) -> int:
    """Number of special tokens per sequence."""
    return 1 if self.shifted else 2

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts without special tokens. Raises ConfigError for a text that cannot be scored."""
    prompts.check_prompts(texts, 'give a text to score')
    ids = self.tokenizer.encode_batch(texts)
    self.check_lengths(texts, ids)
    return ids

  def check_lengths(self, texts: Sequence[str], ids: Sequence[Sequence[int]]) -> None:
    """Check that each text can be scored. Raises ConfigError for one that cannot."""
    for text, some in zip(texts, ids, strict=True):
      if not some:
        raise ConfigError(f'nothing to score: {short_repr(text)!r} has no token')
      if self.length and len(some) + self.specials > self.length:
        extra = 'a special one' if self.shifted else 'two special ones'
        raise ConfigError(f'{short_repr(text)!r} has {len(some)} tokens, and the model reads '
                          f'{self.length - self.specials} plus {extra}')

  def make_batch(
      self, ids: Sequence[Sequence[int]], masked: Sequence[tuple[int, int]], rows: int, length: int,
  ) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Make a batch with one row per masked token.

    Args:
      ids: the ids of all texts.
      masked: (text, position) of each masked token, at most `rows`.
      rows: number of rows.
      length: padded length of the rows.

    Returns:
      (batch, target ids [rows]).
    """
    vocab = self.tokenizer.vocab
    before, after = prompts.encoder_delimiters(vocab, self.cls_last)
    if self.shifted:
      before, after = [boundary_ids(vocab)[0]], []
    whole, targets, positions = [], np.zeros(rows, np.int32), np.zeros((rows, 1), np.int32)
    for row, (number, place) in enumerate(masked):
      text, end = ids[number], self.hidden(ids[number], place)
      hidden = [vocab.mask] * (end - place)
      whole.append(before + list(text[:place]) + hidden + list(text[end:]) + after)
      positions[row], targets[row] = len(before) + place - self.shifted, text[place]
    batch = prompts.make_batch(whole, length, max(vocab.pad, 0), rows, self.cls_last)
    return batch | {'positions': positions}, targets

  def hidden(self, text: Sequence[int], place: int) -> int:
    """Return the end of the masked tokens when the token at `place` is predicted."""
    end = place + 1
    if self.masking == 'pll-word-l2r':
      while end < len(text) and not self.tokenizer.starts_word[text[end]]:
        end += 1
    return end


def score_rows(
    sizes: Sequence[int], longest: int, tokens: int, mesh: Mesh, unit: str,
    make_batch: Callable[[list[int], int, int], Any], compute: Callable[..., jax.Array]
) -> np.ndarray:
  """Compute a score of each row, float64 [rows]; rows of similar length are read together.

  Args:
    sizes: tokens of each row.
    longest: maximum sequence length of the model; 0: no limit.
    tokens: maximum number of tokens per device and call, padding included.
    mesh: the devices of the parameters; they share the batch.
    unit: what a progress bar counts.
    make_batch: (numbers of rows, size of the batch, length) -> arrays of a batch.
    compute: arrays of a batch -> scores [size].
  """
  scores = np.zeros(len(sizes))
  with progress.progress_bar(unit, len(sizes)) as done:
    for length, size, numbers in split_by_length(
        sizes, longest, tokens, mesh.size, row_steps()):
      batch = jax.device_put(make_batch(numbers, size, length), batch_sharding(mesh))
      with jax.set_mesh(mesh) if mesh.size > 1 else contextlib.nullcontext():
        found = compute(*batch)
      scores[numbers] = check_finite(np.asarray(found, np.float64)[:len(numbers)])
      done.update(len(numbers))
  return scores


@functools.partial(jax.jit, static_argnums=0)
def compute_target_logprobs(
    logits_of: Callable[[Any, Any], jax.Array], params: Any, batch: Any, targets,
) -> jax.Array:
  """Compute the log probabilities [rows] of the masked tokens `targets` [rows].

  logits_of: see `PseudoScorer.logits`.
  """
  logits = logits_of(params, batch)[:, 0].astype(np.float32)
  return -optax.softmax_cross_entropy_with_integer_labels(logits, targets)


@dataclasses.dataclass(frozen=True)
class MaskedLogits:
  """The logits of a masked language model, as a hashable value (see `PseudoScorer.logits`)."""

  model: Any
  """configuration of the backbone"""
  head: nn.Module
  suppressed: int | None = None
  """id that is never predicted: that of [MASK] for masked diffusion, which does not train its
  logit"""

  def __call__(self, params: Any, batch: Any) -> jax.Array:
    model = ModelWithHeads(self.model.backbone(), {'mlm': self.head})
    outputs: Any = model.apply({'params': params}, batch)
    if self.suppressed is None:
      return outputs['mlm']
    return suppress_mask(outputs['mlm'], self.suppressed)


def make_pseudo_scorer(trained: LoadedModel, how: MaskingMode = 'pll') -> PseudoScorer:
  """Make the scorer of an encoder, on the devices of its mesh or on all devices of this process.

  Raises:
    CheckpointError: the model cannot fill masks.
  """
  tokenizer = trained.tokenizer
  if 'mlm' not in trained.heads or not tokenizer:
    lacking = 'tokenizer' if 'mlm' in trained.heads else 'masked language model head'
    raise CheckpointError(f'the model has no {lacking}: a pseudo-likelihood cannot be computed '
                          'without it')
  prompts.require_tokens(tokenizer.vocab, prompts.BERT_TOKENS, 'tokens cannot be masked')
  parts, model = ('backbone', 'heads_mlm'), trained.model
  params = trained.device_params(*parts) if trained.mesh else replicate_params(trained, *parts)
  suppressed = tokenizer.vocab.mask if trained.generates_by_unmasking else None
  return PseudoScorer(
      MaskedLogits(model, trained.heads['mlm'], suppressed), params, tokenizer, model.max_length,
      model.cls_last, has_shifted_targets(model), trained.mesh or local_mesh(), how)
