import json
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import tokenizers as library
from tokenizers import models, pre_tokenizers

from plm_jax import tokenizers
from plm_jax.conversion import tokenizer_files
from plm_jax.tokenizers import ByteBPE, TokenizerError, Vocab, train_byte_bpe
from plm_jax.tokenizers.byte_bpe import ALPHABET, FIRST_TOKENS, LAST_TOKEN

TEXTS = [*(f'The cat number {i} sat on the mat, and the dogs of street {i * 7} didn\'t bark.'
           for i in range(60)), *['中文和中国文字。'] * 9]
# Separators of words, characters of several bytes, and unassigned characters.
SIGNS = [*'ab\'sdtre 12.,!?-_  \t\n\r\x0b\x1c\x1d\x85\xa0\u2003\u3000\u200b\ufeff',
         *'é\u0301中文字。，😀ßŒأع\u0e33½²Ⅷ\x00\uffff',
         "'s", "'re", ' the', ' 中', '\U0001f469\u200d\U0001f467', '<mask>', '<|endoftext|>']


@pytest.fixture(scope='module')
def trained():
  return train_byte_bpe(TEXTS, 400)


@pytest.fixture(scope='module')
def garbage():
  draw = random.Random(0)
  return [''.join(draw.choices(SIGNS, k=draw.randrange(20))) for _ in range(3000)]


def test_special_tokens_have_robertas_places(trained):
  assert trained.vocab == Vocab(len(trained.pieces), cls=0, pad=1, sep=2, unk=3,
                                mask=len(trained.pieces) - 1,
                                bos=0, eos=2)
  assert len(trained.pieces) <= 400
  assert trained.pieces[:4] == ['<s>', '<pad>', '</s>', '<unk>'] and trained.pieces[-1] == '<mask>'


def test_a_space_belongs_to_the_next_word(trained):
  pieces = lambda text: [trained.pieces[i] for i in trained.encode(text)]
  assert pieces('The cat sat on the mat') == ['The', '▁cat', '▁sat', '▁on', '▁the', '▁mat']
  assert pieces(' the  the') == ['▁the', '▁', '▁the']
  assert trained.keeps_leading_space and trained.encode('the') != trained.encode(' the')


def test_every_text_comes_back(trained, garbage):
  assert all(trained.decode(trained.encode(text)) == text for text in garbage)
  assert trained.decode([trained.encode('中')[0]]) == '\ufffd' or len(trained.encode('中')) == 1


def test_cached_words_have_the_ids_of_the_library(trained, garbage):
  ids, lengths = trained.encode_flat(garbage)
  expected = [trained.encode(text) for text in garbage]
  assert [some.tolist() for some in np.split(ids, np.cumsum(lengths)[:-1])] == expected
  assert trained.encode_batch(garbage) == expected and trained.encode_batch([]) == []
  assert np.array_equal(trained.encode_with_offsets(garbage)[0], ids)


def test_places_are_characters(trained):
  text = 'The 中 cat'
  ids, lengths, places = trained.encode_with_offsets([text, 'mat'])
  assert lengths.tolist() == [len(trained.encode(text)), len(trained.encode('mat'))]
  assert places[0] == 0 and places[lengths[0] - 1] == text.index(' cat') and set(places) <= set(
      range(len(text)))
  assert ids.tolist() == trained.encode(text) + trained.encode('mat')


def test_a_mask_takes_the_space_before_it(trained):
  assert trained.encode('The <mask> sat', specials=True) == [
      *trained.encode('The'), trained.vocab.mask, *trained.encode(' sat')]
  assert trained.vocab.mask not in trained.encode('The <mask> sat')


def test_starts_of_words(trained):
  starts = {piece: bool(start) for piece, start in zip(trained.pieces, trained.starts_word,
                                                       strict=True)}
  assert starts['▁the'] and starts['▁'] and starts['.'] and starts['<mask>']
  assert not starts['the'] and not starts['s'] and not starts['7']
  # the first byte of 中, the second; of é
  assert starts['\\xe4'] and not starts['\\xb8'] and not starts['\\xc3']


def test_files_give_the_same_tokenizer(trained, garbage, tmp_path):
  trained.save(tmp_path / 'ours')
  loaded = tokenizers.load(tmp_path / 'ours')
  assert isinstance(
      loaded, ByteBPE) and loaded.vocab == trained.vocab and loaded.hash == trained.hash
  assert loaded.encode_batch(garbage) == trained.encode_batch(garbage)
  tokenizer_files.save(tmp_path / 'ours', trained, 512)
  (tmp_path / 'alone').mkdir()
  (tmp_path / 'ours' / 'tokenizer.json').rename(tmp_path / 'alone' / 'tokenizer.json')
  for alone in (tokenizers.load(tmp_path / 'alone'), tokenizer_files.load(tmp_path / 'alone')):
    assert alone.hash == trained.hash and alone.encode_batch(garbage) == trained.encode_batch(
        garbage)
  assert pickle.loads(pickle.dumps(trained)).encode_batch(garbage) == trained.encode_batch(garbage)


