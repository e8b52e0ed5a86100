"""A small tokenizer of every kind, trained on text of several scripts."""
from collections.abc import Callable
import random

from plm_jax import tokenizers
from plm_jax.tokenizers import Tokenizer, byte_bpe

LETTERS = ['a', 'e', 'o', 'n', 's', 't', 'r', 'l', 'd', 'é', 'ß', 'к', 'о', 'т', '中', '国', '字', '.',
           ',', '-', '7']


def some_texts(count: int, seed: int) -> list[str]:
  """Makes texts of words that rarely repeat, so that caches grow all the time."""
  draw = random.Random(seed)
  word = lambda: ''.join(draw.choices(LETTERS, k=draw.randint(1, 7)))
  return [' '.join(word() for _ in range(draw.randint(1, 12))) for _ in range(count)]


TRAINING = [*some_texts(200, 0), *LETTERS]
KINDS: dict[str, Callable[[], Tokenizer]] = {
    'wordpiece': lambda: tokenizers.train_wordpiece(TRAINING, 200),
    'cased wordpiece': lambda: tokenizers.train_wordpiece(TRAINING, 200,
                                                          tokenizers.BertNormalization(
                                                              lowercase=False)),
    'byte BPE': lambda: tokenizers.train_byte_bpe(TRAINING, 400),
    'byte BPE with a prefix': lambda: with_options(prefix=True),
    'byte BPE of LLaMA 3': lambda: with_options(split=byte_bpe.SPLIT_PATTERNS[2],
                                                ignore_merges=True),
    'word BPE': lambda: tokenizers.train_word_bpe(TRAINING, 200),
    'SentencePiece': lambda: tokenizers.train_sentencepiece(TRAINING, 80),
    'SentencePiece of ALBERT': lambda: tokenizers.train_sentencepiece(TRAINING, 80, lowercase=True,
                                                                      layout='albert'),
    'SentencePiece of LLaMA': lambda: tokenizers.train_sentencepiece(TRAINING, 330, 'bpe',
                                                                     layout='llama'),
    'SentencePiece of T5': lambda: tokenizers.train_sentencepiece(TRAINING, 170, layout='t5'),
    'SentencePiece of mBART': lambda: tokenizers.train_fairseq_sentencepiece(TRAINING, 100),
    'bytes': tokenizers.ByteTokenizer,
    'words': lambda: tokenizers.train_word_tokenizer(TRAINING, 200, signs=True),
}


def with_options(**options) -> tokenizers.ByteBPE:
  plain = tokenizers.train_byte_bpe(TRAINING, 400)
  return tokenizers.ByteBPE(plain.ids, plain.merges, **options)
