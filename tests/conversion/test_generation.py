"""Special tokens and generation settings of exported files, and how they are read; numbers are
written by hand."""
import json

import backbones
import jax
import jax.numpy as jnp
import pytest
import tiny
import tokenizers

import plm_jax
from plm_jax import conversion, validation
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading import generation_config, loaded_model
from plm_jax.loading.generation_config import GenerationConfig, GenerationDefaults
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tokenizers import (
  ByteTokenizer,
  train_byte_bpe,
  train_fairseq_sentencepiece,
  train_sentencepiece,
  train_word_bpe,
  train_wordpiece,
)
from plm_jax.tokenizers.wordpiece import SPECIALS, WordPiece

pytest.importorskip('safetensors')

TEXT = ['the quick brown fox jumps over the lazy dog and reads',
        'a model reads the text and the text is long'] * 8
CHINESE = WordPiece([*SPECIALS, *'我们学习语言的老师看年(', '2008', 'read', '##s', *(f'##{c}' for c in '年的')])
BATCH = {name: jnp.ones((1, 8), jnp.int32)
         for name in ('tokens', 'segments', 'decoder_tokens', 'decoder_segments')}
TOKENIZERS = {
    'wordpiece': lambda: train_wordpiece(TEXT, 60),
    'glm': lambda: train_wordpiece(TEXT, 70, blanks=True),
    'chinese': lambda: CHINESE,
    'roberta': lambda: train_byte_bpe(TEXT, 280),
    'gpt2': lambda: train_byte_bpe(TEXT, 270, layout='gpt2'),
    'gpt': lambda: train_word_bpe(TEXT, 60), 'bytes': ByteTokenizer,
    'mbart': lambda: train_fairseq_sentencepiece(TEXT, 62, source='de_DE', target='ro_RO'),
    'pieces': lambda: train_sentencepiece(TEXT, 36),
    't5': lambda: train_sentencepiece(TEXT, 38, layout='t5', sentinels=4),
    'llama': lambda: train_sentencepiece(TEXT, 290, 'bpe', layout='llama')}


def model_of(family, tokenizer, head='lm', more=3):
  """A model with random parameters, and more rows of its table than the tokenizer has tokens."""
  model = validation.with_paths(backbones.small(family, tokenizer.vocab.size + more, 32),
                                {'block.mlp_dim': 128})
  heads = {head: conversion.get_family(family).heads[head].make(model, 2)}
  shapes = jax.eval_shape(ModelWithHeads(model.backbone(), heads).init, jax.random.key(0),
                          BATCH)['params']
  return LoadedModel(family, model, heads, tiny.random_params(shapes), tokenizer)


def exported(tmp_path, family, kind):
  """An export -> the tokenizer, and what its files state."""
  tokenizer = TOKENIZERS[kind]()
  trained = model_of(family, tokenizer)
  plm_jax.export(trained, tmp_path / 'out')
  def said(name):
    path = tmp_path / 'out' / name
    return json.loads(path.read_text()) if path.exists() else {}
  return trained, tokenizer, said('config.json'), said('generation_config.json'), said(
      'tokenizer_config.json')


