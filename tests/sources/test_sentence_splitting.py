import pytest

from plm_jax.sources import sentence_splitting


@pytest.mark.parametrize(('text', 'expected'), [
    ('One. Two! Three? Four', ['One.', 'Two!', 'Three?', 'Four']),
    ('Dr. J. R. Smith met Mrs. Jones. They talked.',
     ['Dr. J. R. Smith met Mrs. Jones.', 'They talked.']),
    ('It cost $3.50. See numpy.array and p. 5 of vol. 2.',
     ['It cost $3.50.', 'See numpy.array and p. 5 of vol. 2.']),
    ('He said no. She left.', ['He said no.', 'She left.']),
    ('It ended in 1999. Then came 2000.', ['It ended in 1999.', 'Then came 2000.']),
    ('"Why?" he asked. "I do (not.)" She left.',
     ['"Why?" he asked.', '"I do (not.)"', 'She left.']),
    ('1. Open the lid. 2. Close it.', ['1. Open the lid.', '2. Close it.']),
    ('Many, e.g. Smith et al. Found in the U.S. Army. So it is.',
     ['Many, e.g. Smith et al. Found in the U.S. Army.', 'So it is.']),
    ('Wait... what? Yes… No.', ['Wait... what?', 'Yes…', 'No.']),
    ('他走了。“好！”她说。真的？！是；不', ['他走了。', '“好！”', '她说。', '真的？！', '是；', '不']),
    ('彼は「行く。」と言った。終わり', ['彼は「行く。」', 'と言った。', '終わり']),
    ('यह है। वह था।', ['यह है।', 'वह था।']),
    ('  spaced.   Out.  ', ['spaced.', 'Out.']),
    (' \t', []),
    ('', []),
])
def test_split(text, expected):
  assert sentence_splitting.split_sentences(text) == expected
  assert ''.join(''.join(expected).split()) == ''.join(text.split())  # nothing is lost


@pytest.mark.parametrize(('text', 'expected'), [
    ('Wait: 3.5 of J. Smith; no... more!', ['Wait:', '3.5 of J.', 'Smith;', 'no...', 'more!']),
    ('他说：“走；好！”她…… 不', ['他说：', '“走；', '好！”', '她……', '不']),
    ('One\ntwo. \n', ['One', 'two.']), ('at 12:30', ['at 12:30']), (' ', []),
])
def test_clauses(text, expected):
  """GLM's contains_sentence_end: . ? ! ; : 。？！；… and line breaks, and here the wide colon."""
  assert sentence_splitting.split_clauses(text) == expected
  assert [piece.strip() for piece in sentence_splitting.split_clauses(text, gaps=True)] == expected


def test_a_space_in_front_stays_where_it_is_asked_for():
  assert sentence_splitting.split_clauses('One: two.three', gaps=True) == ['One:', ' two.three']
  assert sentence_splitting.split_sentences('One. Two.', gaps=True) == ['One.', ' Two.']
