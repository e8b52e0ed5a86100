"""Metrics of generated text, and of multi-label classification."""
import random

import numpy as np
import pytest
from sklearn import metrics as sklearn

from plm_jax.errors import UserError
from plm_jax.metrics import generation, multilabel

TEXTS = ['the cat sat on the mat', 'there is a dog in the garden']
TRUTHS = ['the cat is on the mat', 'a dog is in the garden']


def test_rouge():
  pytest.importorskip('rouge_score', reason='needs the extra: pip install "plm_jax[metrics]"')
  found = generation.rouge(TEXTS, TRUTHS)
  # Words: 5 of 6 and 6, 6 of 7 and 6. Pairs: 3 of 5 and 5, 3 of 6 and 5. In order: 5, and 5 of 7
  # and 6.
  assert found['rouge1'] == pytest.approx(50 * (5 / 6 + 12 / 13))
  assert found['rouge2'] == pytest.approx(50 * (3 / 5 + 6 / 11))
  assert found['rougeL'] == found['rougeLsum'] == pytest.approx(50 * (5 / 6 + 10 / 13))


def test_rouge_stems_words_and_treats_lines_as_sentences():
  pytest.importorskip('rouge_score', reason='needs the extra: pip install "plm_jax[metrics]"')
  assert generation.rouge(['dogs barked'], ['dog barks'])['rouge2'] == 100
  lines = generation.rouge(['one two\nthree four'], ['three four\none two'])
  assert lines['rougeL'] == 50 and lines['rougeLsum'] == 100


def test_bleu_and_chrf():
  pytest.importorskip('sacrebleu', reason='needs the extra: pip install "plm_jax[metrics]"')
  # n-grams in the references: 11 of 13, 6 of 11, 2 of 9, none of 7 (taken for a half); 13 words
  # against 12: no penalty.
  assert generation.bleu(TEXTS, TRUTHS) == pytest.approx(
      100 * (11 / 13 * 6 / 11 * 2 / 9 * 0.5 / 7) ** 0.25, abs=1e-6)
  assert generation.bleu(['The cat, here.'], ['the cat, here.']) < 100
  assert generation.bleu(['The cat, here.'], ['the cat, here.'],
                         lowercase=True) == pytest.approx(100)
  several = [[truth, text] for truth, text in zip(TRUTHS, TEXTS, strict=True)]
  assert generation.bleu(TEXTS, several) == pytest.approx(100)
  assert generation.chrf(TEXTS, TEXTS) == pytest.approx(100)
  # Characters: a, b and ab of abc and abd; precision is recall.
  assert generation.chrf(['abc'], ['abd']) == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)


SENTENCES = {
    'zh': ('今天的天气很好，我们去公园散步。', '今天的天气很好，我们去公园跑步。'),
    'ja': ('今日は天気がいいので公園に行きます。', '今日は天気が悪いので公園に行きます。'),
    'th': ('วันนี้อากาศดีมาก', 'วันนี้อากาศร้อนมาก'),
    'km': ('ថ្ងៃនេះអាកាសធាតុល្អ', 'ថ្ងៃនេះអាកាសធាតុក្តៅ'),
    'ru': ('Сегодня хорошая погода, мы идём в парк.', 'Сегодня плохая погода, мы идём в парк.'),
    'hi': ('आज मौसम बहुत अच्छा है', 'आज मौसम बहुत खराब है'),
    'ar': ('الطقس جميل اليوم', 'الطقس سيئ اليوم'),
    'el': ('Σήμερα έχει ωραίο καιρό', 'Σήμερα έχει άσχημο καιρό'),
    'ko': ('오늘은 날씨가 좋습니다', '오늘은 날씨가 나쁩니다'),
    'vi': ('Hôm nay thời tiết rất đẹp', 'Hôm nay thời tiết rất xấu'),
    'he': ('מזג האוויר יפה היום', 'מזג האוויר חם היום')}


@pytest.mark.parametrize('language', SENTENCES)
def test_an_answer_in_any_script_is_compared_word_by_word(language):
  """A perfect answer has 100, one with another word less, and one of other words nothing."""
  pytest.importorskip('rouge_score', reason='needs the extra: pip install "plm_jax[metrics]"')
  pytest.importorskip('sacrebleu', reason='needs the extra: pip install "plm_jax[metrics]"')
  truth, near = SENTENCES[language]
  other = SENTENCES['ru' if language != 'ru' else 'el'][0]
  assert set(generation.rouge([truth], [truth]).values()) == {100}
  assert 0 < generation.rouge([near], [truth])['rouge1'] < 100 and generation.rouge(
      [other], [truth])['rougeL'] == 0
  # 0: shorter than four words
  assert generation.bleu([truth] * 2, [truth] * 2) in (pytest.approx(100), 0)
  assert generation.exact_match([truth], [truth]) == 100 > generation.exact_match([near], [truth])
  assert 0 < generation.token_f1([near], [truth]) < 100