@pytest.mark.parametrize(('family', 'kind', 'ids', 'row'), [
    ('gpt2', 'gpt2', dict(bos=-1, eos=-1, pad=None), ['<|endoftext|>', '*']),
    ('gpt2', 'roberta', dict(bos=0, eos=2, pad=1), ['<s>', '*']),
    ('gpt2', 'wordpiece', dict(bos=2, eos=3, pad=0), ['[CLS]', '*']),
    ('gpt2', 'pieces', dict(bos=2, eos=3, pad=0), ['<s>', '*']),
    ('gpt2', 'bytes', dict(bos=1, eos=1, pad=0), ['</s>', '*']),
    ('gpt2', 'llama', dict(bos=1, eos=2, pad=None), ['<s>', '*']),
    ('openai-gpt', 'gpt', dict(bos=1, eos=2, pad=None), ['_start_', '*']),
    ('llama', 'llama', dict(bos=1, eos=2, pad=None), ['<s>', '*']),
    ('llama', 'gpt2', dict(bos=-1, eos=-1, pad=None), ['<|endoftext|>', '*']),
    ('cohere', 'llama', dict(bos=1, eos=2, pad=None), ['<s>', '*']),
    ('bart', 'roberta', dict(bos=0, eos=2, pad=1, decoder_start=2), ['<s>', '*', '</s>']),
    ('bart', 'chinese', dict(bos=2, eos=3, pad=0, decoder_start=3), ['[CLS]', '*', '[SEP]']),
    ('bart', 'pieces', dict(bos=2, eos=3, pad=0, decoder_start=3), ['<s>', '*', '</s>']),
    ('bart', 't5', dict(bos=None, eos=1, pad=0, decoder_start=0), ['*', '</s>']),
    ('t5', 't5', dict(bos=None, eos=1, pad=0, decoder_start=0), ['*', '</s>']),
    ('t5', 'wordpiece', dict(bos=2, eos=3, pad=0, decoder_start=3), ['[CLS]', '*', '[SEP]']),
    ('mt5', 't5', dict(bos=None, eos=1, pad=0, decoder_start=0), ['*', '</s>']),
    ('umt5', 't5', dict(bos=None, eos=1, pad=0, decoder_start=0), ['*', '</s>']),
    ('marian', 't5', dict(bos=None, eos=1, pad=0, decoder_start=0), ['*', '</s>']),
    ('mbart', 'mbart', dict(bos=0, eos=2, pad=1, decoder_start='ro_RO'), ['*', '</s>', 'de_DE']),
], ids=str)
def test_special_tokens_match_the_tokenizer(tmp_path, family, kind, ids, row):
  _, tokenizer, config, generation, beside = exported(tmp_path, family, kind)
  size = tokenizer.vocab.size
  want = {role: size - 1 if number == -1 else tokenizer.pieces.index(number)
          if isinstance(number, str) else number
          for role, number in ids.items()}
  if 'decoder_start' in ids:
    want |= {'forced_bos': None, 'forced_eos': None}
  for name, said in (('config.json', config), ('generation_config.json', generation)):
    assert {role: said[f'{role}_token_id'] for role in want} == want, name
  assert generation['suppress_tokens'] == [size, size + 1, size + 2]
  assert {role: beside.get(f'{role}_token') for role in ('bos', 'eos', 'pad') if want.get(role)
          is not None} == {
      role: tokenizer.pieces[want[role]] for role in ('bos', 'eos', 'pad') if want.get(role)
      is not None}
  text = 'the text is long'
  laid = [i for part in row for i in (
      tokenizer.encode(text) if part == '*' else [tokenizer.pieces.index(part)])]
  file = tokenizers.Tokenizer.from_file(str(tmp_path / 'out' / 'tokenizer.json'))
  assert file.encode(text).ids == laid
  assert beside['tokenizer_class'] == 'PreTrainedTokenizerFast'
  assert beside['model_input_names'] == ['input_ids', 'attention_mask']


def test_a_byte_tokenizer_of_an_encoder_decoder_is_exported_as_byt5(tmp_path):
  _, _, config, _, beside = exported(tmp_path, 't5', 'bytes')
  assert (config['pad_token_id'], config['eos_token_id'],
          config['decoder_start_token_id']) == (0, 1, 0)
  assert beside['tokenizer_class'] == 'ByT5Tokenizer' and not (
      tmp_path / 'out' / 'tokenizer.json').exists()


def test_exported_glm_lists_its_blank_tokens(tmp_path):
  _, _, config, _, _ = exported(tmp_path, 'glm', 'glm')
  size = TOKENIZERS['glm']().vocab.size
  assert {role: config[f'{role}_token_id']
          for role in ('bos', 'eos', 'pad', 'sop', 'eop', 'gmask', 'smask', 'mask')
          } == {'bos': 2, 'eos': 0, 'pad': 0, 'sop': size - 4, 'eop': size - 3, 'gmask': size - 2,
                'smask': size - 1,
                'mask': 4}


def test_an_exported_model_generates_the_same(tmp_path):
  trained, *_ = exported(tmp_path, 'bart', 'chinese')
  back = plm_jax.load(tmp_path / 'out')
  assert back.generation.end_ids == (
      3,) and back.generation.start_id == 3 and not back.generation.options
  got, want = (plm_jax.generate(model, ['我们看', '老师'], max_new=8) for model in (back, trained))
  assert got == want


