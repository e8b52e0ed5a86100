"""RoFormer, NomicBERT, GTE, Jina Embeddings 2 and 3, and XLM-R XL: published sizes, released
configurations, and exports. Values of the original code are in tests/golden."""
import json
import shutil

import numpy as np
import pytest
import small_decoders
import tiny

from plm_jax import conversion, validation
from plm_jax.conversion.source_formats import rename_alias, resolve_model_type
from plm_jax.layers.rope import DynamicScaling, LinearScaling, Rope
from plm_jax.models import mosaicbert, roberta, rotary_bert
from plm_jax.models.rules import ConvertError

COMMON = dict(
    hidden_act='gelu', hidden_dropout_prob=0.1, hidden_size=768, initializer_range=0.02,
    intermediate_size=3072, layer_norm_eps=1e-12, num_attention_heads=12, num_hidden_layers=12)
# config.json of junnyu/roformer_chinese_base.
ROFORMER = dict(
    COMMON, model_type='roformer', architectures=['RoFormerForMaskedLM'], vocab_size=50000,
    attention_probs_dropout_prob=0.1, embedding_size=768, max_position_embeddings=1536,
    pad_token_id=0, rotary_value=False, type_vocab_size=2, use_cache=True)
# config.json of nomic-ai/nomic-bert-2048: names of GPT-2.
NOMIC = dict(
    activation_function='swiglu', architectures=['NomicBertForPreTraining'], attn_pdrop=0.0,
    auto_map={'AutoConfig': 'configuration_hf_nomic_bert.NomicBertConfig'}, causal=False,
    dense_seq_output=True, embd_pdrop=0.0, fused_bias_fc=True, fused_dropout_add_ln=True,
    initializer_range=0.02, layer_norm_epsilon=1e-12, mlp_fc1_bias=False, mlp_fc2_bias=False,
    model_type='nomic_bert', n_embd=768, n_head=12, n_inner=3072, n_layer=12, n_positions=2048,
    pad_vocab_size_multiple=64, parallel_block=False, parallel_block_tied_norm=False,
    prenorm=False, qkv_proj_bias=False, reorder_and_upcast_attn=False, resid_pdrop=0.0,
    rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_emb_interleaved=False,
    rotary_emb_scale_base=None, rotary_scaling_factor=None,
    scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, summary_activation=None,
    summary_first_dropout=0.0, summary_proj_to_labels=True, summary_type='cls_index',
    summary_use_proj=True, type_vocab_size=2, use_cache=True, use_flash_attn=True,
    use_rms_norm=False, use_xentropy=True, vocab_size=30528)
# config.json of Alibaba-NLP/gte-multilingual-base and gte-base-en-v1.5.
GTE = dict(
    COMMON, model_type='new', architectures=['NewModel'], attention_probs_dropout_prob=0.0,
    auto_map={'AutoModel': 'Alibaba-NLP/new-impl--modeling.NewModel'},
    layer_norm_type='layer_norm', logn_attention_clip1=False, logn_attention_scale=False,
    max_position_embeddings=8192, pack_qkv=True, pad_token_id=1, position_embedding_type='rope',
    rope_scaling={'factor': 8.0, 'type': 'ntk'}, rope_theta=20000, type_vocab_size=1,
    unpad_inputs=False, use_memory_efficient_attention=False, vocab_size=250048)
GTE_EN = dict(
    GTE, pad_token_id=0, rope_scaling={'factor': 2.0, 'type': 'ntk'}, rope_theta=500000,
    type_vocab_size=0, vocab_size=30528)
# config.json of jinaai/jina-embeddings-v2-base-en.
JINA_2 = dict(
    COMMON, model_type='bert', architectures=['JinaBertForMaskedLM'],
    attention_probs_dropout_prob=0.0, emb_pooler='mean', feed_forward_type='geglu',
    auto_map={'AutoModel': 'jinaai/jina-bert-implementation--modeling_bert.JinaBertModel'},
    max_position_embeddings=8192, model_max_length=8192, pad_token_id=0,
    position_embedding_type='alibi', type_vocab_size=2, vocab_size=30528)
