import json
import os
import pickle
import random
import re
import subprocess
import sys
from typing import get_args

import pytest
from tokenizers import Tokenizer as Fast

from plm_jax import tokenizers
from plm_jax.conversion import tokenizer_files
from plm_jax.tokenizers import (
    SentencePiece,
    TokenizerError,
    sentence_piece,
    sentencepiece_training,
    train_fairseq_sentencepiece,
    train_sentencepiece,
)

TEXTS = [
    *(f'The cat number {i} sat on the mat, and the dogs of street {i * 7} barked.'
      for i in range(60)),
    *['中文和中国文字。'] * 9,
]


@pytest.fixture(scope='module', params=['unigram', 'bpe'])
def trained(request):
  return tokenizers.train_sentencepiece(TEXTS, 70, request.param)


def test_special_ids(trained):
  assert trained.pieces[:7] == ['<pad>', '<unk>', '<s>', '</s>', '[CLS]', '[SEP]', '[MASK]']
  assert trained.vocab == tokenizers.Vocab(70, pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6)


def test_encode_and_decode(trained):
  text = 'The cat sat on the mat, and 中国文字。'
  ids = trained.encode(text)
  assert ''.join(trained.pieces[i] for i in ids) == '▁' + text.replace(' ', '▁')
  assert trained.decode(ids) == text
  assert trained.encode_flat([text, ''])[0].tolist() == ids
  assert trained.encode_flat([text, ''])[1].tolist() == [len(ids), 0]
  assert trained.encode_batch([text, '', 'dogs']) == [ids, [], trained.encode('dogs')]


def test_special_tokens_of_sentencepiece_are_text_by_default(trained):
  assert not set(trained.encode('the [MASK] sat </s>')) & {0, 2, 3, 4, 5, 6}
  ids = trained.encode('the [MASK] sat', specials=True)
  assert ids == trained.encode('the') + [6] + trained.encode('sat')


def test_word_starts(trained):
  starts = dict(zip(trained.pieces, trained.starts_word.tolist(), strict=True))
  expected = {'[MASK]': True, '<unk>': True, '▁': True, '▁the': True, 'a': False, ',': True,
              '中': True, '文': True}
  assert {piece: starts[piece] for piece in expected if piece in starts} == {
      piece: start for piece, start in expected.items() if piece in starts}
  assert {'[MASK]', 'a', ',', '中'} <= set(starts)


def test_bytes_instead_of_unknown():
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 298, layout='llama')
  ids = tokenizer.encode('ж')
  assert [tokenizer.pieces[i] for i in ids][-2:] == ['<0xD0>', '<0xB6>']
  assert not tokenizer.starts_word[ids[-2:]].any()
  assert tokenizer.decode(ids) == 'ж'


def test_lowercase():
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 70, lowercase=True)
  assert tokenizer.encode('THE CAT') == tokenizer.encode('the cat')


def test_xlnet_has_its_own_special_pieces_and_plain_text(tmp_path):
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 70, layout='xlnet')
  assert tokenizer.pieces[:9] == ['<unk>', '<s>', '</s>', '<cls>', '<sep>', '<pad>', '<mask>',
                                  '<eod>', '<eop>']
  assert tokenizer.vocab == tokenizers.Vocab(70, pad=5, unk=0, bos=1, eos=2, cls=3, sep=4, mask=6)
  assert tokenizer.encode("thé ``cát''") == tokenizer.encode('the "cat"') != tokenizer.encode(
      'The "cat"')
  assert tokenizer.encode('thé <mask> sat',
                          specials=True) == [*tokenizer.encode('the'), 6, *tokenizer.encode('sat')]
  tokenizer.save(tmp_path)
  for again in (SentencePiece.load(tmp_path / 'spiece.model'),
                pickle.loads(pickle.dumps(tokenizer))):
    assert again.text == tokenizers.AlbertNormalization(lowercase=False, strip_accents=True)
    assert again.hash == tokenizer.hash
    assert again.encode("thé ``cát''") == tokenizer.encode('the "cat"')
  # As released: the model alone.
  (tmp_path / 'tokenizer_config.json').unlink()
  assert SentencePiece.load(tmp_path / 'spiece.model').text == tokenizers.AlbertNormalization()
  lower = tokenizers.train_sentencepiece(TEXTS, 65, lowercase=True, layout='xlnet')
  assert lower.encode('THÉ') == lower.encode('the')


