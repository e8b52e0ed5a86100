"""BERTs with rotary positions: RoFormer, NomicBERT, GTE and Jina Embeddings 3.

They have BERT's layers, with the norm after each sublayer, and RoPE in place of position
embeddings.

RoFormer (Su et al. 2021, arXiv:2104.09864), the Chinese model of its authors: 124M parameters.
transformers pairs adjacent features, as the paper does.

NomicBERT (Nussbaum et al. 2024, arXiv:2402.01613): SwiGLU, no biases in products, 137M parameters
as published. Its files, also those of transformers, have the names of nomic-ai/contrastors.

GTE (Zhang et al. 2024, arXiv:2407.19669): GeGLU without biases on the way in. Parameters as
published: gte-base-en-v1.5 137M, gte-multilingual-base 305M. The authors' files have the model_type
`new`.

Jina Embeddings 3 (Sturua et al. 2024, arXiv:2409.10173): XLM-R large with RoPE, 559M parameters
without the LoRA adapters of its tasks, as published in section 4.
"""
from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.common import Dtype
from plm_jax.layers.heads import FirstTokenClassifier, MaskedLMHead
from plm_jax.layers.init import NORMAL_INIT
from plm_jax.layers.rope import DynamicScaling, LinearScaling, Rope
from plm_jax.models import bert, electra, llama, roberta
from plm_jax.models.bert import BLOCK, mlm_head_rules
from plm_jax.models.layouts import RopePairBias, RopePairs
from plm_jax.models.rules import (
    Attribute,
    HeadSpec,
    Rule,
    block_rules,
    dense_rules,
    join_rules,
    norm_rules,
    packed_rules,
    rename_tensors,
    replace_defaults,
)

ROPE = Attribute('rope', 'block.attention.position', Rope())
QKV = llama.PROJECTIONS[:3]


def make_config(
    size: Callable[..., EncoderConfig], vocab: int, max_length: int, rope: Rope,
    dtype: Dtype = 'float32', **changes: Any,
) -> EncoderConfig:
  """Make a model of a size of BERT or RoBERTa, with RoPE in place of position embeddings.

  changes: other fields that differ, by their path with `__` in place of dots.
  """
  changed = {name.replace('__', '.'): value for name, value in changes.items()}
  return validation.with_paths(size(dtype), {
      'vocab': vocab, 'max_length': max_length, 'padding': -1, 'pooler': False,
      'embeddings.absolute': 'none', 'block.attention.position': rope, 'block.init': NORMAL_INIT,
      **changed})


# 50,000 Chinese words and characters. 124M parameters
roformer_base = functools.partial(make_config, bert.base, 50_000, 1536, Rope())
nomic_bert_base = functools.partial(  # 137M parameters
    make_config, bert.base, 30_528, 2048, Rope(1000.0), block__dropout=0.0,
    block__attention__dropout=0.0, block__attention__bias=(), block__mlp__activation='silu',
    block__mlp__gated=True, block__mlp__bias=False)
make_gte_config = functools.partial(
    make_config, max_length=8192, block__attention__dropout=0.0, block__mlp__gated=True,
    block__mlp__bias_in=False, block__mlp__dropout=0.1)
gte_base_en = functools.partial(  # 137M parameters
    make_gte_config, bert.base, 30_528, rope=Rope(1e6, scaling=LinearScaling(2 ** (2 / 64))),
    embeddings__types=0)
gte_multilingual_base = functools.partial(  # 305M parameters
    make_gte_config, bert.base, 250_048, rope=Rope(160_000.0, scaling=LinearScaling(8 ** (2 / 64))),
    embeddings__types=1)
jina_v3 = functools.partial(  # 559M parameters
    make_config, roberta.large, 250_002, 8194, Rope(20_000.0))


