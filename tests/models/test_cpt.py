"""The encoder of CPT is transformers' BertModel (fastnlp/CPT, finetune/modeling_cpt.py), which the
golden cases of BERT check."""
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from plm_jax import conversion
from plm_jax.conversion import ConvertError
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import cpt, families

library = pytest.importorskip('safetensors.numpy')
GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'bert' / 'pretraining_mlm_nsp'
# Attributes of fnlp/cpt-large other than sizes.
SAID = {
    'activation_dropout': 0.0, 'activation_function': 'gelu', 'add_bias_logits': False,
    'add_final_layer_norm': False,
    'architectures': ['CPTForConditionalGeneration'], 'attention_dropout': 0.0, 'bos_token_id': 101,
    'classif_dropout': 0.1, 'classifier_dropout': 0.0, 'd_model': 32, 'decoder_attention_heads': 4,
    'decoder_ffn_dim': 44, 'decoder_layerdrop': 0.0, 'decoder_layers': 1,
    'decoder_start_token_id': 102, 'dropout': 0.1,
    'encoder_attention_heads': 4, 'encoder_ffn_dim': 44, 'encoder_layerdrop': 0.0,
    'encoder_layers': 2,
    'eos_token_id': 102, 'gradient_checkpointing': False, 'init_std': 0.02,
    'is_encoder_decoder': True,
    'max_position_embeddings': 40, 'model_type': 'bart', 'normalize_before': False,
    'normalize_embedding': True,
    'num_hidden_layers': 2, 'pad_token_id': 0, 'scale_embedding': False, 'use_cache': True,
    'vocab_size': 67}


def write(folder, bias=False, **said):
  """The golden BERT as the first 1 and the last 1 of CPT's layers, with the names of the released
  files."""
  folder.mkdir()
  tensors = library.load_file(GOLDEN / 'model.safetensors')
  own = {name.replace('bert.', 'encoder.', 1): x for name, x in tensors.items()
         if name.startswith('bert.') and 'pooler' not in name}
  shared = tensors['bert.embeddings.word_embeddings.weight']
  own |= {'shared.weight': shared, 'decoder.embed_tokens.weight': shared,
          'decoder.layers.0.fc1.weight': np.zeros((44, 32), np.float16),
          'decoder.embed_positions.weight': np.zeros((42, 32), np.float16)}
  if bias:
    own['final_logits_bias'] = np.arange(67, dtype=np.float16)[None] / 64
  library.save_file(own, folder / 'model.safetensors')
  (folder / 'config.json').write_text(json.dumps({**SAID, **said}))
  return folder


@pytest.mark.parametrize('bias', [False, True])
def test_the_encoder_is_berts_with_the_second_type(tmp_path, bias):
  got, bert = conversion.load(write(tmp_path / 'cpt', bias)), conversion.load(GOLDEN, heads=())
  assert (got.family, {*got.heads}, got.config.types,
          got.config.head.output_bias) == ('cpt', {'mlm'}, 1, bias)
  tokens = np.load(GOLDEN / 'inputs.npz')['input_ids'].astype(np.int32)
  batch = {'tokens': tokens, 'segments': np.ones_like(tokens)}
  model = ModelWithHeads(families.get_family('cpt').backbone(got.config), dict(got.heads))
  found = jax.jit(lambda params: model.apply({'params': params}, batch))(got.params)['mlm']
  hidden = families.get_family('bert').backbone(bert.config).apply(
      {'params': bert.params['backbone']}, {**batch, 'types': np.ones_like(tokens)}).hidden
  logits = hidden @ bert.params['backbone']['embeddings']['tokens'].astype(np.float32).T
  np.testing.assert_allclose(found, logits + (np.arange(67) / 64 if bias else 0), atol=1e-4)


def test_export_and_import_preserve_the_supported_parameters(tmp_path):
  first = write(tmp_path / 'cpt')
  got = conversion.load(first)
  conversion.save(tmp_path / 'again', got.config, got.params, like='cpt')
  again = conversion.load(tmp_path / 'again')
  assert again.config == got.config
  jax.tree.map(np.testing.assert_array_equal, again.params, got.params)
  saved, theirs = (library.load_file(folder / 'model.safetensors')
                   for folder in (tmp_path / 'again', first))
  name = 'encoder.encoder.layer.1.output.dense.weight'
  np.testing.assert_array_equal(saved[f'model.{name}'], theirs[name].astype(np.float32))
  assert not any('decoder' in name for name in saved)


def test_unsupported_attributes_of_cpt_are_refused(tmp_path):
  write(tmp_path / 'cpt', scale_embedding=True)
  with pytest.raises(ConvertError, match='scale_embedding is True, only False is supported'):
    conversion.load(tmp_path / 'cpt')
  shutil.rmtree(tmp_path / 'cpt')
  write(tmp_path / 'cpt', encoder_layers=3)
  with pytest.raises(ConvertError, match=r'model\.encoder\.encoder\.layer\.2'):
    conversion.load(tmp_path / 'cpt')


@pytest.mark.parametrize(('config', 'number'),
                         [(cpt.base(), 125_219_328), (cpt.large(), 355_862_528)])
def test_parameters(config, number):
  """Those of 12 and 24 layers of BERT, 51,271 pieces, 1,024 positions, one type."""
  shapes = families.parameter_shapes(cpt.FAMILY, config, {})
  assert sum(int(np.prod(shape)) for shape in shapes.values()) == number
