"""Write the tables of docs/reference/model_families.md, in English and Chinese.

    python -m benchmarks.family_page

Families and their heads come from the registry in plm_jax/models/families.py. The examples are
published models with that model_type; no test downloads them.
"""
import pathlib
import re

from benchmarks.recipe_page import table
from benchmarks.released_models import LANGUAGES, RELEASED, TOKENIZERS, Released
from plm_jax.conversion.source_formats import ALIASES
from plm_jax.models.families import get_family

ROOT = pathlib.Path(__file__).parents[1]
COLUMNS = {
    ROOT / 'docs/reference/model_families.md': ('`model_type`', 'published models', 'heads'),
    ROOT / 'docs/zh/reference/model_families.md': ('`model_type`', '已发布的模型', '输出头')}
"""Pages, and the columns of their tables."""
LANGUAGE_COLUMNS = {
    ROOT / 'docs/reference/model_families.md': (
        'language', 'model', 'parameters', '`model_type`', 'tokenizer'),
    ROOT / 'docs/zh/reference/model_families.md': (
        '语言', '模型', '参数', '`model_type`', '分词器')}
"""Pages, and the columns of the table by language."""
KINDS = (
    ('bert', 'roberta', 'xlm-roberta', 'xlm-roberta-xl', 'albert', 'distilbert', 'electra',
     'deberta', 'deberta-v2', 'xlnet', 'mpnet', 'modernbert', 'eurobert', 'roformer', 'nomic_bert',
     'gte', 'jina_embeddings_v3', 'ernie', 'xlm', 'flaubert',
     'megatron-bert'),
    ('spanbert', 'neobert', 'mosaicbert', 'jina-bert', 'crammedBERT', 'ltgbert', 'gptbert',
     'elmo'),
    ('openai-gpt', 'gpt2', 'gpt_neo', 'gpt_neox', 'gpt3', 'llama', 'qwen3', 'smollm3',
     'gemma2', 'gemma3_text', 'cohere', 'glm', 'modernbert-decoder'),
    ('t5', 'mt5', 'umt5', 't5gemma', 'bart', 'mbart', 'marian', 'cpt'))
"""model_types in the order of the page: encoders, encoders with code of their own, decoders,
encoder-decoders"""
EXAMPLES = {
    'bert': ('google-bert/bert-base-uncased', 'google-bert/bert-base-multilingual-cased',
             'google-bert/bert-base-chinese', 'hfl/chinese-roberta-wwm-ext',
             'hfl/chinese-macbert-base', 'sentence-transformers/all-MiniLM-L6-v2'),
    'roberta': ('FacebookAI/roberta-base', 'distilbert/distilroberta-base',
                'almanach/camembert-base', 'vinai/phobert-base-v2', 'vinai/bertweet-base'),
    'xlm-roberta': ('FacebookAI/xlm-roberta-base', 'intfloat/multilingual-e5-base'),
    'xlm-roberta-xl': ('facebook/xlm-roberta-xl',),
    'albert': ('albert/albert-base-v2',),
    'distilbert': ('distilbert/distilbert-base-uncased',),
    'electra': ('google/electra-small-discriminator',
                'hfl/chinese-electra-180g-base-discriminator'),
    'deberta': ('microsoft/deberta-base',),
    'deberta-v2': ('microsoft/deberta-v3-base', 'microsoft/mdeberta-v3-base'),
    'xlnet': ('xlnet/xlnet-base-cased',),
    'mpnet': ('microsoft/mpnet-base', 'sentence-transformers/all-mpnet-base-v2'),
    'modernbert': ('answerdotai/ModernBERT-base', 'jhu-clsp/ettin-encoder-150m',
                   'jhu-clsp/mmBERT-base'),
    'eurobert': ('EuroBERT/EuroBERT-210m',),
    'roformer': ('junnyu/roformer_chinese_base',),
    'nomic_bert': ('nomic-ai/nomic-bert-2048', 'nomic-ai/nomic-embed-text-v1.5'),
    'gte': ('Alibaba-NLP/gte-multilingual-base', 'Alibaba-NLP/gte-base-en-v1.5'),
    'jina_embeddings_v3': ('jinaai/jina-embeddings-v3-hf',),
    'ernie': ('nghuyong/ernie-3.0-base-zh',),
    'xlm': ('FacebookAI/xlm-mlm-xnli15-1024',),
    'flaubert': ('flaubert/flaubert_base_cased', 'flaubert/flaubert_base_uncased'),
    'neobert': ('chandar-lab/NeoBERT',),
    'mosaicbert': ('mosaicml/mosaic-bert-base',),
    'jina-bert': ('jinaai/jina-embeddings-v2-base-en', 'jinaai/jina-embeddings-v2-base-de'),
    'crammedBERT': ('JonasGeiping/crammed-bert',),
    'openai-gpt': ('openai-community/openai-gpt',),
    'gpt2': ('openai-community/gpt2', 'distilbert/distilgpt2'),
    'gpt_neo': ('EleutherAI/gpt-neo-125m',),
    'gpt_neox': ('EleutherAI/pythia-160m', 'EleutherAI/gpt-neox-20b'),
    'llama': ('meta-llama/Llama-2-7b-hf', 'meta-llama/Llama-3.2-1B', 'HuggingFaceTB/SmolLM2-135M'),
    'qwen3': ('Qwen/Qwen3-0.6B-Base', 'Qwen/Qwen3-1.7B-Base'),
    'smollm3': ('HuggingFaceTB/SmolLM3-3B-Base',),
    'gemma2': ('google/gemma-2-2b', 'google/gemma-2-9b'),
    'gemma3_text': ('google/gemma-3-270m', 'google/gemma-3-1b-pt'),
    'modernbert-decoder': ('jhu-clsp/ettin-decoder-150m',),
    't5': ('google-t5/t5-small', 'google/t5-v1_1-base', 'google/flan-t5-base',
           'google/byt5-small'),
    'mt5': ('google/mt5-small',),
    'umt5': ('google/umt5-small',),
    't5gemma': ('google/t5gemma-2b-2b-prefixlm', 'google/t5gemma-9b-2b-ul2'),
    'bart': ('facebook/bart-base', 'fnlp/bart-base-chinese'),
    'mbart': ('facebook/mbart-large-cc25', 'facebook/mbart-large-50')}
