"""A tokenizer, a family, a format of text and an evaluation each need one file and one line.

Toys of an objective and an optimizer are those of docs/howto/adding.md (tests/docs), a toy kind of
task is in tests/tasks/test_contract.py.
"""
import dataclasses
import gzip
import sys
import types

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion, tokenizers
from plm_jax.evaluation import few_shot
from plm_jax.evaluation.scoring import ContinuationScore, Scorer
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import bert, families
from plm_jax.models.rules import rename_tensors
from plm_jax.preparation.prepare import PrepareConfig, prepare
from plm_jax.sources import document_formats
from plm_jax.sources.lines import number_lines
from plm_jax.sources.text_sources import read_documents
from plm_jax.tokenizers.contract import (
  CONFIG_FILE,
  Tokenizer,
  Vocab,
  config_bytes,
  read_config,
)


def required(base: type) -> set[str]:
  return set(base.__abstractmethods__)


# A tokenizer.


class Characters(Tokenizer):
  """Tokens are the characters of an alphabet."""

  kind = 'characters'

  def __init__(self, alphabet):
    self.pieces = ['[UNK]', '[MASK]', *alphabet]
    self.vocab = Vocab(len(self.pieces), unk=0, mask=1)

  @classmethod
  def load(cls, file):
    return cls(read_config(file.parent)['alphabet'])

  def encode_with_offsets(self, texts):
    ids = [self.pieces.index(c) if c in self.pieces else 0 for text in texts for c in text]
    places = [place for text in texts for place in range(len(text))]
    return np.array(ids, np.uint32), np.array([len(text) for text in texts]), np.array(places)

  def decode(self, ids):
    return ''.join(self.pieces[int(i)] for i in ids)

  def _files(self):
    config = {'tokenizer_class': 'Characters', 'alphabet': self.pieces[2:]}
    return {CONFIG_FILE: config_bytes(config)}


def test_a_tokenizer_reads_and_writes_text(tmp_path, monkeypatch):
  monkeypatch.setitem(tokenizers.CONFIGURED, 'Characters', Characters.load)  # its line
  assert required(Tokenizer) == {'encode_with_offsets', 'decode', '_files'}
  Characters('abc \n').save(tmp_path / 'tokenizer')
  tokenizer = tokenizers.load(tmp_path / 'tokenizer')
  assert isinstance(tokenizer, Characters) and tokenizer.hash == Characters('abc \n').hash
  assert tokenizer.encode('ab[MASK]c', specials=True) == [2, 3, 1, 4]
  assert tokenizer.encode_batch(['ab', '', 'x']) == [[2, 3], [], [0]]
  assert tokenizer.byte_lengths.tolist() == [1] * 7 and tokenizer.starts_word.all()
  (tmp_path / 'text.txt').write_text('abc cab\n\nbca\n')
  config = PrepareConfig(source=str(tmp_path / 'text.txt'), heldout=0,
                         tokenizer=str(tmp_path / 'tokenizer'))
  meta = prepare(config, tmp_path / 'records')
  assert (meta.vocab, meta.tokens('train'), meta.tokenizer) == (7, 10, tokenizer.hash)


# A family: BERT, with other names of tensors.


def make_family() -> types.ModuleType:
  module = types.ModuleType('toy_family')
  vars(module)['FAMILY'] = dataclasses.replace(
      bert.FAMILY, name='toy', rules=tuple(rename_tensors(bert.FAMILY.rules, 'bert.', 'toy.')),
      part_tensors={'pooler': 'toy.pooler.dense.weight'}, prefix='toy.',
      classes={'ToyModel': (), 'ToyForMaskedLM': ('mlm',)})
  return module


def test_a_family_is_exported_and_read(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'toy_family', make_family())
  monkeypatch.setitem(families.FAMILIES, 'toy', 'toy_family')  # its line
  config = dataclasses.replace(tiny.config(), pooler=False)
  module = ModelWithHeads(config.backbone(), {'mlm': families.build_head('toy', 'mlm', config, 2)})
  zeros = jnp.zeros((1, 8), jnp.int32)
  shapes = jax.eval_shape(module.init, jax.random.key(0), {'tokens': zeros, 'segments': zeros})
  params = tiny.random_params(unbox(shapes['params']))
  conversion.save(tmp_path / 'toy', config, params, like='toy')
  loaded = conversion.load(tmp_path / 'toy')
  assert loaded.family == 'toy' and loaded.config == config
  tiny.assert_same(loaded.params, params)


# A format of text: documents between lines of dashes.


def read_dashed(opened, config, stats):
  builder = document_formats.DocumentBuilder(str(opened.file), config, stats)
  for number, line in number_lines(opened, config.on_error, stats, config.exact):
    yield from builder.flush() if line.startswith('---') else builder.add(number, line)
  yield from builder.flush()


def test_a_format_of_text_is_read(tmp_path, monkeypatch):
  monkeypatch.setitem(document_formats.READERS, '.dashed', read_dashed)  # its line
  (tmp_path / 'a.dashed.gz').write_bytes(gzip.compress(b'one\ntwo\n---\nthree\n'))
  found = [document.paragraphs for document in read_documents(str(tmp_path / '*.gz'))]
  assert found == [['one', 'two'], ['three']]


# An evaluation: which of two numbers is larger.


@dataclasses.dataclass(frozen=True)
class Larger(few_shot.FewShotTask):
  """Of rows with the columns `a` and `b`."""

  template: str = 'The larger one of {a} and {b} is'

  def read(self, row):
    numbers = row.columns['a'], row.columns['b']
    label = int(int(numbers[1]) > int(numbers[0]))
    return few_shot.FewShotExample(self.fill(row), numbers, label, row.where)


class LongestAnswer(Scorer):
  """A scorer that finds long answers likely."""

  def __init__(self):
    pass

  def score(self, pairs, suppressed=()):
    return [ContinuationScore(len(answer), False, 1, 0) for _, answer in pairs]


def test_an_evaluation_reads_its_rows_and_is_scored(tmp_path, monkeypatch):
  monkeypatch.setitem(few_shot.TASKS, 'larger', Larger())  # its line
  assert required(few_shot.FewShotTask) == {'read'}
  (tmp_path / 'a.jsonl').write_text('{"a": "7", "b": "10"}\n{"a": "900", "b": "21"}\n'
                                    '{"a": "3", "b": "4"}\n')
  config = few_shot.FewShotConfig(data=str(tmp_path / 'a.jsonl'))
  questions, _ = config.questions('larger')
  assert [question.label for question in questions] == [1, 0, 1]
  result = few_shot.evaluate_few_shot(config.task('larger'), LongestAnswer(), questions)
  assert result.accuracy == pytest.approx(2 / 3)
