import random

import pytest

from plm_jax.metrics import generation

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
