"""Languages are identified by a fastText model, and by py3langid if it is installed."""
import base64
import sys
import zlib

import pytest

from plm_jax.corpora import filters
from plm_jax.corpora.filters import FilterConfig, RuleFilter
from plm_jax.validation import ConfigError
from plm_jax.word_vectors.fasttext_bin import FastTextError

# fasttext 0.9.2: train_supervised of six short lines three times, dim=2, epoch=60, lr=.5,
# loss='hs', as lid.176.bin has it, minn=2, maxn=2, bucket=7; by zlib and base64.
LANGUAGES = (
    'eNrbJeavz8PAwMAExKxAbAPEjFA2IxQzAzE7VA0IpwCxrrPM60dmUvZSQLY4VE07AwT8hwIb/WI7BiGoIENJRioDP4yTn8'
    'bACWNnFpcwsME4aTmlxcUIbkoiEicTiZ2fk4LglOalgB0ABqmZeQhOIrJMZgmCXZaZmpmTk4qkrRhJNim/CElfYimCnZuY'
    'WZyPZEFOIpK6HCQjMvJLi5GMT8xFkkosLUbwijLLUosQ3Pj4nMSk1Jz4+NQ8eBAxwgVTUuG+RgimIbQzMshBWUxQ+mXZtn'
    '2Fm3Psetbu3j/x16R9C5ey7vcyaNwbWJJrXxO7yQ6dXmDBsf/MqY17YXTgzEd2AWHKdjDanj9/X4aa2N5AmQP7ClJr93Yd'
    'uLx3ku/RfcTSEf4/7FamONqdXamwzznhzB4YH118swqbA6v2JLvsUxUOrK+S9v28knyA5wrbgTDJj3uNnzTsv/3b24GTI9'
    '02Y8L5/Ye2ztl/VdTTPotx8X54UMACwGa2vYOriJdD6ayLB67xyu2DBTQANCG91w==')


def test_a_model_of_fasttext(tmp_path):
  """What its `predict` gives, which adds 1e-5 to each branch of the tree."""
  (tmp_path / 'lid.bin').write_bytes(zlib.decompress(base64.b64decode(LANGUAGES)))
  identify = filters.load_identifier(str(tmp_path / 'lid.bin'))
  for text, found, score in (('the river', 'en', 0.96971), ('das alte haus', 'de', 0.78761),
                             ('la maison', 'fr', 0.6934), ('unseen', 'de', 0.92005)):
    chances = identify(text)
    assert max(chances, key=lambda code: chances[code]) == found
    assert chances[found] == pytest.approx(score, abs=5e-5)
  keep = RuleFilter(FilterConfig(languages='en, de', language_model=str(tmp_path / 'lid.bin'),
                                 language_score=0.8))
  assert [keep([text]).reason for text in ('the river', 'das alte haus',
                                           'la maison')] == ['', 'language', 'language']
  both = RuleFilter(FilterConfig(languages='fr,de', language_model=str(tmp_path / 'lid.bin'),
                                 language_score=0.9))
  assert [both([text]).reason for text in ('the river', 'das alte haus',
                                           'la maison')] == ['language', '', '']
  (tmp_path / 'other.bin').write_bytes(b'none')
  with pytest.raises(FastTextError, match=r'other\.bin'):
    RuleFilter(FilterConfig(languages='en', language_model=str(tmp_path / 'other.bin')))


def test_py3langid():
  pytest.importorskip('py3langid')
  keep = RuleFilter(FilterConfig(languages='en,zh'))
  texts = ('The old house stood by the river for many years, and nobody knew who had built it.',
           '没有人知道是谁建了河边的房子，但是他们在那里住了很多年。',
           'La vieille maison se trouvait au bord de la rivière, et personne ne savait qui l’avait '
           'construite.')
  assert [keep([text]).reason for text in texts] == ['', '', 'language']


def test_missing_libraries_are_named(monkeypatch):
  filters.load_identifier.cache_clear()
  monkeypatch.setitem(sys.modules, 'py3langid', None)
  with pytest.raises(ConfigError,
                     match=r"py3langid: pip install 'plm_jax\[corpora\]'; or .* language_model"):
    RuleFilter(FilterConfig(languages='en'))
  with pytest.raises(ConfigError,
                     match=r'FilterConfig\.language_model tells languages: name those to keep'):
    FilterConfig(language_model='lid.bin')
