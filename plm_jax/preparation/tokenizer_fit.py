"""Check how well a tokenizer fits a text, before the text is tokenized.

The checks use a sample. They warn of accents that are dropped, of text that is not in NFC, and of
text without spaces that the tokenizer takes for unknown words. A warning has a count and an option
that helps. A tokenizer to be trained that would not know most of the text is an error.
"""
from collections import Counter
from collections.abc import Iterable, Iterator
import dataclasses
import re
from typing import Any, Literal
import unicodedata

from tokenizers import pre_tokenizers

from plm_jax import tokenizers, unicode_words
from plm_jax.errors import add_advice, name_field, warn
from plm_jax.preparation import prepare_config
from plm_jax.preparation.prepare_config import PrepareConfig, TextConfig
from plm_jax.tokenizers.sentence_piece import AlbertNormalization
from plm_jax.tokenizers.wordpiece import MAX_WORD_LENGTH, BertNormalization

MAX_PARAGRAPHS, MAX_CHARACTERS = 2000, 2000  # of a sample, and of each of its paragraphs
FEW_SHARE = 0.001  # of the letters, up to which there is no warning
MANY_SHARE = 0.1  # of the letters
LONG_RUN_LETTERS = 8  # longer words are rare in scripts without spaces
WORD = re.compile(unicode_words.word_pattern())
LETTER = re.compile(rf'[^\W\d_][{unicode_words.MARK}]*')
KANA = '\u3041-\u309f\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f'


# What to do about unknown tokens, by `choose_remedy`; placeholders are fields.
ADVICE = {
    'en': {
        'foreign': 'is the tokenizer made for this text? One that is trained on it knows all but '
                   'the rarest characters',
        'spaces': 'words of text without spaces are too long for it; {kind}=sentencepiece-unigram '
                  'needs no spaces',
        'larger': 'a larger vocabulary knows more of the rare ones: {size}={vocab}',
        'coverage': '{coverage}=1 gives a piece to the rarest characters, too',
        'sample': 'they are not in the sample that the tokenizer was trained on: a larger {sample} '
                  'has more of them, and {kind}=byte-bpe knows all'},
    'zh': {
        'foreign': '分词器适合这份语料吗？在语料上训练的分词器，认得除最生僻字以外的所有字',
        'spaces': '没有空格的文本里，词太长；{kind}=sentencepiece-unigram 不需要空格',
        'larger': '词表更大，认得的生僻字就更多：{size}={vocab}',
        'coverage': '{coverage}=1 让最生僻的字也进入词表',
        'sample': '训练分词器的样本里没有它们：{sample} 更大，认得更多；'
                  '{kind}=byte-bpe 则全都认得'}}
ADVICE_FIELDS = {'size': name_field('vocab'), 'coverage': name_field('coverage'),
                 'sample': name_field('sample'), 'kind': name_field('kind')}


class TextSample:
  """Evenly spread paragraphs of a text: every n-th; n doubles whenever there are too many."""

  def __init__(self):
    self.texts: list[str] = []
    self._every = 1
    self._seen = 0

  def watch(self, texts: Iterable[str]) -> Iterator[str]:
    """Yield texts unchanged, and keep some of them."""
    for text in texts:
      if self._seen % self._every == 0:
        self.texts.append(text[:MAX_CHARACTERS])
        if len(self.texts) > MAX_PARAGRAPHS:
          self.texts = self.texts[::2]
          self._every *= 2
      self._seen += 1
      yield text


def check_tokenizer(config: PrepareConfig, tokenizer: tokenizers.Tokenizer, texts: Iterable[str]
                    ) -> None:
  """Warn of problems of a tokenizer with a sample of the text.

  Args:
    config: if it names a tokenizer, the tokenizer was not trained on the text.
    tokenizer: to check.
    texts: sample of paragraphs.

  Raises:
    TokenizerError: a trained tokenizer takes many letters for parts of unknown words.
  """
  texts = list(texts)
  rules: BertNormalization | AlbertNormalization | None = getattr(tokenizer, 'text', None)
  warnings = (accent_warning(config, rules, texts), composition_warning(tokenizer, texts),
              unspaced_warning(config, tokenizer, texts))
  for warning in warnings:
    if warning:
      warn(warning)


def normalization_rules(config: TextConfig) -> BertNormalization | AlbertNormalization | None:
  """Return the handling of case and accents by a tokenizer to train; None if it keeps accents."""
  if config.kind == 'wordpiece':
    return BertNormalization(config.lowercase, None if config.strip_accents else False)
  if config.kind == 'word-bpe':
    return tokenizers.WordBPE.text
  if config.kind.startswith('sentencepiece') and config.layout in ('albert', 'xlnet'):
    return AlbertNormalization(config.lowercase, config.strip_accents)
  return None


