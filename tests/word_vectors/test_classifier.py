"""fastText's classifier: predictions of its own .bin file, and training."""
import base64
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.cli import commands
from plm_jax.sources.lines import SourceError
from plm_jax.word_vectors import classifier, fasttext_bin
from plm_jax.word_vectors.classifier import ClassifierConfig
from plm_jax.word_vectors.subwords import Subwords
from plm_jax.word_vectors.word_corpus import VocabularyError

# fasttext 0.9.2: train_supervised of the lines of TEXT three times, dim=2, epoch=25, lr=.5,
# wordNgrams=2, bucket=11, minn=3, maxn=3; by zlib and base64.
TEXT = '__label__a good naïve\n__label__b bad\n__label__a nice 東京\n__label__b bad ugly\n'
REAL = (
    'eNrbJeavz8PAwMAExKxALAnEjFA2SIwZirmR2ClArOss8/qRmZQ9J5DNDlWrywAB/6HARr/YjoEHKsiQlJjCwAbjpOfnp4'
    'DNAoO8xMPry1KR+JnJSLxnczc+2bUGwS9Nz6lE8OLjcxKTUnPi4xPhpjPCxZIQYgxCUBYTlN4qZbTfTX+yXdRc3gNC9zr2'
    '//acac/TwrM3LtjPviKg1876UoC9THwPnI7aMGO/+bZL+zq959vXR1y2O7qvf99396t7v8gc3Ge0jmdfQPA5+/IAXvt9nd'
    'H2Bz712t2c7bz/9p7ufW5LTPdvm1axD+bgSxE9+yU2HtzXumfKvt6mi3sPTzpvf/o6jz3cYTC6frWLQ9vddvvG1S4HgPR+'
    'AFZccSM=')


def test_predictions_of_a_fasttext_model(tmp_path):
  """Output of its `predict`, which adds 1e-5 to each probability: words, parts and pairs of
  words, also unseen ones."""
  (tmp_path / 'a.bin').write_bytes(zlib.decompress(base64.b64decode(REAL)))
  model = fasttext_bin.load(tmp_path / 'a.bin')
  # including labels and ends of lines
  assert model.labels == ('__label__a', '__label__b') and model.tokens == 45
  want = {'good naïve': ('a', 0.95843, 0.04159), 'unseen bad': ('b', 0.9896, 0.01042),
          '東京 ugly': ('a', 0.59117, 0.40885), '': ('b', 0.97506, 0.02496)}
  found = classifier.predict(model, [text.split() for text in want], 2)
  for (label, *chances), got in zip(want.values(), found, strict=True):
    assert got[0][0] == f'__label__{label}'
    np.testing.assert_allclose([chance for _, chance in got], np.array(chances) - 1e-5, atol=6e-6)


def test_a_trained_classifier_predicts_its_labels(tmp_path, monkeypatch, capsys):
  (tmp_path / 'text').write_text(TEXT * 20)
  (tmp_path / 'new').write_text('good 東京\nugly bad\n')
  def typed(*args):
    monkeypatch.setattr('sys.argv', ['plm_jax', 'vectors', *args])
    commands.main()
    return capsys.readouterr().out
  model = str(tmp_path / 'a.bin')
  typed('classify', str(tmp_path / 'text'), model, '--width=4', '--rate=0.5', '--ngrams=2',
        '--subwords.buckets=50')
  said = typed('predict', model, str(tmp_path / 'new')).split()
  assert said[::2] == ['__label__a', '__label__b'] and min(map(float, said[1::2])) > 0.9
  (tmp_path / 'known').write_text('__label__a __label__b good 東京\nno label\n__label__a ugly bad\n')
  # Of two texts with three labels, one of the two predicted labels is right.
  assert typed('test', model, str(tmp_path / 'known')) == (
      '2 texts: precision at 1 50.0, recall at 1 33.3\n')
  assert typed('test', model, str(tmp_path / 'known'), '--top=2') == (
      '2 texts: precision at 2 75.0, recall at 2 100.0\n')
  examples = classifier.read_labeled_texts(tmp_path / 'text')
  assert examples[0] == (['__label__a'], ['good', 'naïve'])
  config = ClassifierConfig(width=4, epochs=1, subwords=Subwords(2, 3, 9))
  one, other = (classifier.train_classifier(examples, config) for _ in range(2))
  np.testing.assert_array_equal(one.inputs, other.inputs)
  assert one.inputs.shape == (one.arguments.buckets + len(one.words), 4) and one.tokens == 300
  assert classifier.train_classifier(examples,
                                     ClassifierConfig(width=4, epochs=1)).arguments.buckets == 0


def test_a_step_equals_the_dense_loss():
  """The mean of a text's rows, each with its share of the gradient; a position without a text
  trains nothing."""
  tables = {name: jax.random.normal(jax.random.key(rows), (rows, 3))
            for name, rows in (('input', 6), ('output', 2))}
  batch = classifier.make_batch([([4, 1, 4], [1]), ([2], [0])], 3, np.random.default_rng(0))
  assert batch[2].tolist() == [1, 0, -1]
  def loss(tables):
    means = tables['input'][jnp.array([4, 1, 4])].mean(0), tables['input'][2]
    scores = [jax.nn.log_softmax(tables['output'] @ mean) for mean in means]
    return -scores[0][1] - scores[1][0]
  slopes = jax.jit(jax.grad(loss))(tables)
  after = jax.jit(classifier.train_step)(tables, *batch, 0.3)
  for name, table in tables.items():
    np.testing.assert_allclose(after[name], table - 0.3 * slopes[name], atol=1e-6)


def test_unusable_training_texts_are_refused(tmp_path):
  (tmp_path / 'text').write_text('good\nbad\n')
  with pytest.raises(SourceError, match='no line has a label'):
    classifier.read_labeled_texts(tmp_path / 'text')
  with pytest.raises(VocabularyError, match='1 different words, 1'):
    classifier.train_classifier([(['__label__a'], ['x', 'y'])])
  with pytest.raises(VocabularyError, match='the corpus is empty'):
    classifier.train_classifier([])
  arguments = fasttext_bin.FastTextArguments(2, 5, 1, 1, 5, 1, 2, 2, 0, 0, 0, 100, 1e-4)
  words = fasttext_bin.FastTextModel(arguments, ('a',), (), (1,), 1, np.ones((1, 2)),
                                     np.ones((1, 2)))
  with pytest.raises(fasttext_bin.FastTextError, match='predicts no labels by a softmax'):
    classifier.predict(words, [['a']])
