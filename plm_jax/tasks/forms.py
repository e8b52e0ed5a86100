"""How families take labelled texts: which tokens stand around them in a row, and which token stands for the row."""
from collections.abc import Sequence
import dataclasses
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.errors import ConfigError
from plm_jax.objectives.clm import boundaries
from plm_jax.objectives.glm import end_of_text
from plm_jax.objectives.seq2seq import delimiters
from plm_jax.tokenizers.contract import Vocab

Cut = Literal['longest', 'first', 'second', 'none']
"""which text loses its end where a row is too long: the longer one, the first or the second, then the other, or none"""
Ids = list[int]


class Row(NamedTuple):
  """Texts as a row of a model."""

  tokens: list[int]
  types: list[int]
  """of each token the segment type that the family gives it"""
  starts: list[int]
  """of each text the place of its first token"""
  stand: int
  """place of the token that stands for the row"""
  kept: list[int]
  """of each text how many tokens are left of it"""


@dataclasses.dataclass(frozen=True)
class Form:
  """An encoder's: [CLS] text [SEP], and for a second one text [SEP] with types 1 (Devlin et al. 2019, section 3).

  So do the released ALBERT, ELECTRA, SpanBERT, DeBERTa, and, without a table of types, DistilBERT.
  """

  absolute: bool = True
  """positions are rows of a table, which begin anew with every text of a row"""
  question_last: ClassVar[bool] = False
  """whether a question stands behind its context"""

  def around(self, vocab: Vocab) -> tuple[Ids, Ids, Ids]:
    """Returns the ids before the first text, between two, and behind the last. Raises ConfigError where the tokenizer
    lacks one."""
    if min(vocab.cls, vocab.sep) < 0:
      raise ConfigError('the tokenizer has no [CLS] or no [SEP], which stand around the texts of an encoder')
    return [vocab.cls], [vocab.sep], [vocab.sep]

  def specials(self, vocab: Vocab, texts: int) -> int:
    """Counts the tokens of a row that are of no text."""
    before, between, behind = self.around(vocab)
    return len(before) + len(between) * (texts - 1) + len(behind)

  def more(self, vocab: Vocab) -> int:
    """Counts the ids behind the vocabulary that rows have, so that the model needs vectors for them."""
    del vocab
    return 0

  def row(self, texts: Sequence[Sequence[int]], vocab: Vocab, length: int, cut: Cut = 'longest') -> Row:
    """Puts one text, or two, in a row of at most `length` tokens. Raises ConfigError where they do not fit and none may
    be cut."""
    before, between, behind = self.around(vocab)
    kept = fitted([len(text) for text in texts], length - self.specials(vocab, len(texts)), cut)
    tokens, owners, starts = list(before), [0] * len(before), []
    for number, (text, size) in enumerate(zip(texts, kept, strict=True)):
      starts.append(len(tokens))
      more = [*text[:size], *(between if number + 1 < len(texts) else behind)]
      tokens += more
      owners += [number] * len(more)
    return Row(tokens, self.types(owners), starts, self.stand(tokens, vocab), kept)

  def types(self, owners: list[int]) -> list[int]:
    """Returns the types of tokens of a row, of which the numbers of their texts are given."""
    return owners

  def stand(self, tokens: list[int], vocab: Vocab) -> int:
    """Returns the place of the token that stands for a row: the first."""
    del tokens, vocab
    return 0

  def arrange(self, batch: dict[str, jax.Array], vocab: Vocab) -> dict[str, jax.Array]:
    """Adds to a batch what the family reads besides tokens and segments [..., L]: `place` [..., L], which begins anew
    with every text of a row."""
    return {**batch, 'place': places(batch['segments']) + self.first(vocab)} if self.absolute else batch

  def first(self, vocab: Vocab) -> int:
    """Returns the row of the table of positions that a text's first token has."""
    del vocab
    return 0


class Doubled(Form):
  """RoBERTa's: <s> text </s>, and for a second one </s> text </s>, without types; positions are numbered from behind
  the id of padding (Liu et al. 2019; fairseq)."""

  def around(self, vocab):
    """Returns <s>, </s></s>, </s>."""
    before, between, behind = super().around(vocab)
    return before, between * 2, behind

  def types(self, owners):
    """Returns zeros."""
    return [0] * len(owners)

  def first(self, vocab):
    """Returns the place behind that of padding."""
    return max(vocab.pad, 0) + 1

  def arrange(self, batch, vocab):
    """Adds `place`, that of padding for all of it."""
    batch = super().arrange(batch, vocab)
    return {**batch, 'place': jnp.where(batch['segments'] > 0, batch['place'], max(vocab.pad, 0))}


