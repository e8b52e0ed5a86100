import json

import pytest

from plm_jax import tokenizers
from plm_jax.conversion import ConvertError, vocabulary

TEXTS = [*(f'The cat number {i} sat on the mat, and the dogs of street {i * 7} barked.' for i in range(60)),
         *['中文和中国文字。'] * 9]
LINES = [*TEXTS[:3], ' two  spaces ', 'Ｔｈｅ ½ ﬁ', '中文', 'ж', 'a\tb', '', 'the <extra_id_1> sat </s>',
         'en_XX <mask> the']


@pytest.fixture(scope='module', params=['t5', 'bert', 'deberta', 'languages', 'xlm-r'])
def tokenizer(request):
  if request.param == 'languages':
    return tokenizers.train_languages(TEXTS, 97, 'de_DE', 'ro_RO')
  if request.param == 'xlm-r':
    return tokenizers.train_languages(TEXTS, 72, layout='xlm-r')
  return tokenizers.train_sentencepiece(TEXTS, 170 if request.param == 't5' else 70, layout=request.param)


def same(folder, tokenizer):
  again = vocabulary.load(folder)
  assert type(again) is type(tokenizer) and (again.vocab, again.pieces) == (tokenizer.vocab, tokenizer.pieces)
  assert (again.starts_word == tokenizer.starts_word).all()
  for line in LINES:
    for specials in (False, True):
      assert again.encode(line, specials) == tokenizer.encode(line, specials), line
    assert again.decode(tokenizer.encode(line)) == tokenizer.decode(tokenizer.encode(line))


def alone(folder, tokenizer, edit=lambda said: said):
  """What we write for others, without the model."""
  vocabulary.save(folder, tokenizer, 512)
  next(folder.glob('*.model')).unlink()
  file = folder / 'tokenizer.json'
  file.write_text(json.dumps(edit(json.loads(file.read_text()))))


def test_the_same_ids_without_the_model(tokenizer, tmp_path):
  alone(tmp_path, tokenizer)
  same(tmp_path, tokenizer)


def test_t5s_of_transformers(tmp_path):
  """Its pieces count the sentinels, and spaces are where words are split."""
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 170, layout='t5')
  def edit(said):
    said['normalizer'] = said['normalizer']['normalizers'][0]
    said['pre_tokenizer'] = {'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, said['pre_tokenizer']]}
    said['model']['vocab'] += [[f'<extra_id_{n}>', 0.0] for n in reversed(range(100))]
    return said
  alone(tmp_path, tokenizer, edit)
  same(tmp_path, tokenizer)


def test_what_sentencepiece_would_not_do_is_refused(tmp_path):
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 170, layout='t5')
  for number, (change, message) in enumerate((
      ({'normalizer': None}, '0 maps of characters'),
      ({'normalizer': {'type': 'Lowercase'}}, "{'type': 'Lowercase'}"),
      ({'pre_tokenizer': {'type': 'WhitespaceSplit'}}, 'no space in front of a text'),
      ({'added_tokens': []}, r"the pieces \[None, None, None\] have ids"))):
    folder = tmp_path / str(number)
    folder.mkdir()
    alone(folder, tokenizer, lambda said, change=change: {**said, **change})
    with pytest.raises(ConvertError, match=message):
      vocabulary.load(folder)
