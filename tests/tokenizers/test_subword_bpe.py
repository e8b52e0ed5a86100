"""Tokenizers of PhoBERT, BERTweet, FlauBERT and XLM. The expected ids are those of transformers'
classes, on small vocabularies of the same files; the lines are in several scripts."""
import json
import pathlib
import pickle
import shutil

import numpy as np
import pytest

from plm_jax import tokenizers
from plm_jax.conversion import tokenizer_files
from plm_jax.tokenizers import SubwordBPE, TokenizerError
from plm_jax.tokenizers.subword_bpe import Words

FIXTURES = pathlib.Path(__file__).parents[1] / 'fixtures' / 'subword_bpe'
NEEDS = {'bertweet': ('transformers', 'emoji'), 'flaubert': ('sacremoses',),
         'flaubert_cased': ('sacremoses',), 'xlm': ('sacremoses',)}
NAMES = ('phobert', 'bertweet', 'bertweet_plain', 'flaubert', 'flaubert_cased', 'xlm')


def load(name: str, folder=None) -> SubwordBPE:
  for library in NEEDS.get(name, ()):
    pytest.importorskip(library)
  found = tokenizers.load(folder or FIXTURES / name)
  assert isinstance(found, SubwordBPE)
  return found


def expected(name: str) -> dict:
  return json.loads((FIXTURES / name / 'expected.json').read_text())


@pytest.mark.parametrize('name', NAMES)
def test_ids_are_those_of_transformers(name):
  tokenizer, rows = load(name), expected(name)['rows']
  assert len(rows) > 25
  wrong = [text for text, ids in rows if tokenizer.encode(text, specials=True) != ids]
  assert wrong == []
  plain = [text for text, _ in rows if '<mask>' not in text]
  assert tokenizer.encode_batch(plain) == [tokenizer.encode(text) for text in plain]


@pytest.mark.parametrize('name', NAMES)
def test_saved_files_give_the_same_ids(tmp_path, name):
  tokenizer, rows = load(name), expected(name)['rows']
  tokenizer_files.save(tmp_path, tokenizer, 128)
  again = load(name, tmp_path)
  assert again.hash == tokenizer.hash == pickle.loads(pickle.dumps(tokenizer)).hash
  assert [again.encode(text, specials=True) for text, _ in rows] == [ids for _, ids in rows]
  transformers = pytest.importorskip('transformers')
  pytest.importorskip('sacremoses')  # transformers needs it to tell classes apart
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert type(theirs).__name__ == f'{tokenizer.words.style}Tokenizer'
  assert [theirs(text, add_special_tokens=False).input_ids for text, _ in rows] == [
      ids for _, ids in rows]
  assert theirs('a', 'b').input_ids == expected(name)['pair']


def test_roles_and_text_of_tokens():
  tokenizer = load('phobert')
  vocab = tokenizer.vocab
  assert (vocab.bos, vocab.pad, vocab.eos, vocab.unk, vocab.mask) == (0, 1, 2, 3, vocab.size - 1)
  ids = tokenizer.encode('Hà_Nội là thủ_đô')
  text = b''.join(tokenizer.token_bytes[i] for i in ids if i != vocab.unk)
  assert text.startswith('Hà_Nội là '.encode())
  assert tokenizer.decode(tokenizer.encode('Hà_Nội là')) == 'Hà_Nội là'


def test_offsets_are_places_in_the_text():
  tokenizer, text = load('phobert'), '  nghiên_cứu_viên . tiếng  Hà_Nội'
  ids, lengths, offsets = tokenizer.encode_with_offsets([text, ''])
  assert ids.tolist() == tokenizer.encode(text) and lengths.tolist() == [len(ids), 0]
  starts = [text.index(word) for word in text.split()]
  assert set(starts) <= set(offsets.tolist()) and np.all(np.diff(offsets) > 0)


def test_offsets_after_moses():
  tokenizer, text = load('flaubert'), "L'école d’été, où sont les ÉLÈVES?"
  ids, _, offsets = tokenizer.encode_with_offsets([text])
  assert ids.tolist() == tokenizer.encode(text)
  assert text.index('ÉLÈVES') in offsets and text.index('sont') in offsets
  assert np.all(np.diff(offsets) >= 0) and offsets.max() < len(text)


def copy_of(name, folder, **files):
  shutil.copytree(FIXTURES / name, folder)
  for file, content in files.items():
    (folder / file.replace('__', '.')).write_text(content)
  return folder


@pytest.mark.parametrize(('name', 'files', 'message'), [
    ('phobert', {'bpe__codes': 'a\n'}, r"bpe\.codes, line 1: expected two symbols .* got 'a'"),
    ('phobert', {'bpe__codes': 'a b\n'}, 'expected two symbols and their count'),
    ('phobert', {'vocab__txt': 'abc\n'}, r"vocab\.txt, line 1: expected a token .* got 'abc'"),
    ('phobert', {'vocab__txt': 'a 1\na 1\n'}, "the vocabulary has 'a' twice"),
    ('phobert', {'tokenizer_config__json': '{"normalization": true}'}, 'normalization is True'),
    ('phobert', {'tokenizer_config__json': '{"tokenizer_class": "RobertaTokenizer"}'},
     r'RobertaTokenizer, which is not implemented here: known for a bpe\.codes are Bertweet'),
    ('phobert', {'added_tokens__json': '{"<new>": 60}'}, r"adds the tokens \['<new>'\]"),
    ('flaubert', {'vocab__json': '{"<s>": 0, "a": 2}'}, 'expected ids from 0 to 1'),
    ('flaubert', {'vocab__json': '{"<s>": 0, "a": 1}'}, 'the vocabulary has no <unk>')])
def test_damaged_files_are_named(tmp_path, name, files, message):
  with pytest.raises(TokenizerError, match=message):
    tokenizers.load(copy_of(name, tmp_path / 'it', **files))


def test_missing_files_and_libraries_are_named(tmp_path, monkeypatch):
  folder = copy_of('flaubert', tmp_path / 'it')
  (folder / 'merges.txt').unlink()
  with pytest.raises(TokenizerError, match=r'without merges\.txt'):
    tokenizers.load(folder)
  monkeypatch.setitem(__import__('sys').modules, 'sacremoses', None)
  with pytest.raises(TokenizerError, match=r'pip install "plm_jax\[moses\]"'):
    tokenizers.load(FIXTURES / 'flaubert')
  monkeypatch.setitem(__import__('sys').modules, 'emoji', None)
  with pytest.raises(TokenizerError, match=r'pip install transformers emoji==0\.6\.0'):
    Words('Bertweet', option=True).build()


def test_a_folder_without_a_class_is_read_by_its_model_type():
  tokenizer = load('flaubert_cased')
  assert tokenizer.words == Words('Flaubert', option=False)
  assert tokenizer.pieces[tokenizer.vocab.mask] == '<special1>'
