"""Configuration of `prepare`: which text to read, and how it becomes token records."""
import dataclasses
from typing import Literal, get_args

from plm_jax import tokenizers
from plm_jax.errors import name_field
from plm_jax.preparation import encode, fill_middle, word_segmentation
from plm_jax.preparation.fill_middle import FillMiddle
from plm_jax.sources import charsets, document_formats, lines
from plm_jax.sources.text_to_text_tasks import TASK_PREFIX
from plm_jax.validation import ValidatedConfig, intervals

# Options of training a tokenizer, which have no effect on a finished one.
TOKENIZER_OPTIONS = (
    'kind', 'vocab', 'lowercase', 'strip_accents', 'layout', 'sentinels', 'coverage', 'sample')


@dataclasses.dataclass(frozen=True)
class TextConfig(ValidatedConfig):
  """How text becomes token records, whatever the text."""

  limits = intervals(
      sentinels='[1, 100000]', coverage='[0, 1]', sample='[1, 1e15]', heldout='[0, 1)',
      shard_tokens='[1, inf)', workers='[0, 4096]', fim_rate='[0, 1]', fim_spm_rate='[0, 1]',
      fim_context='[0, 16777216]')
  counts_with = dict.fromkeys(TOKENIZER_OPTIONS, ('tokenizer', ('',)))

  tokenizer: str = ''
  """Existing tokenizer to use: a vocab.txt, a vocab.json, a SentencePiece .model, a tokenizer.json,
  or a folder with one. By default, a tokenizer is trained on the text."""
  kind: Literal['wordpiece', 'sentencepiece-unigram', 'sentencepiece-bpe', 'byte-bpe', 'word-bpe',
                'bytes', 'words', 'words-and-signs'] = 'wordpiece'
  """Kind of the new tokenizer. word-bpe is the BPE of GPT (2018); bytes is ByT5's, which needs no
  training and has 384 ids; words is ELMo's word list."""
  lowercase: bool = True
  """Lowercase text in the new tokenizer. Byte-level BPE and words never do this, word-bpe always
  does."""
  strip_accents: bool = True
  """Remove accents and other combining marks in a lowercasing WordPiece tokenizer, as in uncased
  BERT. SentencePiece tokenizers with the layout albert or xlnet remove them even if they keep case.
  Keep the marks in languages where they distinguish words, such as Vietnamese, Yoruba or Hindi."""
  layout: tokenizers.Layout | Literal['gpt2'] = 'bert'
  """Special tokens of the new tokenizer. SentencePiece: as in BERT, ALBERT, DeBERTa, XLNet, GLM,
  T5, mBART, mBART-50 or XLM-R. WordPiece: as in BERT or GLM. Byte-level BPE: as in RoBERTa (bert)
  or GPT-2."""
  sentinels: int = 100
  """Number of sentinel tokens in the layout t5. They replace masked spans, so this is the maximum
  number of spans per sequence."""
  coverage: float = 0.0
  """Character coverage: share of the characters of the text that get a token. 0, the default, means
  0.9999 for WordPiece and 0.9995 for SentencePiece. Other characters are unknown."""
  sample: int = 50_000_000
  """Number of characters to train the tokenizer on, sampled from the whole text."""
  sentences: encode.SentenceRule = 'split'
  """Sentence splitting. split: by rules; clauses: after every . ? ! ; : (for GLM's blanks); line:
  each line of the text is one sentence. These leave out blank lines. none: keep every character of
  a document, with its white space and line ends, for decoders."""
  segmenter: word_segmentation.SegmenterName = 'none'
  """Word segmentation for whole-word masking. none: words of the tokenizer; jieba: Chinese words
  found by jieba (jieba:FILE adds a word list); spaces: words of pre-segmented text, whose spaces
  next to Chinese and Japanese characters are not encoded; words:FILE: longest matches with a list
  of words, phrases or names, one per line."""
  heldout: float = 0.01
  """Share of the documents that are held out for evaluation, chosen by a hash of their text. At
  least one document is held out, unless the share is 0."""
  on_error: lines.OnError = 'refuse'
  """What to do with a line that is not valid text or JSON. refuse: stop and report the line; skip:
  skip and count it."""
  encoding: str = 'utf-8'
  """Character encoding of the text files, by its Python name: gb18030, shift_jis, cp1251, utf-16,
  ... Parquet and TFDS ignore it."""
  text_field: str = 'text'
  """Field or column with the text, in JSON Lines, tables and TFDS."""
  documents: document_formats.Division = 'auto'
  """What divides plain text into documents. blank-lines: blank lines; lines: each line is a
  document; files: each file is a document. auto, with sentences none: files. auto, with others:
  blank lines, if the first MiB of a file has any, and otherwise lines; if there are several files,
  a file of less than 1 MiB without blank lines is one document."""
  fim_rate: float = 0.0
  """Fill in the middle (FIM): share of the documents whose middle is moved to their end, between
  special tokens; 0.5 to 0.9 in the paper. Decoders learn from it to fill a hole in a text
  (generate --hole)."""
  fim_spm_rate: float = 0.5
  """Share of these documents in the order suffix, prefix, middle (SPM). The others have prefix,
  suffix, middle (PSM)."""
  fim_context: int = 0
  """Context-level FIM: divide documents into texts of at most this many tokens first, which is the
  sequence length of a run with --data.assembly=sentences. 0: a document is one text."""
  fim_seed: int = 0
  """Random seed of fill in the middle."""
  shard_tokens: int = 1 << 22
  """Number of tokens per shard."""
  workers: int = 0
  """Number of processes that tokenize. 0: one per core. It does not change the records."""

  def conflict(self, option):
    if problem := charsets.encoding_problem(self.encoding):
      return f'{option("encoding")} {problem}, got {self.encoding!r}'
    if problem := word_segmentation.segmenter_problem(self.segmenter):
      return f'{option("segmenter")} {problem}'
    if self.exact and self.segmenter != 'none':
      return (f'{option("sentences")}=none keeps the text as it is, and {option("segmenter")} '
              'divides it into words: give one of them')
    if not self.holes and (self.fim_spm_rate, self.fim_context, self.fim_seed) != (0.5, 0, 0):
      return (f'{option("fim_spm_rate")}, {option("fim_context")} and {option("fim_seed")} would '
              f'change nothing: {option("fim_rate")} is 0')
    if self.holes and not self.exact:
      return (f'{option("fim_rate")} is for text that is kept as it is: give '
              f'{option("sentences")}=none, or a recipe of a decoder')
    if 0 < self.fim_context < 2 * fill_middle.CONTEXT_ROOM:
      return (f'{option("fim_context")} is 0, or {2 * fill_middle.CONTEXT_ROOM} tokens or more, '
              f'got {self.fim_context}')
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

  @property
  def holes(self) -> FillMiddle | None:
    """How the middle of texts is moved to their end; None: it is not."""
    if not self.fim_rate:
      return None
    return FillMiddle(self.fim_rate, self.fim_spm_rate, self.fim_context, self.fim_seed)

  @property
  def exact(self) -> bool:
    """Whether every character of a document is kept."""
    return self.sentences == 'none'

  @property
  def read_config(self) -> document_formats.TextReadConfig:
    """How text sources are read."""
    division = 'files' if self.exact and self.documents == 'auto' else self.documents
    return document_formats.TextReadConfig(
        self.on_error, self.text_field, division, self.encoding, self.exact)


