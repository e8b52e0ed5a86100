"""Chinese masks: differences between arms, similar words, and counts of rows made by hand."""
import numpy as np
import pytest

from benchmarks import chinese, chinese_masks, similar_words
from benchmarks.chinese import ChineseSetting
from benchmarks.chinese_masks import Drawn, Word
from plm_jax import validation
from plm_jax.config import run as config_lib
from plm_jax.layers.dense import count_parameters
from plm_jax.training.learner import make_learner, placeholder_vocab, state_shapes

SETTING = ChineseSetting('zh.txt', 'out')
MASK, PIECES = 4, ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'北京是大城市我们', 'new', '##s']


@pytest.mark.parametrize(('arm', 'changes'), [
    ('bert', []), ('words', ['objective.masking.unit: token -> word']),
    ('macbert',
     ["objective.pair: NextSentence(random=0.5, short=0.1, slack=16, unit='segment', separators=1) "
      "-> SentenceOrder(swapped=0.5, short=0.1, slack=16)",
      'objective.masking.unit: token -> word',
      'objective.masking.lengths: (1.0,) -> (0.4, 0.3, 0.2, 0.1)',
      'objective.masking.synonyms:  -> out/similar.txt'])])
def test_a_chinese_arm_changes_only_its_own_settings(arm, changes):
  run = chinese.config(SETTING, arm)
  config_lib.check(run)
  assert validation.differences(chinese.config(SETTING, 'bert'), run, {'name'}) == changes
  assert run.data.prepare.segmenter == 'jieba' and run.name == arm


def test_arms_are_of_one_size():
  def parameters(arm):
    config = chinese.config(SETTING, arm)
    return count_parameters(
        state_shapes(config, make_learner(config, placeholder_vocab(config))).params)
  assert parameters('bert') == parameters('macbert') == 5_415_810


def test_a_list_of_the_users_is_taken(monkeypatch):
  monkeypatch.setattr(chinese.kept, 'run', lambda *given: pytest.fail('made, though there is one'))
  setting = ChineseSetting('zh.txt', 'out', similar='mine.txt')
  chinese.listed(setting)
  assert chinese.config(setting, 'macbert').objective.masking.synonyms == 'mine.txt'


def test_words_like_others_have_as_many_characters():
  """Nearest first; words that are not Chinese, or are the only ones of their length, are
  omitted."""
  words = ['北京', '的', '上海', 'ab', '了', '大城市', '广州', '2010']
  angles = np.array([0.0, 0.2, 0.3, 0.01, 0.25, 0.1, 0.1, 0.02])
  unit = np.stack([np.cos(angles), np.sin(angles)], 1)
  assert [*similar_words.lines(words, unit)] == [
      ['的', '了'], ['了', '的'], ['北京', '广州', '上海'], ['上海', '广州', '北京'], ['广州', '北京', '上海']]
  assert [*similar_words.lines(words, unit, 1)] == [
      ['的', '了'], ['了', '的'], ['北京', '广州'], ['上海', '广州'], ['广州', '北京']]


def test_neighbors_do_not_depend_on_the_chunk_size(monkeypatch):
  draw = np.random.default_rng(0).normal(size=(50, 8))
  unit = draw / np.linalg.norm(draw, axis=1, keepdims=True)
  monkeypatch.setattr(similar_words, 'CHUNK', 7)
  found = np.stack(similar_words.nearest(unit, 4))
  np.testing.assert_array_equal(found, np.argsort(-(unit @ unit.T), axis=1)[:, 1:5])


def rows() -> Drawn:
  """[CLS] 北京 是 大 城市 [SEP] 我们 [SEP], twice: 北京, one half of 城市 and 我们 are predicted, then
  nothing."""
  tokens = np.array([[2, 5, 6, 7, 8, 9, 10, 3, 11, 12, 3, 0]] * 2)
  words = np.array([[0, 1, 1, 2, 3, 4, 4, 0, 21, 21, 0, 0]] * 2)
  new, predicted = tokens.copy(), np.zeros(tokens.shape, bool)
  new[0, [1, 2, 5, 8]] = MASK, MASK, 13, 11
  predicted[0, [1, 2, 5, 8, 9]] = True
  return Drawn(tokens, new, words, tokens > 0, predicted, np.array([1, 0]),
               np.array([1, 1, 2, 3, 4, 1, 1, 1]))


