import pytest

from plm_jax.metrics import generation

TEXTS = ['the cat sat on the mat', 'there is a dog in the garden']
TRUTHS = ['the cat is on the mat', 'a dog is in the garden']


def test_rouge():
  pytest.importorskip('rouge_score', reason='needs the extra: pip install "plm_jax[metrics]"')
  found = generation.rouge(TEXTS, TRUTHS)
  # Words: 5 of 6 and 6, 6 of 7 and 6. Pairs: 3 of 5 and 5, 3 of 6 and 5. In order: 5, and 5 of 7 and 6.
  assert found['rouge1'] == pytest.approx(50 * (5 / 6 + 12 / 13))
  assert found['rouge2'] == pytest.approx(50 * (3 / 5 + 6 / 11))
  assert found['rougeL'] == found['rougeLsum'] == pytest.approx(50 * (5 / 6 + 10 / 13))


def test_rouge_stems_and_takes_lines_for_sentences():
  pytest.importorskip('rouge_score', reason='needs the extra: pip install "plm_jax[metrics]"')
  assert generation.rouge(['dogs barked'], ['dog barks'])['rouge2'] == 100
  lines = generation.rouge(['one two\nthree four'], ['three four\none two'])
  assert lines['rougeL'] == 50 and lines['rougeLsum'] == 100


def test_bleu_and_chrf():
  pytest.importorskip('sacrebleu', reason='needs the extra: pip install "plm_jax[metrics]"')
  # n-grams in the references: 11 of 13, 6 of 11, 2 of 9, none of 7 (taken for a half); 13 words against 12: no penalty.
  assert generation.bleu(TEXTS, TRUTHS) == pytest.approx(100 * (11 / 13 * 6 / 11 * 2 / 9 * 0.5 / 7) ** 0.25, abs=1e-6)
  assert generation.bleu(['The cat, here.'], ['the cat, here.']) < 100
  assert generation.bleu(['The cat, here.'], ['the cat, here.'], lowercase=True) == pytest.approx(100)
  several = [[truth, text] for truth, text in zip(TRUTHS, TEXTS, strict=True)]
  assert generation.bleu(TEXTS, several) == pytest.approx(100)
  assert generation.chrf(TEXTS, TEXTS) == pytest.approx(100)
  # Characters: a, b and ab of abc and abd; precision is recall.
  assert generation.chrf(['abc'], ['abd']) == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)


def test_exact_match_and_f1_normalise_as_squad_does():
  assert generation.normalize_answer(' The  "Eiffel-Tower", an A. ') == 'eiffeltower'
  assert generation.exact_match(['The Eiffel Tower!', 'Rome'], [['x', 'eiffel tower'], 'Paris']) == 50
  assert generation.token_f1(['in the old town', 'no', ''], ['old town hall', 'yes', '']) == pytest.approx(
      100 * (2 / 3 + 0 + 1) / 3)


def test_a_reference_for_each():
  with pytest.raises(ValueError, match='2 predictions and 1 references'):
    generation.token_f1(['a', 'b'], ['a'])
  with pytest.raises(ValueError, match='prediction 1 has no reference'):
    generation.exact_match(['a', 'b'], [['a'], []])