class Last(Form):
  """XLNet's: text <sep> text <sep> <cls>, the last of which stands for the row and has the type 2 (Yang et al. 2019,
  released code)."""

  question_last = True

  def around(self, vocab):
    """Returns nothing, <sep>, <sep><cls>."""
    before, between, behind = super().around(vocab)
    return [], between, behind + before

  def types(self, owners):
    """Returns 0 for the first text, 1 for the second, 2 for the last token."""
    return [*owners[:-1], 2]

  def stand(self, tokens, vocab):
    """Returns the last place."""
    del vocab
    return len(tokens) - 1


class Decoded(Form):
  """A decoder's (Radford et al. 2018, section 3.3): start text delimiter text extract, the last of which is read.

  The three are the tokenizer's bos, sep and cls where it has them, as GPT's has when it was made for this; else the
  start and the end of a document, with the end for both delimiter and extract.
  """

  def around(self, vocab):
    """Returns start, delimiter, extract. Raises ConfigError for a tokenizer with neither start nor end."""
    if found := marks(vocab):
      start, delimiter, extract = found
      return [start], [delimiter], [extract]
    try:
      start, end = boundaries(vocab)
    except ValueError as error:
      raise ConfigError(str(error)) from error
    return [start], [end], [end]

  def types(self, owners):
    """Returns zeros."""
    return [0] * len(owners)

  def stand(self, tokens, vocab):
    """Returns the last place."""
    del vocab
    return len(tokens) - 1


class Added(Decoded):
  """GPT's own, whose released vocabulary has no special tokens: start, delimiter and extract are then three ids behind
  it, whose vectors the model has to be given (Radford et al. 2018, section 4.1; `more`)."""

  def around(self, vocab):
    """Returns the tokenizer's start, delimiter and extract, or the three ids behind it."""
    start, delimiter, extract = marks(vocab) or range(vocab.size, vocab.size + 3)
    return [start], [delimiter], [extract]

  def more(self, vocab):
    """Returns 3 where the tokenizer has not the three tokens."""
    return 0 if marks(vocab) else 3


class BothSides(Form):
  """An encoder-decoder's: both sides read the same row, BART's <s> text </s></s> text </s> (Lewis et al. 2020, section
  3.2), T5's text </s> text </s>; the decoder's state at the last end is read.

  As released, and in transformers' classes, the decoder's row is the encoder's shifted right: its state at a token has
  read those before it, and all of them through the encoder. Figure 3 of the paper shows no shift.
  """

  def around(self, vocab):
    """Returns the ids before, between and behind. Raises ConfigError where the tokenizer lacks one."""
    before, behind, _ = self.ends(vocab)
    end = [behind[0]]
    return [*before], end * (2 if before else 1), [*behind]

  def types(self, owners):
    """Returns zeros."""
    return [0] * len(owners)

  def stand(self, tokens, vocab):
    """Returns the place of the last end."""
    end = self.ends(vocab)[1][0]
    return len(tokens) - 1 - tokens[::-1].index(end)

  def arrange(self, batch, vocab):
    """Adds decoder_tokens and decoder_segments, the row shifted right text by text, and where positions are rows of a
    table `place` and decoder_place."""
    batch, segments = super().arrange(batch, vocab), batch['segments']
    # mBART's begins with the language, which is behind the text that is read.
    start = vocab.source if vocab.source >= 0 else self.ends(vocab)[2]
    shifted = jnp.where(places(segments) > 0, jnp.roll(batch['tokens'], 1, -1), start)
    batch |= {'decoder_tokens': jnp.where(segments > 0, shifted, max(vocab.pad, 0)), 'decoder_segments': segments}
    return batch | ({'decoder_place': batch['place']} if 'place' in batch else {})

  def ends(self, vocab):
    """Returns the ids before and behind a text, and the one with which the decoder begins. Raises ConfigError where the
    tokenizer lacks one."""
    try:
      return delimiters(vocab)
    except ValueError as error:
      raise ConfigError(str(error)) from error


