"""Input formats: the special tokens that each model family puts around texts in a row.

BERT's [CLS] text [SEP] text [SEP], RoBERTa's, XLNet's, GPT's, T5's and others. A format also says
which token summarizes the row for a classifier, and adds positions and decoder inputs.
"""
from collections.abc import Mapping, Sequence
import dataclasses
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.tasks.features import Features, Ragged
from plm_jax.tokenizers.contract import Vocab, boundary_ids, delimiters, end_of_text_id

Truncation = Literal['longest', 'first', 'second', 'none']
"""text that is truncated if a row is too long: the longer one; the first or the second, then the
other; or none"""
Ids = list[int]


class InputRow(NamedTuple):
  """Texts as an input row of a model."""

  tokens: list[int]
  token_types: list[int]
  """segment type of each token"""
  text_starts: list[int]
  """position of each text's first token"""
  summary_position: int
  """position of the token that summarizes the row"""
  lost: int
  """number of tokens that do not fit and are truncated"""


@dataclasses.dataclass(frozen=True)
class InputFormat:
  """The input format of an encoder: [CLS] text [SEP], or [CLS] text [SEP] text [SEP].

  The second text and its [SEP] have the type 1 (Devlin et al. 2019, section 3). The released
  ALBERT, ELECTRA, SpanBERT, DeBERTa and, without token types, DistilBERT do the same.
  """

  absolute_positions: bool = True
  """whether the family has absolute position embeddings; they restart with every text of a row"""
  question_last: ClassVar[bool] = False
  """whether a question follows its context"""
  has_types: ClassVar[bool] = True
  """whether the second text has a token type of its own"""
  summary_last: ClassVar[bool] = False
  """whether the last token summarizes the row, and not the first"""

  def special_ids(self, vocab: Vocab) -> tuple[Ids, Ids, Ids]:
    """Return the ids before the first text, between texts, and after the last text.

    Raises ConfigError if the tokenizer lacks one.
    """
    if min(vocab.cls, vocab.sep) < 0:
      raise ConfigError('the tokenizer has no [CLS] or no [SEP], which an encoder needs around '
                        'texts')
    return [vocab.cls], [vocab.sep], [vocab.sep]

  def count_special(self, vocab: Vocab, texts: int) -> int:
    """Count the special tokens of a row."""
    before, between, after = self.special_ids(vocab)
    return len(before) + len(between) * (texts - 1) + len(after)

  def extra_ids(self, vocab: Vocab) -> int:
    """Count the ids beyond the vocabulary that rows use, for which the model needs embeddings."""
    return 0

  def make_row(self, texts: Sequence[Sequence[int]], vocab: Vocab, length: int,
               cut: Truncation = 'longest') -> InputRow:
    """Make a row of at most `length` tokens from one text or two.

    Raises ConfigError if texts do not fit and may not be truncated.
    """
    before, between, after = self.special_ids(vocab)
    room = length - self.count_special(vocab, len(texts))
    kept = truncated_lengths([len(text) for text in texts], room, cut)
    tokens, text_ids, starts = list(before), [0] * len(before), []
    for number, (text, size) in enumerate(zip(texts, kept, strict=True)):
      starts.append(len(tokens))
      is_last = number + 1 == len(texts)
      more = list(text[:size]) + (after if is_last else between)
      tokens += more
      text_ids += [number] * len(more)
    types = self.token_types(text_ids)
    return InputRow(tokens, types, starts, self.summary_position(tokens, vocab),
                    sum(map(len, texts)) - sum(kept))

  def token_types(self, text_ids: list[int]) -> list[int]:
    """Return the token types of a row, given the index of each token's text."""
    return text_ids if self.has_types else [0] * len(text_ids)

  def summary_position(self, tokens: list[int], vocab: Vocab) -> int:
    """Return the position of the token that summarizes the row."""
    return len(tokens) - 1 if self.summary_last else 0

  def add_model_inputs(self, batch: dict[str, jax.Array], vocab: Vocab) -> dict[str, jax.Array]:
    """Add to a batch what the family reads in addition to tokens and segments [..., L].

    That is `place` [..., L], the positions, which restart with every text of a row.
    """
    if not self.absolute_positions:
      return batch
    return {**batch, 'place': text_positions(batch['segments']) + self.first_position(vocab)}

  def first_position(self, vocab: Vocab) -> int:
    """Return the row of the position table that belongs to a text's first token."""
    return 0


