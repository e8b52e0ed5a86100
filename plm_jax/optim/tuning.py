"""Fine-tuning strategies: frozen layers, re-initialized layers, adapters, expansion of a smaller
model."""
import dataclasses
from typing import Any, Literal

from plm_jax.optim.adapters import AdapterConfig
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class TuningConfig(ValidatedConfig):
  """Strategies of fine-tuning that do not belong to the optimizer."""

  limits = intervals(top='[-1, inf)')
  counts_with = dict.fromkeys(
      ('source_vectors', 'target_vectors', 'dictionary'), ('vocabulary', ('wechsel',)))

  top: int = -1
  """Number of layers below the head, from the top, that are trained. 0: none, the backbone is
  frozen. -1: all parameters are trained."""
  reinitialize: int = 0
  """Number of top layers, with the pooler, that are re-initialized after a warm start (Zhang et al.
  2021)."""
  expand: Literal['none', 'tile'] = 'none'
  """How a warm start from a smaller model of the same architecture fills this model. `tile` repeats
  each weight along its axes from the middle, and layer i of N starts from layer round(i n / N) of
  the n layers of the smaller model (ModernBERT large: Warner et al. 2024, section 2.2). Models of
  the same size are copied either way."""
  vocabulary: Literal['mean', 'focus', 'wechsel'] = 'mean'
  """How pre-training that starts from a model with another tokenizer initializes token embeddings
  and output weights. Tokens of both vocabularies are copied. Others start from the mean of the
  tokens of their text (`mean`), or from a mixture of copied tokens by the similarity of fastText
  vectors, which are trained on the text first (`focus`: FOCUS, Dobler and de Melo 2023). `wechsel`
  is for another language: all tokens but special ones start from the ten old tokens that are
  nearest by word vectors of both languages (Minixhofer et al. 2022)."""
  source_vectors: str = ''
  """word vectors of the old language, for `wechsel`: a run, or a file of fastText, word2vec or
  GloVe"""
  target_vectors: str = ''
  """word vectors of the new language"""
  dictionary: str = ''
  """Bilingual dictionary that aligns the vectors of both languages: lines with a word of the old
  language, a tab and its translation. Default: the vectors are aligned already."""
  moments: bool = False
  """Whether a warm start also takes over the moments of Adam and the number of its updates: from a
  run, or from a checkpoint of Composer (a file .pt next to the config.json and the tokenizer of the
  released model). The learning-rate schedule starts again. False: the optimizer state is new."""
  decoder: str = ''
  """Adaptation of decoders to an encoder-decoder (T5Gemma: Zhang et al. 2025): the decoder starts
  from this model, and the encoder from the warm start, which may be the same model. The new model
  has the architecture and the sizes of these models. Cross-attention starts from self-attention, or
  at random if the widths differ. Empty: no adaptation; the warm start has the architecture of the
  run."""
  adapter: AdapterConfig = AdapterConfig()
  """Adapters that are trained with the head, while the pre-trained weights stay frozen."""

  def conflict(self, option):
    if self.vocabulary == 'wechsel' and not (self.source_vectors and self.target_vectors):
      return (f'{option("vocabulary")}=wechsel needs {option("source_vectors")} and '
              f'{option("target_vectors")}')
    if self.reinitialize and (self.adapter.kind != 'none' or 0 <= self.top < self.reinitialize):
      return (f'{option("reinitialize")} makes {self.reinitialize} layers start at random, but '
              'they are not all trained')
    changes = self.reinitialize or self.expand != 'none' or self.adapter.kind != 'none'
    if self.moments and changes:
      return (f'{option("moments")} is for parameters that are all taken over: leave out '
              f'{option("reinitialize")}, {option("expand")} and {option("adapter.kind")}')
    if self.decoder and (changes or self.moments):
      return (f'{option("decoder")} is for parameters alone: leave out {option("moments")}, '
              f'{option("reinitialize")}, {option("expand")} and {option("adapter.kind")}')
    if self.top >= 0 and self.adapter.kind != 'none':
      return (f'{option("top")} says which layers are trained, {option("adapter.kind")} that none '
              'are: leave out one')
    return None


def freeze_lower_layers(model: Any, top: int) -> Any:
  """Return the configuration of a backbone whose backward pass ends below its `top` layers.

  Backbones with shared layers are left as they are: the shared layers are trained.

  Args:
    model: configuration of the backbone.
    top: number of trained layers; below 1 there is no backward pass to cut.
  """
  if top < 1:
    return model
  name = 'stack'
  if model.kind == 'encoder-decoder' and model.decoder.blocks:
    if top > model.decoder.blocks:
      top -= model.decoder.blocks
    else:
      name = 'decoder'
  stack = getattr(model, name)
  if stack.groups:
    return model
  frozen = max(0, stack.blocks - top)
  return dataclasses.replace(model, **{name: dataclasses.replace(stack, frozen=frozen)})
