"""All tokenizers: every way to encode a text gives the same ids, also in threads; damaged files are
read, or refused with one message that names them."""
from collections import Counter
import concurrent.futures
import functools
import importlib.util
import itertools
import json
import pathlib
import pickle
import random
import re
import sys
import threading
import unicodedata

import mutate
import numpy as np
import pytest
from scripts_text import sentences
from tokenizer_kinds import KINDS, some_texts

from plm_jax import tokenizers
from plm_jax.conversion import ConvertError, tokenizer_files
from plm_jax.preparation import word_segmentation
from plm_jax.tokenizers import TokenizerError, byte_bpe, long_text


def by_category() -> dict[str, list[str]]:
  """Returns every character of Unicode but surrogates, by its general category."""
  found: dict[str, list[str]] = {}
  for code in range(sys.maxunicode + 1):
    category = unicodedata.category(chr(code))
    if category != 'Cs':
      found.setdefault(category, []).append(chr(code))
  return found


# White space and control characters by any library's definition, and marks that change their
# neighbors.
ODD = ''.join(map(chr, [
    *range(0x21), *range(0x7f, 0xa1), 0xad, 0x1680, 0x180e, *range(0x2000, 0x2010),
    *range(0x2028, 0x2030), 0x205f,
    *range(0x2060, 0x2065), 0x2581, 0x3000, 0xfe0f, 0xfeff, 0xfffd]))


@functools.cache
def odd_texts() -> list[str]:
  """Make texts of words with characters of every category between, before and after them."""
  draw, categories = random.Random(5), by_category()
  texts = [text for odd in ODD for text in (odd, f'a{odd}b', f'{odd}low', f'the {odd} 中{odd}国',
                                            f'a. {odd}{odd}b ')]
  for category in sorted(categories):
    for _ in range(40):
      odd = draw.choice(categories[category])
      near = draw.choice(['a', ' ', '中', 'é', 'e\u0301', ',', '\u0301', '7', '[MASK]', ' <mask>',
                          '</s> '])
      texts.append(draw.choice([f'a{odd}b', f'{odd}{near}', f'{near}{odd}',
                                f' {near}{odd}low  {odd}']))
  return [*texts, *some_texts(20, 9), '', ' ', '   ', '\n\n', 'a' * 150, '中' * 120,
          'a' * 99 + ' ' + 'b' * 101]


@pytest.mark.parametrize('kind', KINDS)
def test_every_way_to_encode_gives_the_same_ids(kind):
  tokenizer, texts = KINDS[kind](), odd_texts()
  alone = [tokenizer.encode(text) for text in texts]
  ids, lengths = tokenizer.encode_flat(texts)
  flat = [some.tolist() for some in np.split(ids, np.cumsum(lengths)[:-1])]
  placed, sizes, places = tokenizer.encode_with_offsets(texts)
  assert {text: some for text, some, other in zip(texts, flat, alone, strict=True) if some
          != other} == {}
  assert tokenizer.encode_batch(texts) == alone
  assert placed.tolist() == ids.tolist() and sizes.tolist() == lengths.tolist()
  assert len(places) == len(ids)
  # Again, with all words in the cache.
  assert tokenizer.encode_flat(texts)[0].tolist() == ids.tolist()


WORDS = ['the', 'cat', 'sat', 'mat', 'dogs', 'Ünïcode', 'naïve', 'quick', 'brown']
SENTENCES = [' '.join(random.Random(i).choices(WORDS, k=9))
         for i in range(100)] + [*'abcdefghijklmnopqrstuvwxyz']
COUNT = 25  # cases a file


def made(kind):
  if kind == 'bytes':
    return tokenizers.ByteTokenizer()
  if kind == 'languages':
    return tokenizers.train_fairseq_sentencepiece(SENTENCES, 72)
  train = {'wordpiece': tokenizers.train_wordpiece, 'byte_bpe': tokenizers.train_byte_bpe,
           'word_bpe': tokenizers.train_word_bpe, 'unigram': tokenizers.train_sentencepiece}
  return train[kind](SENTENCES, {'byte_bpe': 300, 'unigram': 45}.get(kind, 100))


@pytest.fixture(scope='module', params=['wordpiece', 'byte_bpe', 'word_bpe', 'unigram', 'languages',
                                        'bytes'])
def folder(request, tmp_path_factory):
  """A tokenizer as an export has it."""
  place = tmp_path_factory.mktemp(request.param)
  tokenizer_files.save(place, made(request.param), 64)
  return place


def read(folder, alone=''):
  """By both doors; alone: a file without which the other ones are read."""
  for load in (tokenizers.load, tokenizer_files.load):
    found = load(folder)
    if found:
      found.encode_batch(SENTENCES[:2])
      found.encode('the [MASK] cat', specials=True)


def test_every_file_damaged(folder):
  said = []
  for path in sorted(folder.iterdir()):
    content = path.read_bytes()
    cases = [*mutate.contents(content, COUNT)]
    if path.suffix == '.json':
      cases += mutate.jsons(json.loads(content), COUNT)
    said += [mutate.attempt(path, damage, lambda: read(folder)) for damage in cases]
  assert any(said)