def test_rouge_of_words_by_hand():
  pytest.importorskip('rouge_score', reason='needs the extra: pip install "plm_jax[metrics]"')
  # Chinese: 13 of 14 characters, and 11 of 13 pairs. Russian: 6 of 7 words.
  found = generation.rouge(*[[text] for text in reversed(SENTENCES['zh'])])
  assert found['rouge1'] == found['rougeL'] == pytest.approx(100 * 13 / 14)
  assert found['rouge2'] == pytest.approx(100 * 11 / 13)
  assert generation.rouge(*[[text] for text in SENTENCES['ru']])['rouge1'] == pytest.approx(
      100 * 6 / 7)
  # Words of a mixture: English ones are stemmed, and decomposed letters are the same.
  assert generation.rouge(['погода barked e\u0301t'], ['погода barks \u00e9t'])['rouge1'] == 100


def test_english_rouge_equals_rouge_score():
  """Also with a foreign name here and there, which the library divides."""
  scorer = pytest.importorskip('rouge_score.rouge_scorer').RougeScorer(
      ['rouge1', 'rouge2', 'rougeL', 'rougeLsum'], use_stemmer=True)
  draw = random.Random(0)
  words = (*['the', 'cat', 'dogs', 'sat', 'running', 'on', 'a', 'mat', '“house”', 'U.S.', '3.5',
             'don’t', 'well-known', 'it’s', '—', 'and'], 'caf\u00e9')
  def text():
    return ' '.join(draw.choices(words, [8] * (len(words) - 1) + [1], k=30)) + '\nThe end.'
  predictions, references = [text() for _ in range(20)], [text() for _ in range(20)]
  found = generation.rouge(predictions, references)
  for kind, value in found.items():
    scores = [scorer.score(truth, ours)[kind].fmeasure
              for ours, truth in zip(predictions, references, strict=True)]
    assert value == pytest.approx(100 * sum(scores) / 20)


def test_bleu_equals_sacrebleu_with_a_tokenizer_for_the_script():
  sacrebleu = pytest.importorskip('sacrebleu',
                                  reason='needs the extra: pip install "plm_jax[metrics]"')
  for language, tokenizer in (('zh', 'zh'), ('th', 'char'), ('km', 'char'), ('ru', '13a'),
                              ('hi', '13a'), ('ko', '13a')):
    truth, near = SENTENCES[language]
    assert generation.choose_bleu_tokenizer([[truth], [near]]) == tokenizer
    assert generation.bleu([near], [truth]) == sacrebleu.corpus_bleu([near], [[truth]],
                                                                     tokenize=tokenizer).score
  assert generation.bleu(TEXTS, TRUTHS) == sacrebleu.corpus_bleu(TEXTS, [TRUTHS]).score
  assert generation.choose_bleu_tokenizer([[SENTENCES['ja'][0]]]) in ('char', 'ja-mecab')
  # A Chinese name in an English text, and a kana in a long Chinese one.
  assert generation.choose_bleu_tokenizer([['He lives in 北京, the capital.']]) == '13a'
  assert generation.choose_bleu_tokenizer([[SENTENCES['zh'][0] * 3 + 'の']]) == 'zh'
  assert generation.choose_bleu_tokenizer(
      [['GPU 加速的计算机']]) == 'zh' and generation.choose_bleu_tokenizer([['']]) == '13a'


def test_answers_without_spaces_are_compared_by_characters():
  assert generation.normalize_answer('“北京”， 2008年！') == '北 京 2008 年'
  assert generation.exact_match(['北京。'], ['北京']) == 100
  assert generation.token_f1(['北京市'], ['北京']) == pytest.approx(80)
  assert generation.normalize_answer('“Café” — the bar') == '“café” — bar'  # as SQuAD's script


def test_exact_match_and_f1_normalize_like_squad():
  assert generation.normalize_answer(' The  "Eiffel-Tower", an A. ') == 'eiffeltower'
  assert generation.exact_match(['The Eiffel Tower!', 'Rome'],
                                [['x', 'eiffel tower'], 'Paris']) == 50
  assert generation.token_f1(['in the old town', 'no', ''],
                             ['old town hall', 'yes', '']) == pytest.approx(
      100 * (2 / 3 + 0 + 1) / 3)