def normalize_rope(defaults: Mapping[str, Any], hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read rope, in any spelling of transformers, as one value `rope`.

  defaults: of rope_theta, hidden_size, num_attention_heads and max_position_embeddings.
  """
  hf_config = llama.normalize_hf_config({**defaults, **hf_config})
  del hf_config['num_key_value_heads']  # every head has its own keys
  return {name: value for name, value in hf_config.items() if name != 'auto_map'}


def denormalize_rope(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_rope`. Raises ConvertError where rope rotates only a share of a head."""
  hf_config = llama.denormalize_hf_config({'head_dim': None, 'num_key_value_heads': 0, **hf_config})
  del hf_config['num_key_value_heads'], hf_config['head_dim']
  return hf_config


def interleave_rope(rule: Rule) -> Rule:
  """Return the rule with rotary pairs of queries and keys interleaved in their file."""
  if not rule.ours.startswith((f'{BLOCK}/attention/query', f'{BLOCK}/attention/key')):
    return rule
  layout = RopePairBias() if rule.ours.endswith('bias') else RopePairs()
  return dataclasses.replace(rule, layout=layout)


def embedding_rules(theirs: str, norm: str) -> tuple[Rule, ...]:
  """Make the rules of token and segment type embeddings and of their norm called `norm`."""
  return join_rules(
      Rule('backbone/embeddings/tokens', f'{theirs}.embeddings.word_embeddings.weight'),
      Rule('backbone/embeddings/types', f'{theirs}.embeddings.token_type_embeddings.weight'),
      norm_rules('backbone/embeddings/norm', f'{theirs}.{norm}'),
      dense_rules('backbone/pooler', f'{theirs}.pooler.dense'))


def normalize_roformer_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Set embedding_size to 0 where it is the hidden size, as it is by default."""
  width = hf_config.get('hidden_size', 768)
  size = hf_config.get('embedding_size') or width
  return electra.normalize_hf_config({**hf_config, 'hidden_size': width, 'embedding_size': size})


# transformers' RoFormer. Its table embed_positions is of the sines and cosines that RoPE has.
FAMILY = dataclasses.replace(
    bert.FAMILY,
    name='roformer',
    config=roformer_base(),
    attributes=replace_defaults(
        bert.FAMILY.attributes, {'vocab_size': 50_000, 'max_position_embeddings': 1536},
    ) + (Attribute('embedding_size', 'embeddings.width', 0),),
    fixed={'rotary_value': False},
    ignored=frozenset(),
    rules=join_rules(
        [interleave_rope(rule) for rule in rename_tensors(bert.FAMILY.rules, 'bert.', 'roformer.')
         if not rule.ours.startswith('backbone/pooler')],
        dense_rules('backbone/embeddings/project', 'roformer.embeddings_project'),
    ),
    part_tensors={},
    heads={
        'mlm': bert.FAMILY.heads['mlm'],
        'label': HeadSpec(
            lambda config, classes: FirstTokenClassifier(
                config.block, classes, config.block.mlp.activation, before=True),
            roberta.FAMILY.heads['label'].rules),
        'tags': dataclasses.replace(bert.FAMILY.heads['tags'], dropout=''),
        'span': bert.FAMILY.heads['span'],
    },
    classes={
        'RoFormerModel': (), 'RoFormerForMaskedLM': ('mlm',),
        'RoFormerForSequenceClassification': ('label',),
        'RoFormerForTokenClassification': ('tags',), 'RoFormerForQuestionAnswering': ('span',),
    },
    prefix='roformer.',
    aliases=bert.FAMILY.aliases[:2] + ((r'^(embeddings|encoder)', r'roformer.\1'),),
    skip_patterns=(r'\.embed_positions\.weight$',),
    normalize_hf_config=normalize_roformer_config,
    denormalize_hf_config=electra.denormalize_hf_config,
)


NOMIC_NAMES = {
    'vocab_size': 'vocab_size', 'n_embd': 'hidden_size', 'n_layer': 'num_hidden_layers',
    'n_head': 'num_attention_heads', 'n_inner': 'intermediate_size',
    'n_positions': 'max_position_embeddings', 'resid_pdrop': 'hidden_dropout_prob',
    'attn_pdrop': 'attention_probs_dropout_prob', 'layer_norm_epsilon': 'layer_norm_eps'}
"""GPT-2's names of attributes, which the authors' configurations have -> transformers' names"""
NOMIC_DEFAULTS = {
    'vocab_size': 30_528, 'max_position_embeddings': 2048, 'hidden_act': 'silu',
    'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0, 'rope_theta': 1000.0,
    'hidden_size': 768, 'num_attention_heads': 12}
NOMIC_LAYER = 'nomic_bert.encoder.layers.{n}'


def normalize_nomic_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read a configuration of transformers or of nomic-ai/contrastors.

  In the latter, a rope base that grows with the length of the text is rotary_scaling_factor, and
  the masked-LM head has no biases where the MLPs have none.
  """
  hf_config = {NOMIC_NAMES.get(name, name): value for name, value in hf_config.items()}
  hf_config['head_bias'] = hf_config.get('mlp_fc1_bias') is not False
  theta = hf_config.pop('rotary_emb_base', None)
  factor = hf_config.pop('rotary_scaling_factor', None)
  trained = hf_config.pop('max_trained_positions', 2048)
  if hf_config.get('activation_function') == 'swiglu':
    hf_config['hidden_act'] = 'silu'
    del hf_config['activation_function']
  hf_config = normalize_rope(
      NOMIC_DEFAULTS, hf_config if theta is None else {**hf_config, 'rope_theta': theta})
  if factor is not None and factor != 1:
    scaling = DynamicScaling(float(factor), trained)
    hf_config['rope'] = dataclasses.replace(hf_config['rope'], scaling=scaling)
  return hf_config


def denormalize_nomic_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Reverse `normalize_nomic_config`, for transformers, which adds biases of 0 to the head."""
  hf_config = denormalize_rope(hf_config)
  return hf_config if hf_config.pop('head_bias') else {**hf_config, 'mlp_fc1_bias': False}


# transformers' NomicBert, and the code of nomic-ai/contrastors.
NOMIC_BERT = dataclasses.replace(
    bert.FAMILY,
    name='nomic_bert',
    config=nomic_bert_base(),
    attributes=replace_defaults(bert.FAMILY.attributes, NOMIC_DEFAULTS) + (
        ROPE, Attribute('head_bias', 'head.bias', True),
        Attribute('head_bias', 'head.output_bias', True)),
    fixed={'head_dim': None, 'activation_function': 'swiglu', 'prenorm': False,
           'parallel_block': False, 'causal': False,
           'qkv_proj_bias': False, 'mlp_fc1_bias': False, 'mlp_fc2_bias': False,
           'rotary_emb_fraction': 1.0, 'rotary_emb_interleaved': False,
           'scale_attn_weights': True, 'scale_attn_by_inverse_layer_idx': False},
    # Of GPT-2's configuration, and of the training program.
    ignored=frozenset({
        'dense_seq_output', 'embd_pdrop', 'fused_bias_fc', 'fused_dropout_add_ln',
        'pad_vocab_size_multiple', 'parallel_block_tied_norm', 'reorder_and_upcast_attn',
        'summary_activation', 'summary_first_dropout', 'summary_proj_to_labels', 'summary_type',
        'summary_use_proj', 'use_flash_attn', 'use_xentropy'}),
    rules=join_rules(
        embedding_rules('nomic_bert', 'emb_ln'),
        packed_rules(f'{BLOCK}/attention', f'{NOMIC_LAYER}.attn.Wqkv', QKV),
        block_rules(BLOCK, NOMIC_LAYER, {
            'attention/out': 'attn.out_proj', 'attention_norm': 'norm1', 'mlp/up': 'mlp.fc12',
            'mlp/gate': 'mlp.fc11', 'mlp/down': 'mlp.fc2', 'mlp_norm': 'norm2'})),
    part_tensors={'pooler': 'nomic_bert.pooler.dense.weight'},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(config.block, config.tied, config.head),
            mlm_head_rules(
                'cls.predictions.transform.dense', 'cls.predictions.transform.layer_norm',
                'cls.predictions.decoder', 'cls.predictions.bias')),
        'label': bert.FAMILY.heads['label'],
        'tags': bert.FAMILY.heads['tags'],
    },
    classes={
        'NomicBertModel': (), 'NomicBertForMaskedLM': ('mlm',),
        'NomicBertForSequenceClassification': ('label',),
        'NomicBertForTokenClassification': ('tags',),
    },
    prefix='nomic_bert.',
    authors_prefixes=('bert.',),
    aliases=((r'^bert\.', 'nomic_bert.'),
             (r'^(embeddings|emb_ln|encoder|pooler)\.', r'nomic_bert.\1.')),
    normalize_hf_config=normalize_nomic_config,
    denormalize_hf_config=denormalize_nomic_config,
)