def test_gpt_2_has_one_special_token(trained, tmp_path):
  ids = {piece: i for i, piece in enumerate([*list(trained.ids)[4:-1], '<|endoftext|>'])}
  gpt2 = ByteBPE(ids, trained.merges)
  assert gpt2.vocab == Vocab(len(ids), unk=len(ids) - 1, bos=len(ids) - 1, eos=len(ids) - 1)
  tokenizer_files.save(tmp_path, gpt2, 1024)
  assert tokenizer_files.load(tmp_path).vocab == gpt2.vocab
  assert json.loads((tmp_path / 'tokenizer_config.json').read_text())[
      'tokenizer_class'] == 'GPT2Tokenizer'
  assert gpt2.encode('the <|endoftext|>', specials=True)[-1] == gpt2.vocab.eos


LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+")


def test_ignore_merges_of_llama_3_keeps_whole_words(garbage, tmp_path):
  """A tokenizer.json in its format, written and read by the library; no merge produces the piece
  'sat'."""
  pieces = {piece: i for i, piece in enumerate([*sorted(ALPHABET), '12', '123', 'he', 'the',
                                                'sat'])}
  theirs = library.Tokenizer(models.BPE(pieces, [('1', '2'), ('12', '3'), ('h', 'e'), ('t', 'he')],
                                        ignore_merges=True))
  theirs.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Split(library.Regex(LLAMA_3_WORDS), 'isolated'),
      pre_tokenizers.ByteLevel(False, use_regex=False)])
  theirs.add_special_tokens(['<|begin_of_text|>', '<|end_of_text|>',
                             '<|reserved_special_token_0|>'])
  (tmp_path / 'llama').mkdir()
  theirs.save(str(tmp_path / 'llama/tokenizer.json'))
  ours = tokenizer_files.load(tmp_path / 'llama')
  size = len(pieces)
  assert ours.vocab == Vocab(size + 3, bos=size, eos=size + 1)
  texts = [*garbage, '1234567', "we'Ll\n\nthe  sat!\n", 'sat']
  assert ours.encode_batch(texts) == [theirs.encode(text).ids for text in texts]
  assert ours.encode('1234') == [pieces['123'],
                                 pieces['4']] and ours.encode('sat') == [pieces['sat']]
  assert ours.encode('<|end_of_text|>') != ours.encode('<|end_of_text|>',
                                                       specials=True) == [ours.vocab.eos]
  tokenizer_files.save(tmp_path / 'out', ours, 8192)
  again = tokenizer_files.load(tmp_path / 'out')
  assert again.hash == ours.hash and again.encode_batch(texts) == ours.encode_batch(texts)
  assert tokenizers.load(tmp_path / 'out').encode_batch(texts) == ours.encode_batch(texts)
  written = library.Tokenizer.from_file(str(tmp_path / 'out/tokenizer.json'))
  assert written.encode('sat').ids == [size, pieces['sat']]


def test_euroberts_vocabulary_has_the_roles_of_an_encoder(tmp_path):
  """LLaMA 3's vocabulary with a mask token: a text has a start and an end token, and the end is
  padding, as in the released files."""
  names = ['<|begin_of_text|>', '<|end_of_text|>', '<|mask|>', '<|parallel_sep|>']
  pieces = {piece: i for i, piece in enumerate(sorted(ALPHABET))}
  theirs = library.Tokenizer(models.BPE(pieces, [], ignore_merges=True))
  theirs.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Split(library.Regex(LLAMA_3_WORDS), 'isolated'),
      pre_tokenizers.ByteLevel(False, use_regex=False)])
  theirs.add_special_tokens(names)
  theirs.save(str(tmp_path / 'tokenizer.json'))
  said = {'bos_token': names[0], 'eos_token': names[1], 'pad_token': names[1],
          'mask_token': names[2],
          'tokenizer_class': 'PreTrainedTokenizerFast'}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(said))
  ours = tokenizer_files.load(tmp_path)
  want = Vocab(260, bos=256, eos=257, cls=256, sep=257, pad=257, mask=258)
  assert ours.vocab == want
  assert ours.encode('a <|mask|>', specials=True) == [pieces['a'], pieces['Ġ'], 258]
  tokenizer_files.save(tmp_path / 'out', ours, 8192, ((256,), (257,), (257,)), types=False)
  assert tokenizer_files.load(tmp_path / 'out').vocab == want
  written = library.Tokenizer.from_file(str(tmp_path / 'out/tokenizer.json'))
  assert written.encode('a', 'b').ids == [256, pieces['a'], 257, pieces['b'], 257]


def test_some_put_a_space_before_every_text(trained, garbage):
  prefixed = ByteBPE(trained.ids, trained.merges, prefix=True)
  assert prefixed.encode('the') == trained.encode(' the') == prefixed.encode(' the')
  assert prefixed.encode_batch(garbage) == [prefixed.encode(text) for text in garbage]


