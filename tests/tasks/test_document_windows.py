"""Documents that are longer than a row: windows, and the line about texts that are truncated."""
import dataclasses
import itertools
import warnings

import numpy as np
import pytest
import tuned

import plm_jax
from plm_jax import truncation
from plm_jax.errors import ConfigError
from plm_jax.finetuning.predict import predict
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.document_windows import combine_windows, window_starts
from plm_jax.tasks.elmo import RecurrentSequence, RecurrentTagging
from plm_jax.tasks.multilabel import MultiLabelTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import assign_words, split_words

LENGTH = 16  # of a row


def test_windows_cover_a_document():
  random = np.random.default_rng(0)
  for _ in range(300):
    size, room, stride = int(random.integers(0, 200)), int(random.integers(1, 40)), int(
        random.integers(0, 50))
    starts = window_starts(size, room, stride)
    seen = {at for start in starts for at in range(start, min(start + room, size))}
    assert seen == {*range(size)} and starts[0] == 0 and starts == sorted({*starts})
    assert starts[-1] == max(0, size - room)
    assert all(late - early <= room for early, late in itertools.pairwise(starts))


def test_every_word_is_tagged_once_where_it_has_context():
  random = np.random.default_rng(0)
  for _ in range(300):
    room, stride = int(random.integers(4, 30)), int(random.integers(0, 30))
    sizes = random.integers(1, 5, int(random.integers(1, 80))).tolist()
    windows = split_words(sizes, room, stride)
    tagged = assign_words(windows)
    assert [word for words in tagged for word in words] == [*range(len(sizes))]
    assert all(sum(sizes[window.start:window.stop]) <= room for window in windows)
    for window, words in zip(windows, tagged, strict=True):
      assert window.start <= words.start <= words.stop <= window.stop
    for early, late in itertools.pairwise(windows):
      assert early.start < late.start <= early.stop
      if not stride:
        assert late.start == early.stop
  assert split_words([], 8, 4) == [] and assign_words([]) == []


def in_windows(kind, **fields):
  model = tuned.trained(kind)
  return dataclasses.replace(model, length=LENGTH, task=dataclasses.replace(model.task, **fields))


@pytest.mark.parametrize('windows', ['mean', 'max'])
@pytest.mark.parametrize('place', ['start', 'middle', 'end'])
def test_a_planted_sentence_is_found(windows, place):
  """The rest of the document is text of no class."""
  words = ['a'] * 200
  at = {'start': 0, 'middle': 100, 'end': 199}[place]
  found = []
  for word in ('fine', 'dull'):
    words[at] = word
    found.append(plm_jax.predict(in_windows('classification', windows=windows),
                                 ' '.join(words))[0].label)
  assert found == ['good', 'bad']
  words[at] = 'berlin'
  def planted(**fields):
    shares = plm_jax.predict(in_windows('multilabel', **fields), ' '.join(words))[0].probabilities
    return shares['place'] > shares['good'] == shares['bad']
  assert planted(windows='max') and planted(windows='mean')
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    assert planted() == (place == 'start')


def test_a_document_is_the_mean_or_the_largest_of_its_windows():
  task = SequenceTask(labels=('bad', 'good'), windows='mean', stride=5)
  model = tuned.trained('classification')
  examples = [Example(('a film . ' * 9,), 1), Example(('fine',), 0),
              Example(('dull a ' * 20,), None)]
  features = task.features(examples, model.tokenizer, LENGTH)
  counts = np.bincount(features.example)
  assert counts.tolist() == [4, 1, 7] and not features.clipped
  np.testing.assert_allclose(features.values['weight'], np.array([1 / 4] * 4 + [1] + [0] * 7),
                             rtol=1e-6)
  assert features.values['label'].tolist() == [1] * 4 + [0] + [0] * 7
  assert {len(features.tokens[row]) for row in range(4)} == {LENGTH}
  outputs = list(np.random.default_rng(0).normal(size=(12, 2)))
  means = [np.mean(outputs[:4], 0), outputs[4], np.mean(outputs[5:], 0)]
  np.testing.assert_allclose(task.document_outputs(features, outputs), means, rtol=1e-6)
  largest = combine_windows(outputs, features.example, 'max')
  np.testing.assert_allclose(largest, [np.max(outputs[:4], 0), outputs[4], np.max(outputs[5:], 0)],
                             rtol=1e-6)