class RobertaFormat(InputFormat):
  """RoBERTa's input format: <s> text </s>, or <s> text </s></s> text </s>, without token types.

  Positions start after the id of padding (Liu et al. 2019; fairseq).
  """

  has_types = False

  def special_ids(self, vocab):
    before, between, after = super().special_ids(vocab)
    return before, between * 2, after

  def first_position(self, vocab):
    return max(vocab.pad, 0) + 1

  def add_model_inputs(self, batch, vocab):
    """Add `place`; all padding has the same position."""
    batch = super().add_model_inputs(batch, vocab)
    place = jnp.where(batch['segments'] > 0, batch['place'], max(vocab.pad, 0))
    return {**batch, 'place': place}


class UntypedFormat(InputFormat):
  """BERT's input format, or XLM-R's where the tokenizer is XLM-R's, without token types (GTE)."""

  has_types = False

  def special_ids(self, vocab):
    before, between, after = super().special_ids(vocab)
    return before, between * (2 if vocab.sep == vocab.eos else 1), after


class XlmFormat(RobertaFormat):
  """XLM's input format: </s> text </s>, or </s> text </s></s> text </s>, without token types.

  Positions start at 0, in padding too (Lample and Conneau 2019, released code).
  """

  def first_position(self, vocab):
    return 0

  def add_model_inputs(self, batch, vocab):
    return InputFormat.add_model_inputs(self, batch, vocab)


class XlnetFormat(InputFormat):
  """XLNet's input format: text <sep> text <sep> <cls>.

  The last token summarizes the row and has the type 2 (Yang et al. 2019, released code).
  """

  question_last = True
  summary_last = True

  def special_ids(self, vocab):
    before, between, after = super().special_ids(vocab)
    return [], between, after + before

  def token_types(self, text_ids):
    """Return 0 for the first text, 1 for the second, 2 for the last token."""
    return text_ids[:-1] + [2]


class DecoderFormat(InputFormat):
  """The input format of a decoder: start text delimiter text extract; the last token is read.

  Radford et al. 2018, section 3.3. The three are the tokenizer's bos, sep and cls if it has them,
  as GPT's has when it was made for this. Otherwise they are the start and the end of a document,
  with the end for both delimiter and extract.
  """

  has_types = False
  summary_last = True

  def special_ids(self, vocab):
    """Return start, delimiter, extract. Raises ConfigError without start and end of documents."""
    if ids := gpt_special_ids(vocab):
      start, delimiter, extract = ids
      return [start], [delimiter], [extract]
    start, end = boundary_ids(vocab)
    return [start], [end], [end]


class GptFormat(DecoderFormat):
  """GPT's own input format: start, delimiter and extract are three ids beyond its vocabulary.

  GPT's released vocabulary has no special tokens, so the model gets new embeddings for them
  (Radford et al. 2018, section 4.1; `extra_ids`).
  """

  def special_ids(self, vocab):
    """Return the tokenizer's start, delimiter and extract, or the three ids beyond it."""
    start, delimiter, extract = gpt_special_ids(vocab) or range(vocab.size, vocab.size + 3)
    return [start], [delimiter], [extract]

  def extra_ids(self, vocab):
    return 0 if gpt_special_ids(vocab) else 3


