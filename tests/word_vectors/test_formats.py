"""Files of word vectors, byte by byte."""
import base64
import gzip
import struct
import zlib

import numpy as np
import pytest

from plm_jax.errors import ConfigError, UserError
from plm_jax.word_vectors import WordVectors, fasttext_bin, formats, load, save, word2vec
from plm_jax.word_vectors.glove import GloVe
from plm_jax.word_vectors.subwords import Subwords
from plm_jax.word_vectors.train import VectorRun
from plm_jax.word_vectors.word2vec import Word2Vec
from plm_jax.word_vectors.word_corpus import Vocabulary

WORDS = 'the', 'naïve', '東京'
MATRIX = np.array([[0.5, -1.25], [0.1, 3e-5], [2.0, 0.0]], np.float32)
FORMS = {
    'text': '3 2\nthe 0.5 -1.25\nnaïve 0.1 3e-05\n東京 2.0 0.0\n'.encode(),
    'glove': 'the 0.5 -1.25\nnaïve 0.1 3e-05\n東京 2.0 0.0\n'.encode(),
    'binary': b'3 2\n' + b''.join(
        word.encode() + b' ' + row.tobytes() + b'\n'
        for word, row in zip(WORDS, MATRIX, strict=True)),
}


@pytest.mark.parametrize('form', FORMS)
def test_formats(form, tmp_path):
  save(WordVectors(WORDS, MATRIX), tmp_path / 'v', form)
  assert (tmp_path / 'v').read_bytes() == FORMS[form]
  (tmp_path / 'v.gz').write_bytes(gzip.compress(FORMS[form]))
  for name in 'v', 'v.gz':
    found = load(tmp_path / name)
    assert found.words == WORDS and found.compose is None
    np.testing.assert_array_equal(found.matrix, MATRIX)


def test_files_of_other_programs_are_read(tmp_path):
  """word2vec.c and fastText end lines of values with a space, gensim ends no binary vector with a
  newline; GloVe has words with spaces; of a duplicate word gensim keeps the first vector."""
  path = tmp_path / 'v'
  path.write_bytes(b'2 2\na 1 2 \n</s> 3 4 \n')
  assert load(path).words == ('a', '</s>')
  path.write_bytes(b'2 1\na ' + struct.pack('<f', 1.5) + b'b ' + struct.pack('<f', 2.5))
  assert load(path).matrix.tolist() == [[1.5], [2.5]]
  for first in '. . .', 'New 10', '2019':
    path.write_bytes(f'{first} 1 2\nb 3 4\nc 5 6\n'.encode())
    assert load(path).words == (first, 'b',
                                'c') and load(path).matrix.tolist() == [[1, 2], [3, 4], [5, 6]]
    path.write_bytes(f'3 2\n{first} 1 2\nb 3 4\nc 5 6\n'.encode())
    assert load(path).words == (first, 'b', 'c')
  path.write_bytes(b'b 3 4\n. . . 1 2\nb 5 6\n')
  assert load(path).words == ('b', '. . .') and load(path).matrix.tolist() == [[3, 4], [1, 2]]


@pytest.mark.parametrize(('content', 'said'), [
    (b'', 'v is empty'), (b'2 2\na 1 2\n',
                          'v: the first line says 2 words, and there are 1: is it cut off'),
    (b'2 2\na 1 2\nb 3\n', 'v:3: expected a word and 2 values'),
    (b'a 1 2\nb 3 x\n', 'v:2: expected a word .* 2 numbers'),
    (b'1 2\na 1 nan\n', "the vector of 'a' has values that are not finite"),
    (b'a 1 2\n\xff 1 2\n', 'v:2: .*UTF-8'),
    (b'2 2\nab ' + bytes(8) + b'\ncd ' + bytes(5), 'v: cut off in the values of word 2 of 2'),
    (b'2 2\nab ' + bytes(8) + b'\ncd', 'take 24 bytes at least, and the file has 18'),
    (b'0 0\n\0', 'says 0 words of 0 values'),
    (b'9999999999999 300\nab ' + bytes(8),
     'take 12,019,999,999,998,816 bytes at least, and the file has 29'),
    (b'9 999999999999\nab ' + bytes(8),
     'says vectors of 999,999,999,999 values, expected 1,048,576 at most'),
    (b'999999999999 999999999999\ncat 1 2\n',
     'says .* 999,999,999,999 values, and the lines after it have 2'),
    (b'a 1_5 2\nb 1 2\n', 'v:1: expected a word .* 2 numbers'),
    (b'2 2\na 1_5 2\nb 1 2\n', 'v:2: expected a word'),
    (b'1 2\na 1 1e39\n', 'not finite')])
def test_damage_names_the_file_and_the_place(content, said, tmp_path):
  (tmp_path / 'v').write_bytes(content)
  with pytest.raises(UserError, match=said):
    load(tmp_path / 'v')


