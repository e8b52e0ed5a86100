"""Released models by language: the fields of their config.json, and the kind of their tokenizer files.

`benchmarks/family_page.py` writes the table of them. Tests (tests/benchmarks/test_family_page.py) load a small folder for
every row: the same fields with smaller sizes, and a tokenizer in files of the same kind. They also count the parameters that
the fields make.
"""
import dataclasses
from typing import Any

SIZES = dict(
    hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
BERT = dict(
    SIZES, architectures=['BertForMaskedLM'], attention_probs_dropout_prob=0.1, hidden_act='gelu',
    hidden_dropout_prob=0.1, initializer_range=0.02, layer_norm_eps=1e-12,
    max_position_embeddings=512, model_type='bert', pad_token_id=0, type_vocab_size=2)
# The Chinese and the multilingual model describe a pooler that they do not have.
BERT_POOLER = dict(
    BERT, directionality='bidi', pooler_fc_size=768, pooler_num_attention_heads=12,
    pooler_num_fc_layers=3, pooler_size_per_head=128, pooler_type='first_token_transform')
ROBERTA = dict(
    BERT, architectures=['RobertaForMaskedLM'], bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5,
    max_position_embeddings=514, model_type='roberta', pad_token_id=1, type_vocab_size=1)
DEBERTA = dict(
    SIZES, attention_probs_dropout_prob=0.1, hidden_act='gelu', hidden_dropout_prob=0.1,
    initializer_range=0.02, layer_norm_eps=1e-7, max_position_embeddings=512,
    max_relative_positions=-1, model_type='deberta-v2', norm_rel_ebd='layer_norm', pad_token_id=0,
    pooler_dropout=0, pooler_hidden_act='gelu', pooler_hidden_size=768, pos_att_type='p2c|c2p',
    position_biased_input=False, position_buckets=256, relative_attention=True, share_att_key=True,
    type_vocab_size=0)
MODERNBERT = dict(
    architectures=['ModernBertForMaskedLM'], attention_bias=False, attention_dropout=0.0,
    classifier_activation='gelu', classifier_bias=False, classifier_dropout=0.0,
    classifier_pooling='mean', decoder_bias=True, deterministic_flash_attn=False,
    embedding_dropout=0.0, global_attn_every_n_layers=3, global_rope_theta=160000.0,
    hidden_activation='gelu', hidden_size=768, initializer_cutoff_factor=2.0,
    initializer_range=0.02, intermediate_size=1152, layer_norm_eps=1e-5, local_attention=128,
    local_rope_theta=10000.0, max_position_embeddings=8192, mlp_bias=False, mlp_dropout=0.0,
    model_type='modernbert', norm_bias=False, norm_eps=1e-5, num_attention_heads=12,
    num_hidden_layers=22, position_embedding_type='absolute', reference_compile=None,
    sparse_pred_ignore_index=-100, sparse_prediction=False, vocab_size=50368)
NOMIC = dict(
    activation_function='swiglu', architectures=['NomicBertModel'], attn_pdrop=0.0, causal=False,
    dense_seq_output=True, embd_pdrop=0.0, fused_bias_fc=True, fused_dropout_add_ln=True,
    initializer_range=0.02, layer_norm_epsilon=1e-12, max_trained_positions=2048,
    mlp_fc1_bias=False, mlp_fc2_bias=False, model_type='nomic_bert', n_embd=768, n_head=12,
    n_inner=3072, n_layer=12, n_positions=8192, pad_vocab_size_multiple=64, parallel_block=False,
    parallel_block_tied_norm=False, prenorm=False, qkv_proj_bias=False,
    reorder_and_upcast_attn=False, resid_pdrop=0.0, rotary_emb_base=1000, rotary_emb_fraction=1.0,
    rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_scaling_factor=None,
    scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, type_vocab_size=2,
    use_flash_attn=True, use_rms_norm=False, use_xentropy=True, vocab_size=30528)
GTE = dict(
    SIZES, architectures=['NewModel'], attention_probs_dropout_prob=0.0, hidden_act='gelu',
    hidden_dropout_prob=0.1, initializer_range=0.02, layer_norm_eps=1e-12,
    layer_norm_type='layer_norm', logn_attention_clip1=False, logn_attention_scale=False,
    max_position_embeddings=8192, model_type='new', pack_qkv=True, pad_token_id=0,
    position_embedding_type='rope', unpad_inputs=False, use_memory_efficient_attention=False)
JINA_2 = dict(
    BERT, architectures=['JinaBertForMaskedLM'], attention_probs_dropout_prob=0.0,
    emb_pooler='mean', feed_forward_type='geglu', max_position_embeddings=8192,
    position_embedding_type='alibi')
ELECTRA = dict(
    BERT, architectures=['ElectraForPreTraining'], embedding_size=768, model_type='electra',
    summary_activation='gelu', summary_last_dropout=0.1, summary_type='first',
    summary_use_proj=True)
FLAUBERT = dict(
    architectures=['FlaubertWithLMHeadModel'], asm=False, attention_dropout=0.1, bos_index=0,
    causal=False, dropout=0.1, emb_dim=768, embed_init_std=0.02, eos_index=1, gelu_activation=True,
    init_std=0.02, is_encoder=True, lang_id=0, layer_norm_eps=1e-12, layerdrop=0.0, mask_index=5,
    max_position_embeddings=512, model_type='flaubert', n_heads=12, n_langs=1, n_layers=12,
    pad_index=2, pre_norm=False, sinusoidal_embeddings=False, unk_index=3, use_lang_emb=True)


@dataclasses.dataclass(frozen=True)
class Released:
  """A released model."""

  languages: str
  """English name of the language, as in LANGUAGES"""
  name: str
  """on the Hugging Face hub"""
  parameters: str
  """parameters of the backbone, without heads"""
  tokenizer: str
  """kind of its tokenizer files, a key of TOKENIZERS"""
  config: dict[str, Any]
  """fields of its config.json that describe the model"""


LANGUAGES = {
    'English': '英语', 'Chinese': '中文', 'French': '法语', 'German': '德语', 'Spanish': '西班牙语',
    'Russian': '俄语', 'Vietnamese': '越南语', 'Korean': '韩语', 'Arabic': '阿拉伯语', 'multilingual': '多语言'}
TOKENIZERS = {
    'wordpiece': ('WordPiece', 'WordPiece'),
    'byte_bpe': ('byte-level BPE', '字节级 BPE'),
    'byte_bpe_json': ('byte-level BPE', '字节级 BPE'),
    'xlm_r': ('SentencePiece', 'SentencePiece'),
    'deberta': ('SentencePiece', 'SentencePiece'),
    'camembert': ('SentencePiece', 'SentencePiece'),
    'gemma': ('SentencePiece', 'SentencePiece'),
    'phobert': ('BPE; texts in words (VnCoreNLP)', 'BPE；文本要先分词（VnCoreNLP）'),
    'bertweet': ('BPE; normalized tweets', 'BPE；规范化的推文'),
    'flaubert': ('BPE of words of Moses', 'Moses 分词后的 BPE'),
    'none': ('not read', '不读取')}
"""kind of tokenizer files -> its description on the page, in English and in Chinese"""


def bert(vocab: int, base: dict[str, Any] = BERT, **fields: Any) -> dict[str, Any]:
  """Return a configuration with this vocabulary size and other fields."""
  return {**base, 'vocab_size': vocab, **fields}


RELEASED = (
    Released('English', 'google-bert/bert-base-uncased', '109M', 'wordpiece', bert(30522)),
    Released('English', 'FacebookAI/roberta-base', '124M', 'byte_bpe', bert(50265, ROBERTA)),
    Released('English', 'microsoft/deberta-v3-base', '184M', 'deberta', bert(128100, DEBERTA)),
    Released('English', 'answerdotai/ModernBERT-base', '149M', 'byte_bpe_json', MODERNBERT),
    Released('English', 'Alibaba-NLP/gte-modernbert-base', '149M', 'byte_bpe_json',
             {**MODERNBERT, 'architectures': ['ModernBertModel']}),
    Released('English', 'Alibaba-NLP/gte-base-en-v1.5', '137M', 'wordpiece', bert(
        30528, GTE, rope_scaling={'factor': 2.0, 'type': 'ntk'}, rope_theta=500000,
        type_vocab_size=0)),
    Released('English', 'nomic-ai/nomic-embed-text-v1.5', '137M', 'wordpiece', NOMIC),
    Released('English', 'jinaai/jina-embeddings-v2-base-en', '137M', 'wordpiece', bert(30528, JINA_2)),
    Released('English', 'BAAI/bge-base-en-v1.5', '109M', 'wordpiece',
             bert(30522, architectures=['BertModel'])),
    Released('English', 'vinai/bertweet-base', '134M', 'bertweet', bert(
        64001, ROBERTA, max_position_embeddings=130, tokenizer_class='BertweetTokenizer')),
    Released('Chinese', 'google-bert/bert-base-chinese', '102M', 'wordpiece', bert(21128, BERT_POOLER)),
    Released('Chinese', 'hfl/chinese-roberta-wwm-ext', '102M', 'wordpiece', bert(21128, BERT_POOLER)),
    Released('Chinese', 'hfl/chinese-macbert-base', '102M', 'wordpiece', bert(21128, BERT_POOLER)),
    Released('Chinese', 'nghuyong/ernie-3.0-base-zh', '118M', 'wordpiece', bert(
        40000, architectures=['ErnieForMaskedLM'], layer_norm_eps=1e-5,
        max_position_embeddings=2048, model_type='ernie', task_type_vocab_size=3,
        type_vocab_size=4, use_task_id=True)),
    Released('Chinese', 'junnyu/roformer_chinese_base', '123M', 'none', bert(
        50000, architectures=['RoFormerForMaskedLM'], embedding_size=768,
        max_position_embeddings=1536, model_type='roformer', rotary_value=False)),
    Released('French', 'almanach/camembert-base', '110M', 'camembert', bert(
        32005, ROBERTA, architectures=['CamembertForMaskedLM'], bos_token_id=5, eos_token_id=6,
        model_type='camembert', output_past=True)),
    Released('French', 'flaubert/flaubert_base_cased', '138M', 'flaubert', bert(68729, FLAUBERT)),
    Released('German', 'google-bert/bert-base-german-cased', '109M', 'wordpiece', bert(30000)),
    Released('German', 'deepset/gbert-base', '110M', 'wordpiece', bert(31102)),
    Released('German', 'jinaai/jina-embeddings-v2-base-de', '160M', 'byte_bpe', bert(61056, JINA_2)),
    Released('Spanish', 'dccuchile/bert-base-spanish-wwm-cased', '110M', 'wordpiece', bert(31002)),
    Released('Russian', 'DeepPavlov/rubert-base-cased', '178M', 'wordpiece', bert(119547, BERT_POOLER)),
    Released('Vietnamese', 'vinai/phobert-base-v2', '134M', 'phobert', bert(
        64001, ROBERTA, max_position_embeddings=258, tokenizer_class='PhobertTokenizer')),
    Released('Korean', 'klue/bert-base', '111M', 'wordpiece', bert(32000)),
    Released('Korean', 'klue/roberta-base', '110M', 'wordpiece', bert(
        32000, ROBERTA, tokenizer_class='BertTokenizer')),
    Released('Korean', 'monologg/koelectra-base-v3-discriminator', '112M', 'wordpiece',
             bert(35000, ELECTRA)),
    Released('Arabic', 'aubmindlab/bert-base-arabertv02', '135M', 'wordpiece', bert(64000)),
    Released('Arabic', 'CAMeL-Lab/bert-base-arabic-camelbert-mix', '109M', 'wordpiece', bert(30000)),
    Released('multilingual', 'google-bert/bert-base-multilingual-cased', '178M', 'wordpiece',
             bert(119547, BERT_POOLER)),
    Released('multilingual', 'FacebookAI/xlm-roberta-base', '277M', 'xlm_r', bert(
        250002, ROBERTA, architectures=['XLMRobertaForMaskedLM'], model_type='xlm-roberta')),
    Released('multilingual', 'facebook/xlm-roberta-xl', '3.48B', 'xlm_r', bert(
        250880, ROBERTA, architectures=['XLMRobertaXLForMaskedLM'], hidden_size=2560,
        intermediate_size=10240, model_type='xlm-roberta-xl', num_attention_heads=32,
        num_hidden_layers=36)),
    Released('multilingual', 'microsoft/mdeberta-v3-base', '279M', 'deberta', bert(251000, DEBERTA)),
    Released('multilingual', 'jhu-clsp/mmBERT-base', '307M', 'gemma', {
        **MODERNBERT, 'local_rope_theta': 160000.0, 'vocab_size': 256000}),
    Released('multilingual', 'Alibaba-NLP/gte-multilingual-base', '305M', 'xlm_r', bert(
        250048, GTE, architectures=['NewModel'], pad_token_id=1,
        rope_scaling={'factor': 8.0, 'type': 'ntk'}, rope_theta=20000, type_vocab_size=1)),
    Released('multilingual', 'jinaai/jina-embeddings-v3-hf', '558M', 'xlm_r', bert(
        250002, ROBERTA, architectures=['JinaEmbeddingsV3Model'], hidden_size=1024,
        intermediate_size=4096, max_position_embeddings=8194, model_type='jina_embeddings_v3',
        num_attention_heads=16, num_hidden_layers=24,
        rope_parameters={'rope_theta': 20000.0, 'rope_type': 'default'})))