def accent_warning(
    config: TextConfig, rules: BertNormalization | AlbertNormalization | None,
    texts: Iterable[str], given: bool = False) -> str:
  """Return a warning about letters that lose their accents, '' if there are hardly any.

  Args:
    config: names the tokenizer, or the kind to train.
    rules: normalization of the tokenizer.
    texts: sample of paragraphs.
    given: the tokenizer is not trained on the text, even if `config` names none.
  """
  if not rules or not rules.removes_accents:
    return ''
  stripping = rules.build_normalizer()
  keeping = dataclasses.replace(rules, strip_accents=False).build_normalizer()

  def decompose(normalizer, letter: str) -> str:
    return unicodedata.normalize('NFD', normalizer.normalize_str(letter)).strip()

  counts = Counter()
  for text in texts:
    counts.update(LETTER.findall(unicodedata.normalize('NFC', text)))
  changed = {}
  for letter in counts:
    stripped = decompose(stripping, letter)
    if stripped != decompose(keeping, letter):
      changed[letter] = stripped
  number, total = sum(counts[letter] for letter in changed), counts.total()
  if number <= FEW_SHARE * total:
    return ''
  frequent = sorted(changed, key=lambda letter: (-counts[letter], letter))[:3]
  examples = ', '.join(f'{letter} becomes {changed[letter]}' for letter in frequent)
  option = f'{name_field("strip_accents")}=False'
  if config.tokenizer or given:
    advice = f'A cased tokenizer keeps them, or one that is trained on the text with {option}'
  elif config.kind == 'word-bpe':
    other = add_advice(f'{name_field("kind")}=byte-bpe', 'byte-level BPE')
    advice = f"GPT's word-bpe has no other way: {other} keeps them"
  else:
    advice = f'{option} keeps them'
  return (f'{number:,} of {total:,} letters in a sample of the text ({number / total:.1%}) lose '
          f'their accents and marks with the case ({examples}): words that differ in nothing else '
          f'become the same. {advice}')


def composition_warning(tokenizer: tokenizers.Tokenizer, texts: Iterable[str]) -> str:
  """Return a warning about words not in NFC, '' if there are hardly any or tokens are the same.

  NFC is Unicode's composed form.
  """
  counts = Counter()
  for text in texts:
    counts.update(WORD.findall(text))
  other = {word: counts[word] for word in counts if not unicodedata.is_normalized('NFC', word)}
  number = sum(other.values())
  if number <= FEW_SHARE * counts.total():
    return ''
  frequent = sorted(other, key=lambda word: (-other[word], word))[:3]
  if all(tokenizer.encode(word) == tokenizer.encode(unicodedata.normalize('NFC', word))
         for word in frequent):
    return ''
  return (f'{number:,} of {counts.total():,} words in a sample of the text are not in the composed '
          f'form of Unicode (NFC), such as {frequent[0]}: the same words in that form have other '
          'tokens. Convert text to NFC, here and for all uses of the model')