def test_shares_of_predicted_tokens():
  """Of five, two became masks, one another, two stayed; of 22 tokens."""
  found = chinese_masks.of_tokens(rows(), MASK)
  assert found == pytest.approx({
      'predicted': 100 * 5 / 22, 'mask': 40, 'kept': 40, 'random': 20, 'other': 0, 'question': 50})
  changed = rows()  # a changed token that is not predicted is an error
  changed.new[1, 3] = 13
  assert chinese_masks.of_tokens(changed, MASK)['other'] == pytest.approx(100 / 22)


def test_words_of_rows():
  found = chinese_masks.spelt(rows(), PIECES)
  assert found[:5] == [
      Word(0, '北京', '[MASK][MASK]', (True, True), True), Word(0, '是', '是', (False,)),
      Word(0, '大', '大', (False,)),
      Word(0, '城市', 'new市', (True, False), True), Word(0, '我们', '我们', (True, True), True)]
  assert len(found) == 10 and not any(any(word.predicted) for word in found[5:])
  # Of words of several tokens 北京, 城市 and 我们 are predicted, 城市 by half.
  assert chinese_masks.of_words(found) == {'whole': pytest.approx(200 / 3)}
  assert [*chinese_masks.shown(found, '[MASK]')] == ['{北京→□□}是大{城市→new市}{我们→我们}', '北京是大城市我们']


def test_what_takes_the_place_of_words():
  alike = chinese_masks.read('北京 上海 广州\n的 了\n一个 三个人\nalone\n')
  assert alike == {'北京': {'上海', '广州'}, '的': {'了'}, '一个': {'三个人'}}
  yes = (True, True)
  words = [Word(0, '北京', '上海', yes), Word(0, '北京', '广州', yes), Word(0, '北京', '北京', yes),
           Word(0, '的', '城', (True,)), Word(0, '一个', '三个人', yes), Word(0, '没有', '城市', yes),
           Word(0, '北京', '上城', yes, outer=True), Word(0, '北京', '北京', (False, False))]
  assert chinese_masks.of_alike(words, alike) == pytest.approx({
      'alike': 50, 'kept': 25, 'random': 25, 'listed': 100 * 4 / 6, 'unlisted alike': 50})


def test_spans_and_runs():
  assert chinese_masks.of_spans(rows().spans) == {'drawn 1': 62.5, 'drawn 2': 12.5, 'drawn 3': 12.5,
                                                  'drawn 4': 12.5}
  assert chinese_masks.of_spans(np.ones(5, int)) == {}
  words = [Word(row, 'x', 'x', (bool(chosen),))
           for row, marks in enumerate(('1101111100', '0111', '1')) for chosen in
           map(int, marks)]
  assert chinese_masks.of_runs(words) == {'runs 1': 25, 'runs 2': 25, 'runs 3': 25, 'runs 4': 0,
                                          'runs 5': 25}


def test_tables_compare_with_published_numbers():
  found = {'bert': {'predicted': 14.94, 'whole': 6.0},
           'macbert': {'predicted': 15.0, 'alike': 79.9}}
  lines = chinese_masks.table(found).splitlines()
  assert lines[0] == '| % (published) | bert | macbert |' and len(lines) == 2 + len(
      chinese_masks.ROWS)
  assert lines[2] == '| of the tokens of a row predicted | 14.9 (15) | 15.0 (15) |'
  assert '| a word like it | - | 79.9 (80) |' in lines
  assert '| of words of several tokens, any predicted: all are | 6.0 | - |' in lines


def test_the_first_lines_of_a_text(tmp_path):
  file = tmp_path / 'text.txt'
  file.write_text('a\nb\n\nc\n\nd\n')
  assert chinese_masks.first_lines(str(file), 3) == 'a\nb\n\nc\n\n'