def test_chinese_is_decoded_without_spaces(tmp_path):
  _, tokenizer, *_ = exported(tmp_path, 'bart', 'chinese')
  ids = tokenizer.encode('我们2008年(看 reads')
  fast = tokenizers.Tokenizer.from_file(str(tmp_path / 'out' / 'tokenizer.json'))
  assert fast.decode(ids) == tokenizer.decode(ids) == '我们2008年(看 reads'


def imported(tmp_path, family, kind, config=(), generation=None, beside=()):
  """Export a model, change its files as in released checkpoints, and load it."""
  exported(tmp_path, family, kind)
  out = tmp_path / 'out'
  def change(name, values):
    said = json.loads((out / name).read_text()) if (out / name).exists() else {}
    (out / name).write_text(json.dumps(said | dict(values)))
  change('config.json', config)
  change('tokenizer_config.json', beside)
  if generation is None:
    (out / 'generation_config.json').unlink()
  else:
    (out / 'generation_config.json').write_text(json.dumps(generation))
  return loaded_model.load_model(out)


@pytest.mark.parametrize(('config', 'generation', 'beside', 'ends'), [
    ({'eos_token_id': [2, 7]}, None, {}, (2, 7)),
    ({'eos_token_id': 2}, {'eos_token_id': [2, 8]}, {}, (2, 8)),
    ({'eos_token_id': None}, {'eos_token_id': 9}, {'eos_token': None}, (9,)),
    ({'eos_token_id': 2}, {'eos_token_id': 2}, {'eos_token': '<0x05>'}, (2, 8)),
    ({'eos_token_id': 2}, None, {'eot_token': {'content': '<0x05>'}}, (2, 8)),
    ({'eos_token_id': 50256}, None, {}, (2,)),
])
def test_all_end_tokens_are_read(tmp_path, config, generation, beside, ends):
  trained = imported(tmp_path, 'llama', 'llama', config, generation, beside)
  assert trained.generation.end_ids == ends
  # The most likely first token ends the text if the files state it as an end.
  (found,), = plm_jax.generate(trained, 'the text', max_new=1)
  token = found.tokens[0]
  with_end = imported_again(trained, (2, token))
  (one,), = plm_jax.generate(with_end, 'the text', max_new=8)
  assert (one.ended, one.tokens, one.text) == ('end', (token,), '')


def imported_again(trained, ends):
  return LoadedModel(trained.family, trained.model, trained.heads, trained.params,
                     trained.tokenizer,
                 generation=GenerationDefaults(ends))


BART = {
    'forced_bos_token_id': 2, 'forced_eos_token_id': [3], 'no_repeat_ngram_size': 2, 'num_beams': 3,
    'early_stopping': True, 'length_penalty': 2.0, 'max_length': 12, 'min_length': 5,
    'bad_words_ids': [[9], [6, 7]],
    'encoder_no_repeat_ngram_size': 3, 'decoder_start_token_id': 2}


def test_generation_settings_are_read_and_options_override_them(tmp_path):
  trained = imported(tmp_path, 'bart', 'chinese', generation=BART)
  assert trained.generation == GenerationDefaults(
      (3,), 2, (9,), {'beams': 3, 'length_penalty': 2.0, 'no_repeat_ngram': 2, 'forced_first': 2,
                      'forced_last': 3,
                      'max_new': 11, 'min_new': 4, 'early_stopping': 'full'},
      ('encoder_no_repeat_ngram_size', 'bad_words_ids of several tokens'))
  assert ("generation: ends at [SEP] (3); begins with [CLS] (2); never writes 1 tokens; beams=3; "
          "length_penalty=2.0; "
          'no_repeat_ngram=2; forced_first=2; forced_last=3; max_new=11; min_new=4; '
          'early_stopping=full; not '
          'implemented: encoder_no_repeat_ngram_size, bad_words_ids of several tokens') in repr(
              trained)
  (found,), = plm_jax.generate(trained, '我们看')
  assert found.tokens[0] == 2 and found.tokens[-1] == 3 and len(
      found.tokens) <= 11 and found.score is not None
  assert 9 not in found.tokens
  pairs = list(zip(found.tokens, found.tokens[1:], strict=False))
  assert len(pairs) == len({*pairs})
  (found,), = plm_jax.generate(trained, '我们看', beams=1, forced_first=-1, max_new=3)
  assert found.tokens[0] != 2 and found.score is None and len(found.tokens) <= 3
  (own,), = plm_jax.generate(trained, '我们看', GenerationConfig(3))
  assert own.score is None
  assert ''.join(piece.text for piece in plm_jax.stream(trained, '我们看',
                                                        max_new=3)) == plm_jax.generate(
      trained, '我们看', beams=1, max_new=3)[0][0].text