GTE_DEFAULTS = {
    'vocab_size': 250_048, 'max_position_embeddings': 8192, 'attention_probs_dropout_prob': 0.0,
    'type_vocab_size': 1, 'rope_theta': 160_000.0, 'hidden_size': 768, 'num_attention_heads': 12}
GTE_LAYER = 'gte.encoder.layer.{n}'


def normalize_gte_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
  """Read a configuration of transformers, or of the authors' code with its rope of type `ntk`.

  NTK scaling multiplies theta by the factor, and divides angles by factor^(2 / head size).
  """
  hf_config = {**GTE_DEFAULTS, **hf_config}
  scaling = hf_config.get('rope_scaling')
  if isinstance(scaling, dict) and scaling.get('type') == 'ntk' and scaling.keys() <= {
      'type', 'factor'}:
    factor = float(scaling['factor'])
    size = hf_config['hidden_size'] // hf_config['num_attention_heads']
    hf_config['rope_theta'] *= factor
    hf_config['rope_scaling'] = {'rope_type': 'linear', 'factor': factor ** (2 / size)}
  return normalize_rope({}, hf_config)


# transformers' Gte, and NewModel of the authors' code.
GTE = dataclasses.replace(
    bert.FAMILY,
    name='gte',
    config=gte_multilingual_base(),
    attributes=replace_defaults(bert.FAMILY.attributes, GTE_DEFAULTS) + (
        ROPE, Attribute('hidden_dropout_prob', 'block.mlp.dropout', 0.1)),
    fixed={'head_dim': None, 'pack_qkv': True, 'layer_norm_type': 'layer_norm',
           'position_embedding_type': 'rope', 'logn_attention_scale': False,
           'logn_attention_clip1': False},
    ignored=frozenset({'unpad_inputs', 'use_memory_efficient_attention'}),
    rules=join_rules(
        embedding_rules('gte', 'embeddings.LayerNorm'),
        packed_rules(f'{BLOCK}/attention', f'{GTE_LAYER}.attention.qkv_proj', QKV),
        packed_rules(f'{BLOCK}/mlp', f'{GTE_LAYER}.mlp.up_gate_proj', ('gate', 'up'), bias=False),
        block_rules(BLOCK, GTE_LAYER, {
            'attention/out': 'attention.o_proj', 'attention_norm': 'attn_ln',
            'mlp/down': 'mlp.down_proj', 'mlp_norm': 'mlp_ln'})),
    part_tensors={'pooler': 'gte.pooler.dense.weight'},
    heads={
        'mlm': HeadSpec(
            lambda config, classes: MaskedLMHead(roberta.gelu_block(config), config.tied),
            mlm_head_rules(
                'lm_head.dense', 'lm_head.norm', 'lm_head.decoder', 'lm_head.decoder.bias')),
        'label': bert.FAMILY.heads['label'],
        'tags': bert.FAMILY.heads['tags'],
    },
    classes={
        'GteModel': (), 'GteForMaskedLM': ('mlm',), 'GteForSequenceClassification': ('label',),
        'GteForTokenClassification': ('tags',)},
    prefix='gte.',
    authors_prefixes=('new.',),
    aliases=((r'^new\.', 'gte.'), (r'^(embeddings|encoder|pooler)\.', r'gte.\1.')),
    export_defaults={'pad_token_id': 1},
    normalize_hf_config=normalize_gte_config,
    denormalize_hf_config=denormalize_rope,
)


