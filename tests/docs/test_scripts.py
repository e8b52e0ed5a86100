"""The table of scripts on the page about languages with little text, measured again."""
import pathlib
import re

import pytest
from scripts_text import SOLID, documents

from plm_jax.corpora import word_hashes as compared
from plm_jax.preparation import tokenizer_fit
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.tokenizers import BertNormalization
from plm_jax.unicode_words import split_words
from plm_jax.word_vectors import word_corpus

ROOT = pathlib.Path(__file__).parents[2]
ROWS = ('latin', 'cyrillic', 'greek', 'arabic', 'hebrew', 'devanagari', 'bengali', 'tamil',
        'vietnamese', 'yoruba',
        'korean', 'chinese', 'japanese', 'thai', 'burmese', 'khmer')


def table(page):
  text = (ROOT / page).read_text()
  rows = re.findall(r'^\| (.+?) \| (.+?) \| ([\d.]+)% \| (\S*) \|$', text, re.M)
  assert len(rows) == len(ROWS)
  return dict(zip(ROWS, rows, strict=True))


@pytest.mark.parametrize('name', ROWS)
def test_table_of_scripts(name):
  _, words, share, option = table('docs/howto/low_resource.md')[name]
  assert (share, option) == table('docs/zh/howto/low_resource.md')[name][2:]
  texts = [line for line in documents(name, 140).split('\n') if line]
  said = tokenizer_fit.accent_warning(PrepareConfig(), BertNormalization(), texts)
  assert (re.findall(r'\(([\d.]+)%\)', said) or ['0.0']) == [share]
  # Every word segmentation finds the words in the table, and `clean` distinguishes the sentences.
  sentence = texts[0].split('.')[0].split('។')[0].split('။')[0].split('।')[0].split('。')[0].replace(
      "'", ' ')
  found = [word.text for word in split_words(sentence)]
  assert word_corpus.WORD.findall(sentence) == found
  if words == 'between spaces':
    assert found == sentence.split() and name not in SOLID
  elif words == 'characters':
    assert ''.join(found) == sentence and max(map(len, found)) == 1
  else:
    assert (
      found == [sentence]
      and tokenizer_fit.measure_long_runs(texts, tokenizer_fit.unicode_words.DICTIONARY_SCRIPTS)[0]
      > tokenizer_fit.MANY_SHARE
    )
  assert len({tuple(compared.split_words(text)) for text in texts}) == len(texts)
  refused = (
    tokenizer_fit.measure_long_runs(texts, tokenizer_fit.KANA
                                    + tokenizer_fit.unicode_words.DICTIONARY_SCRIPTS)[0]
    > tokenizer_fit.MANY_SHARE
  )
  assert refused == (option == '`--kind=sentencepiece-unigram`')
