"""How likely an encoder finds a text: each token is masked in turn, and predicted from all others.

    scorer = pseudo.of(loading.load('runs/bert_base'))
    scorer.score(['The cat sat on the mat.'])

The sum of these logarithms is the pseudo-log-likelihood (Salazar et al. 2020, section 2). A token of a word of several
is easily guessed from those behind it, so that rare long words come out too likely; in 'pll-word-l2r' these are masked
too (Kauf and Ivanova 2023, section 3).
"""
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
from tqdm import tqdm

from plm_jax.checked import shortened
from plm_jax.config import ConfigError
from plm_jax.inference import prompts
from plm_jax.inference.batches import by_length
from plm_jax.inference.loading import Trained, shifted
from plm_jax.layers.heads import WithHeads
from plm_jax.objectives.clm import boundaries
from plm_jax.sharding import MeshConfig, batch_sharding, make_mesh
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.checkpoint import CheckpointError

How = Literal['pll', 'pll-word-l2r', 'causal']
"""what is masked beside the token that is predicted: nothing; the tokens of its word that follow it. causal: none is
masked, and it is predicted from those before it, by `scoring`"""


class Pseudo(NamedTuple):
  """What a text got."""

  logprob: float
  """nats, of all its tokens together"""
  tokens: int
  """how many were predicted"""


@dataclasses.dataclass(frozen=True, eq=False)
class PseudoScorer:
  """An encoder, asked for every token of a text."""

  logits: Callable[[Any, dict[str, jax.Array]], jax.Array]
  """(params, batch of tokens, segments [B, L] and positions [B, 1]) -> [B, 1, V]"""
  params: Any
  tokenizer: Tokenizer
  length: int
  """the longest row that the model reads, in tokens; 0: any"""
  cls_last: bool
  """rows end with [CLS] (XLNet)"""
  shifted: bool
  """a token is predicted where the one before it stands, and rows have no [SEP] at their end (GPT-BERT)"""
  mesh: Mesh
  """the devices that share the rows of a call, and where the parameters are"""
  how: How = 'pll'
  tokens: int = 4096
  """read by a device in one call, padding included, at most"""

  def score(self, texts: Sequence[str]) -> list[Pseudo]:
    """Scores texts, those of like length together. Raises ConfigError for one without tokens, or too long."""
    return [Pseudo(float(some.sum()), len(some)) for some in self.by_token(self.encode(texts))]

  def by_token(self, ids: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Scores texts, given as their ids without special tokens -> the logarithm of each token's probability, float64."""
    found = [np.zeros(len(some)) for some in ids]
    specials, devices = self.specials, self.mesh.size
    sizes = [len(some) + specials for some in ids]
    with tqdm(total=sum(map(len, ids)), unit=' tokens', disable=None, leave=False) as progress:
      for length, numbers in sorted(by_length(sizes, self.length, self.tokens * devices).items()):
        for rows, batch, targets in self.calls(ids, numbers, length, devices * max(1, self.tokens // length)):
          batched = jax.device_put((batch, targets), batch_sharding(self.mesh))
          with jax.set_mesh(self.mesh) if self.mesh.size > 1 else contextlib.nullcontext():
            scores = np.asarray(self._call(self.params, *batched), np.float64)
          for (number, place), logprob in zip(rows, scores, strict=False):
            found[number][place] = logprob
          progress.update(len(rows))
    return found

  @property
  def specials(self) -> int:
    """Special tokens of a row."""
    return 1 if self.shifted else 2

  def encode(self, texts: Sequence[str]) -> list[list[int]]:
    """Encodes texts, without special tokens. Raises ConfigError for one that cannot be scored."""
    prompts.check(texts, 'give a text to score')
    ids = self.tokenizer.encode_batch(texts)
    for text, some in zip(texts, ids, strict=True):
      if not some:
        raise ConfigError(f'nothing to score: {shortened(text)!r} has no token')
      if self.length and len(some) + self.specials > self.length:
        raise ConfigError(f'{shortened(text)!r} has {len(some)} tokens, and the model reads '
                          f'{self.length - self.specials} beside {"a" if self.shifted else "two"} special one'
                          f'{"" if self.shifted else "s"}')
    return ids

  def calls(self, ids: Sequence[Sequence[int]], numbers: Sequence[int], length: int, size: int
            ) -> Iterator[tuple[list[tuple[int, int]], dict[str, np.ndarray], np.ndarray]]:
    """Yields calls of `size` rows of `length` tokens, one for each token of the texts of these numbers -> (text and
    place of each row, batch, tokens to predict [size])."""
    vocab, before = self.tokenizer.vocab, 0 if self.cls_last else 1
    asked = [(number, place) for number in numbers for place in range(len(ids[number]))]
    for begin in range(0, len(asked), size):
      some = asked[begin:begin + size]
      tokens = np.full((size, length), max(vocab.pad, 0), np.int32)
      segments, positions = np.zeros_like(tokens), np.zeros((size, 1), np.int32)
      targets = np.zeros(size, np.int32)
      for row, (number, place) in enumerate(some):
        text = ids[number]
        end = before + len(text)
        tokens[row, before:end] = text
        tokens[row, before + place:before + self.hidden(text, place)] = vocab.mask
        tokens[row, end:end + self.specials - before] = [vocab.sep, vocab.cls][:self.specials - before]
        tokens[row, :before] = boundaries(vocab)[0] if self.shifted else vocab.cls
        segments[row, :len(text) + self.specials] = 1
        positions[row], targets[row] = before + place - self.shifted, text[place]
      yield some, dict(
          tokens=tokens, segments=segments, positions=positions), targets

  def hidden(self, text: Sequence[int], place: int) -> int:
    """Returns the place behind the last token that is masked where that of `place` is predicted."""
    end = place + 1
    while self.how == 'pll-word-l2r' and end < len(text) and not self.tokenizer.starts_word[text[end]]:
      end += 1
    return end

  @functools.cached_property
  def _call(self):
    def call(params, batch, targets):
      logits = self.logits(params, batch)[:, 0].astype(np.float32)
      return jax.numpy.take_along_axis(logits, targets[:, None], 1)[:, 0] - jax.nn.logsumexp(logits, -1)
    return jax.jit(call)


def of(trained: Trained, how: How = 'pll') -> PseudoScorer:
  """Makes the scorer of a trained encoder, on the devices that have its parameters, or a copy on each of this
  process.

  Raises CheckpointError for a model that fills no masks.
  """
  tokenizer = trained.tokenizer
  if 'mlm' not in trained.heads or not tokenizer:
    lacking = 'tokenizer' if 'mlm' in trained.heads else 'masked language model head'
    raise CheckpointError(f'the model has no {lacking}: a pseudo-likelihood cannot be computed without it')
  if lacking := [f'[{role.upper()}]' for role in ('mask', 'cls', 'sep') if getattr(tokenizer.vocab, role) < 0]:
    raise CheckpointError(f'the tokenizer has no {" and no ".join(lacking)}: tokens cannot be masked')
  module = WithHeads(trained.model.backbone(), {'mlm': trained.heads['mlm']})

  def logits(params, batch):
    outputs: Any = module.apply({'params': params}, batch)
    return outputs['mlm']

  params = {name: trained.params[name] for name in ('backbone', 'heads_mlm') if name in trained.params}
  mesh = trained.mesh
  if mesh is None:
    mesh = make_mesh(MeshConfig(), jax.local_devices())
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
  model = trained.model
  return PseudoScorer(logits, params, tokenizer, model.max_length, model.cls_last, shifted(model), mesh, how)
