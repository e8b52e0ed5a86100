"""The tables of model families are generated from the registry of the code, and every row of the
table by language loads: the fields of a released config.json with smaller sizes, and tokenizer
files of the same kind. The configurations are those of the hub as copied in public repositories and
in documentation; their parameter counts are the published ones.
"""
import json
import math
import pathlib
import shutil

import jax
import numpy as np
import pytest
import tiny
import tokenizers as library

from benchmarks import family_page
from benchmarks.released_models import LANGUAGES, RELEASED, TOKENIZERS
from plm_jax import conversion, tokenizers
from plm_jax.conversion import attributes
from plm_jax.conversion.source_formats import rename_alias, resolve_model_type
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models.families import (
  FAMILIES,
  boxed_parameter_shapes,
  get_family,
  parameter_shapes,
)

FIXTURES = pathlib.Path(__file__).parents[1] / 'fixtures' / 'subword_bpe'
TEXTS = ['the cat sat on the mat and the dog sat on the cat', 'le chat et le chien'] * 4
SMALL = {
    'hidden_size': 32, 'n_embd': 32, 'emb_dim': 32, 'pooler_hidden_size': 32, 'embedding_size': 32,
    'num_hidden_layers': 2, 'n_layer': 2, 'n_layers': 2, 'num_attention_heads': 2, 'n_head': 2,
    'n_heads': 2, 'intermediate_size': 48, 'n_inner': 48}


@pytest.mark.parametrize('path', family_page.COLUMNS, ids=['English', 'Chinese'])
def test_the_tables_are_up_to_date(path):
  assert path.read_text() == family_page.write_tables(path), (
      'python -m benchmarks.family_page writes the tables')


def test_every_family_is_on_the_page_once():
  assert sorted(name for kind in family_page.KINDS for name in kind) == sorted(FAMILIES)
  assert set(family_page.EXAMPLES) <= set(FAMILIES)


def write_json(path, content):
  path.write_text(json.dumps(content))


def write_wordpiece(folder):
  tokenizers.train_wordpiece(TEXTS, 60).save(folder)
  write_json(folder / 'tokenizer_config.json', {
      'do_lower_case': True, 'tokenizer_class': 'BertTokenizer'})


def write_byte_bpe(folder):
  tokenizers.train_byte_bpe(TEXTS, 280).save(folder)
  write_json(folder / 'tokenizer_config.json', {'tokenizer_class': 'RobertaTokenizer'})


def write_byte_bpe_json(folder):
  """Write ModernBERT's: added tokens after a byte-level vocabulary."""
  alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
  fast = library.Tokenizer(library.models.BPE(
      {character: number for number, character in enumerate(alphabet)}, []))
  fast.normalizer = library.normalizers.NFC()
  fast.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
  fast.decoder = library.decoders.ByteLevel()
  add_bert_tokens(fast)
  fast.save(str(folder / 'tokenizer.json'))
  write_bert_roles(folder)


def add_bert_tokens(fast):
  fast.add_special_tokens([
      library.AddedToken(name, lstrip=name == '[MASK]', normalized=False)
      for name in ('[UNK]', '[CLS]', '[SEP]', '[PAD]', '[MASK]')])


def write_bert_roles(folder):
  roles = {f'{role}_token': f'[{role.upper()}]' for role in ('cls', 'mask', 'pad', 'sep', 'unk')}
  write_json(folder / 'tokenizer_config.json', {
      **roles, 'tokenizer_class': 'PreTrainedTokenizerFast'})


def write_xlm_r(folder):
  tokenizers.train_fairseq_sentencepiece(TEXTS, 60, layout='xlm-r').save(folder)
  write_json(folder / 'tokenizer_config.json', {'tokenizer_class': 'XLMRobertaTokenizer'})


def write_deberta(folder):
  found = tokenizers.train_sentencepiece(TEXTS, 60, layout='deberta')
  found.save(folder)
  model, = folder.glob('*.model')
  model.rename(folder / 'spm.model')
  write_json(folder / 'tokenizer_config.json', {
      'do_lower_case': False, 'tokenizer_class': 'DebertaV2Tokenizer'})


def write_camembert(folder):
  """Write CamemBERT's: RoBERTa's tokens before and after those of a SentencePiece model."""
  first = ['<s>NOTUSED', '<pad>', '</s>NOTUSED', '<unk>', '<unk>NOTUSED', '<s>', '</s>']
  pieces = [(name, 0.0) for name in first]
  pieces += [(f'▁{letter}', -3.0) for letter in 'aclmots']
  pieces += [(letter, -4.0) for letter in 'abcdehilmnost']
  fast = library.Tokenizer(library.models.Unigram([*pieces, ('<mask>', 0.0)], 3, False))
  fast.pre_tokenizer = library.pre_tokenizers.Metaspace()
  fast.decoder = library.decoders.Metaspace()
  mask = library.AddedToken('<mask>', lstrip=True)
  fast.add_special_tokens(['<s>', '</s>', '<pad>', '<unk>', mask])
  fast.save(str(folder / 'tokenizer.json'))
  write_json(folder / 'tokenizer_config.json', {
      'tokenizer_class': 'CamembertTokenizer', 'bos_token': '<s>', 'eos_token': '</s>',
      'cls_token': '<s>', 'sep_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>',
      'mask_token': '<mask>'})


