import sys

import numpy as np
import pytest

from plm_jax import tokenizers
from plm_jax.data import records
from plm_jax.preparation import encode, word_segmentation
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.sources import text_sources
from plm_jax.sources.document_formats import Document
from plm_jax.sources.lines import SourceError

TEXTS = ['我们喜欢北京的春天。他们在New York学习自然语言处理！', '“真的？”她问。中国文字很有趣，不是吗',
         '2021年３月，café 关了。']
SEGMENTED = ['我们 喜欢 北京 的 春天 。 他们 在 New York 学习 自然 语言 处理 ！',
             '“ 真的 ？ ” 她 问 。 中国 文字 很 有趣 ， 不是 吗', '2021 年 ３月 ， café  关 了 。']
WORDS = [text.split() for text in SEGMENTED]


@pytest.fixture(scope='module', params=['wordpiece', 'sentencepiece', 'plain text', 'byte_bpe'])
def tokenizer(request):
  many = TEXTS * 20
  if request.param == 'wordpiece':
    return tokenizers.train_wordpiece(many, 100)
  if request.param == 'byte_bpe':
    return tokenizers.train_byte_bpe(many, 330)
  found = tokenizers.train_sentencepiece(many, 65, coverage=1.0)
  return found if request.param == 'sentencepiece' else tokenizers.SentencePiece(
      found.model, tokenizers.AlbertNormalization())


def words(tokenizer, tokens):
  """Pieces of each word, put together."""
  starts = tokens['flags'] & records.WORD_START > 0
  groups = np.split(tokens['token'], np.flatnonzero(starts))[1:]
  return [tokenizer.decode(group).replace(' ', '') for group in groups]


def test_a_segmented_source_has_the_ids_of_the_text(tokenizer):
  plain = encode.encode_documents([Document(TEXTS[:2], '')], tokenizer, 'split')
  cut = encode.encode_documents([Document(SEGMENTED[:2], '')], tokenizer, 'split', 'spaces')
  np.testing.assert_array_equal(plain.tokens['token'], cut.tokens['token'])
  np.testing.assert_array_equal(plain.lengths, cut.lengths)
  assert not np.array_equal(plain.tokens['flags'], cut.tokens['flags'])


def test_masks_follow_words(tokenizer):
  """Every word of the segmenter is one unit: its tokens, and no others. Pieces here are of one
  character or a few."""
  if tokenizer.kind == 'byte_bpe':
    tokenizer = tokenizers.ByteBPE({**tokenizer.ids}, [])  # bytes alone: no piece is of two words
  if tokenizer.kind == 'sentencepiece':
    pytest.skip('its pieces may reach over the border of two words')
  cut = encode.encode_documents([Document([text], '') for text in SEGMENTED[:2]], tokenizer,
                                'split', 'spaces')
  expected = [word.lower() for text in WORDS[:2] for word in text]
  assert [word.lower() for word in words(tokenizer, cut.tokens)] == expected


def test_a_token_is_of_the_word_of_its_first_character():
  """Tokens 'ab', 'cd', 'e', ' f', 'g' of the words abc, de, fg: 'cd' is of the first, though d is
  of the second."""
  starts = word_segmentation.word_starts('abcde fg', ['abc', 'de', 'fg'], ['abcde fg'], [5],
                                         np.array([0, 2, 4, 5, 7]))
  np.testing.assert_array_equal(starts, [1, 0, 1, 1, 0])
  # The same in two sentences, of which the second has kept its space.
  starts = word_segmentation.word_starts(
      'abcde fg', ['abc', 'de', 'fg'], ['abcde', ' fg'], [3, 2], np.array([0, 2, 4, 0, 2]))
  np.testing.assert_array_equal(starts, [1, 0, 1, 1, 0])


def test_spaces_go_beside_wide_characters_only():
  cut = word_segmentation.make_segmenter('spaces')
  assert [cut(text)[1] for text in SEGMENTED] == WORDS
  assert [cut(text)[0] for text in SEGMENTED] == [*TEXTS[:2], '2021年３月，café关了。']
  assert cut('3 % of it')[0] == '3 % of it' and cut('한국어 단어')[0] == '한국어 단어'


def test_sentences_keep_the_space_that_a_byte_level_piece_needs():
  tokenizer = tokenizers.train_byte_bpe(TEXTS, 300)
  paragraph = 'One is. Two  are.\tThree! 他走了。“好！”她说。'
  encoded = encode.encode_documents([Document([paragraph], '')], tokenizer, 'split')
  assert len(encoded.lengths) == 6
  assert tokenizer.decode(encoded.tokens['token']) == 'One is. Two  are. Three! 他走了。“好！”她说。'


def test_jieba_marks_words_of_its_dictionary():
  pytest.importorskip('jieba')
  tokenizer = tokenizers.train_wordpiece(TEXTS * 20, 100)
  plain = encode.encode_documents([Document(TEXTS, '')], tokenizer, 'split')
  cut = encode.encode_documents([Document(TEXTS, '')], tokenizer, 'split', 'jieba')
  np.testing.assert_array_equal(plain.tokens['token'], cut.tokens['token'])
  assert {'我们', '喜欢', '北京', '春天'} <= set(words(tokenizer, cut.tokens))


def test_without_jieba_the_extra_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'jieba', None)
  with pytest.raises(text_sources.SourceError, match=r'plm_jax\[zh\]'):
    word_segmentation.make_segmenter('jieba')


def test_words_of_a_list(tmp_path):
  """The longest, from the left; what no word of the list fits is a character, or a word as it is
  written."""
  listed = tmp_path / 'words.txt'
  listed.write_text('自然语言\n语言处理\n北京\n北京大学\n\nNew York\n')
  text, found = word_segmentation.make_segmenter(f'words:{listed}')(
      '我在北京大学学自然语言处理 in New York, 2021年。')
  assert text == '我在北京大学学自然语言处理 in New York, 2021年。'
  assert found == ['我', '在', '北京大学', '学', '自然语言', '处', '理', 'in', 'New York', ',', '2021', '年', '。']
  before = word_segmentation.segmenter_identity(f'words:{listed}')
  listed.write_text('北京\n')
  assert word_segmentation.segmenter_identity(f'words:{listed}') != before
  assert word_segmentation.segmenter_identity('spaces') == 'spaces'


@pytest.mark.parametrize('name', ['words', 'spaces:list.txt', 'ltp', ''])
def test_segmenters_that_there_are_not(name):
  with pytest.raises(ValueError,
                     match=f'segmenter is none, jieba, spaces, jieba:FILE or words:FILE, got '
                           f'{name}'):
    TextConfig(segmenter=name)


def test_an_empty_list(tmp_path):
  (tmp_path / 'words.txt').write_text('\n')
  with pytest.raises(SourceError, match=r'words.txt has no words in it, expected one per line'):
    word_segmentation.make_segmenter(f'words:{tmp_path / "words.txt"}')
