"""Damaged files of tokenizers: each is read, or refused with one message that names it."""
import json
import pathlib
import random
import re

import mutate
import pytest

from plm_jax import tokenizers
from plm_jax.conversion import ConvertError, tokenizer_files
from plm_jax.tokenizers import TokenizerError

WORDS = ['the', 'cat', 'sat', 'mat', 'dogs', 'Ünïcode', 'naïve', 'quick', 'brown']
TEXTS = [' '.join(random.Random(i).choices(WORDS, k=9))
         for i in range(100)] + [*'abcdefghijklmnopqrstuvwxyz']
COUNT = 25  # cases a file


def made(kind):
  if kind == 'bytes':
    return tokenizers.ByteTokenizer()
  if kind == 'languages':
    return tokenizers.train_fairseq_sentencepiece(TEXTS, 72)
  train = {'wordpiece': tokenizers.train_wordpiece, 'byte_bpe': tokenizers.train_byte_bpe,
           'word_bpe': tokenizers.train_word_bpe, 'unigram': tokenizers.train_sentencepiece}
  return train[kind](TEXTS, {'byte_bpe': 300, 'unigram': 45}.get(kind, 100))


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
      found.encode_batch(TEXTS[:2])
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