def test_save_load_pickle(trained, tmp_path):
  trained.save(tmp_path)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['spiece.model',
                                                              'tokenizer_config.json']
  assert json.loads((tmp_path / 'tokenizer_config.json').read_text())['mask_token'] == '[MASK]'
  copy = pickle.loads(pickle.dumps(trained))
  for again in (tokenizers.load(tmp_path), tokenizers.load(tmp_path / 'spiece.model'), copy):
    assert again.hash == trained.hash
    assert again.vocab == trained.vocab
    assert again.encode(TEXTS[3]) == trained.encode(TEXTS[3])


def test_training_is_the_same_in_every_process():
  code = ('from plm_jax import tokenizers; '
          f'print(tokenizers.train_sentencepiece({TEXTS!r}, 70).hash)')
  run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True,
                       env={**os.environ, 'PYTHONHASHSEED': '5'})
  assert run.stdout.strip() == tokenizers.train_sentencepiece(TEXTS, 70).hash


@pytest.mark.parametrize('algorithm', ['unigram', 'bpe'])
def test_training_refuses(algorithm):
  with pytest.raises(TokenizerError, match='the text is empty'):
    tokenizers.train_sentencepiece(['', '  '], 100, algorithm)
  with pytest.raises(TokenizerError,
                     match=r'of 20 is too small: .* vocab=\d+ or more, or less coverage'):
    tokenizers.train_sentencepiece(TEXTS, 20, algorithm)


@pytest.mark.parametrize('content', [b'', b'no model at all'])
def test_damaged_model(tmp_path, content):
  (tmp_path / 'x.model').write_bytes(content)
  with pytest.raises(TokenizerError, match=r'x.model: not a SentencePiece model'):
    tokenizers.load(tmp_path)


def test_which_model(tmp_path):
  for name in ('a.model', 'b.model'):
    (tmp_path / name).write_bytes(b'')
  with pytest.raises(TokenizerError,
                     match=r"several SentencePiece models: \['a.model', 'b.model'\]"):
    tokenizers.load(tmp_path)


def test_debertas_special_pieces(tmp_path):
  """Ids as released: the mask comes after the model's own pieces, which do not contain it."""
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 70, layout='deberta')
  assert tokenizer.pieces[:4] == ['[PAD]', '[CLS]', '[SEP]',
                                  '[UNK]'] and tokenizer.pieces[69] == '[MASK]'
  assert tokenizer.vocab == tokenizers.Vocab(70, pad=0, cls=1, sep=2, unk=3, mask=69, bos=1, eos=2)
  assert tokenizer.layout == 'deberta' and tokenizer.starts_word[69] and len(
      tokenizer.starts_word) == 70
  ids = tokenizer.encode('the [MASK] sat', specials=True)
  assert ids == tokenizer.encode('the') + [69] + tokenizer.encode('sat')
  assert tokenizer.decode(ids) == 'the sat'
  tokenizer.save(tmp_path)
  assert (tmp_path / 'spm.model').exists()
  assert tokenizers.load(tmp_path).vocab == tokenizer.vocab


