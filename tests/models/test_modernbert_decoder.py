"""ModernBERT's decoders, against transformers where it and torch are installed."""
from flax.linen import unbox
import jax
import numpy as np
import pytest
import tiny

from plm_jax import conversion, validation
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models.families import boxed_parameter_shapes, parameter_shapes
from plm_jax.models.modernbert_decoder import FAMILY, make_config
from plm_jax.objectives.clm import CausalLM


@pytest.mark.parametrize(('config', 'number'), [
    (make_config(7, 256, 4, 384), 16_913_600), (make_config(22, 768, 12, 1152), 149_655_232)],
    ids=['17m', '150m'])
def test_parameter_counts_equal_the_encoders(config, number):
  """Ettin's encoders and decoders have the same sizes (Weller et al. 2025, table 1)."""
  shapes = parameter_shapes(FAMILY, config, CausalLM().heads(config))
  assert sum(int(np.prod(shape)) for shape in shapes.values()) == number


@pytest.mark.slow
@pytest.mark.parametrize('changes',
                         [{}, {'tie_word_embeddings': False, 'norm_bias': True,
                               'attention_bias': True,
                                          'global_attn_every_n_layers': 2,
                                          'classifier_bias': True}])
def test_a_folder_of_transformers_is_imported_and_exported(tmp_path, changes):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  pytest.importorskip('safetensors')
  torch.manual_seed(0)
  config = transformers.ModernBertDecoderConfig(
      vocab_size=60, hidden_size=32, intermediate_size=40, num_hidden_layers=4,
      num_attention_heads=4,
      max_position_embeddings=64, local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
      cls_token_id=1,
      sep_token_id=2, **changes)
  model = transformers.ModernBertDecoderForCausalLM(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  model.save_pretrained(tmp_path / 'theirs')
  tokens = np.random.default_rng(0).integers(3, 60, (2, 20))
  def logits(model):
    with torch.no_grad():
      return model(input_ids=torch.tensor(tokens)).logits.numpy()

  imported = conversion.load(tmp_path / 'theirs')
  own, batch = imported.model(), {'tokens': tokens, 'segments': np.ones_like(tokens)}
  with jax.default_matmul_precision('highest'):
    got = jax.jit(lambda params: own.apply({'params': params}, batch))(imported.params)
  np.testing.assert_allclose(got['lm'], logits(model), atol=1e-5)

  conversion.save(tmp_path / 'ours', imported.config, imported.params,
                  like=conversion.ExportTemplate('modernbert-decoder'))
  again = transformers.ModernBertDecoderForCausalLM.from_pretrained(tmp_path / 'ours').eval()
  np.testing.assert_array_equal(logits(again), logits(model))


@pytest.mark.parametrize('head', ['lm', 'label'])
def test_an_export_is_read_as_the_same(tmp_path, head):
  pytest.importorskip('safetensors')
  config = validation.with_paths(make_config(4, 32, 4, 48), {'vocab': 64, 'windows': (0, 4, 4)})
  heads = {head: conversion.build_head('modernbert-decoder', head, config, 3)}
  shapes = unbox(boxed_parameter_shapes(ModelWithHeads(FAMILY.backbone(config), heads), {}))
  params = tiny.random_params(shapes)
  conversion.save(tmp_path, config, params, like=conversion.ExportTemplate('modernbert-decoder'))
  imported = conversion.load(tmp_path)
  assert list(imported.heads) == [head]
  assert imported.config == validation.with_paths(config, {'block.init': FAMILY.config.block.init})
  jax.tree.map(np.testing.assert_array_equal, imported.params, params)