def write_gemma(folder):
  """Write mmBERT's: Gemma 2's BPE with bytes."""
  specials = ['<pad>', '<eos>', '<bos>', '<unk>', '<mask>']
  pieces = [*specials, *(f'<0x{byte:02X}>' for byte in range(256)), '▁']
  pieces += [*'abcdehilmnost', 'th', 'he']
  fast = library.Tokenizer(library.models.BPE(
      {piece: number for number, piece in enumerate(pieces)}, [('t', 'h'), ('h', 'e')],
      byte_fallback=True, fuse_unk=True, unk_token='<unk>'))
  fast.normalizer = library.normalizers.Replace(' ', '▁')
  fast.pre_tokenizer = library.pre_tokenizers.Split(' ', 'merged_with_previous')
  fast.decoder = library.decoders.Sequence([
      library.decoders.Replace('▁', ' '), library.decoders.ByteFallback(),
      library.decoders.Fuse()])
  fast.add_special_tokens([library.AddedToken(name, normalized=False) for name in specials])
  fast.save(str(folder / 'tokenizer.json'))
  write_json(folder / 'tokenizer_config.json', {
      'tokenizer_class': 'PreTrainedTokenizerFast', 'bos_token': '<bos>', 'eos_token': '<eos>',
      'mask_token': '<mask>', 'pad_token': '<pad>', 'unk_token': '<unk>'})


def copy_fixture(name):
  def write(folder):
    if name == 'flaubert_cased':
      pytest.importorskip('sacremoses')
    shutil.copytree(FIXTURES / name, folder, dirs_exist_ok=True)
    (folder / 'expected.json').unlink()
    if name != 'flaubert_cased':  # the class is in the model's configuration alone
      (folder / 'tokenizer_config.json').unlink()
  return write


def write_vocabulary_alone(folder):
  write_wordpiece(folder)
  (folder / 'tokenizer_config.json').unlink()


def mark_rows():
  """Return the rows; those of a family and a tokenizer that came before are slow tests."""
  rows, seen = [], set()
  for model in RELEASED:
    key = model.config['model_type'], model.tokenizer
    rows.append(pytest.param(
        model, id=model.name, marks=[pytest.mark.slow] if key in seen else []))
    seen.add(key)
  return rows


WRITERS = {
    'wordpiece': write_wordpiece, 'byte_bpe': write_byte_bpe, 'byte_bpe_json': write_byte_bpe_json,
    'xlm_r': write_xlm_r, 'deberta': write_deberta, 'camembert': write_camembert,
    'gemma': write_gemma, 'phobert': copy_fixture('phobert'),
    'bertweet': copy_fixture('bertweet_plain'), 'flaubert': copy_fixture('flaubert_cased'),
    'none': write_vocabulary_alone}


def write_folder(model, folder):
  """Write the folder of a released model with smaller sizes; return our configuration."""
  folder.mkdir()
  WRITERS[model.tokenizer](folder)
  vocab = 100
  if model.tokenizer != 'none':
    (folder / 'config.json').write_text(json.dumps(model.config))  # which may name the class
    vocab = tokenizers.load(folder).vocab.size
  released = {name: SMALL.get(name, value) for name, value in model.config.items()}
  released['vocab_size'] = vocab
  renamed = rename_alias(released)
  family = get_family(resolve_model_type(renamed))
  config = attributes.parse_hf_config(family, family.normalize_hf_config(renamed))
  classes = renamed.get('architectures', ())
  heads = family.classes.get(classes[0], ()) if classes else ()
  modules = {name: conversion.build_head(family.name, name, config, 2) for name in heads}
  backbone = ModelWithHeads(family.backbone(config), modules)
  shapes = boxed_parameter_shapes(backbone, family.input_shapes(config))
  params = jax.tree.map(np.asarray, tiny.random_params(shapes))
  conversion.save(folder / 'weights', config, params, like=family.name)
  shutil.move(folder / 'weights' / 'model.safetensors', folder / 'model.safetensors')
  shutil.rmtree(folder / 'weights')
  write_json(folder / 'config.json', released)
  return config, params, heads


@pytest.mark.parametrize('model', mark_rows())
def test_a_row_of_the_table_loads(tmp_path, model):
  pytest.importorskip('safetensors')
  config, params, heads = write_folder(model, tmp_path / 'model')
  found = conversion.load(tmp_path / 'model')
  assert found.config == config and tuple(found.heads) == heads
  tiny.assert_same(found.params, params)
  if model.tokenizer == 'none':
    assert found.tokenizer is None
    return
  vocab = found.tokenizer.vocab
  assert vocab.size == config.vocab and min(vocab.cls, vocab.sep, vocab.mask, vocab.pad) >= 0
  ids = found.tokenizer.encode('the cat')
  assert ids and max(ids) < vocab.size and set(ids) != {vocab.unk}


@pytest.mark.slow
@pytest.mark.parametrize('model', RELEASED, ids=lambda model: model.name)
def test_parameters_are_those_of_the_configuration(model):
  renamed = rename_alias(model.config)
  family = get_family(resolve_model_type(renamed))
  config = attributes.parse_hf_config(family, family.normalize_hf_config(renamed))
  millions = sum(map(math.prod, parameter_shapes(family, config, {}).values())) / 1e6
  number = f'{millions:.0f}M' if millions < 1000 else f'{millions / 1000:.2f}B'
  assert number == model.parameters


def test_the_table_has_all_kinds_of_files_and_languages():
  assert set(WRITERS) == set(TOKENIZERS) == {model.tokenizer for model in RELEASED}
  assert list(LANGUAGES) == list(dict.fromkeys(model.languages for model in RELEASED))
  assert len({model.name for model in RELEASED}) == len(RELEASED)


def test_camembert_is_read_from_its_tokenizer_json(tmp_path):
  write_camembert(tmp_path)
  found = tokenizers.load(tmp_path)
  fast = library.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  for text in ('le chat', 'le <mask> et', '  la  tasse é'):
    assert found.encode(text, specials=True) == fast.encode(text, add_special_tokens=False).ids
  assert (found.vocab.cls, found.vocab.sep, found.vocab.pad) == (5, 6, 1)