def test_training_is_the_same_in_another_process(trained, tmp_path):
  program = ('import sys, json, plm_jax.tokenizers as t; '
             'print(t.train_byte_bpe(json.loads(sys.argv[1]), 400).hash)')
  result = subprocess.run([sys.executable, '-c', program, json.dumps(TEXTS)],
                          env={'PYTHONHASHSEED': '7'},
                          capture_output=True, text=True, check=True)
  assert result.stdout.strip() == trained.hash


@pytest.mark.parametrize(('texts', 'size', 'message'),
                         [([' '], 400, 'empty'), (['a'], 260, 'too small')])
def test_unusable_training_texts_and_sizes_are_refused(texts, size, message):
  with pytest.raises(TokenizerError, match=message):
    train_byte_bpe(texts, size)


@pytest.mark.parametrize(('change', 'message'), [
    (lambda vocab, merges: (vocab[:-2], merges), 'cannot be read as JSON'),
    (lambda vocab, merges: ('{"a": 0}', merges), '256 bytes; 255 are missing'),
    (lambda vocab, merges: (vocab, merges + 'Ġthe zebra\n'), '1 merges are not of two tokens'),
    (lambda vocab, merges: (vocab, None), 'without a merges.txt'),
    (lambda vocab, merges: (vocab, ''.join(merges.splitlines(True)[:-20])),
     'merges.txt has no merge for 20 of the 363 tokens'),
    (lambda vocab, merges: (vocab, merges[:-1].rpartition('\n')[0][:-1]), 'not of two tokens'),
])
def test_damaged_files(trained, tmp_path, change, message):
  trained.save(tmp_path)
  vocab, merges = change((tmp_path / 'vocab.json').read_text(),
                         (tmp_path / 'merges.txt').read_text())
  (tmp_path / 'vocab.json').write_text(vocab)
  (tmp_path / 'merges.txt').unlink() if merges is None else (tmp_path / 'merges.txt').write_text(
      merges)
  with pytest.raises(TokenizerError, match=message):
    tokenizers.load(tmp_path)


def test_an_unknown_way_to_split_text_is_refused(trained, tmp_path):
  tokenizer_files.save(tmp_path, trained, 512)
  for name in ('vocab.json', 'merges.txt'):
    (tmp_path / name).unlink()
  file = tmp_path / 'tokenizer.json'
  said = json.loads(file.read_text())
  split = {'type': 'Split', 'pattern': {'Regex': '(a+)+$'}, 'behavior': 'Isolated', 'invert': False}
  words = {'type': 'WordLevel', 'vocab': {}, 'unk_token': ''}
  for change, message in (({'pre_tokenizer': split},
                           r"in a way that is not known here: '\(a\+\)\+\$'"),
                          ({'model': {**said['model'], 'dropout': 0.1}}, r'model\.dropout is 0\.1'),
                          ({'model': words}, "model.type is 'WordLevel'")):
    file.write_text(json.dumps({**said, **change}))
    with pytest.raises(TokenizerError, match=message):
      tokenizers.load(tmp_path)


def test_blanks_of_glm_end_with_the_text_of_gpt(trained):
  """GPT-2's vocabulary, followed by the tokens of GLM in the order of the released 10B model."""
  pieces = [piece for piece in trained.ids if piece not in (*FIRST_TOKENS, LAST_TOKEN)]
  added = ['<|endoftext|>', '<|startofpiece|>', '<|endofpiece|>', '[CLS]', '[MASK]', '[SEP]',
           '[UNK]', '[gMASK]',
           '[sMASK]']
  tokenizer = ByteBPE({piece: i for i, piece in enumerate([*pieces, *added])}, trained.merges)
  first = len(pieces)
  assert tokenizer.vocab == Vocab(
      first + 9, pad=first, eos=first, sop=first + 1, eop=first + 2, cls=first + 3, mask=first + 4,
      sep=first + 5,
      unk=first + 6, bos=first + 3, gmask=first + 7, smask=first + 8)
  assert tokenizer.encode('the cat [gMASK]',
                          specials=True) == [*tokenizer.encode('the cat'), first + 7]


def test_gpt2_has_one_special_token_at_the_end(tmp_path):
  tokenizer = train_byte_bpe(['model', 'a model of models'] * 9, 300, layout='gpt2')
  last = len(tokenizer.pieces) - 1
  assert tokenizer.pieces[last] == '<|endoftext|>'
  assert tokenizer.vocab == Vocab(last + 1, unk=last, bos=last, eos=last)
  tokenizer.save(tmp_path)
  # A piece of the vocabulary may have the name of a part of tokenizer.json.
  assert 'model' in tokenizer.pieces
  assert tokenizers.load(tmp_path).hash == tokenizer.hash
  (tmp_path / 'out').mkdir()
  tokenizer_files.save(tmp_path / 'out', tokenizer, 64)
  assert tokenizers.load(tmp_path / 'out').hash == tokenizer.hash
