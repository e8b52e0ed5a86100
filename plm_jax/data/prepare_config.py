"""Configuration of `prepare`: which text to read, and how it becomes token records."""
from collections.abc import Iterable
import dataclasses
from typing import Literal, get_args

from plm_jax import tokenizers
from plm_jax.data import charsets, document_formats, encode, lines, word_segmentation
from plm_jax.data.text_to_text_tasks import TASK_PREFIX
from plm_jax.errors import ConfigError, format_option
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class TextConfig(ValidatedConfig):
  """How text becomes token records, whatever the text."""

  limits = intervals(
      sentinels='[1, 100000]', coverage='[0, 1]', sample='[1, 1e15]', heldout='[0, 1)',
      shard_tokens='[1, inf)', workers='[0, 4096]')

  tokenizer: str = ''
  """The tokenizer: a vocab.txt, a vocab.json, a SentencePiece .model, a tokenizer.json, or a folder
  with one. If empty, a tokenizer is trained on the source."""
  kind: Literal['wordpiece', 'sentencepiece-unigram', 'sentencepiece-bpe', 'byte-bpe', 'word-bpe',
                'bytes', 'words', 'words-and-signs'] = 'wordpiece'
  """The kind of tokenizer to train. word-bpe is GPT's. bytes is ByT5's: it needs no training and
  has 384 ids. words is ELMo's."""
  lowercase: bool = True
  """Whether the tokenizer to train ignores case. Byte-level BPE and words never do, word-bpe always
  does."""
  strip_accents: bool = True
  """Whether a WordPiece tokenizer that ignores case drops accents and other marks, too, as the
  uncased BERT does. The SentencePiece models of ALBERT and XLNet drop them even if they keep case.
  False keeps them, for languages in which marks distinguish words, such as Vietnamese, Yoruba,
  Hindi, Thai or Japanese."""
  layout: tokenizers.Layout | Literal['gpt2'] = 'bert'
  """The special tokens of the tokenizer to train. SentencePiece: as in BERT, ALBERT, DeBERTa,
  XLNet, GLM, T5, mBART, mBART-50 or XLM-R. WordPiece: as in BERT or GLM. Byte-level BPE: as in
  RoBERTa (bert) or GPT-2."""
  sentinels: int = 100
  """The number of sentinel tokens of the layout t5, which replace masked spans: the largest number
  of spans per row."""
  coverage: float = 0.0
  """The share of the text's characters that get tokens in WordPiece (0: 0.9999) and SentencePiece
  (0: 0.9995). The others are unknown."""
  sample: int = 50_000_000
  """The number of characters to train the tokenizer on, sampled from the whole source."""
  sentences: encode.SentenceRule = 'split'
  """How sentences are found: split uses rules, clauses ends one at every . ? ! ; : (GLM's blanks),
  and with line every line of the source is one."""
  segmenter: word_segmentation.SegmenterName = 'none'
  """What a word is, for whole-word masking. none: as in the tokenizer. jieba: Chinese words as
  found by jieba; jieba:FILE adds a list of words. spaces: as separated in a pre-segmented source;
  its spaces next to Chinese and Japanese characters are not encoded. words:FILE: the longest words,
  phrases and names of a list with one per line."""
  newlines: bool = False
  """Whether every paragraph after the first begins with a line break, for language models.
  Byte-level BPE and LLaMA's SentencePiece keep line breaks; other tokenizers do not."""
  heldout: float = 0.01
  """The share of the documents that training never sees, chosen by a hash of their text. At least
  one document, unless 0."""
  on_error: lines.OnError = 'refuse'
  """What to do with a line that is not UTF-8 or not JSON: refuse stops and names it, skip leaves it
  out and counts it."""
  encoding: str = 'utf-8'
  """The encoding of text files, by its name in Python: gb18030, shift_jis, cp1251, utf-16, ...
  Parquet and TFDS ignore it."""
  text_field: str = 'text'
  """The field with the text, in JSON Lines, tables and TFDS."""
  documents: document_formats.Division = 'auto'
  """What divides plain text into documents: blank lines, every line is one, or every file is one.
  auto: blank lines; a file without any in its first MiB is divided by lines, but is one document if
  it is shorter and not the only file."""
  shard_tokens: int = 1 << 22
  """The number of tokens per shard."""
  workers: int = 0
  """The number of processes that tokenize; 0: one per core. It does not change the records."""

  def conflict(self, option):
    """Return why options are invalid or cannot be combined; None if all are valid."""
    if problem := charsets.encoding_problem(self.encoding):
      return f'{option("encoding")} {problem}, got {self.encoding!r}'
    if problem := word_segmentation.segmenter_problem(self.segmenter):
      return f'{option("segmenter")} {problem}'
    if self.newlines and self.segmenter != 'none':
      return (f'{option("newlines")} is for language models, {option("segmenter")} for masks of '
              'whole words: give one of them')
    if self.tokenizer:  # the rest is about a tokenizer to train
      return None
    if self.kind == 'word-bpe' and not self.strip_accents:
      kind = option('kind')
      return f"{kind}=word-bpe is GPT's and always drops accents: {kind}=byte-bpe keeps them"
    if self.coverage and self.kind not in COVERAGE_KINDS:
      return (f'{option("coverage")} is of {", ".join(COVERAGE_KINDS)}, got '
              f'{option("kind")}={self.kind}')
    layouts = tokenizer_layouts(self.kind)
    if self.layout not in layouts:
      return (f'{option("layout")} is {" or ".join(layouts)} with {option("kind")}={self.kind}, '
              f'got {self.layout}: it is the layout of other tokenizers')
    return None

  def check_tokenizer_options(self, given: Iterable[str]) -> None:
    """Raise ConfigError for options of training a tokenizer next to a finished tokenizer.

    given: names of the fields that the user has set.
    """
    if not self.tokenizer:
      return
    unused = []
    for name in TOKENIZER_OPTIONS:
      if name in given:
        unused.append(name)
    if unused:
      options = ' and '.join(format_option(name) or name for name in unused)
      raise ConfigError(f'{options} would change nothing: '
                        f'{format_option(f"tokenizer={self.tokenizer}")} is there already, and is '
                        'not trained')

  @property
  def read_config(self) -> document_formats.TextReadConfig:
    """How text sources are read."""
    return document_formats.TextReadConfig(
        self.on_error, self.text_field, self.documents, self.encoding)


