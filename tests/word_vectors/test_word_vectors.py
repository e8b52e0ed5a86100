"""Training runs of word vectors, from text to a report, and errors."""
import contextlib
import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import recipes
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.cli import commands, vectors
from plm_jax.cli import run as runs
from plm_jax.config import serialization
from plm_jax.errors import UserError
from plm_jax.recipes import word_vectors
from plm_jax.word_vectors import load, train, word_corpus
from plm_jax.word_vectors import word_corpus as corpora
from plm_jax.word_vectors.ranking import Ranking
from plm_jax.word_vectors.word2vec import Word2Vec
from plm_jax.word_vectors.word_corpus import VocabularyError, WordsConfig


def lines(number: int = 300) -> list[str]:
  """Sentences in which days occur with days and animals with animals."""
  random = np.random.default_rng(0)
  groups = [[f'{name}{n}' for n in range(4)] for name in ('day', 'beast')]
  return [' '.join(random.choice(group, 8)) + f' w{random.integers(9)}'
          for group in groups * (number // 2)]


@pytest.fixture
def text(tmp_path) -> str:
  (tmp_path / 'text.txt').write_text('\n'.join(lines()) + '\n')
  return str(tmp_path / 'text.txt')


def run_of(name: str, text: str, folder, **changes) -> train.VectorRun:
  small = word_vectors.recipe(name, 'test')
  data = dataclasses.replace(small.data, path=(text,), least=1, heldout=0.1)
  loop = dataclasses.replace(small.train,
                             **{'epochs': 2, 'log_every': 1, 'save_every': 100, **changes})
  model = dataclasses.replace(small.model, call=1000)
  if isinstance(model, Word2Vec):
    model = dataclasses.replace(model, threshold=0.01)
  return dataclasses.replace(small, output=str(folder), data=data, train=loop, model=model)


@pytest.mark.parametrize('name', word_vectors.PUBLISHED)
@pytest.mark.parametrize('scale', ['paper', 'laptop', 'test'])
def test_recipes(name, scale):
  config = word_vectors.recipe(name, scale)
  assert config.name == name and config.scale == scale
  assert serialization.from_json(json.loads(serialization.dump(config))) == config


def test_negatives_are_sampled_as_each_program_does():
  """word2vec.c by count^0.75, fastText by the square root of counts (loss.cc)."""
  powers = {name: word_vectors.recipe(name, 'paper').model.power
            for name in ('word2vec', 'word2vec_cbow', 'fasttext')}
  assert powers == {'word2vec': 0.75, 'word2vec_cbow': 0.75, 'fasttext': 0.5}
  counts = np.array([16, 4, 1])
  np.testing.assert_allclose(word_corpus.noise_distribution(counts, powers['fasttext']),
                             np.array([4, 2, 1]) / 7)


@pytest.mark.parametrize('name', ['word2vec', pytest.param('glove', marks=pytest.mark.slow),
                                  pytest.param('fasttext', marks=pytest.mark.slow),
                                  pytest.param('word2vec_cbow', marks=pytest.mark.slow),
                                  pytest.param('cw', marks=pytest.mark.slow)])
def test_a_resumed_run_ends_with_the_same_bits(name, text, tmp_path, monkeypatch):
  whole = train.train(run_of(name, text, tmp_path / 'whole'))
  assert whole.finished and whole.step >= 2 and np.isfinite(whole.heldout['loss'])
  asked = [False] * (whole.step // 2 - 1) + [True]  # it saves then, whatever save_every says
  def interrupted():
    return asked.pop(0) if asked else True
  interrupted.send = None
  monkeypatch.setattr(train, 'catch_interrupts', lambda: contextlib.nullcontext(interrupted))
  begun = train.train(run_of(name, text, tmp_path / 'parts'))
  assert not begun.finished and begun.step == whole.step // 2
  monkeypatch.undo()
  ended = train.train(run_of(name, text, tmp_path / 'parts'))
  np.testing.assert_array_equal(ended.vectors.matrix, whole.vectors.matrix)
  assert ended.heldout == whole.heldout
  found = load(tmp_path / 'parts')
  np.testing.assert_array_equal(found.matrix, whole.vectors.matrix)
  assert found.words == whole.vectors.words
  with pytest.raises(CheckpointError, match=r'another configuration.*\n  seed: 0 -> 1'):
    train.train(dataclasses.replace(run_of(name, text, tmp_path / 'parts'), seed=1))


def test_what_goes_together_is_near(text, tmp_path):
  """A few epochs, and days are nearer to days than to beasts; the loss falls."""
  run = run_of('word2vec', text, tmp_path / 'run', epochs=15, rate=0.1, save_every=1000,
               log_every=100)
  first = train.train(run_of('word2vec', text, tmp_path / 'first', epochs=1,
                             rate=1e-6)).heldout['loss']
  found = train.train(dataclasses.replace(run, model=dataclasses.replace(run.model, threshold=0.0)))
  assert found.heldout['loss'] < 0.8 * first
  assert all(word.startswith('day') for word, _ in found.vectors.nearest('day0', top=3))


def test_commands(text, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  def typed(*args):
    monkeypatch.setattr('sys.argv', ['plm_jax', *args])
    commands.main()
    return capsys.readouterr().out
  said = typed('train', 'word2vec', '--scale=test', f'--data.path={text}', '--data.least=1',
               '--data.heldout=0.1',
               '--model.threshold=0.01')
  assert 'report: runs/word2vec-test/report.html' in said and 'Held-out loss' in said
  assert pathlib.Path('runs/word2vec-test/metrics.jsonl').read_text().count('"heldout"') == 1
  assert 'everything is as it was written' in typed('verify', 'runs/word2vec-test')
  words = pathlib.Path('runs/word2vec-test/vocabulary.txt')
  content = words.read_text()
  words.write_text(content.replace('day1', 'day9'))
  with pytest.raises(SystemExit):
    typed('verify', 'runs/word2vec-test')
  assert 'vocabulary.txt is damaged: it is not that of the checkpoint' in capsys.readouterr().out
  words.write_text(content)
  for form in 'text', 'binary', 'glove', 'fasttext':
    typed('vectors', 'export', 'runs/word2vec-test', f'v.{form}', f'--form={form}')
  every = 'runs/word2vec-test', 'v.text', 'v.binary', 'v.glove', 'v.fasttext'
  nearest = [typed('vectors', 'nearest', path, 'day1', '--top=2') for path in every]
  assert len(set(nearest)) == 1 and len(nearest[0].splitlines()) == 2
  with pytest.raises(UserError, match='describes a VectorRun, expected a Run'):
    plm_jax.load('runs/word2vec-test')
  assert len(typed('vectors', 'analogy', 'v.text', 'day0', 'day1', 'beast0',
                   '--how=mul').splitlines()) == 5
  pathlib.Path('pairs.tsv').write_text(
      'a\tb\tscore\nday0\tday1\t9\nday0\tbeast1\t1\nDay2\tbeast3\t2\nday0\tx\t3\n')
  pathlib.Path('questions.txt').write_text(
      ': x\nday0 day1 beast0 beast1\nday0 day1 beast0 nobody\n')
  said = typed('vectors', 'measure', 'v.text', 'pairs.tsv', 'questions.txt')
  assert '3 of 4' in said and said.count('1 of 2') == 2
  with pytest.raises(SystemExit, match="error: 'nobody' is none of the 17 words that have vectors"):
    typed('vectors', 'nearest', 'v.text', 'nobody')
  with pytest.raises(SystemExit, match='error: --scale is paper, laptop or test'):
    runs.start('glove', ['--scale=large'])
  assert ' word2vec_cbow ' in recipes.list_recipes() and 'word2vec' in recipes.suggest_recipes(
      'wordtovec')


@pytest.mark.parametrize(('content', 'least', 'said'), [
    ('', 1, 'the corpus is empty'), ('!! ??\n', 1, 'the corpus is empty'),
    ('one one one\none\n', 1, '1 different words, 1'),
    ('a b c d\n', 5, 'of 4 different words, 0 occur 5 times or more'), ('a b a b\nc\n', 2, None)])
def test_text_without_words_is_refused(content, least, said, tmp_path):
  (tmp_path / 'text.txt').write_text(content)
  run = dataclasses.replace(run_of('word2vec', str(tmp_path / 'text.txt'), tmp_path / 'run'),
                            data=WordsConfig(
      path=(str(tmp_path / 'text.txt'),), least=least, heldout=0.0))
  if said:
    with pytest.raises(UserError, match=said):
      train.train(run)
    assert not (tmp_path / 'run' / 'checkpoints').exists()
  else:
    found = train.train(run)
    assert found.vectors.words == ('a', 'b') and found.heldout == {}


def test_glove_without_co_occurrences_is_refused(tmp_path):
  (tmp_path / 'text.txt').write_text('a\n\nb\n\na\n\nb\n')
  run = run_of('glove', str(tmp_path / 'text.txt'), tmp_path / 'run')
  with pytest.raises(VocabularyError, match='no two words of the vocabulary are in one sentence'):
    train.train(dataclasses.replace(run, data=dataclasses.replace(run.data, heldout=0.0)))


def test_a_corpus(tmp_path):
  """Words of letters in lower case, by falling frequency; every tenth sentence held out and not
  counted."""
  text = ["The cat's hat, the HAT!", *['a cat'] * 8, 'hidden hidden', '东京 hat']
  (tmp_path / 'text.txt').write_text('\n'.join([text[9], *text[:9], text[10]]) + '\n')
  found = corpora.prepare_corpus(WordsConfig(path=(str(tmp_path / 'text.txt'),), least=1,
                                             heldout=0.1))
  assert found.vocabulary.to_text() == "a 8\ncat 8\nhat 2\nthe 2\ncat's 1\n"
  assert [found.vocabulary.words[word]
          for word in found.train.ids[:4]] == ['the', "cat's", 'hat', 'the']
  assert found.train.lengths.tolist() == [5, *[2] * 8] and found.heldout.lengths.tolist() == [0, 1]
  spaces = corpora.prepare_corpus(WordsConfig(path=(str(tmp_path / 'text.txt'),), least=1,
                                              heldout=0.0, split='spaces',
                                        lower=False, longest=2))
  assert {'The', 'hat,', 'HAT!', '东京'} <= {*spaces.vocabulary.words} and spaces.train.lengths.max(
      ) == 2


def test_a_separate_held_out_text_is_used_completely(tmp_path):
  (tmp_path / 'text.txt').write_text('a b\n' * 20)
  (tmp_path / 'valid.txt').write_text('b a b\nhidden b\n')
  config = WordsConfig(path=(str(tmp_path / 'text.txt'),), least=1,
                       heldout_path=(str(tmp_path / 'valid.txt'),))
  found = corpora.prepare_corpus(config)
  assert found.vocabulary.words == ('a', 'b')
  assert len(found.train.lengths) == 20 and found.heldout.ids.tolist() == [1, 0, 1, 1]
  (tmp_path / 'valid.txt').write_text('hidden\n')
  with pytest.raises(UserError,
                     match=r'valid\.txt has no words of the vocabulary: nothing to evaluate on'):
    corpora.prepare_corpus(config)
  with pytest.raises(ValueError,
                     match=r'no share of the sentences is held out: leave out '
                           r'WordsConfig\.heldout'):
    dataclasses.replace(config, heldout=0.1)


def test_a_step_of_ranking_is_a_step_of_dense_gradient_descent():
  """Words move at the rate, layers at the rate divided by their inputs; nothing is learned where no
  word is."""
  text = corpora.corpus_from_words([f'a b c d e{n} f'.split() for n in range(5)])
  learner = Ranking(width=3, window=2, hidden=4, words=8).make_learner(text, 0)
  batch = {name: array[0] for name, array in learner.sample_batches(0, 0).arrays.items()}
  params = jax.jit(lambda: learner.config.init(jax.random.key(0), text.vocabulary)['params'])()
  # some units beyond 1, where the bias is felt
  params = {name: 3 * table for name, table in params.items()}
  loss = jax.jit(lambda params: learner.loss({'params': params}, {}, batch)[0])
  slopes = jax.jit(jax.grad(loss))(params)
  after = jax.jit(lambda: learner.step({'params': params}, {}, batch, 0.5)['params'])()
  for name, fan in (('input', 1), ('first', 15), ('bias', 15), ('last', 4)):
    np.testing.assert_allclose(after[name], params[name] - 0.5 / fan * slopes[name], atol=1e-5)
    assert np.abs(slopes[name]).max() > 0
  last = {name: array[-1] for name, array in learner.sample_batches(0, 0).arrays.items()}
  assert last['there'].sum() == 30 % 8  # the last batch is not full


def test_help_describes_the_model(capsys):
  with pytest.raises(SystemExit):
    vectors.start('fasttext', ['--help'])
  said = ' '.join(capsys.readouterr().out.split())
  assert 'python -m plm_jax train fasttext' in said and 'rows that n-grams are hashed into' in said


def test_a_run_of_word_vectors_resumes_only_with_the_same_sentences(tmp_path):
  """Other sentences of the same words have the same vocabulary."""
  found = []
  for number, sentences in enumerate((['a b c d', 'd c b a'], ['a b c d', 'd c b a'],
                                      ['d c b a', 'a b c d'])):
    (tmp_path / f'{number}.txt').write_text('\n\n'.join(sentences * 20))
    found.append(corpora.prepare_corpus(WordsConfig((str(tmp_path / f'{number}.txt'),),
                                                    heldout=0.0)))
  first, again, other = (one.digest for one in found)
  assert first == again != other
  assert len({one.vocabulary.to_text() for one in found}) == 1
  run = word_vectors.recipe('word2vec', 'test')
  meta = {'config': serialization.to_json(run), 'vocabulary': 'words', 'text': first}
  train.check_same_run(run, meta, 'words', first, 3)
  with pytest.raises(CheckpointError,
                     match=r'the sentences of the text \(train\.changed_data=accept'):
    train.check_same_run(run, meta, 'words', other, 3)
  accepting = dataclasses.replace(run, train=dataclasses.replace(run.train, changed_data='accept'))
  train.check_same_run(accepting, meta, 'words', other, 3)
