"""Training of SentencePiece models, unigram or BPE, with the special tokens of a family."""
from collections.abc import Iterable, Iterator
import io
import re
from typing import Any, Literal

import sentencepiece

from plm_jax.errors import add_advice, name_field
from plm_jax.tokenizers.contract import GLM_TOKENS, TokenizerError
from plm_jax.tokenizers.sentence_piece import (
    DEFAULT_SENTINELS,
    AlbertNormalization,
    Layout,
    SentencePiece,
)

COVERAGE = 0.9995  # share of the characters of a text that get tokens, sentencepiece's default


def train_sentencepiece(
    texts: Iterable[str],
    size: int,
    algorithm: Literal['unigram', 'bpe'] = 'unigram',
    lowercase: bool = False,
    coverage: float = COVERAGE,
    layout: Layout = 'bert',
    sentinels: int = DEFAULT_SENTINELS,
    strip_accents: bool = True,
    added: int = 0,
) -> SentencePiece:
  """Train a SentencePiece model. The same texts give the same model; they are held in memory.

  Args:
    texts: the training texts.
    size: vocabulary size: special tokens, then learned ones; smaller where the text supports no
      more.
    algorithm: 'unigram' or 'bpe'.
    lowercase: whether text becomes lower case.
    coverage: share of the characters that get tokens. The others become <unk>, or bytes where the
      layout has these.
    layout: special tokens and their ids, as released unless noted:
      bert: <pad> 0, <unk> 1, <s>, </s>, [CLS], [SEP], [MASK] (not a released layout);
      albert: <pad> 0, <unk> 1, [CLS], [SEP], [MASK], with `AlbertNormalization`;
      xlnet: <unk> 0, <s>, </s>, <cls>, <sep>, <pad> 5, <mask>, <eod>, <eop>, with the same
      normalization;
      deberta: [PAD] 0, [CLS], [SEP], [UNK], and [MASK] as the last id;
      glm, not as released: <pad> 0, <unk> 1, <|endoftext|>, [CLS], [SEP], [MASK] and those of its
      blanks;
      llama: <unk> 0, <s>, </s>, the 256 bytes, each digit alone, and text without normalization;
      t5: <pad> 0, </s>, <unk>, and `sentinels` as the last ids, from the last to the first;
      mbart, mbart50, xlm-r: <unk> 0, <s>, </s>, for `FairseqSentencePiece`, which adds others.
    sentinels: number of T5's sentinels.
    strip_accents: for albert and xlnet, whether text loses its accents, as released.
    added: tokens of `size` that the caller adds to the model.

  Raises:
    TokenizerError: the text is empty, or `size` does not hold its characters.
  """
  normalization = None
  if layout in ('albert', 'xlnet'):
    normalization = AlbertNormalization(lowercase, strip_accents)
    texts = map(normalization.build_normalizer().normalize_str, texts)
  lines = []
  for line in texts:
    if line.strip():
      lines += split_for_training(line)
  if not lines:
    raise TokenizerError('cannot train a SentencePiece model: the text is empty.')
  added += {'deberta': 1, 't5': sentinels}.get(layout, 0)
  case_fold = lowercase and not normalization
  rule = 'nmt_nfkc_cf' if case_fold else 'nmt_nfkc'
  options: dict[str, Any] = {'model_type': algorithm, 'normalization_rule_name': rule}
  # Every text begins with a space to the model. In long lines without spaces it would be too rare
  # to get a token.
  borders = len(lines) + sum(line.count(' ') for line in lines)
  if borders <= 2 * (1 - coverage) * sum(map(len, lines)):
    options['required_chars'] = '▁'
  options |= LAYOUTS[layout]

  model = fit_model(lines, size, added, coverage, options)
  return SentencePiece(model, normalization, sentinels)