class Blank(Form):
  """GLM's (Du et al. 2022, section 2.3): [CLS] text [SEP] text [MASK] end of text, all of which sees itself, then the
  token that begins what fills the blank; its state stands for the row, and the label's word is predicted from it."""

  def around(self, vocab):
    """Returns [CLS], [SEP] and what asks. Raises ConfigError where the tokenizer lacks one."""
    needed = {'[CLS]': vocab.cls, '[MASK]': vocab.mask, '<|startofpiece|>': vocab.sop}
    if lacking := [name for name, number in needed.items() if number < 0]:
      raise ConfigError(f'the tokenizer has no {" and no ".join(lacking)}: it is not that of a GLM')
    end = end_of_text(vocab)
    return [vocab.cls], [vocab.sep if vocab.sep >= 0 else end], [vocab.mask, end, vocab.sop]

  def stand(self, tokens, vocab):
    """Returns the last place."""
    del vocab
    return len(tokens) - 1

  def arrange(self, batch, vocab):
    """Adds ranks, types and place [..., L]: what fills the blank comes after all others, at the blank's place."""
    fills = ((batch['tokens'] == vocab.sop) & (batch['segments'] > 0)).astype(jnp.int32)
    place = jnp.maximum(places(batch['segments']) - 2 * fills, 0)
    return {**batch, 'place': place, 'types': fills, 'ranks': fills}


class Bare(Form):
  """ELMo's: words with nothing around them; <S> and </S> are the model's own (Peters et al. 2018, released code)."""

  def around(self, vocab):
    """Returns nothing."""
    del vocab
    return [], [], []


def fitted(sizes: Sequence[int], room: int, cut: Cut) -> list[int]:
  """Returns what is left of texts of so many tokens in `room`. Raises ConfigError where it is too little."""
  kept, over = list(sizes), sum(sizes) - room
  if over > 0 and cut == 'longest':
    while sum(kept) > room and max(kept):
      kept[max(range(len(kept)), key=lambda number: kept[number])] -= 1
  elif over > 0 and cut != 'none':
    chosen = 0 if cut == 'first' else -1
    kept[chosen] -= min(over, kept[chosen])
    kept[-1 - chosen] -= max(0, sum(kept) - room)  # what is then still too much is of the other
  if room < 1 or min(kept) < 0 or sum(kept) > room:
    raise ConfigError(f'texts of {" and ".join(map(str, sizes))} tokens do not fit a row that has room for {room}')
  return kept


def form_of(family: str) -> Form:
  """Returns the form of a family, by transformers' model_type. Raises ConfigError for one that has none."""
  if family not in FORMS:
    raise ConfigError(f'models of type {family} have no form of labelled texts; known are {", ".join(FORMS)}')
  return FORMS[family]


FORMS = {
    **dict.fromkeys(('bert', 'spanbert', 'albert', 'distilbert', 'electra', 'deberta', 'deberta-v2', 'ernie',
                     'megatron-bert', 'cpt', 'crammedBERT'),
                    Form()),
    **dict.fromkeys(('roberta', 'xlm-roberta', 'xlm'), Doubled()),
    **dict.fromkeys(('modernbert', 'neobert', 'mosaicbert', 'ltgbert', 'gptbert'), Form(absolute=False)),
    'xlnet': Last(absolute=False), 'openai-gpt': Added(), **dict.fromkeys(('gpt2', 'gpt3', 'gpt_neo'), Decoded()),
    **dict.fromkeys(('llama', 'cohere'), Decoded(absolute=False)),
    'glm': Blank(), **dict.fromkeys(('t5', 'mt5'), BothSides(absolute=False)),
    **dict.fromkeys(('bart', 'mbart', 'marian'), BothSides()), 'elmo': Bare(absolute=False),
}


def marks(vocab: Vocab) -> tuple[int, ...]:
  """Returns the ids of GPT's start, delimiter and extract, or none: they have to differ."""
  ids = vocab.bos, vocab.sep, vocab.cls
  return ids if min(ids) >= 0 and len(set(ids)) == len(ids) else ()


def places(segments: jax.Array) -> jax.Array:
  """Numbers the tokens of each text of rows [..., L] from 0: place [..., L]; segments: 0 padding, equal ones are one
  text, which lies in one piece. Padding goes on from the text before it, as in a row of one text: nothing sees it, but
  the softmax over a row that says where answers are has it too (BERT's run_squad.py)."""
  at = jnp.arange(segments.shape[-1])
  first = jnp.ones_like(segments[..., :1], bool)
  new = jnp.concatenate([first, (segments[..., 1:] != segments[..., :-1]) & (segments[..., 1:] > 0)], -1)
  return at - jax.lax.cummax(jnp.where(new, at, 0), axis=segments.ndim - 1)
