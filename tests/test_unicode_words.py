"""Words in all scripts, and everything in the project that divides text into them."""
import functools
import re
import unicodedata

import pytest
from scripts_text import sentences as sentences_of

from plm_jax import unicode_words
from plm_jax.corpora import filter_documents, filters, word_hashes
from plm_jax.corpora.filter_documents import CleanConfig
from plm_jax.preparation import word_segmentation
from plm_jax.sources import sentence_splitting
from plm_jax.tokenizers import train_sentencepiece
from plm_jax.tokenizers import whole_words as word_lists
from plm_jax.tokenizers.byte_bpe import starts_word
from plm_jax.unicode_words import split_words
from plm_jax.word_vectors import word_corpus

# One sentence per script, as its words: punctuation is separate.
SPACED = {
    'french': "L'été , le garçon entend l'écho .",
    'decomposed': unicodedata.normalize('NFD', 'école numéro déjà .'),
    'russian': 'Мой сын й дома .',
    'russian with stress': 'за\u0301мок и замо\u0301к .',
    'greek': 'Ο γιός μου ἐν ἀρχῇ .',
    'arabic': 'عَرَبِيّ كِتَابٌ جَمِيلٌ ۔',
    'persian': 'می\u200cخواهم کتاب\u200cها .',
    'hebrew': 'שָׁלוֹם יֶלֶד טוֹב .',
    'hindi': 'मेरी बेटी घर पर है ।',
    'bengali': 'আমার মেয়ে বাড়িতে আছে ।',
    'malayalam': 'അവന്\u200d വന്നു .',
    'sinhala': 'ශ්\u200dරී ලංකාව .',
    'tamil': 'தமிழ் மொழி நன்று .',
    'telugu': 'తెలుగు భాష .',
    'tibetan': 'བོད་ཡིག ་ །'.replace(' ་', ''),
    'korean': unicodedata.normalize('NFD', '한국어 문장 .'),
    'vietnamese': 'Tôi đọc sách ở trường .',
    'yoruba': 'ọ̀rọ̀ ọdún wọ́n .',
    'amharic': 'ሰላም ለዓለም ።',
    'thai words': 'บ้าน สวย ที่นี่ .',
    'lao words': 'ບ້ານ ງາມ .',
    'khmer words': 'ផ្ទះ ស្អាត ។',
    'burmese words': 'မြန်မာ စာ ။',
    'nko': 'ߒߞߏ߫ ߞߊ߲ .',
    'soft hyphen': 'Wörter\u00adbuch neu .',
}


@pytest.mark.parametrize('name', SPACED)
def test_words_keep_their_marks_everywhere(name):
  sentence = SPACED[name].split()
  if name == 'tibetan':
    sentence = ['བོད', 'ཡིག', '།']  # the sign between syllables is punctuation
  text = SPACED[name]
  plain = [word for word in sentence if re.search(r'\w', word)]
  if name == 'french':
    assert re.findall(word_corpus.WORD, text.lower()) == ["l'été", 'le', 'garçon', 'entend',
                                                          "l'écho"]
    assert word_hashes.split_words(text) == ['l', 'été', 'le', 'garçon', 'entend', 'l', 'écho']
    return
  assert re.findall(unicode_words.word_pattern(), text) == plain
  assert re.findall(word_corpus.WORD, text) == plain
  if name != 'tibetan':
    assert [word.text for word in split_words(text)] == sentence
    assert re.findall(word_lists.WORDS_AND_PUNCTUATION, text) == sentence
  assert all(unicode_words.is_word(word) for word in plain)
  if not unicode_words.UNSPACED_LETTER.search(text):
    assert word_hashes.split_words(text) == [unicodedata.normalize('NFC', word.lower())
                                             for word in plain]


def test_scripts_without_spaces():
  """Chinese and Japanese characters are words, in Thai and its like only for comparisons."""
  assert re.findall(unicode_words.word_pattern(), '中文か\u3099ｶﾞ葛\U000e0100บ้านสวย') == [
      '中', '文', 'か\u3099', 'ｶ', 'ﾞ', '葛\U000e0100', 'บ้านสวย']
  words = word_hashes.split_words('บ้านสวย ๑๒๓ ບ້ານ ផ្ទះ')
  assert words == ['บ้', 'า', 'น', 'ส', 'ว', 'ย', '๑๒๓', 'ບ້', 'າ', 'ນ', 'ផ្', 'ទះ']
  assert word_hashes.count_words('บ้านสวย') == 6 and word_hashes.count_words('मेरी बेटी घर') == 3
  # a zero-width space divides
  assert re.findall(unicode_words.word_pattern(), 'ที่\u200bนี่') == ['ที่', 'นี่']


def test_plain_english_is_divided_as_before():
  """The expressions of ASCII text that there were before marks counted."""
  text = ("The U.S. didn't pay $1,000 to snake_case's Rolls-Royce: it's 3.5km ''quoted'' "
          "(e.g. a_b) X2--y. O'Neill's")
  assert word_hashes.split_words(text) == re.findall(r'[^\W_]+', text.lower())
  assert word_corpus.WORD.findall(text) == re.findall(r"\w+(?:['’]\w+)*", text)
  assert word_lists.WORDS_AND_PUNCTUATION.findall(text) == re.findall(r"\w+(?:['’]\w+)*|[^\w\s]",
                                                                      text)
  former = re.compile(
      r"\d+(?:[.,:]\d+)+(?!\w)|\b(?:[^\W\d_]\.){2,}|\w+?(?=n['’]t\b)|n['’]t\b|"
      r"\w+(?:-\w+)*|['’](?:s|re|ve|ll|m|d)\b|\S",
      re.IGNORECASE)
  assert [word.text for word in split_words(text)] == former.findall(text)