def unspaced_warning(config: PrepareConfig, tokenizer: tokenizers.Tokenizer, texts: Iterable[str]
                     ) -> str:
  """Return a warning about text without spaces, '' if there is hardly any.

  A tokenizer of words cannot divide such text.

  Raises:
    TokenizerError: it is too much for a tokenizer that was trained on the text.
  """
  texts = list(texts)
  sentencepiece = add_advice(
      f'{name_field("kind")}=sentencepiece-unigram', 'a SentencePiece tokenizer')
  if isinstance(tokenizer, tokenizers.WordPiece):
    share, scripts = measure_long_words(tokenizer, texts)
    if share > FEW_SHARE:
      problem = (f'{share:.1%} of the letters are in words of more than {MAX_WORD_LENGTH} '
                 'characters, which WordPiece takes for unknown: the text has no spaces between '
                 f'words ({scripts}).')
      advice = f'{sentencepiece} needs none'
      if config.tokenizer:
        return f'{problem} A tokenizer that is trained on the text with {advice}'
      if share > MANY_SHARE / 2:
        raise tokenizers.TokenizerError(f'{problem} {advice}')
      return f'{problem} {advice}'
  if isinstance(tokenizer, tokenizers.WordPiece | tokenizers.WordBPE):
    share, scripts = measure_long_runs(texts, KANA + unicode_words.DICTIONARY_SCRIPTS)
    if share > MANY_SHARE:
      return (f'{share:.0%} of the letters are in phrases without a space ({scripts}), each of '
              f'which {tokenizer.kind} takes for a word: {sentencepiece} divides them')
  if isinstance(tokenizer, tokenizers.WordTokenizer):
    letters = unicode_words.UNSPACED_SCRIPTS
    if tokenizer.punctuation:  # each Chinese or Japanese character is a word
      letters = unicode_words.DICTIONARY_SCRIPTS
    share, scripts = measure_long_runs(texts, letters)
    if share <= MANY_SHARE:
      share, scripts = measure_long_runs(texts, r'^\W\d_', MAX_WORD_LENGTH)  # such as DNA
    if share > MANY_SHARE:
      advice = 'Give text with spaces between words'
      if not tokenizer.punctuation:
        share_left, _ = measure_long_runs(texts, unicode_words.DICTIONARY_SCRIPTS)
        if share_left <= MANY_SHARE:
          option = add_advice(f'{name_field("kind")}=words-and-signs', 'words-and-signs')
          advice += f', or {option}, to which each character is a word'
      problem = (f'{share:.0%} of the letters are in phrases without a space ({scripts}), whose '
                 f'words cannot be told. {advice}')
      if config.tokenizer:
        return problem
      raise tokenizers.TokenizerError(problem)
  return ''


Remedy = Literal['foreign', 'spaces', 'larger', 'coverage', 'sample']


def choose_remedy(config: TextConfig, full: bool, unspaced: bool) -> Remedy:
  """Return what reduces the unknown tokens of a text: a key of ADVICE.

  Args:
    config: how the text was prepared.
    full: see `is_vocab_full`.
    unspaced: words that are too long, of text without spaces, are among the unknown tokens.
  """
  if config.tokenizer:
    return 'foreign'
  if config.kind == 'wordpiece' and unspaced:
    return 'spaces'
  if config.kind in ('words', 'words-and-signs') or (config.kind == 'wordpiece' and full):
    return 'larger'
  if config.kind in prepare_config.COVERAGE_KINDS and (config.coverage or 0) < 1:
    return 'coverage'
  return 'sample'


def is_vocab_full(tokenizer: Any) -> bool:
  """Return whether single characters fill their part of a WordPiece vocabulary.

  If so, a larger vocabulary has more of them. True for other tokenizers.
  """
  if not isinstance(tokenizer, tokenizers.WordPiece):
    return True
  return sum(len(token) == 1 for token in tokenizer.pieces) > 0.7 * tokenizer.vocab.size


def measure_long_words(tokenizer: tokenizers.WordPiece, texts: Iterable[str]) -> tuple[float, str]:
  """Return the share of letters in words too long for WordPiece, and their scripts."""
  normalizer = tokenizer.text.build_normalizer()
  found, total = Counter(), 0
  for text in texts:
    total += len(LETTER.findall(text))
    if re.search(rf'\S{{{MAX_WORD_LENGTH + 1}}}', text):
      normalized = normalizer.normalize_str(text)
      for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalized):
        if len(word) > MAX_WORD_LENGTH:
          found.update(map(script_name, LETTER.findall(word)))
  return found.total() / max(total, 1), script_names(found)


def measure_long_runs(texts: Iterable[str], letters: str, longest: int = LONG_RUN_LETTERS
                      ) -> tuple[float, str]:
  """Return the share of letters in long runs of some letters, and the names of their scripts.

  Args:
    texts: sample of paragraphs.
    letters: content of a character class.
    longest: letters up to which a run is not long.
  """
  letter = f'[{letters}][{unicode_words.MARK}]*'
  run = re.compile(f'(?:{letter}){{{longest + 1},}}')
  found, total = Counter(), 0
  for text in texts:
    total += len(LETTER.findall(text))
    for match in run.finditer(text):
      found.update(map(script_name, LETTER.findall(match[0])))
  return found.total() / max(total, 1), script_names(found)


def script_name(letter: str) -> str:
  """Return the name of a letter's script: the first word of the letter's Unicode name.

  >>> script_name('ท'), script_name('か'), script_name('中'), script_name('A')
  ('Thai', 'Hiragana', 'Chinese', 'Latin')
  """
  name = unicodedata.name(letter[0], 'unknown').split()[0]
  return 'Chinese' if name == 'CJK' else name.title()


def script_names(scripts: Counter) -> str:
  """Return the names of the most frequent scripts."""
  return ', '.join(name for name, _ in scripts.most_common(3))