def fit_model(
    lines: list[str], size: int, added: int, coverage: float, options: dict[str, Any]) -> bytes:
  """Train a serialized SentencePiece model.

  Args:
    lines: the training texts.
    size: vocabulary size.
    added: tokens of `size` that the caller adds to the model.
    coverage: share of the characters that get tokens.
    options: other options of the library's trainer.

  Raises:
    TokenizerError: the library refuses them, or `size` does not hold the characters.
  """
  def fit(hard_limit: bool) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=max(4, size - added),  # for less, the library does not say how many it needs
        hard_vocab_limit=hard_limit,
        character_coverage=coverage,
        max_sentence_length=MAX_LINE_BYTES,
        num_threads=TRAINER_THREADS,
        minloglevel=2,
        **options)
    return model.getvalue()

  try:
    try:
      return fit(hard_limit=True)
    except RuntimeError as error:
      if 'too high' not in str(error):
        raise
      return fit(hard_limit=False)  # as many tokens as the text supports
  except RuntimeError as error:
    if match := TOO_SMALL.search(str(error)):
      needed = int(match[1]) + added
      raise TokenizerError(
          f'a SentencePiece vocabulary of {size:,} is too small: special tokens and the characters '
          f'of this text take {needed:,} already. Give {name_field("vocab")}={needed} or more, '
          f'or less {add_advice(name_field("coverage"), "coverage")} than {coverage}') from error
    reason = ' '.join(str(error).split())
    raise TokenizerError(f'cannot train a SentencePiece model of {size:,} tokens from this text: '
                         f'{reason}') from error


def split_for_training(line: str) -> Iterator[str]:
  """Split a line into parts that SentencePiece's trainer accepts.

  It ignores lines of more than MAX_LINE_BYTES and those with UNKNOWN_CHARACTER. A part ends before
  a space where there is one in its second half.
  """
  line = line.replace(UNKNOWN_CHARACTER, ' ')
  fits = len(line) <= MAX_LINE_BYTES and len(line.encode()) <= MAX_LINE_BYTES
  most = len(line) if fits else MAX_LINE_BYTES // 4
  start = 0
  while start < len(line):
    end = start + most
    if end < len(line):
      space = line.rfind(' ', start + most // 2, end)
      if space > 0:
        end = space
    yield line[start:end]
    start = end


LAYOUTS: dict[Layout, dict[str, Any]] = {
    'bert': dict(pad_id=0, unk_id=1, bos_id=2, eos_id=3, pad_piece='<pad>',
                 control_symbols=['[CLS]', '[SEP]', '[MASK]']),
    'albert': dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece='<pad>',
                   control_symbols=['[CLS]', '[SEP]', '[MASK]']),
    'deberta': dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece='[PAD]', bos_piece='[CLS]',
                    eos_piece='[SEP]', unk_piece='[UNK]'),
    'xlnet': dict(pad_id=-1, unk_id=0, bos_id=1, eos_id=2, user_defined_symbols=['<eop>'],
                  control_symbols=['<cls>', '<sep>', '<pad>', '<mask>', '<eod>']),
    'glm': dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=2, pad_piece='<pad>',
                eos_piece='<|endoftext|>',
                control_symbols=['[CLS]', '[SEP]', '[MASK]'] + list(GLM_TOKENS)),
    'llama': dict(pad_id=-1, unk_id=0, bos_id=1, eos_id=2, byte_fallback=True,
                  normalization_rule_name='identity', remove_extra_whitespaces=False,
                  split_digits=True, allow_whitespace_only_pieces=True),
    't5': dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece='<pad>'),
    'mbart': dict(pad_id=-1, unk_id=0, bos_id=1, eos_id=2),
    'mbart50': dict(pad_id=-1, unk_id=0, bos_id=1, eos_id=2),
    'xlm-r': dict(pad_id=-1, unk_id=0, bos_id=1, eos_id=2),
}
MAX_LINE_BYTES = 1 << 16
UNKNOWN_CHARACTER = '\u2585'  # stands for unknown characters inside the library
TOO_SMALL = re.compile(r'smaller than required_chars\. -?\d+ vs (\d+)')
# Fixed on all machines: the sums of the training, and so the tokens, depend on it.
TRAINER_THREADS = 16