def test_tokenizer_json_alone(folder):
  """It is read if a folder has nothing else."""
  path = folder / 'tokenizer.json'
  if not path.exists():
    pytest.skip('has none')
  alone = pathlib.Path(f'{folder}-alone')
  alone.mkdir()
  path = path.rename(alone / path.name)
  value = json.loads(path.read_text())
  small = {**value, 'model': {name: x for name, x in value['model'].items() if name
                              not in ('vocab', 'merges')}}
  read_it = lambda: tokenizer_files.load(alone)
  said = [mutate.attempt(path, damage, read_it) for damage in mutate.jsons(value, COUNT)]
  # Most of the file is its vocabulary: a smaller one makes damage hit the other fields.
  said += [mutate.attempt(path, damage, read_it) for damage in mutate.jsons(small, COUNT)]
  assert any(said)


def test_folders_in_place_of_files_are_refused(folder, tmp_path):
  for path in folder.iterdir():
    (tmp_path / path.name).mkdir()
  with pytest.raises((TokenizerError, ConvertError), match=re.escape(str(tmp_path))):
    read(tmp_path)


THREADS = 8


@pytest.fixture(params=KINDS)
def tokenizer(request) -> tokenizers.Tokenizer:
  return KINDS[request.param]()


@pytest.fixture
def switching():
  """Makes Python switch threads as often as it can."""
  before = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  yield
  sys.setswitchinterval(before)


def in_threads(work, of):
  """Call work(x) for each x of `of`, each in a separate thread, all at the same time."""
  together = threading.Barrier(len(of))
  def begin(x):
    together.wait()
    return work(x)
  with concurrent.futures.ThreadPoolExecutor(len(of)) as pool:
    return list(pool.map(begin, of))


def test_eight_threads_get_the_ids_of_one(tokenizer, switching):
  texts = [some_texts(60, seed) for seed in range(1, THREADS + 1)]
  alone = pickle.loads(pickle.dumps(tokenizer))
  expected = [[alone.encode(text) for text in some] for some in texts]

  def work(some):
    ids, lengths = tokenizer.encode_flat(some)
    flat = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    one_by_one = [tokenizer.encode_batch([text])[0] for text in some]
    special = [tokenizer.encode(text, specials=True) for text in some]
    places = tokenizer.encode_with_offsets(some)[0].tolist()
    tokenizer.decode(places)
    return flat, one_by_one, special, [part.tolist()
                                       for part in np.split(places, np.cumsum(lengths)[:-1])]

  for ids, found in zip(expected, in_threads(work, texts), strict=True):
    assert all(some == ids for some in found)
  # The caches are correct after the threads, too.
  assert [tokenizer.encode_batch(some) for some in texts] == expected


def test_a_full_cache_is_emptied_by_one_thread_at_a_time(monkeypatch, switching):
  monkeypatch.setattr(long_text, 'MAX_BYTES', 3000)
  tokenizer = KINDS['wordpiece']()
  texts = [some_texts(60, seed) for seed in range(THREADS)]
  expected = [[tokenizer.encode(text) for text in some] for some in texts]
  assert in_threads(lambda some: [tokenizer.encode_batch([text])[0] for text in some],
                    texts) == expected


def test_an_interrupted_call_leaves_the_cache_right():
  """An exception, such as Ctrl-C, in the middle of an update does not shift the ids of later
  words."""
  tokenizer = KINDS['wordpiece']()
  cache, texts = tokenizer._cache, some_texts(20, 3)

  class Interrupting(dict):
    def __setitem__(self, key, value):
      raise InterruptedError

  cache._rows = Interrupting(cache._rows)
  with pytest.raises(InterruptedError):
    tokenizer.encode_batch(texts)
  assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@pytest.mark.skipif(importlib.util.find_spec('jieba') is None, reason='jieba is an extra')
def test_jieba_in_threads_and_with_a_list_of_words(tmp_path):
  """A list of words belongs to the segmenter that reads it: others of the process keep jieba's own
  dictionary."""
  (tmp_path / 'words.txt').write_text('中国人民大学生\n')
  text = '我是中国人民大学生，喜欢北京。'
  plain = word_segmentation.make_segmenter('jieba')
  before = plain(text)
  listed = word_segmentation.make_segmenter(f'jieba:{tmp_path / "words.txt"}')
  assert '中国人民大学生' in listed(text)[1] and '中国人民大学生' not in before[1]
  assert plain(text) == before
  results = in_threads(lambda n: [(plain if n % 2 else listed)(text) for _ in range(20)],
                       range(THREADS))
  assert all(some == [before if n % 2 else listed(text)] * 20 for n, some in enumerate(results))


SCRIPTS = ('latin', 'cyrillic', 'arabic', 'devanagari', 'chinese')
EXTENSIBLE = {
    'wordpiece': lambda texts: tokenizers.train_wordpiece(texts, 500),
    'byte BPE': lambda texts: tokenizers.train_byte_bpe(texts, 500),
    'unigram': lambda texts: tokenizers.train_sentencepiece(texts, 300),
    'unigram of T5': lambda texts: tokenizers.train_sentencepiece(texts, 400, layout='t5'),
    'BPE of LLaMA': lambda texts: tokenizers.train_sentencepiece(texts, 550, 'bpe', layout='llama'),
    'XLM-R': lambda texts: tokenizers.train_fairseq_sentencepiece(texts, 300, layout='xlm-r')}