def test_albert(tmp_path):
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 65, lowercase=True, layout='albert')
  assert tokenizer.layout == 'albert' and tokenizer.pieces[:5] == ['<pad>', '<unk>', '[CLS]',
                                                                   '[SEP]', '[MASK]']
  assert tokenizer.vocab == tokenizers.Vocab(65, pad=0, unk=1, cls=2, sep=3, mask=4)
  assert tokenizer.encode('THE cát') == tokenizer.encode('the cat')
  tokenizer.save(tmp_path)
  assert tokenizers.load(tmp_path).hash == tokenizer.hash
  # Released models have no other file.
  (tmp_path / 'tokenizer_config.json').unlink()
  assert tokenizers.load(tmp_path).text == tokenizers.AlbertNormalization(lowercase=True)


@pytest.mark.parametrize('layout', ['bert', 'albert', 'deberta', 'glm'])
def test_other_libraries_get_the_same_ids(layout, tmp_path):
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 70, layout=layout)
  tokenizer_files.save(tmp_path, tokenizer, 512)
  fast = Fast.from_file(str(tmp_path / 'tokenizer.json'))
  for text in ('The cat sat, on  the mat.', ' Ｔｈｅ dogs ½ ', '中文 文字', 'a\tb', '[MASK] barked', 'ж',
               ''):
    assert fast.encode(text).ids == [
        tokenizer.vocab.cls, *tokenizer.encode(text, specials=True), tokenizer.vocab.sep], text
  assert tokenizer_files.load(tmp_path).hash == tokenizer.hash


def test_only_unigram_models_are_written_for_others(tmp_path):
  with pytest.raises(TokenizerError, match='only unigram models'):
    tokenizer_files.save(tmp_path, tokenizers.train_sentencepiece(TEXTS, 70, 'bpe'), 512)


def test_blanks_of_glm(tmp_path):
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 70, layout='glm')
  assert tokenizer.pieces[:10] == ['<pad>', '<unk>', '<|endoftext|>', '[CLS]', '[SEP]', '[MASK]',
                                   '<|startofpiece|>',
                                   '<|endofpiece|>', '[gMASK]', '[sMASK]']
  assert tokenizer.vocab == tokenizers.Vocab(
      70, pad=0, unk=1, eos=2, cls=3, sep=4, mask=5, sop=6, eop=7, gmask=8, smask=9)
  tokenizer.save(tmp_path)
  again = tokenizers.load(tmp_path)
  assert again.vocab == tokenizer.vocab and again.hash == tokenizer.hash
  assert again.encode('the [gMASK]', specials=True) == [*again.encode('the'), 8]


HARD = ['The cat sat.', ' two  spaces ', 'line\nbreak\tand tab', 'ж 𝔘 number 2023', '▁', '', '  ',
        '<s> is text </s>',
        'éé']


@pytest.fixture(scope='module')
def llama():
  return tokenizers.train_sentencepiece(TEXTS, 330, 'bpe', layout='llama')


def test_llama_keeps_all_of_a_text(llama):
  assert llama.layout == 'llama' and llama.pieces[:4] == ['<unk>', '<s>', '</s>', '<0x00>']
  assert llama.vocab == tokenizers.Vocab(330, unk=0, bos=1, eos=2)
  for text in HARD:
    ids = llama.encode(text)
    assert 0 not in ids and not {1, 2} & set(ids)
    assert llama.decode(ids) == text.replace('▁', ' ')
  assert [llama.pieces[i] for i in llama.encode('2023')] == ['▁', '2', '0', '2', '3']


def test_llama_gives_another_library_the_same_ids(llama, tmp_path):
  tokenizer_files.save(tmp_path, llama, 2048)
  fast = Fast.from_file(str(tmp_path / 'tokenizer.json'))
  fast.encode_special_tokens = True
  for text in [*HARD, *TEXTS]:
    assert fast.encode(text).ids == [1, *llama.encode(text)]
    assert fast.decode(fast.encode(text).ids) == llama.decode(llama.encode(text))
  again = tokenizer_files.load(tmp_path)
  assert again.pieces == llama.pieces and (tmp_path / 'tokenizer.model').exists()


def test_only_bpe_with_bytes_is_written_as_llama_s(trained):
  with pytest.raises(TokenizerError, match='bytes'):
    trained.merges()