class EncoderDecoderFormat(InputFormat):
  """The input format of an encoder-decoder: encoder and decoder read the same row.

  BART's is <s> text </s></s> text </s> (Lewis et al. 2020, section 3.2), T5's is text </s> text
  </s>. The decoder's state at the last end is read. As released, and in transformers, the decoder's
  row is the encoder's shifted right: its state at a token has read the tokens before it, and all
  of them through the encoder. Figure 3 of the paper shows no shift.
  """

  has_types = False

  def special_ids(self, vocab):
    """Return the ids before, between and after texts. Raises ConfigError if one is missing."""
    before, after, _ = delimiters(vocab)
    end = [after[0]]
    return list(before), end * (2 if before else 1), list(after)

  def summary_position(self, tokens, vocab):
    end = delimiters(vocab)[1][0]
    return len(tokens) - 1 - tokens[::-1].index(end)

  def add_model_inputs(self, batch, vocab):
    """Add the decoder's inputs: the row shifted right text by text.

    These are decoder_tokens and decoder_segments; with absolute positions, also `place` and
    decoder_place.
    """
    batch, segments = super().add_model_inputs(batch, vocab), batch['segments']
    # mBART's decoder starts with the language, which follows the text in the encoder.
    start = vocab.source if vocab.source >= 0 else delimiters(vocab)[2]
    shifted = jnp.where(text_positions(segments) > 0, jnp.roll(batch['tokens'], 1, -1), start)
    shifted = jnp.where(segments > 0, shifted, max(vocab.pad, 0))
    decoder = {'decoder_tokens': shifted, 'decoder_segments': segments}
    if 'place' in batch:
      decoder['decoder_place'] = batch['place']
    return batch | decoder


class GlmFormat(InputFormat):
  """GLM's input format: [CLS] text [SEP] text [MASK] end of text, then the start of the infill.

  Du et al. 2022, section 2.3. All but the last token attend to each other. The state of the last
  token summarizes the row, and the label's word is predicted from it.
  """

  summary_last = True

  def special_ids(self, vocab):
    """Return [CLS], [SEP] and the cloze question. Raises ConfigError if one is missing."""
    needed = {'[CLS]': vocab.cls, '[MASK]': vocab.mask, '<|startofpiece|>': vocab.sop}
    missing = [name for name, number in needed.items() if number < 0]
    if missing:
      raise ConfigError(f'the tokenizer has no {" and no ".join(missing)}: it is not a GLM '
                        'tokenizer')
    end = end_of_text_id(vocab)
    return [vocab.cls], [vocab.sep if vocab.sep >= 0 else end], [vocab.mask, end, vocab.sop]

  def add_model_inputs(self, batch, vocab):
    """Add ranks, types and place [..., L]: the infill comes last, at the position of [MASK]."""
    infill = ((batch['tokens'] == vocab.sop) & (batch['segments'] > 0)).astype(jnp.int32)
    place = jnp.maximum(text_positions(batch['segments']) - 2 * infill, 0)
    return {**batch, 'place': place, 'types': infill, 'ranks': infill}


class ElmoFormat(InputFormat):
  """ELMo's input format: words without special tokens.

  The model itself adds <S> and </S> (Peters et al. 2018, released code).
  """

  def special_ids(self, vocab):
    return [], [], []


def collect_rows(
    rows: Sequence[InputRow], values: Mapping[str, np.ndarray], example: np.ndarray,
    group: int = 1) -> Features:
  """Collect input rows into features.

  Args:
    rows: N input rows.
    values: labels and weights [N], to which the summary positions are added.
    example: index of each row's example [N].
    group: consecutive rows that belong together; those that only fill a group repeat another row.
  """
  tokens = Ragged.concat(row.tokens for row in rows)
  types = Ragged.concat(row.token_types for row in rows)
  summaries = np.array([row.summary_position for row in rows], np.int32)
  pairs = zip(rows, example.tolist(), strict=True)
  lost_tokens = {id(row): (number, row.lost) for row, number in pairs if row.lost}  # each row once
  return Features(
      tokens, {'types': types}, {'stand': summaries, **values}, example, group=group,
      clipped=len({number for number, _ in lost_tokens.values()}),
      lost=sum(lost for _, lost in lost_tokens.values()))