JINA_3 = dict(
    COMMON, model_type='jina_embeddings_v3', architectures=['JinaEmbeddingsV3Model'],
    attention_probs_dropout_prob=0.1, hidden_size=1024, intermediate_size=4096,
    layer_norm_eps=1e-5, max_position_embeddings=8194, num_attention_heads=16,
    num_hidden_layers=24, pad_token_id=1, type_vocab_size=1, vocab_size=250002,
    rope_parameters={'rope_theta': 20000.0, 'rope_type': 'default'})
XL = dict(
    COMMON, model_type='xlm-roberta-xl', architectures=['XLMRobertaXLForMaskedLM'],
    attention_probs_dropout_prob=0.1, hidden_size=2560, intermediate_size=10240,
    layer_norm_eps=1e-5, max_position_embeddings=514, num_attention_heads=32,
    num_hidden_layers=36, pad_token_id=1, type_vocab_size=1, vocab_size=250880)

ROWS = [
    ('roformer', ROFORMER, rotary_bert.roformer_base, 124, {}),
    ('nomic_bert', NOMIC, rotary_bert.nomic_bert_base, 137,
     {'head.bias': False, 'head.output_bias': False}),
    ('gte', GTE, rotary_bert.gte_multilingual_base, 305, {}),
    ('gte', GTE_EN, rotary_bert.gte_base_en, 137, {}),
    ('jina-bert', JINA_2, mosaicbert.jina_v2_base, 137, {}),
    ('jina_embeddings_v3', JINA_3, rotary_bert.jina_v3, 559, {}),
    ('xlm-roberta-xl', XL, roberta.xlm_r_xl, 3480, {})]
FAMILIES = [row for row in ROWS if row[1] is not GTE_EN]


def name_of(value):
  return value if isinstance(value, str) else ''


@pytest.mark.parametrize(('family', 'released', 'size', 'millions', 'changes'), ROWS, ids=name_of)
def test_released_configurations_have_published_sizes(family, released, size, millions, changes):
  renamed = rename_alias(dict(released))
  assert resolve_model_type(renamed) == family
  config = small_decoders.parse(family, renamed)
  assert validation.differences(validation.with_paths(size(), changes), config) == []
  shapes = small_decoders.parameters(family, config, 'mlm')['backbone']
  assert abs(small_decoders.count_parameters(shapes) / 1e6 - millions) < 1 + millions / 500
  assert small_decoders.parse(family, small_decoders.write(family, config)) == config


def test_rope_of_released_configurations():
  """NTK scaling as in vLLM's NTKScalingRotaryEmbedding: theta times the factor, and all angles
  divided by factor^(2 / head size)."""
  def position(family, hf_config):
    return small_decoders.parse(family, hf_config).block.attention.position
  longer = {**NOMIC, 'rotary_scaling_factor': 2, 'n_positions': 8192}
  assert position('nomic_bert', longer) == Rope(1000.0, scaling=DynamicScaling(2.0, 2048))
  scaled = position('gte', GTE)
  assert scaled == Rope(160_000.0, scaling=LinearScaling(8 ** (1 / 32)))
  angles = (20_000 * 8) ** -(np.arange(0, 64, 2) / 64) / 8 ** (2 / 64)
  np.testing.assert_allclose(scaled.scaling.scaled_frequencies(scaled.theta, 64), angles, 1e-6)
  assert position('gte', {'model_type': 'gte'}) == Rope(160_000.0)


@pytest.mark.parametrize(('family', 'released', 'said', 'message'), [
    ('roformer', ROFORMER, {'rotary_value': True}, 'rotary_value is True'),
    ('nomic_bert', NOMIC, {'prenorm': True}, 'prenorm is True'),
    ('nomic_bert', NOMIC, {'mlp_fc1_bias': True}, 'mlp_fc1_bias is True'),
    ('nomic_bert', NOMIC, {'num_experts': 8}, 'unknown attribute num_experts'),
    ('gte', GTE, {'pack_qkv': False}, 'pack_qkv is False'),
    ('gte', GTE, {'rope_scaling': {'type': 'ntk', 'factor': 2.0, 'mixed_b': 0.5}},
     "rope of type 'ntk'"),
    ('jina-bert', JINA_2, {'feed_forward_type': 'reglu'}, "feed_forward_type is 'reglu'"),
    ('xlm-roberta', dict(XL, model_type='xlm-roberta'), {'lora_adaptations': ['text-matching']},
     'unknown attribute lora_adaptations')])