@pytest.fixture(scope='module')
def with_sentinels():
  return tokenizers.train_sentencepiece(TEXTS, 170, layout='t5')


def test_sentinels(with_sentinels):
  assert with_sentinels.pieces[:3] == ['<pad>', '</s>', '<unk>']
  assert with_sentinels.pieces[69:72] + with_sentinels.pieces[168:] == [
      with_sentinels.pieces[69], '<extra_id_99>', '<extra_id_98>', '<extra_id_1>', '<extra_id_0>']
  assert with_sentinels.vocab == tokenizers.Vocab(170, pad=0, eos=1, unk=2, sentinel=169)
  assert with_sentinels.sentinels == range(169, 69, -1)
  assert with_sentinels.starts_word[70:].all()


def test_another_number_of_sentinels(tmp_path):
  """Is kept in the files: in ours, and in those for other libraries."""
  tokenizer = tokenizers.train_sentencepiece(TEXTS, 74, layout='t5', sentinels=4)
  assert tokenizer.vocab == tokenizers.Vocab(74, pad=0, eos=1, unk=2, sentinel=73, sentinels=4)
  assert tokenizer.pieces[69:] == [tokenizer.pieces[69], *(f'<extra_id_{n}>' for n in (3, 2, 1, 0))]
  tokenizer_files.save(tmp_path, tokenizer, 0)
  assert json.loads((tmp_path / 'tokenizer_config.json').read_text())['extra_ids'] == 4
  again = tokenizers.load(tmp_path)
  assert (again.pieces, again.vocab, again.hash) == (tokenizer.pieces, tokenizer.vocab,
                                                     tokenizer.hash)
  (tmp_path / 'spiece.model').unlink()
  assert tokenizer_files.load(tmp_path).pieces == tokenizer.pieces


def test_sentinels_in_text(with_sentinels):
  the, sat = (with_sentinels.encode(word) for word in ('the', 'sat'))
  assert not set(with_sentinels.encode('the <extra_id_1> sat')) & {168}
  ids = with_sentinels.encode('the <extra_id_1> sat<extra_id_0>', specials=True)
  assert ids == [*the, 168, *sat, 169]
  assert with_sentinels.decode([*the, 168, *sat, 169, 1]) == 'the sat'


def test_sentinels_are_saved_and_written(with_sentinels, tmp_path):
  tokenizer_files.save(tmp_path, with_sentinels, 0)
  again = tokenizers.load(tmp_path)
  assert (again.pieces, again.vocab, again.hash) == (
      with_sentinels.pieces, with_sentinels.vocab, with_sentinels.hash)
  config = json.loads((tmp_path / 'tokenizer_config.json').read_text())
  assert config['additional_special_tokens'][:2] == ['<extra_id_0>', '<extra_id_1>']
  assert 'model_max_length' not in config
  fast = Fast.from_file(str(tmp_path / 'tokenizer.json'))
  for text in TEXTS[:3]:
    assert fast.encode(text).ids == [*with_sentinels.encode(text), 1]
  assert fast.encode('the <extra_id_0> sat').ids == [
      *with_sentinels.encode('the <extra_id_0> sat', specials=True), 1]
  assert fast.token_to_id('<extra_id_99>') == 70


@pytest.mark.parametrize(('piece', 'begins'), [
    ('▁cat', True), ('s', False), ('S', False), (',', True), ('..', False), ("'s", True),
    ('é', True), ('99', True),
    ('caf', False), ('fé', True), ('猫', True), ('<', True), ('-', True), ('a-b', False)])
def test_where_a_word_of_albert_begins(piece, begins):
  """By hand, from _is_start_piece_sp of google-research/albert, create_pretraining_data.py."""
  assert sentence_piece.starts_albert_word(piece) == begins