def truncated_lengths(sizes: Sequence[int], room: int, cut: Truncation) -> list[int]:
  """Compute the lengths of texts after truncation to `room` tokens in all.

  Raises ConfigError if texts do not fit.
  """
  kept, over = list(sizes), sum(sizes) - room
  if over > 0 and cut == 'longest':
    # Of texts of equal length, the one that was shorter loses a token first, as in `tokenizers`.
    while sum(kept) > room and max(kept):
      kept[max(range(len(kept)), key=lambda number: (kept[number], -sizes[number]))] -= 1
  elif over > 0 and cut != 'none':
    chosen = 0 if cut == 'first' else -1
    kept[chosen] -= min(over, kept[chosen])
    kept[-1 - chosen] -= max(0, sum(kept) - room)  # the rest comes off the other text
  if room < 1 or min(kept) < 0 or sum(kept) > room:
    raise ConfigError(f'texts of {" and ".join(map(str, sizes))} tokens do not fit a row that has '
                      f'room for {room}')
  return kept


def get_input_format(family: str) -> InputFormat:
  """Return the input format of a family, by transformers' model_type.

  Raises ConfigError for a family without one.
  """
  if family not in INPUT_FORMATS:
    raise ConfigError(f'models of type {family} have no input format for labeled texts; known are '
                      f'{", ".join(INPUT_FORMATS)}')
  return INPUT_FORMATS[family]


INPUT_FORMATS = {
    **dict.fromkeys(
        ('bert', 'spanbert', 'albert', 'distilbert', 'electra', 'deberta', 'deberta-v2', 'ernie',
         'megatron-bert', 'cpt', 'crammedBERT'), InputFormat()),
    **dict.fromkeys(('roberta', 'xlm-roberta', 'xlm-roberta-xl', 'mpnet'), RobertaFormat()),
    **dict.fromkeys(('gte', 'jina_embeddings_v3'), UntypedFormat(absolute_positions=False)),
    'flaubert': UntypedFormat(),
    'xlm': XlmFormat(),
    **dict.fromkeys(
        ('modernbert', 'eurobert', 'neobert', 'mosaicbert', 'ltgbert', 'gptbert', 'jina-bert',
         'roformer', 'nomic_bert'),
        InputFormat(absolute_positions=False)),
    'xlnet': XlnetFormat(absolute_positions=False),
    'openai-gpt': GptFormat(),
    **dict.fromkeys(('gpt2', 'gpt3', 'gpt_neo'), DecoderFormat()),
    **dict.fromkeys(
        ('gpt_neox', 'llama', 'qwen3', 'smollm3', 'gemma2', 'gemma3_text', 'cohere',
         'modernbert-decoder'),
        DecoderFormat(absolute_positions=False)),
    'glm': GlmFormat(),
    **dict.fromkeys(
        ('t5', 'mt5', 'umt5', 't5gemma'), EncoderDecoderFormat(absolute_positions=False)),
    **dict.fromkeys(('bart', 'mbart', 'marian'), EncoderDecoderFormat()),
    'elmo': ElmoFormat(absolute_positions=False),
}


def gpt_special_ids(vocab: Vocab) -> tuple[int, ...]:
  """Return the ids of GPT's start, delimiter and extract; () unless all exist and differ."""
  ids = vocab.bos, vocab.sep, vocab.cls
  return ids if min(ids) >= 0 and len(set(ids)) == len(ids) else ()


def text_positions(segments: jax.Array) -> jax.Array:
  """Number the tokens of each text of a row from 0: positions [..., L].

  Padding continues the text before it, as in a row of one text. No token attends to padding, but
  the softmax over answer positions covers all of a row (BERT's run_squad.py).

  Args:
    segments: [..., L], 0 is padding; equal numbers are one contiguous text.
  """
  at = jnp.arange(segments.shape[-1])
  first = jnp.ones_like(segments[..., :1], bool)
  is_new = (segments[..., 1:] != segments[..., :-1]) & (segments[..., 1:] > 0)
  new = jnp.concatenate([first, is_new], -1)
  return at - jax.lax.cummax(jnp.where(new, at, 0), axis=segments.ndim - 1)
