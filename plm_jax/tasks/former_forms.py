"""How models take labelled text: which tokens stand around it in a row, and what is read off their outputs."""
from collections.abc import Sequence
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import numpy as np

from plm_jax.config import ConfigError
from plm_jax.inference.loading import Trained
from plm_jax.layers.heads import PooledClasses, SummaryClasses
from plm_jax.objectives.seq2seq import delimiters
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.optim import OptimConfig

Ids = tuple[int, ...]
Delimiters = tuple[Ids, Ids, Ids]  # before a row's texts, between them, behind


@dataclasses.dataclass(frozen=True)
class Decoded:
  """A decoder's (Radford et al. 2018, section 3.3): [start] text [delimiter] text [extract], three tokens that are new
  where the tokenizer has none of the kind; the last one is read."""

  language: ClassVar[bool] = True
  """a row is predicted token by token besides"""
  # Section 4.1; Adam is that of pre-training.
  optim: ClassVar[OptimConfig] = OptimConfig(
      peak=6.25e-5, warmup=0, schedule='linear', eps=1e-8, bias_correction=True)
  warmup: ClassVar[float] = 0.002
  """share of the updates, where none are given"""

  def ready(self, trained: Trained, tokenizer: Tokenizer, seed: int) -> Trained:
    """Returns the model with three ids behind the vocabulary for start, delimiter and extract, where the tokenizer has
    no such tokens.

    Their vectors are drawn as those of a fresh model.
    """
    config, size = trained.model, tokenizer.vocab.size
    if found(tokenizer) or config.vocab >= size + len(SPECIALS):
      return trained
    backbone, draw = trained.params['backbone'], np.random.default_rng(seed)
    table = np.asarray(backbone['embeddings']['tokens'])
    more = config.block.init.std * draw.standard_normal((size + len(SPECIALS) - len(table), table.shape[1]))
    table = np.concatenate([table, more.astype(table.dtype)])
    params = {**trained.params, 'backbone': {**backbone, 'embeddings': {**backbone['embeddings'], 'tokens': table}}}
    if 'heads_lm' in params:
      kernel = np.asarray(params['heads_lm']['kernel'])
      params['heads_lm'] = {'kernel': np.concatenate([kernel, more.T.astype(kernel.dtype)], 1)}
    return dataclasses.replace(trained, model=dataclasses.replace(config, vocab=len(table)), params=params)

  def delimiters(self, tokenizer: Tokenizer) -> Delimiters:
    """Returns the ids of start, delimiter and extract: the tokenizer's own, or three behind its vocabulary."""
    size = tokenizer.vocab.size
    start, delimiter, extract = found(tokenizer) or range(size, size + len(SPECIALS))
    return (start,), (delimiter,), (extract,)

  def batch(self, tokens, segments, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns what the model reads besides tokens and segments [B, L]: nothing."""
    del tokens, segments, tokenizer
    return {}

  def head(self, model, classes: int, bias: bool) -> nn.Module:
    """Makes the layer that reads the state at extract -> logits [B, classes]."""
    return PooledClasses(model.block, classes, 0.0, bias)


@dataclasses.dataclass(frozen=True)
class BothSides:
  """An encoder-decoder's (Lewis et al. 2020, sections 3.1 and 3.2): encoder and decoder read the same row, <s> text
  </s></s> text </s>; the decoder's state at the last token is read, by a hidden layer, or that at every token.

  As released, the decoder's row is the encoder's shifted right: its state at a token has read those before it, and all
  of them through the encoder. Figure 3 of the paper shows no shift.
  """

  language: ClassVar[bool] = False
  # fairseq's examples/bart/README.glue.md.
  optim: ClassVar[OptimConfig] = OptimConfig(
      peak=1e-5, warmup=0, schedule='linear', b2=0.98, eps=1e-8, bias_correction=True, clip=0.0)
  warmup: ClassVar[float] = 0.06

  def ready(self, trained: Trained, tokenizer: Tokenizer, seed: int) -> Trained:
    """Returns the model as it is: BART's tokenizer has all tokens of its rows."""
    del tokenizer, seed
    return trained

  def delimiters(self, tokenizer: Tokenizer) -> Delimiters:
    """Returns the ids of <s>, </s></s> and </s>. Raises ConfigError where the tokenizer lacks one."""
    try:
      before, behind, _ = delimiters(tokenizer.vocab)
    except ValueError as error:
      raise ConfigError(str(error)) from error
    return before, behind * 2, behind

  def batch(self, tokens, segments, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the decoder's rows: those of the encoder, tokens and segments [B, L], shifted right."""
    shifted = np.roll(tokens, 1, 1)
    shifted[:, 0] = delimiters(tokenizer.vocab)[2]
    return {'decoder_tokens': shifted * segments, 'decoder_segments': segments}

  def head(self, model, classes: int, bias: bool) -> nn.Module:
    """Makes the hidden layer and the one over it that read the last token's state -> logits [B, classes]."""
    del bias
    return SummaryClasses(model.block, classes, dropout=0.0)


FORMS = {'decoder': Decoded(), 'encoder-decoder': BothSides()}  # by the kind of the architecture
SPECIALS = ('bos', 'sep', 'cls')  # what start, delimiter and extract are, where a tokenizer has them


def form_of(model: Any) -> Decoded | BothSides:
  """Returns the form for a model with this configuration. Raises ConfigError for one that takes labelled text in
  neither."""
  if model.kind in FORMS:
    return FORMS[model.kind]
  kind = 'a GLM, which is asked by a blank (plm_jax.evaluation.cloze)' if model.kind == 'infilling' else (
      f'an encoder ({type(model).__name__})')
  raise ConfigError(f"rows of labelled text are made as GPT has them, for a decoder, or as BART has them, for an "
                    f'encoder-decoder; the model is {kind}')


def found(tokenizer: Tokenizer) -> Ids:
  """Returns the ids of start, delimiter and extract, or none: they have to differ."""
  ids = tuple(getattr(tokenizer.vocab, role) for role in SPECIALS)
  return ids if min(ids) >= 0 and len(set(ids)) == len(ids) else ()


def row(parts: Sequence[list[int]], delimiters: Delimiters, length: int) -> list[int]:
  """Puts texts in a row with what stands around them: at most `length` ids. The longer text loses its end first."""
  before, between, behind = delimiters
  parts = [list(part) for part in parts]
  room = length - len(before) - len(behind) - len(between) * (len(parts) - 1)
  while sum(map(len, parts)) > room:
    max(parts, key=len).pop()
  return [*before, *parts[0], *(i for part in parts[1:] for i in (*between, *part)), *behind]