"""model_type -> names on the Hugging Face hub; the others are files of their authors' own"""
HEADS = {
    'PreTraining': 'pre-training', 'MaskedLM': 'MLM', 'NextSentencePrediction': 'NSP',
    'CausalLM': 'causal LM', 'ConditionalGeneration': 'generation',
    'SequenceClassification': 'classification', 'TokenClassification': 'tagging',
    'MultipleChoice': 'choice', 'QuestionAnswering': 'QA', 'QuestionAnsweringSimple': 'QA'}
"""end of the name of a class after `For` -> name of its head on the page"""
BARE = {'WithLMHeadModel': 'MLM', 'LMHeadModel': 'causal LM', 'LMHead': 'MLM',
        'MTModel': 'generation', 'ScriptableLM': 'MLM'}
"""end of the name of a class without `For` -> name of its head"""
OTHERS = {'xlnet': {'causal LM': 'permutation LM'}}
"""model_type -> heads whose class has a name that misleads"""


def main() -> None:
  for path in COLUMNS:
    path.write_text(write_tables(path))


def write_tables(path: pathlib.Path) -> str:
  """Return the page at `path` with up-to-date tables, one for each kind of model."""
  head = re.escape(f'| {" | ".join(COLUMNS[path])} |')
  kinds = iter(KINDS)
  text, count = re.subn(
      rf'(?m)^{head}\n(?:\|.*\n)*',
      lambda _: '\n'.join(table(COLUMNS[path], [describe(name) for name in next(kinds)])) + '\n',
      path.read_text())
  assert count == len(KINDS), f'{path} has {count} tables'
  columns = LANGUAGE_COLUMNS[path]
  chinese = columns[0] != 'language'
  rows = [describe_released(model, chinese) for model in RELEASED]
  head = re.escape(f'| {" | ".join(columns)} |')
  text, count = re.subn(
      rf'(?m)^{head}\n(?:\|.*\n)*', lambda _: '\n'.join(table(columns, rows)) + '\n', text)
  assert count == 1, f'{path} has {count} tables by language'
  return text


def describe_released(model: Released, chinese: bool) -> tuple[str, ...]:
  """Return the row of a released model."""
  return (LANGUAGES[model.languages] if chinese else model.languages, f'`{model.name}`', model.parameters,
          f'`{model.config["model_type"]}`', TOKENIZERS[model.tokenizer][chinese])


def describe(name: str) -> tuple[str, str, str]:
  """Return the row of a family: its model_type with its aliases, examples, and heads."""
  names = [name, *(alias for alias, (family, *_) in ALIASES.items() if family == name)]
  heads = list(dict.fromkeys(filter(None, map(name_head, get_family(name).classes))))
  heads = [OTHERS.get(name, {}).get(head, head) for head in heads]
  return (', '.join(f'`{one}`' for one in names),
          ', '.join(f'`{one}`' for one in EXAMPLES.get(name, ())), ', '.join(heads))


def name_head(kind: str) -> str:
  """Return the name of the head of a class of transformers; '': it has none."""
  if found := re.search(r'For([A-Z]\w+)$', kind):
    return HEADS[found.group(1)]
  return next((head for end, head in BARE.items() if kind.endswith(end)), '')


if __name__ == '__main__':
  main()