def binary(words=WORDS, newline=b'\n') -> bytes:
  return b''.join(word.encode() + b' ' + row.tobytes() + newline
                  for word, row in zip(words, MATRIX, strict=True))


TEXT = FORMS['glove']


@pytest.mark.parametrize('header', ['2 2', '4 2', '3 1', '3 3', '2 3', '1 1', '6 2', '3 20'])
@pytest.mark.parametrize('content', [
    TEXT, TEXT.replace(b'the', b'New York'), TEXT.replace(b'the', b'New 10'),
    TEXT.replace(b'the', b'2019'),
    binary(), binary(newline=b''), binary(('10', '20', '30')), binary(('naïve', 'é', 'a'), b'')])
@pytest.mark.parametrize('name', ['v', 'v.gz'])
def test_a_wrong_first_line_is_refused(header, content, name, tmp_path):
  content = header.encode() + b'\n' + content
  (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
  with pytest.raises(formats.VectorsError, match=name):
    load(tmp_path / name)


def test_a_missing_byte_in_a_binary_file_is_detected(tmp_path):
  """Where vectors end with a newline; without one, a byte less of a vector takes the next word's
  first."""
  content = b'3 2\n' + binary()
  for place in range(len(content)):
    (tmp_path / 'v').write_bytes(content[:place] + content[place + 1:])
    # a letter less is another word
    if place < 4 or content[place:place + 1] not in 'thenaïve東京'.encode():
      with pytest.raises(formats.VectorsError):
        load(tmp_path / 'v')


def test_words_with_spaces_are_not_written(tmp_path):
  with pytest.raises(formats.VectorsError, match="the word 'New York' holds white space"):
    save(WordVectors(('New York',), MATRIX[:1]), tmp_path / 'v')
  assert not (tmp_path / 'v').exists()


# fasttext 0.9.2: train_unsupervised('b a b naïve a b\na b 東京 a\n' three times, dim=3, epoch=5,
# bucket=7, minn=3, maxn=4, minCount=1, t=1).save_model, by zlib and base64.
REAL = (
    'eNrbJeavz8PAwMAMxKxQzIhEM0ExO1QNCxCnMMDAB3uYHhBQgdL/oSCJgQemMBHBtNEvtmNgg/HyEg+vL0sFGw0Gz+ZufL'
    'JrDYIP1wcT2bLFfP++WF37K/Gc+wPF5fbnGoraOxe82SdQULq/b366fU2n+f7i8Pv7oo5esitgXr5PINpuv+MSY/uzEXz7'
    'S8Lj94ccDbIvYFbff2ze9P3SYv32Pw8l7Xfwm72/a8Ik+xeuGShqkPUis7sbl+9nEJlnr9tatR/ue5gD6+P47KWj2fYLvr'
    '1il7Ceyf7sim/7gooP23HviLdPVwjev8Vb3f68Z4I906rg/Wt2qNsfVaq1D36ct1/Q29YeACMQbnc=')


def facebook(version=12, words=((b'ab', 7), (b'\xff', 3)), labels=(), buckets=3, kind=2,
             longest=3) -> bytes:
  """A .bin as saveModel of fasttext.cc lays it out, from its struct fields."""
  entries = [*((word, count, 0) for word, count in words),
             *((word, count, 1) for word, count in labels)]
  rows = len(words) + buckets
  head = struct.pack('<ii', 793712314, version)
  args = struct.pack('<iiiiiiiiiiiid', 2, 5, 1, 1, 5, 1, 2, kind, buckets, 3, longest, 100, 1e-4)
  dictionary = struct.pack('<iiiqq', len(entries), len(words), len(labels), 11, -1) + b''.join(
      word + b'\0' + struct.pack('<qb', count, type_) for word, count, type_ in entries)
  inputs = b'\0' + struct.pack('<qq', rows, 2) + np.arange(2 * rows, dtype='<f4').tobytes()
  rows = len(labels) or len(words)
  outputs = b'\0' + struct.pack('<qq', rows, 2) + np.ones(2 * rows, '<f4').tobytes()
  return head + args + dictionary + inputs + outputs


@pytest.mark.parametrize('content', [
    facebook(), facebook(11), facebook(labels=((b'__label__a', 2),), kind=3),
    facebook(buckets=0, longest=0)])
def test_a_bin_comes_out_byte_for_byte(content, tmp_path):
  (tmp_path / 'a.bin').write_bytes(content)
  fasttext_bin.save(fasttext_bin.load(tmp_path / 'a.bin'), tmp_path / 'b.bin')
  assert (tmp_path / 'b.bin').read_bytes() == content


def test_vectors_of_a_bin_are_means_of_rows(tmp_path):
  """FNV-1a of <ab, ab> and, unseen, <abc: by hand, modulo 3 buckets after 2 words."""
  (tmp_path / 'a.bin').write_bytes(facebook())
  found = load(tmp_path / 'a.bin')
  def code(ngram):
    value = 2166136261
    for byte in ngram:
      value = ((value ^ byte) * 16777619) % 2 ** 32
    return 2 + value % 3
  table = np.arange(10.).reshape(5, 2)
  np.testing.assert_allclose(found['ab'], table[[0, code(b'<ab'), code(b'ab>')]].mean(0))
  assert 'bac' in found and 'bac' not in found.index
  np.testing.assert_allclose(found['bac'],
                             table[[code(b'<ba'), code(b'bac'), code(b'ac>')]].mean(0))
  np.testing.assert_array_equal(found[''], 0)  # <> has no n-gram of three characters


def test_a_bin_of_fasttext_itself(tmp_path):
  """The export equals it byte for byte, and get_word_vector gives these values, also for an
  unseen word."""
  content = zlib.decompress(base64.b64decode(REAL))
  (tmp_path / 'a.bin').write_bytes(content)
  read = fasttext_bin.load(tmp_path / 'a.bin')
  fasttext_bin.save(read, tmp_path / 'b.bin')
  assert (tmp_path / 'b.bin').read_bytes() == content
  assert read.words == ('b', 'a', '</s>', 'naïve', '東京')
  assert (read.arguments.buckets, read.arguments.epochs) == (7, 5)
  for word, vector in {
      'a': [-0.915434, 0.863911, -0.684555], 'naïve': [-1.02785, 0.969998, -0.76862],
      '東京': [-0.853816, 0.805759, -0.638479], 'unseen': [-0.910982, 0.859708, -0.681227],
      '</s>': [-0.958741, 0.904778, -0.716942]}.items():
    np.testing.assert_allclose(read.vectors[word], vector, atol=1e-6)


@pytest.mark.parametrize(('content', 'said'), [
    (facebook()[:-1], 'cut off in the values of the output'),
    (facebook()[:30], 'cut off in the arguments'),
    (facebook()[:-30], 'cut off in'), (facebook() + b'x', 'more bytes after the end'),
    (facebook(13), 'of version 13'),
    (facebook(kind=2).replace(struct.pack('<qq', 5, 2), struct.pack('<qq', 6, 2)),
     'input is 6 x 2, expected 5 x 2'),
    (facebook().replace(b'ab\0' + struct.pack('<qb', 7, 0), b'ab\0' + struct.pack('<qb', 7, 1)),
     'entry 1.*of type 1'),
    (facebook().replace(b'ab\0' + struct.pack('<qb', 7, 0), b'ab\0' + struct.pack('<qb', -7, 0)),
     'the count -7'),
    (facebook(kind=9), 'damaged: model 9'), (facebook(buckets=-1), 'damaged: buckets -1'),
    (facebook().replace(struct.pack('<d', 1e-4), struct.pack('<d', float('nan'))),
     'damaged: threshold nan'),
    (facebook().replace(struct.pack('<i', 793712314) + struct.pack('<ii', 12, 2),
                        struct.pack('<i', 793712314) + struct.pack('<ii', 12, 2 ** 31 - 1)),
                        'width 2147483647'),
    (facebook()[:-4] + struct.pack('<f', float('inf')),
     'the output has values that are not finite')])
def test_a_damaged_bin_is_named(content, said, tmp_path):
  (tmp_path / 'a.bin').write_bytes(content)
  with pytest.raises(fasttext_bin.FastTextError, match=said) as raised:
    load(tmp_path / 'a.bin')
  assert str(tmp_path / 'a.bin') in str(raised.value)


@pytest.mark.parametrize('loss', ['negative', 'hierarchical'])
def test_a_run_as_a_bin(loss, tmp_path):
  """Its vectors are the run's; a tree's nodes have fastText's sign, and a row for nothing."""
  vocabulary = Vocabulary(('a', 'bc', 'd'), np.array([9, 5, 2]))
  model = Word2Vec(loss=loss, width=2, subwords=Subwords(3, 4, 7))
  random = np.random.default_rng(0)
  rows = 3 if loss == 'negative' else 2
  params = {'input': random.normal(size=(10, 2)).astype(np.float32),
            'output': np.ones((rows, 2), np.float32)}
  made = word2vec.to_fasttext(VectorRun('x', model=model), vocabulary, params)
  fasttext_bin.save(made, tmp_path / 'a.bin')
  found, ours = load(tmp_path / 'a.bin'), model.make_vectors(params, vocabulary)
  assert found.words == ours.words and made.tokens == 16
  for word in 'a', 'bc', 'd', 'unseen':
    np.testing.assert_allclose(found[word], ours[word], atol=1e-7)
  assert made.outputs.tolist() == ([[1, 1]] * 3 if loss == 'negative'
                                   else [[-1, -1], [-1, -1], [0, 0]])
  with pytest.raises(ConfigError, match='fastText has no model like GloVe'):
    word2vec.to_fasttext(VectorRun('x', model=GloVe()), vocabulary, params)