def test_settings_in_config_json_apply_without_generation_config(tmp_path):
  trained = imported(tmp_path, 'bart', 'chinese', {'num_beams': 2, 'forced_eos_token_id': 3})
  assert trained.generation.options == {'beams': 2, 'forced_last': 3}


@pytest.mark.parametrize(('stated', 'options', 'want'), [
    ({'do_sample': True, 'temperature': 0.6, 'top_p': 0.9}, {},
     dict(temperature=0.6, top_p=0.9, top_k=50)),
    ({'do_sample': True, 'top_k': 0}, {}, dict(temperature=1.0)),
    ({'do_sample': False, 'temperature': 0.6, 'top_p': 0.9}, {}, {}),
    ({'do_sample': True, 'temperature': 0.6, 'top_p': 0.9}, dict(temperature=0.0), {}),
    ({'do_sample': True, 'temperature': 0.6}, dict(beams=4), dict(beams=4)),
    ({'num_beams': 4, 'num_return_sequences': 2}, dict(temperature=0.7), dict(temperature=0.7)),
    ({'num_beams': 4, 'repetition_penalty': 1.5}, dict(beams=1), dict(repetition_penalty=1.5)),
    ({'min_new_tokens': 20}, dict(max_new=5), dict(max_new=5)),
])
def test_options_of_the_user_go_before(tmp_path, stated, options, want):
  trained = imported(tmp_path, 'llama', 'llama', generation=stated)
  assert generation_config.resolve_generation_config(trained.generation, None,
                                                     options) == GenerationConfig(**want)


@pytest.mark.parametrize(('stated', 'listed'), [
    ({'do_sample': True, 'num_beams': 4, 'temperature': 0.7, 'top_k': 50},
     ('do_sample with num_beams', 'temperature')),
    ({'min_length': 20, 'max_length': 30}, ('max_length', 'min_length')),
    ({'max_length': 30, 'max_new_tokens': 8}, ()),
    ({'prompt_lookup_num_tokens': 3, 'renormalize_logits': True},
     ('prompt_lookup_num_tokens', 'renormalize_logits')),
    ({'use_cache': True, 'transformers_version': '5.0', 'renormalize_logits': False,
      'num_assistant_tokens': 20}, ())])
def test_settings_that_are_not_implemented_are_listed(tmp_path, stated, listed):
  trained = imported(tmp_path, 'llama', 'llama', generation=stated)
  assert trained.generation.unsupported == listed


def test_settings_that_cannot_be_used_are_refused(tmp_path):
  with pytest.raises(conversion.ConvertError,
                     match=r'generation settings of the checkpoint cannot be used: .*beams'):
    imported(tmp_path, 'llama', 'llama', generation={'num_beams': 'four'})
  (tmp_path / 'out' / 'generation_config.json').write_text('{"eos_token_id": [2, "</s>"]}')
  with pytest.raises(conversion.ConvertError,
                     match=r"generation_config.json: eos_token_id is \[2, '</s>'\]"):
    loaded_model.load_model(tmp_path / 'out')


def test_settings_are_preserved_by_import_and_export(tmp_path):
  imported(tmp_path, 'bart', 'chinese', generation=BART)
  plm_jax.convert(tmp_path / 'out', tmp_path / 'again')
  for name in ('config.json', 'generation_config.json'):
    assert json.loads((tmp_path / 'again' / name).read_text()) == json.loads(
        (tmp_path / 'out' / name).read_text())


def test_suppressed_tokens_are_never_generated(tmp_path):
  trained = imported(tmp_path, 'llama', 'llama', generation={})
  (found,), = plm_jax.generate(trained, 'the text', max_new=4)
  barred = imported(tmp_path / 'b', 'llama', 'llama',
                    generation={'suppress_tokens': [*found.tokens, 10 ** 9]})
  assert barred.generation.suppressed_ids == tuple(sorted({*found.tokens}))
  for beams in (1, 2):
    (other,), = plm_jax.generate(barred, 'the text', max_new=4, beams=beams)
    assert not {*other.tokens} & {*found.tokens}
    assert len(other.tokens)
