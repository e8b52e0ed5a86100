import glob
import os

import pytest

from plm_jax.sources.lines import SourceError
from plm_jax.sources.source_files import expand_glob, find_files, split_names


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """An empty folder in which the test runs."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


def names(source):
  return [os.fspath(file) for file in find_files(source)]


@pytest.mark.parametrize(('source', 'found'), [
    ('May, 2019.txt', ['May, 2019.txt']), ('a.txt,May, 2019.txt', ['a.txt', 'May, 2019.txt']),
    ('May, 2019.txt, a.txt', ['May, 2019.txt', 'a.txt']), ('a.txt,b.txt', ['a.txt', 'b.txt']),
    ('a,b/*.txt', ['a,b/c.txt']), ('a,b', ['a,b/c.txt']),
    ('x,y,z.txt,a.txt', ['x,y,z.txt', 'a.txt']),
    ('May*.txt,b.txt', ['May, 2019.txt', 'b.txt'])])
def test_a_name_may_contain_commas(folder, source, found):
  (folder / 'a,b').mkdir()
  for name in ('a.txt', 'b.txt', 'May, 2019.txt', 'a,b/c.txt', 'x,y,z.txt'):
    (folder / name).write_text('x')
  assert names(source) == found


def test_commas_of_options_that_take_several_sources(folder):
  (folder / 'May, 2019.tsv').write_text('x')
  assert split_names('') == ()
  assert split_names('tfds:glue/sst2:train,May, 2019.tsv') == ('tfds:glue/sst2:train',
                                                               'May, 2019.tsv')
  assert split_names('missing.tsv,embedded:tagging') == ('missing.tsv', 'embedded:tagging')


def test_a_missing_name_with_a_comma_says_that_commas_separate_paths(folder):
  with pytest.raises(SourceError, match=r"no files match 'June' \(commas separate paths"):
    find_files('June, 2019.txt')
  with pytest.raises(SourceError, match=r"no files match 'June\.txt': expected"):
    find_files('June.txt')
  (folder / 'a.txt').write_text('x')
  with pytest.raises(SourceError, match='names no text'):
    find_files('a.txt,,a.txt')


def link(place, target):
  place.symlink_to(target, target_is_directory=True)


def test_links_that_lead_back_are_followed_once(folder):
  inner = folder / 'c/x/y'
  inner.mkdir(parents=True)
  for place, name in ((folder / 'c', 'a.txt'), (inner, 'b.txt')):
    (place / name).write_text('x')
  link(folder / 'c/here', '.')
  link(folder / 'c/x/up', '..')
  link(inner / 'top', folder)
  for number in range(30):  # links between folders, of which there are 2 ** 30 paths
    step = folder / f'c/step{number:02}'
    step.mkdir()
    for side in 'lr':
      link(step / side, f'../step{(number + 1) % 30:02}')
  assert names('c') == ['c/a.txt', 'c/x/y/b.txt']
  assert names('c/**/*.txt') == names('c')
  assert names('**/b.txt') == ['c/x/y/b.txt']


def test_a_folder_outside_is_read_through_its_link_and_once(folder):
  (folder / 'other').mkdir()
  (folder / 'other/b.txt').write_text('x')
  (folder / 'c').mkdir()
  for name in 'mn':
    link(folder / 'c' / name, folder / 'other')
  assert names('c') == ['c/m/b.txt']
  (folder / 'c/b.txt').symlink_to(folder / 'other/b.txt')  # files are what their links say
  assert names('c') == ['c/b.txt', 'c/m/b.txt']


@pytest.mark.parametrize('pattern', [
    '**', '**/*', '**/*.txt', 'c/**', 'c/**/*.txt', 'c/**/d/*', './c/**/*.txt', '*/**/b?.txt',
    'c/.h/**/*.txt',
    '**/**/*.txt', 'missing/**/*.txt', '*/**/.*'])
def test_recursive_globs_are_those_of_python(folder, pattern):
  for name in ('a.txt', 'c/b1.txt', 'c/d/b2.txt', 'c/d/e/b3.md', 'c/.h/b4.txt', 'c/d/.b5.txt',
               'c/_s/b6.txt'):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text('x')
  matches = glob.glob(pattern, recursive=True)
  expected = sorted({os.path.normpath(path) for path in matches if not os.path.isdir(path)})
  assert sorted(map(os.path.normpath, expand_glob(pattern))) == expected
  absolute = [os.path.join(folder, path) for path in expected]
  assert sorted(map(os.fspath, expand_glob(f'{folder}/{pattern}'))) == sorted(
      map(os.path.normpath, absolute))
