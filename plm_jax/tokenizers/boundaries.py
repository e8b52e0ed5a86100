"""Special tokens around the texts of language models, as in training."""
from plm_jax.errors import ConfigError


def boundary_ids(vocab) -> tuple[int, int]:
  """Return the ids of the start and end tokens of a text.

  Raises:
    ConfigError: the tokenizer has none.
  """
  starts = [token for token in (vocab.bos, vocab.eos, vocab.cls, vocab.sep) if token >= 0]
  ends = [token for token in (vocab.eos, vocab.sep) if token >= 0]
  if not starts or not ends:
    raise ConfigError(
        'a language model needs a token that ends a text (eos or sep); the tokenizer has none')
  return starts[0], ends[0]


def end_of_text_id(vocab) -> int:
  """Return the id of the end token of a text.

  It is padding in BERT's vocabulary, which has no end token, as in released models.
  """
  return vocab.eos if vocab.eos >= 0 else vocab.pad


def delimiters(vocab, written: bool = False) -> tuple[tuple[int, ...], tuple[int, ...], int]:
  """Return the special tokens around a text, and the decoder's start token.

  T5 and Marian, whose vocabularies have sentinels or no start token: the end token after the text;
  the decoder starts with padding.
  mBART, whose vocabulary has languages: the end token and the text's language after the text; the
  decoder starts with the language of the target. Others as BART: start and end tokens around the
  text; the decoder starts with the end token.

  Args:
    vocab: the tokenizer's `Vocab`.
    written: whether the text is a target; else it is an input.

  Returns:
    (ids before the text, ids after it, id of the decoder's first input).

  Raises:
    ConfigError: the tokenizer has no such tokens.
  """
  first, end = boundary_ids(vocab)
  if vocab.source >= 0:
    return (), (end, vocab.target if written else vocab.source), vocab.target
  starts = vocab.bos >= 0 or vocab.cls >= 0
  if vocab.sentinel >= 0 or (vocab.pad >= 0 and not starts):
    return (), (end,), vocab.pad
  return (first,), (end,), end
