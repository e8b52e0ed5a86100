"""Limits of the tracks of the BabyLM challenge, counted by hand."""
import pytest

from experiments.babylm import tracks
from experiments.babylm.tracks import TextSize, TrackConfig, check_budget, check_track, count_text
from plm_jax import storage
from plm_jax.errors import ConfigError
from plm_jax.sources.document_formats import TextReadConfig

MULTILINGUAL = TrackConfig('multilingual', ('eng', 'nld', 'zho'))


def test_checkpoint_names_match_the_challenge():
  """The lists of collate_preds.py in babylm-eval at 45fe2c1."""
  small = [f'chck_{i}M' for i in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90,
                                  100)]
  assert list(TrackConfig('strict-small').checkpoint_words()) == small
  large = [*small, *(f'chck_{i}00M' for i in range(2, 11))]
  for track in (TrackConfig('strict'), MULTILINGUAL):
    assert list(track.checkpoint_words()) == large
  assert TrackConfig('strict').checkpoint_words()['chck_200M'] == 200_000_000


def test_words_of_a_language_follow_from_its_bytes():
  """A hundred million English-equivalent words are 543 MB of English (multilingual-babylm,
  src/pad_utils.py)."""
  size = TextSize(90_000_000, 543_000_000)
  assert TrackConfig('strict').count_words(size, 0) == 90_000_000
  assert MULTILINGUAL.count_words(size, 0) == pytest.approx(100e6)
  assert MULTILINGUAL.count_words(size, 1) == pytest.approx(100e6 / 1.0516057206)
  assert MULTILINGUAL.count_words(TextSize(3, 508_229_751), 2) == pytest.approx(100e6, rel=1e-6)


@pytest.mark.parametrize(('words', 'warning'), [
    ([4e6, 6e6], ''),
    ([4e6, 6.1e6], 'the text has 10,100,000 words, and the track strict-small allows 10,000,000: '
                                     'remove 100,000 before you submit')])
def test_text_within_the_budget(words, warning):
  assert check_budget(TrackConfig('strict-small'), words) == warning


def test_text_beyond_the_budget():
  with pytest.raises(ConfigError,
                     match=r'the text has 10,300,000 words, .*allows 10,000,000: give --data.path '
                           r'less'):
    check_budget(TrackConfig('strict-small'), [10.3e6])
  with pytest.raises(ConfigError,
                     match='has 110,000,000 English-equivalent words, and the track multilingual'):
    check_budget(MULTILINGUAL, [50e6, 50e6, 10e6])


@pytest.mark.parametrize(('name', 'languages', 'message'), [
    ('strict', ('eng',),
     'name=multilingual needs .*languages, one per corpus, of eng, nld, zho; other tracks take '
     'none'),
    ('multilingual', (), 'name=multilingual needs .*languages'),
    ('multilingual', ('eng', 'fra'), 'languages are among eng, nld, zho, got fra')])
def test_languages_that_are_no_ones(name, languages, message):
  with pytest.raises(ConfigError, match=message):
    TrackConfig(name, languages)


def test_one_language_per_corpus():
  check_track(MULTILINGUAL, 3)
  with pytest.raises(ConfigError,
                     match=r'--track.languages gives 3 languages for 2 corpora of --data.path: one '
                           r'each'):
    check_track(MULTILINGUAL, 2)


def test_words_are_counted_once(tmp_path, monkeypatch):
  (tmp_path / 'text.txt').write_text("It's  a café.\nTwo\tlines\n\nAnother, 文本 document\n")
  folder = storage.resolve_path(tmp_path)
  def count(digest):
    return count_text(str(tmp_path / 'text.txt'), TextReadConfig(), folder, digest)
  found = count('a')
  assert found == (8, len("It's  a café.\nTwo\tlines\nAnother, 文本 document\n".encode()))
  monkeypatch.setattr(tracks.text_sources, 'read_documents', None)
  assert count('a') == found
  with pytest.raises(TypeError):  # other records: it would be counted again
    count('b')