def test_models_are_read_by_an_older_protobuf_version():
  code = """
import importlib, os
from google.protobuf import runtime_version
from plm_jax.tokenizers import sentence_piece
runtime_version.MAJOR = 5
try:
  importlib.import_module('sentencepiece.sentencepiece_model_pb2')
except runtime_version.VersionError:
  model = sentence_piece.load_protobuf().ModelProto.FromString(bytes.fromhex('0a030a0161'))
  print(model.pieces[0].piece)
print([name for name in os.environ if 'PROTOBUF' in name])"""
  found = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert found.stdout == 'a\n[]\n'


LAYOUTS = get_args(sentence_piece.Layout)


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('algorithm', ['unigram', 'bpe'])
def test_vocabulary_is_smaller_if_the_text_is_small(algorithm, layout):
  """The largest possible size according to sentencepiece; the error message with the smallest
  size counts all added tokens."""
  texts = ['the cat sat on the mat', 'a b', 'we 12'] * 3
  train = lambda size: train_any(texts, size, algorithm, layout)
  most = train(4000)
  assert most.vocab.size == len(most.pieces) < 600
  assert train(most.vocab.size).pieces == most.pieces and most.vocab.unk not in most.encode(
      'the cat sat')
  with pytest.raises(TokenizerError,
                     match=r'vocabulary of 3 is too small: .* take (\d+) already') as caught:
    train(3)
  least = int(re.search(r' vocab=(\d+)', str(caught.value))[1])
  assert train(least).vocab.size == least
  with pytest.raises(TokenizerError, match=f'of {least - 1} is too small'):
    train(least - 1)


def train_any(texts, size, algorithm, layout):
  if layout in ('mbart', 'mbart50', 'xlm-r'):
    return train_fairseq_sentencepiece(texts, size, layout=layout)
  return train_sentencepiece(texts, size, algorithm, layout=layout)


@pytest.mark.parametrize('texts', [['a'], ['1'], ['…'], ['ab'], ['是'], ['a b'], ['ACGT' * 10]])
def test_models_of_tiny_texts(texts):
  for algorithm, layout in (('unigram', 'bert'), ('bpe', 'llama'), ('unigram', 't5')):
    trained = train_sentencepiece(texts, 1000, algorithm, layout=layout)
    assert trained.vocab.unk not in trained.encode(texts[0]), (algorithm, layout)


def test_long_lines_are_learnt_from():
  """A line over 64 KiB, of any script, with and without spaces, and one with the character that
  sentencepiece keeps for itself, teach as much as short ones."""
  words = ['many', 'words', 'stand', 'in', 'this', 'long', 'line']
  line = ' '.join(random.Random(0).choices(words, k=20_000))
  assert len(line) > 100_000
  trained = train_sentencepiece([line, 'x y'], 60)
  assert {'▁many', '▁stand', '▁this', '▁long'} <= {*trained.pieces}
  thai = ''.join(random.Random(0).choices(['บ้าน', 'สวย', 'แมว'], k=9_000))
  assert len(thai.encode()) > 80_000
  trained = train_sentencepiece([thai, 'x y'], 40)
  assert len(trained.encode('บ้านสวย')) <= 5 and trained.vocab.unk not in trained.encode(thai)
  assert 'o' in ''.join(train_sentencepiece(['foo \u2585 bar', 'x y'], 60).pieces)
  assert ''.join(sentencepiece_training.split_for_training(line)) == line
  assert [*sentencepiece_training.split_for_training('a b')] == ['a b']
  parts = sentencepiece_training.split_for_training(thai)
  assert all(len(part.encode()) <= 1 << 16 for part in parts)


def test_accents_can_be_kept_by_albert():
  texts = ['le garçon répète', "l'été à la forêt"] * 4
  stripped, kept = (train_sentencepiece(texts, 60, layout='albert', strip_accents=strip)
                    for strip in (True, False))
  assert stripped.decode(stripped.encode('garçon')) == 'garcon'
  assert kept.decode(kept.encode('garçon')) == 'garçon'