def test_tag_keeps_combined_characters_together():
  family = '\U0001f468\u200d\U0001f469\u200d\U0001f467'
  assert [word.text for word in split_words(f'a {family} ❤\ufe0f! 1\ufe0f\u20e3')] == [
      'a', family, '❤\ufe0f', '!', '1\ufe0f\u20e3']
  text = ' '.join(SPACED.values())
  assert all(text[word.start:word.end] == word.text for word in split_words(text))
  assert ''.join(word.text for word in split_words(text)) == ''.join(text.split())


def test_invisible_characters_are_no_words():
  """A zero-width space divides; a byte-order mark, marks of direction and joiners at an end are
  left out."""
  text = '\ufeffភាសា\u200bខ្មែរ, \u200fשלום\u200e! می\u200cخواهم\u200c co\u00adop\u00ad'
  wanted = ['ភាសា', 'ខ្មែរ', ',', 'שלום', '!', 'می\u200cخواهم', 'co\u00adop']
  assert [word.text for word in split_words(text)] == re.findall(word_lists.WORDS_AND_PUNCTUATION,
                                                                 text) == wanted
  assert re.findall(word_corpus.WORD, text) == [word for word in wanted if word not in ',!']


def test_clean_distinguishes_sentences_by_their_marks():
  """Sentences that differ only in the composition of characters are equal."""
  examiner = filter_documents.DocumentFilter(CleanConfig(duplicates='exact'))
  exact = lambda text: examiner([text]).exact
  for one, other in (('मेरा बेटा घर पर है।', 'मेरी बेटी घर पर है।'), ('ข้าวนี้ดี', 'ขาวนีดี'),
                     ('עֵד', 'עַד'),
                     ('كُتُب', 'كَتَبَ'), ('ọ̀rọ̀', 'ọrọ'), ('கடல்', 'கடலை'), ('かば', 'がば')):
    assert exact(one) != exact(other), (one, other)
  for text in ('école', '한국어', 'tiếng Việt', 'がば'):
    assert exact(text) == exact(unicodedata.normalize('NFD', text)) != exact('')


def test_bad_words_are_whole_words(tmp_path):
  """A phrase does not match inside a word that continues with a mark, and matches however
  characters are composed."""
  (tmp_path / 'bad.txt').write_text('कल\nété\nกา\n')
  find = filters.bad_words_pattern(filters.read_bad_words(str(tmp_path / 'bad.txt')))
  config = filters.FilterConfig(bad_words=str(tmp_path / 'bad.txt'))
  bad = lambda text: bool(filters.RuleFilter(config).broken_content_rule([text]))
  assert bad('वह कल आया') and not bad('यह कला है') and not bad('कलि')
  assert bad('un e\u0301te\u0301 chaud') and not bad('un étéé')
  assert bad('มากามา') and not bad('มากา\u0e48มา') and find.pattern


def test_lists_of_words_for_scripts_without_spaces(tmp_path):
  """The longest listed words; a listed word does not end between a letter and its mark."""
  (tmp_path / 'words.txt').write_text('บ้าน\nสวย\nสว\n')
  listed, lengths = word_segmentation.index_word_list(str(tmp_path / 'words.txt'))
  cut = functools.partial(word_segmentation.split_by_list, listed, lengths)
  assert cut('บ้านสวยที่ मेरी घर')[1] == ['บ้าน', 'สวย', 'ที่', 'मेरी', 'घर']
  assert cut('สว่')[1] == ['ส', 'ว่']


def test_sentences_end_at_the_punctuation_of_each_script():
  assert sentence_splitting.split_sentences('မြန်မာစာ။ စာအုပ်။') == ['မြန်မာစာ။', 'စာအုပ်။']
  assert sentence_splitting.split_sentences('ផ្ទះស្អាត។ខ្ញុំទៅ។') == ['ផ្ទះស្អាត។', 'ខ្ញុំទៅ។']
  assert sentence_splitting.split_sentences('Ես գնացի։ Նա եկավ։') == ['Ես գնացի։', 'Նա եկավ։']


def test_tokens_that_continue_a_word_in_text_without_spaces():
  """A mark never starts a word; letters of scripts without spaces and signs do, in SentencePiece
  and byte-level BPE."""
  text = ['मेरी बेटी घर पर है।', 'かばんをもっていた。', 'บ้านสวยที่นี่'] * 9
  pieces = train_sentencepiece(text, 40)
  for piece, start in zip(pieces.pieces[7:], pieces.starts_word[7:], strict=True):
    first = piece[0]
    assert start == (first in '▁।。' or bool(unicode_words.UNSPACED_LETTER.match(first))), piece
  assert not starts_word('\u093f'.encode()) and not starts_word('री'.encode())
  assert starts_word(' री'.encode()) and starts_word('か'.encode()) and starts_word('ที่'.encode())


def test_marks_do_not_make_words_long():
  """The rule on the length of words counts letters, whatever their form."""
  for name in ('hebrew', 'arabic', 'tamil', 'devanagari', 'korean nfd', 'latin nfd', 'yoruba'):
    text = sentences_of(name, 60)
    assert filters.broken_quality_rule(text, stop_words=0) == '', name
  assert filters.broken_quality_rule(['וּבְהִתְקַהֲלוּתָם הַיַּלְדָּה ' * 40], stop_words=0) == ''
  assert filters.broken_quality_rule(['incomprehensibilities ' * 60],
                                     stop_words=0) == 'length of words'


def test_texts_of_punctuation_only_are_no_duplicates():
  examiner = filter_documents.DocumentFilter(CleanConfig(duplicates='exact'))
  first, other, again = (examiner([text]).exact for text in ('* * *', '❤ ☠', ' *  * * '))
  assert first == again != other