COVERAGE_KINDS = 'wordpiece', 'sentencepiece-unigram', 'sentencepiece-bpe'


def tokenizer_layouts(kind: str) -> tuple[str, ...]:
  """Return the layouts that a kind of tokenizer can have."""
  if kind.startswith('sentencepiece'):
    return get_args(tokenizers.Layout)
  return {'wordpiece': ('bert', 'glm'), 'byte-bpe': ('bert', 'gpt2')}.get(kind, ('bert',))


def heldout_problem(source: str, heldout_path: str, share: float) -> str:
  """Return what is wrong with a held-out text of its own, '' for nothing.

  Args:
    source: the text of which it is the held-out text.
    heldout_path: the held-out text; '': there is none.
    share: `TextConfig.heldout`.
  """
  if not heldout_path:
    return ''
  if share not in (0, TextConfig.heldout):
    return ('names the held-out text, so no share of the documents is held out: leave out '
            f'{name_field("heldout")}')
  if source.startswith(TASK_PREFIX) != heldout_path.startswith(TASK_PREFIX):
    return (f'is a text of the same kind as {source}, got {heldout_path}: examples of a task are '
            f'{TASK_PREFIX}NAME:FILES')
  return ''


@dataclasses.dataclass(frozen=True)
class PrepareConfig(TextConfig):
  """Which text to read, and how it becomes token records."""

  limits = intervals(vocab='[1, 16777216]')

  source: str = 'embedded'
  """Text to read: files, globs or folders (local, gs:// or hf://datasets/, comma-separated),
  tfds:NAME[:SPLIT], or embedded, the built-in corpus."""
  vocab: int = 30_522
  """Vocabulary size of the new tokenizer."""
  heldout_path: str = ''
  """Held-out text for evaluation (validation set), in any form of the source: all of it, and
  nothing else. Default: a share of the documents of the source."""

  def conflict(self, option):
    """Return the message for a held-out text that does not go with the other options."""
    if problem := heldout_problem(self.source, self.heldout_path, self.heldout):
      return f'{option("heldout_path")} {problem}'
    if self.has_pairs and self.holes:
      return f'{option("fim_rate")} is for text, not for examples of a task: {self.source}'
    return super().conflict(option)

  @property
  def texts(self) -> tuple[str, ...]:
    """The source, and the held-out text if there is one."""
    return tuple(filter(None, (self.source, self.heldout_path)))

  @property
  def heldout_share(self) -> float:
    """Share of the documents of the source that are held out."""
    return 0.0 if self.heldout_path else float(self.heldout)

  @property
  def has_pairs(self) -> bool:
    """Whether a document is a target and its inputs, each kept as one sentence."""
    return self.source.startswith(TASK_PREFIX)

  @property
  def min_sentences(self) -> int:
    """Number of nonempty sentences that a document must have to be kept."""
    return 2 if self.has_pairs else 1

  @property
  def sentence_rule(self) -> encode.SentenceRule:
    """How paragraphs are split into sentences."""
    return 'line' if self.has_pairs else self.sentences