def test_a_reference_for_each():
  with pytest.raises(ValueError, match='2 predictions and 1 references'):
    generation.token_f1(['a', 'b'], ['a'])
  with pytest.raises(ValueError, match='prediction 1 has no reference'):
    generation.exact_match(['a', 'b'], [['a'], []])


def drawn(seed, examples=40, labels=5, share=0.3, levels=0):
  """Draws indicators and scores; `levels`: number of distinct scores, 0: all are distinct."""
  draw = np.random.default_rng(seed)
  truth, scores = draw.random((examples, labels)) < share, draw.random((examples, labels))
  if levels:
    scores = (np.floor(scores * levels) + 1) / (levels + 1)
  return truth, scores


CASES = {
    'random': drawn(0), 'ties': drawn(1, levels=3), 'one example': drawn(2, examples=1),
    'one label': drawn(3, labels=1),
    'no label at all': (np.zeros((6, 3), bool), drawn(4, 6, 3)[1]),
    'all labels': (np.ones((6, 3), bool), drawn(5, 6, 3)[1]),
    'a label that is absent': (drawn(6)[0] * (np.arange(5) > 0), drawn(6)[1]),
    'all scores equal': drawn(7, levels=1)}


@pytest.mark.filterwarnings('ignore:No positive class', 'ignore:invalid value')
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('threshold', [0.0, 0.5, 1.0])
def test_metrics_are_scikit_learns(case, threshold):
  truth, scores = CASES[case]
  found = multilabel.all_metrics(truth, scores > threshold, scores)
  expected = {f'{average}_f1': sklearn.f1_score(
      truth.astype(int) if truth.shape[1] > 1 else truth[:, 0].astype(int)[:, None],
      scores > threshold, average=average,
      zero_division=0) for average in ('micro', 'macro', 'weighted', 'samples') if truth.shape[1]
      > 1}
  expected['subset_accuracy'] = (truth == (scores > threshold)).all(1).mean()
  expected['average_precision'] = np.mean([
      sklearn.average_precision_score(*column) if column[0].any() else 0
      for column in zip(truth.T, scores.T, strict=True)])
  assert {name: found[name] / 100 for name in expected} == pytest.approx(expected, abs=1e-12)
  assert tuple(found) == multilabel.MULTILABEL_METRICS


def test_metrics_by_hand():
  truth, said = [[1, 0, 1], [0, 0, 0], [0, 1, 0]], [[1, 1, 0], [0, 0, 0], [0, 1, 0]]
  assert multilabel.f1_metrics(truth, said) == pytest.approx({
      'micro_f1': 200 / 3, 'macro_f1': 500 / 9, 'weighted_f1': 500 / 9, 'samples_f1': 50,
      'subset_accuracy': 200 / 3})
  scores = multilabel.per_label_scores(truth, said, ['a', 'b', 'c'])
  assert scores['b'] == pytest.approx((50, 100, 200 / 3, 1)) and scores['c'] == (0, 0, 0, 1)


@pytest.mark.parametrize('case', CASES)
def test_no_other_threshold_is_better(case):
  truth, scores = CASES[case]
  for tuning, name in (('one', 'micro_f1'), ('each', 'macro_f1')):
    thresholds = multilabel.tune_thresholds(truth, scores, tuning)
    assert len(thresholds) == (1 if tuning == 'one' else truth.shape[1])
    best = multilabel.f1_metrics(truth, scores > np.array(thresholds))[name]
    tried = [multilabel.f1_metrics(truth, scores > other)[name]
             for other in [*np.unique(scores), -1.0]]
    assert best >= max(tried) - 1e-9
  # Rounding to single precision changes no decision.
  assert ((scores.astype(np.float32) > np.array(thresholds, np.float32))
          == (scores > np.array(thresholds))).all()


def test_a_label_that_no_example_has_keeps_its_threshold():
  assert multilabel.tune_thresholds([[0, 1], [0, 0]], [[0.9, 0.8], [0.1, 0.2]],
                                    'each') == (0.5, 0.5)


@pytest.mark.parametrize('sides', [([], []), ([[1]], [[1, 0]]), ([1, 0], [1, 0])])
def test_other_shapes_are_refused(sides):
  for measure in (multilabel.f1_metrics, multilabel.average_precision):
    with pytest.raises(UserError, match='indicators of as many examples and labels'):
      measure(*sides)