@pytest.mark.parametrize('kind', EXTENSIBLE)
def test_an_extended_vocabulary_changes_only_texts_with_new_tokens(kind, tmp_path):
  """Half of the sentences train the vocabulary, words of the other half extend it: each becomes one
  token, and a text in which no new token occurs is encoded as before."""
  texts = list(itertools.chain.from_iterable(sentences(name, 80) for name in SCRIPTS))
  before = EXTENSIBLE[kind](texts[::2])
  counts = Counter(itertools.chain.from_iterable(map(before.split_words, texts[1::2])))
  words = [word for word in counts if len(before.encode(word)) > 1
           and before.vocab.unk not in before.encode(word) and word.strip()][:40]
  after = before.extend(words)
  assert len(words) == 40 and [len(after.encode(word)) for word in words] == [1] * 40
  after.save(tmp_path)
  assert tokenizers.load(tmp_path).pieces == after.pieces

  ids, more = before.encode_batch(texts), after.encode_batch(texts)
  new = set(after.pieces) - set(before.pieces)
  same = 0
  for text, old_ids, new_ids in zip(texts, ids, more, strict=True):
    old_pieces, pieces = ([tokenizer.pieces[i] for i in found] for tokenizer, found in (
        (before, old_ids), (after, new_ids)))
    assert before.decode(old_ids) == after.decode(new_ids)
    if kind in ('byte BPE', 'BPE of LLaMA'):
      assert before.decode(old_ids).strip() == text
    assert len(new & set(pieces)) or pieces == old_pieces
    same += pieces == old_pieces
  assert 20 < same < len(texts) - 20


def test_byte_bpe_merges_make_no_old_token():
  """'abc' is an old token that no merge of a word 'xabc' makes: it is x|a|bc before."""
  alphabet = {character: n for n, character in enumerate(byte_bpe.ALPHABET)}
  ids = alphabet | {token: 256 + n for n, token in enumerate(('bc', 'ab', 'abc'))}
  before = tokenizers.ByteBPE(ids, [('b', 'c'), ('a', 'b'), ('ab', 'c')])
  assert [before.pieces[i] for i in before.encode('abc xabc')] == ['a', 'bc', '▁', 'x', 'a', 'bc']
  after = before.extend(['xabc', 'abc'])
  assert after.merges[3:] == [('x', 'a'), ('xa', 'bc')]
  assert [after.pieces[i] for i in after.encode('abc xabc')] == ['a', 'bc', '▁', 'xabc']
  with pytest.raises(TokenizerError, match=r"'two words' is not one word"):
    before.extend(['two words'])


def test_unigram_scores_stay_between_the_old_ones():
  """So the score of unknown characters, which depends on the lowest, stays."""
  before = tokenizers.train_sentencepiece(sentences('greek', 200), 60)
  first = before.vocab.size
  after = before.extend(['νησάκι', 'Αθήνα', 'νησάκιΑθήνανησάκιΑθήνα'])
  pieces = after.unigram_model()
  old, new = before.unigram_model()[1], pieces[1][first:]
  assert pieces[0][first:] == ['▁Αθήνα', '▁νησάκι', '▁νησάκιΑθήνανησάκιΑθήνα']
  assert min(old) <= min(new) and max(new) < 0
  assert after.encode('η νησάκι κ@ι') == (
      before.encode('η') + [first + 1] + before.encode('κ@ι'))


def test_added_tokens_are_last_and_text_never_has_them(tmp_path):
  """Of WordPiece and of byte-level BPE; a second time, nothing changes."""
  texts = ['the film is good', 'a book [unused0] of ana']
  for trained in (tokenizers.train_wordpiece(texts * 9, 60),
                  tokenizers.train_byte_bpe(texts * 9, 300)):
    found = tokenizers.add_special_tokens(trained, ['[unused0]', '[Q] '])
    assert found.vocab.size == trained.vocab.size + 2
    assert [found.find_token(name) for name in ('[unused0]', '[Q] ', 'none')] == [
        trained.vocab.size, trained.vocab.size + 1, -1]
    assert found.pieces[:trained.vocab.size] == trained.pieces
    assert found.encode_batch(texts) == trained.encode_batch(texts)
    assert tokenizers.add_special_tokens(found, ['[Q] ']) is found
    found.save(tmp_path / found.kind)
    again = tokenizers.load(tmp_path / found.kind)
    assert again.pieces == found.pieces and again.find_token('[Q] ') == trained.vocab.size + 1
    assert again.encode_batch(texts) == trained.encode_batch(texts)
  with pytest.raises(tokenizers.TokenizerError, match='none can be added to a tokenizer of'):
    tokenizers.add_special_tokens(tokenizers.ByteTokenizer(), ['[Q]'])
