"""Properties of single documents: rules, words as numbers, signatures, overlaps."""
import itertools
import pickle

import numpy as np
import pytest

from plm_jax.corpora import duplicates, filter_documents, filters, word_hashes
from plm_jax.corpora.filter_documents import CleanConfig, DocumentFilter
from plm_jax.corpora.filters import FilterConfig, RuleFilter
from plm_jax.corpora.word_hashes import MinHash
from plm_jax.errors import UserError
from plm_jax.validation import ConfigError

PROSE = ['The house of my father stood by the river, and we lived there for many years.',
         'Nobody knew who had built it. It was old, and the rain came in.']


def c4(**changes):
  fields = {name: value for name, value in filter_documents.parse_rules('c4').items() if name
            != 'span'}
  return RuleFilter(FilterConfig(**fields | changes))


def test_c4_takes_lines_away():
  found = c4()([*PROSE, 'Home | About | Contact', 'Please enable JavaScript to see this page.',
                'Too short here.',
                'By going on you accept our privacy policy and more.', 'And so on and on and on...',
                'It has a mark[1] of Wikipedia in it.[citation needed]'])
  assert found.paragraphs == [*PROSE, 'It has a mark of Wikipedia in it.']
  assert found.reason == ''
  assert found.lines == {'no terminal punctuation': 2, 'javascript': 1, 'too few words': 1,
                         'policy': 1}


@pytest.mark.parametrize(('paragraphs', 'reason'), [
    ([*PROSE, 'Lorem Ipsum dolor'], 'lorem ipsum'), ([*PROSE, 'if (x) {'], 'curly bracket'),
    (PROSE[:1], 'too few sentences'), (['Home', 'Contact'], 'no line left'), (PROSE, '')])
def test_c4_leaves_documents_out(paragraphs, reason):
  assert c4()(paragraphs).reason == reason


def test_c4_on_chinese():
  lines = ['他们在河边的房子里住了很多年。', '没有人知道是谁建的！房子很旧。', '首页 关于我们 联系方式', '好的。',
           '等等等等等等……']
  found = c4()(lines)
  assert found.paragraphs == lines[:2]
  assert found.reason == ''
  assert found.lines == {'no terminal punctuation': 2, 'too few words': 1}


def test_bad_words_are_whole_words_except_in_chinese(tmp_path):
  (tmp_path / 'bad.txt').write_text('grape\nsour  plum\n坏词\n\n')
  check = RuleFilter(FilterConfig(bad_words=str(tmp_path / 'bad.txt')))
  assert [check([text]).reason for text in ('A Grape, red.', 'Grapefruit.', '这是坏词吗')] == [
      'bad word', '', 'bad word']
  (tmp_path / 'bad.txt').write_text('\n')
  with pytest.raises(ConfigError, match=r'bad.txt has no words'):
    RuleFilter(FilterConfig(bad_words=str(tmp_path / 'bad.txt')))


def test_quality():
  long = [*PROSE, *PROSE]
  assert filters.broken_quality_rule(long) == ''
  assert filters.broken_quality_rule(PROSE[:1]) == 'number of words'
  assert filters.broken_quality_rule(['# ' * 60 + 'word ' * 60]) == 'symbols'
  assert filters.broken_quality_rule([f'- {line}' for line in long]) == 'bullets'
  assert filters.broken_quality_rule([f'{line} and so on...' for line in long]) == 'ellipses'
  assert filters.broken_quality_rule(['12 345 678 90 the of ' * 20]) == 'length of words'
  assert filters.broken_quality_rule(['1234 5678 9012 the ' * 20]) == 'words without letters'
  assert filters.broken_quality_rule(['mice like cheese ' * 20]) == 'stop words'
  assert filters.broken_quality_rule(['mice like cheese ' * 20], stop_words=0) == ''
  assert filters.broken_quality_rule(['他们在河边的房子里住了很多年。没有人知道是谁建的。' * 4]) == ''


def test_repetition():
  assert filters.broken_repetition_rule(PROSE) == ''
  assert filters.broken_repetition_rule([*PROSE, *PROSE]) == 'repeated lines'
  assert filters.broken_repetition_rule(['a b ' * 9]) == 'one 2-gram'
  # Ten times a word of six characters is style in Chinese; two copies of twelve characters in a
  # hundred are not.
  han = [chr(0x4e00 + n) for n in range(300)]
  assert filters.broken_repetition_rule([''.join(han[at:at + 30] + ['河边的旧房子'])
                                         for at in range(0, 300, 30)]) == ''
  repeated = [''.join(han[:12] + han[20:60]), ''.join(han[:12] + han[70:110])]
  assert filters.broken_repetition_rule(repeated) == 'repeated 5-grams'
  found = ' '.join(f'one two three four five {n} {n}a {n}b {n}c' for n in range(3))
  # 3 x 19 of 57 + 3 x 7 characters are in the 5-gram.
  words = found.split()
  sizes = np.array([len(word) for word in words])
  assert filters.duplicate_ngram_share(word_hashes.hash_words(words), sizes, 5) == 57 / 78


def test_grams_are_of_words_in_order():
  a, b = (word_hashes.ngram_hashes(word_hashes.hash_words(word_hashes.split_words(text)), 2)
          for text in ('One two, three TWO one', 'two one two three'))
  assert len(a) == 4 and len(b) == 3
  assert (a[0], a[1], a[3]) == (b[1], b[2], b[0])
  assert len(set(a.tolist())) == 4
  assert len(word_hashes.ngram_hashes(word_hashes.hash_words(['one']), 5)) == 1
  # The hashes are the same on every machine and in every version, so that interrupted work can
  # resume.
  assert word_hashes.ngram_hashes(word_hashes.hash_words(['他', '走']),
                                  2).tolist() == [1552345403798419497]