JINA_DEFAULTS = {
    'vocab_size': 250_002, 'hidden_size': 1024, 'num_hidden_layers': 24, 'num_attention_heads': 16,
    'intermediate_size': 4096, 'max_position_embeddings': 8194, 'type_vocab_size': 1,
    'layer_norm_eps': 1e-5, 'rope_theta': 20_000.0}
JINA_LAYER = 'roberta.encoder.layers.{n}'

# transformers' JinaEmbeddingsV3.
JINA_V3 = dataclasses.replace(
    roberta.FAMILY,
    name='jina_embeddings_v3',
    config=jina_v3(),
    attributes=replace_defaults(bert.FAMILY.attributes, JINA_DEFAULTS) + (ROPE,),
    fixed={'head_dim': None},
    rules=join_rules(
        embedding_rules('roberta', 'emb_ln'),
        packed_rules(f'{BLOCK}/attention', f'{JINA_LAYER}.mixer.Wqkv', QKV),
        block_rules(BLOCK, JINA_LAYER, {
            'attention/out': 'mixer.out_proj', 'attention_norm': 'norm1', 'mlp/up': 'mlp.fc1',
            'mlp/down': 'mlp.fc2', 'mlp_norm': 'norm2'})),
    heads={name: head for name, head in roberta.FAMILY.heads.items() if name != 'choice'},
    classes={
        name.replace('Roberta', 'JinaEmbeddingsV3'): heads
        for name, heads in roberta.FAMILY.classes.items() if heads != ('choice',)},
    aliases=((r'^(embeddings|emb_ln|encoder|pooler)\.', r'roberta.\1.'),),
    export_defaults={'pad_token_id': 1},
    normalize_hf_config=functools.partial(normalize_rope, JINA_DEFAULTS),
    denormalize_hf_config=denormalize_rope,
)