def test_the_second_of_two_texts_is_divided():
  task = SequenceTask(labels=('bad', 'good'), windows='mean')
  tokenizer = tuned.trained('classification').tokenizer
  def rows(first, second):
    features = task.features([Example((first, second), 1)], tokenizer, LENGTH)
    return features, [tokenizer.decode(features.tokens[row].tolist())
                      for row in range(len(features))]
  features, texts = rows('fine film', 'a b c d e f g h i j k l m n o')
  assert all('fine film' in text for text in texts) and not features.lost
  assert all(letter in ' '.join(texts) for letter in 'bcdefghijklmno')
  features, texts = rows('a ' * 30, 'b c d e f g h i j k l m n o')
  assert features.clipped == 1 and features.lost == 30 - 6
  assert all(letter in ' '.join(texts) for letter in 'bcdefghijklmno')
  features, _ = rows('a ' * 30, 'b')
  assert len(features) == 1 and features.lost == 30 - 12


@pytest.mark.parametrize('stride', [0, 3, 7])
def test_tags_of_a_long_sentence(stride):
  words = (['a'] * 11 + ['angela', 'merkel']) * 7 + ['berlin']
  model = in_windows('tagging', stride=stride)
  found = plm_jax.predict(model, [words])[0]
  assert found.words == words
  if not stride:  # a name that is divided between rows is read all the same by this model
    return
  entities = [(one.text, one.type) for one in found.entities]
  assert entities == [('angela merkel', 'PER')] * 7 + [('berlin', 'LOC')]


def test_vectors_of_windows():
  model = dataclasses.replace(tuned.trained('classification'), task=None)
  text = ' '.join('bcdefghijklmno' * 5)
  ids = model.tokenizer.encode(text)
  room = model.model.max_length - 2
  parts = [ids[start:start + room] for start in window_starts(len(ids), room, 9)]
  for windows, function in (('mean', np.mean), ('max', np.max)):
    own = plm_jax.encode(model, [text, 'a film'], windows=windows, stride=9)
    np.testing.assert_allclose(own[0], function(plm_jax.encode(model, parts), axis=0), atol=1e-6)
    np.testing.assert_allclose(own[1], plm_jax.encode(model, 'a film')[0], atol=1e-6)
  with pytest.raises(ConfigError, match='windows=mean, which reads all'):
    plm_jax.encode(model, text)
  with pytest.raises(ConfigError, match='pooling none'):
    plm_jax.encode(model, text, pooling='none', windows='mean')
  with pytest.raises(ConfigError, match="windows is off, mean or max, got 'median'"):
    plm_jax.encode(model, text, windows='median')
  with pytest.raises(ConfigError, match='stride is 0 or more, got -1'):
    plm_jax.encode(model, text, windows='mean', stride=-1)


def test_truncated_texts_are_told_once(capsys):
  model = in_windows('classification')
  texts = ['a ' * 20, 'a film', 'b ' * 30]
  line = '2 of 3 texts were too long and were truncated, 37.9% of all tokens'
  with pytest.warns(UserWarning, match=line):
    plm_jax.predict(model, texts)
  with truncation.print_at_end():
    for text in texts:
      plm_jax.predict(model, text)
  assert capsys.readouterr().err.strip() == line
  with warnings.catch_warnings(record=True) as caught, truncation.together():
    warnings.simplefilter('always')
    for text in texts:
      plm_jax.predict(model, text)
  assert [str(warning.message) for warning in caught if warning.category is UserWarning] == [line]
  with warnings.catch_warnings(), truncation.count():
    warnings.simplefilter('error')
    predict(model, [Example((texts[0],))])
    plm_jax.predict(in_windows('classification', windows='mean'), texts)
  assert not capsys.readouterr().err


@pytest.mark.parametrize('kind', [RecurrentSequence, RecurrentTagging])
def test_an_elmo_reads_no_windows(kind):
  with pytest.raises(ConfigError,
                     match=r'an ELMo reads rows of any length|a CRF reads a row as one'):
    kind(stride=4)


def test_windows_of_labels():
  """The loss of a document is that of its windows with a weight of one in all."""
  task = MultiLabelTask(labels=('bad', 'good', 'place'), windows='max')
  model = tuned.trained('multilabel')
  features = task.features([Example(('a film ' * 20,), (0, 2)), Example(('fine',), ())],
                           model.tokenizer, LENGTH)
  assert features.values['label'].tolist() == [[1, 0, 1]] * (len(features) - 1) + [[0, 0, 0]]
  assert features.values['weight'].sum() == pytest.approx(2)