def similar_texts(length, edits):
  rng = np.random.default_rng(length)
  one = [f'w{n}' for n in rng.integers(0, 5000, length)]
  other = list(one)
  for place in np.linspace(0, length - 1, edits + 2).astype(int)[1:-1]:
    other[place] = f'x{place}'
  return one, other


def test_signatures_agree_as_the_sets_do():
  minhash = MinHash()
  assert (minhash.rows, minhash.bands, minhash.min_agreement) == (8, 32, 0.75)
  for edits, jaccard in ((4, 0.922), (11, 0.8), (30, 0.535)):
    one, other = map(word_hashes.hash_words, similar_texts(499, edits))
    sets = [set(word_hashes.ngram_hashes(numbers, 5).tolist()) for numbers in (one, other)]
    assert len(sets[0] & sets[1]) / len(sets[0] | sets[1]) == pytest.approx(jaccard, abs=0.005)
    a, b = map(minhash.signature, (one, other))
    assert (a == b).mean() == pytest.approx(jaccard, abs=0.08)
    assert bool(minhash.are_similar(minhash.sketch(a), minhash.sketch(b))) == (jaccard > 0.79)


def test_documents_are_linked_with_the_first_that_is_similar():
  minhash = MinHash(values=64)
  one, other = (np.full(64, value, np.uint8) for value in (1, 2))
  sketches = np.stack([other if place in (5, 8) else one for place in range(12)])
  numbers = np.array([1, 1, 1, 1, 1, 2, 3, 3], np.uint64)
  edges = duplicates.similar_edges(minhash, numbers, np.array([3, 5, 7, 8, 9, 2, 8, 11]),
                                   sketches.__getitem__)
  assert edges.tolist() == [[3, 7], [3, 9], [5, 8]]
  forest = np.arange(10)
  duplicates.union_trees(forest, np.array([[8, 9], [2, 4]]))
  duplicates.union_trees(forest, edges)
  assert np.flatnonzero(forest != np.arange(10)).tolist() == [4, 5, 7, 8, 9]
  assert duplicates.find_roots(forest, np.arange(10)).tolist() == [0, 1, 2, 3, 2, 3, 6, 3, 3, 3]


def test_examined(tmp_path):
  (tmp_path / 'test.jsonl').write_text(
      '{"question": "who built the old house by the river", "label": 1}\n')
  config = CleanConfig(decontaminate=str(tmp_path / 'test.jsonl'), ngram=5, span=2)
  examiner = pickle.loads(pickle.dumps(DocumentFilter(config)))
  found = examiner(PROSE)
  assert (found.paragraphs, found.reason, found.sketch.shape,
          found.bands.shape) == (PROSE, '', (256,), (32,))
  assert len(found.spans) == 2
  assert examiner([' '.join(PROSE).lower()]).exact == found.exact != examiner(PROSE[:1]).exact
  assert examiner(['I ask who built the old house.']).reason == 'evaluation'
  assert DocumentFilter(CleanConfig(duplicates='none'))(PROSE).bands.size == 0


def test_exact_duplicates_have_equal_symbols():
  examiner = DocumentFilter(CleanConfig(duplicates='exact'))
  texts = ['C++ is good', 'C# is good', 'C is good', 'x > 0', 'x < 0', 'no?', 'no!', '...', '!!!',
           'caf\u00e9']
  assert len({examiner([text]).exact for text in texts}) == len(texts)
  assert examiner(['C++', 'is  GOOD']).exact == examiner(['c++ is good']).exact
  assert examiner(['cafe\u0301']).exact == examiner(['caf\u00e9']).exact


def test_repeated_sentences_are_taken_out():
  assert filter_documents.remove_repeated_spans(['One. Two. Three.', 'Four.  Five. 六。七。'], {1, 2},
                                                2) == (
      ['One.', 'Five. 六。七。'], 3)
  assert filter_documents.remove_repeated_spans(['One. Two.'], {0}, 2) == ([], 2)


def test_rules_that_are_not_known():
  assert filter_documents.parse_rules('c4,gopher')['repetition'] is True
  with pytest.raises(ConfigError, match=r'rules is c4 or gopher, or several by commas, got .rpv2'):
    filter_documents.parse_rules('rpv2')


def test_evaluation_sets_of_every_kind_can_be_in_one_list(tmp_path, monkeypatch):
  monkeypatch.setattr('plm_jax.sources.tfds.iterate_examples',
                      lambda source: [{'text': f'rows of {source}'}])
  (tmp_path / 'May, 2019.tsv').write_text('sentence\tlabel\na fine film\t1\n')
  (tmp_path / 'rows.jsonl').write_text('{"text": "a row"}\n')
  (tmp_path / 'plain.txt').write_text('a document\n')
  task = f'task:sst2:{tmp_path}/May, 2019.tsv'
  rows, plain = f'{tmp_path}/rows.jsonl', f'{tmp_path}/plain.txt'
  texts = {task: ['sst2 sentence: a fine film', 'positive'], rows: ['a row'], plain: ['a document'],
           'tfds:imdb:test': ['rows of tfds:imdb:test']}
  for order in itertools.permutations(texts):
    found = list(filter_documents.evaluation_texts(','.join(order)))
    assert found == [text for source in order for text in texts[source]]
  with pytest.raises(UserError, match=r'nowhere\.txt'):
    list(filter_documents.evaluation_texts(f'{task},nowhere.txt'))
