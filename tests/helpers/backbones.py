"""A small model of every family, under the names of transformers' model_type; 'v3' is deberta-v2
too."""
from typing import Any

from plm_jax import validation
from plm_jax.models import (
    albert,
    bart,
    bert,
    deberta,
    distilbert,
    electra,
    gemma2,
    gemma3,
    glm,
    gpt,
    gpt2,
    gpt_neox,
    llama,
    modernbert,
    mpnet,
    palm,
    qwen3,
    roberta,
    smollm3,
    t5,
    t5gemma,
    transformer,
    xlnet,
)

PUBLISHED = {
    'bert': bert.tiny, 'roberta': roberta.base, 'albert': albert.base,
    'distilbert': distilbert.base,
    'spanbert': bert.spanbert_base, 'electra': electra.small, 'deberta': deberta.base,
    'deberta-v2': deberta.v2_xlarge,
    'v3': deberta.v3_small, 'xlnet': xlnet.base, 'openai-gpt': gpt.base, 'gpt2': gpt2.small,
    'gpt3': gpt2.gpt3_small,
    'gpt_neo': gpt2.gpt_neo_125m, 'gpt_neox': gpt_neox.pythia_14m, 'qwen3': qwen3.qwen3_0_6b,
    'smollm3': smollm3.smollm3_3b, 'gemma2': gemma2.gemma2_2b,
    'gemma3_text': gemma3.gemma3_270m,
    'llama': llama.llama_7b, 'cohere': palm.palm_8b,
    'glm': glm.base, 't5': t5.small,
    'mt5': t5.mt5_small, 'umt5': t5.umt5_small, 't5gemma': t5gemma.t5gemma_2b_2b,
    'mpnet': mpnet.base, 'modernbert': modernbert.base,
    'bart': bart.base,
    'mbart': bart.mbart_large, 'marian': transformer.base,
    'modernbert-decoder': lambda: modernbert.DECODER.config}


def family(name: str) -> str:
  return 'deberta-v2' if name == 'v3' else name


def small(name: str, vocab: int, length: int) -> Any:
  """Two layers of width 32, with one head of keys where several share it, and windows of 4 where
  there are any."""
  size = PUBLISHED[name]()
  block = validation.with_paths(size.block,
                                {'width': 32, 'heads': 2, 'mlp_dim': 64, 'head_size': None,
                                        'kv_heads': size.block.kv_heads and 1})
  model = size.resize(block, 2, vocab, length)
  return validation.with_paths(model, {'windows': (0, 4)} if getattr(size, 'windows', ()) else {})