# Options of training a tokenizer, which have no effect on a finished one.
TOKENIZER_OPTIONS = (
    'kind', 'vocab', 'lowercase', 'strip_accents', 'layout', 'sentinels', 'coverage', 'sample')
COVERAGE_KINDS = 'wordpiece', 'sentencepiece-unigram', 'sentencepiece-bpe'


def tokenizer_layouts(kind: str) -> tuple[str, ...]:
  """Return the layouts that a kind of tokenizer can have."""
  if kind.startswith('sentencepiece'):
    return get_args(tokenizers.Layout)
  return {'wordpiece': ('bert', 'glm'), 'byte-bpe': ('bert', 'gpt2')}.get(kind, ('bert',))


@dataclasses.dataclass(frozen=True)
class PrepareConfig(TextConfig):
  """Which text to read, and how it becomes token records."""

  limits = intervals(vocab='[1, 16777216]')

  source: str = 'embedded'
  """The text: files, globs or folders (local or gs://, comma-separated; .txt, .jsonl, .gz, .xz),
  tfds:NAME[:SPLIT], or embedded."""
  vocab: int = 30_522
  """The vocabulary size of the tokenizer to train."""

  @property
  def has_pairs(self) -> bool:
    """Whether a document is a target and its inputs, each kept as one sentence."""
    return self.source.startswith(TASK_PREFIX)

  @property
  def min_sentences(self) -> int:
    """Number of nonempty sentences that a document must have to be kept."""
    return 2 if self.has_pairs else 1

  @property
  def encode_arguments(self) -> tuple[encode.SentenceRule, word_segmentation.SegmenterName, bool]:
    """Arguments of `encode.encode_documents` other than the documents and the tokenizer."""
    if self.has_pairs:
      return 'line', self.segmenter, False
    return self.sentences, self.segmenter, self.newlines