def test_unsupported_attributes_are_refused(family, released, said, message):
  with pytest.raises(ConvertError, match=message):
    small_decoders.parse(family, {**released, **said})


@pytest.mark.parametrize('row', FAMILIES, ids=lambda row: row[0])
@pytest.mark.parametrize('head', ['mlm', 'label', 'tags', 'span'])
def test_an_export_is_read_as_the_same(tmp_path, row, head):
  family, _, size, _, changes = row
  if head not in conversion.get_family(family).heads:
    pytest.skip(f'{family} has no such head')
  config = small_decoders.shrink(size(), **changes)
  config = conversion.enable_required_parts(family, head, config)
  small_decoders.assert_there_and_back(tmp_path, family, config, head)


def write_authors_gte(folder):
  """Write a file of NewModel: the golden case of transformers' Gte with the authors' names."""
  files = pytest.importorskip('safetensors.numpy')
  shutil.copytree(small_decoders.GOLDEN / 'gte' / 'masked_lm', folder)
  tensors = files.load_file(folder / 'model.safetensors')
  files.save_file({name.replace('gte.', 'new.'): x for name, x in tensors.items()},
                  folder / 'model.safetensors')
  config = json.loads((folder / 'config.json').read_text())
  del config['rope_parameters']
  authors = {name: GTE[name] for name in (
      'model_type', 'auto_map', 'layer_norm_type', 'pack_qkv', 'rope_scaling')}
  config |= authors | {'architectures': ['NewForMaskedLM'], 'rope_theta': 125.0}
  (folder / 'config.json').write_text(json.dumps(config))


@pytest.mark.parametrize('family', ['gte', 'nomic_bert'])
def test_files_of_the_authors_are_exported_with_names_of_transformers(tmp_path, family):
  files = pytest.importorskip('safetensors.numpy')
  if family == 'gte':
    write_authors_gte(tmp_path / 'a')
  else:
    shutil.copytree(small_decoders.GOLDEN / 'nomic_bert' / 'contrastors', tmp_path / 'a')
  found = conversion.load(tmp_path / 'a')
  assert found.family == family and list(found.heads) == ['mlm']
  conversion.save(tmp_path / 'b', found.config, found.params, like=found)
  again = conversion.load(tmp_path / 'b')
  assert again.config == validation.with_paths(found.config, {
      'max_length': again.config.max_length})
  tiny.assert_same(again.params, found.params)
  names = set(files.load_file(tmp_path / 'b' / 'model.safetensors'))
  assert {name.partition('.')[0] for name in names} <= {family, 'cls', 'lm_head'}
  if family == 'gte':
    golden = conversion.load(small_decoders.GOLDEN / 'gte' / 'masked_lm')
    assert again.config == golden.config
    tiny.assert_same(again.params, golden.params)


@pytest.mark.slow
@pytest.mark.parametrize('row', [row for row in FAMILIES if row[0] != 'jina-bert'],
                         ids=lambda row: row[0])
def test_transformers_reads_exports(tmp_path, row):
  """The logits of an exported model in transformers, in float32: 1e-5."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  family, _, size, _, changes = row
  config = small_decoders.shrink(size(), **changes)
  small_decoders.assert_there_and_back(tmp_path, family, config, 'mlm')
  theirs = transformers.AutoModelForMaskedLM.from_pretrained(
      tmp_path, attn_implementation='eager', dtype=torch.float32).eval()
  tokens = np.random.default_rng(0).integers(2, config.vocab, (2, 20))
  with torch.no_grad():
    want = theirs(input_ids=torch.tensor(tokens)).logits.numpy()
  got = small_decoders.run(conversion.load(tmp_path), tokens, head='mlm')
  assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
