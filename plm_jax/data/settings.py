"""What `prepare` is told: which text, and how it becomes token records."""
import dataclasses
from typing import Literal, get_args

from plm_jax import tokenizers
from plm_jax.checked import Checked, within
from plm_jax.data import encode, formats, lines, segment
from plm_jax.data.examples import TASK


@dataclasses.dataclass(frozen=True)
class TextConfig(Checked):
  """How text becomes token records, whatever the text."""

  limits = within(
      sentinels='[1, 100000]', sample='[1, 1e15]', heldout='[0, 1)', shard_tokens='[1, inf)', workers='[0, 4096]')

  tokenizer: str = ''
  """A vocab.txt, a vocab.json, a SentencePiece .model, or a folder with one. Empty: train one on the source."""
  kind: Literal['wordpiece', 'sentencepiece-unigram', 'sentencepiece-bpe', 'byte-bpe', 'word-bpe', 'bytes', 'words',
                'words-and-signs'] = 'wordpiece'
  """The tokenizer to train; word-bpe is GPT's; bytes, ByT5's, learn nothing, and are 384; words are ELMo's."""
  lowercase: bool = True
  """Whether the tokenizer to train ignores case (and, for WordPiece, accents); byte-level BPE and words never do."""
  layout: tokenizers.Layout | Literal['gpt2'] = 'bert'
  """Special pieces of the SentencePiece model to train: as BERT has them, or ALBERT, DeBERTa, XLNet, GLM, T5,
  mBART, mBART-50 or XLM-R; of a WordPiece vocabulary, BERT's or GLM's; of byte-level BPE, RoBERTa's (bert) or
  GPT-2's."""
  sentinels: int = 100
  """Of the layout t5: ids that stand for spans which are left out, as many as a row may have of them."""
  sample: int = 50_000_000
  """Characters of text to train the tokenizer on, spread over the source."""
  sentences: encode.Sentences = 'split'
  """Sentences are found by rule; or they end at every . ? ! ; : (GLM's blanks); or every line of the source is one."""
  segmenter: segment.Segmenter = 'none'
  """What a word is, for whole-word masks: as the tokenizer says (none); Chinese words as jieba finds them, jieba:FILE
  with a list of more; as the spaces of a pre-segmented source say, which are no part of the ids beside Chinese and
  Japanese characters; or words:FILE, the longest words, phrases and names of a list, one a line."""
  newlines: bool = False
  """Paragraphs behind another begin with a line break, for language models: of the tokenizers, BPE of bytes and
  SentencePiece as LLaMA has it keep one."""
  heldout: float = 0.01
  """Share of the documents that training never sees, chosen by their text. At least one, unless 0."""
  on_error: lines.OnError = 'refuse'
  """What to do with a line that is not UTF-8 or not JSON: stop and name it, or leave it out and count it."""
  text_field: str = 'text'
  """Field with the text, of JSON lines, of tables and of TFDS."""
  documents: formats.Division = 'auto'
  """What divides plain text into documents: blank lines; every line is one, or every file. auto: blank lines, and where
  a file has none in its first MiB its lines do, unless it is shorter than that and not alone: then it is a document."""
  shard_tokens: int = 1 << 22
  """Tokens a shard."""
  workers: int = 0
  """Processes that encode; 0 for one a core. Changes nothing in the records."""

  def conflict(self, option):
    """Says which options do not go together: line breaks with a segmenter, a layout with another kind of tokenizer."""
    if wrong := segment.wrong(self.segmenter):
      return f'{option("segmenter")} {wrong}'
    if self.newlines and self.segmenter != 'none':
      return (f'{option("newlines")} is for language models, {option("segmenter")} for masks of whole words: give one '
              'of them')
    if not self.tokenizer and self.layout not in (known := layouts(self.kind)):
      return (f'{option("layout")} is {" or ".join(known)} with {option("kind")}={self.kind}, got {self.layout}: it is '
              'the layout of other tokenizers')
    return None

  @property
  def reading(self) -> formats.Reading:
    """How the sources of text are read."""
    return formats.Reading(self.on_error, self.text_field, self.documents)


def layouts(kind: str) -> tuple[str, ...]:
  """Returns the layouts that a kind of tokenizer can have."""
  if kind.startswith('sentencepiece'):
    return get_args(tokenizers.Layout)
  return {'wordpiece': ('bert', 'glm'), 'byte-bpe': ('bert', 'gpt2')}.get(kind, ('bert',))


@dataclasses.dataclass(frozen=True)
class PrepareConfig(TextConfig):
  """What to read, and how."""

  limits = within(vocab='[1, 16777216]')

  source: str = 'embedded'
  """Files, globs, folders (local or gs://, comma-separated; .txt, .jsonl, .gz, .xz), tfds:NAME[:SPLIT], or embedded."""
  vocab: int = 30_522
  """Pieces of the tokenizer to train."""

  @property
  def pairs(self) -> bool:
    """Tells whether a document is a target and its inputs, each of them whole."""
    return self.source.startswith(TASK)

  @property
  def least(self) -> int:
    """Returns how many sentences with tokens a document must have to be one."""
    return 2 if self.pairs else 1

  @property
  def encoding(self) -> tuple[encode.Sentences, segment.Segmenter, bool]:
    """Returns what `encode.encode` takes besides text and tokenizer."""
    return ('line' if self.pairs else self.sentences, self.segmenter, self.newlines and not self.pairs)
