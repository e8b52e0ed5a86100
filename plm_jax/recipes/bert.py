"""BERT, as published (Devlin et al. 2019, section 3.1 and appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bert_base
    python -m plm_jax train bert_base \\
        --data.path=gs://BUCKET/records  # 16 TPU v2 chips (v2-32); paper: 4 days
    python -m plm_jax train bert_base --scale=laptop  # 2 CPU cores: 2 to 4 minutes
    python -m plm_jax train bert_base --scale=test    # seconds

Masked language modeling (MLM) and next sentence prediction (NSP): one million steps with batch size
256, at sequence length 128 for 90% of the steps and 512 for the rest. The paper's corpus is
BooksCorpus and English Wikipedia, 3.3 billion words. Its TPUs multiplied in bfloat16. The released
code stored ten differently masked copies of every text (dupe_factor) and applied no dropout before
the NSP classifier.

tiny, mini, small and medium are the small models of Turc et al. 2019 (arXiv:1908.08962, table 1),
pre-trained with the settings of base. chinese is bert-base-chinese: Chinese Wikipedia in simplified
and traditional characters. Its vocabulary has 21,128 tokens: single Chinese characters, and subword
tokens of other words.
multilingual and multilingual_uncased are mBERT, on the Wikipedias of 104 and 102 languages, with
119,547 and 105,879 tokens. Languages are sampled by size to the power 0.7 (multilingual.md of
google-research/bert): give one corpus per language to --data.path. Neither release describes its
training run; this recipe uses the settings of base.
"""
from collections.abc import Callable
import dataclasses

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import bert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig


def set_vocab_size(size: Callable[..., EncoderConfig], vocab: int) -> Callable[..., EncoderConfig]:
  """Return a model function with another vocabulary size."""
  return lambda dtype: dataclasses.replace(size(dtype), vocab=vocab)


def set_chinese_vocab(size: Callable[..., EncoderConfig]) -> Callable[..., EncoderConfig]:
  """Return a model function with the 21,128 tokens of bert-base-chinese, mostly characters."""
  return set_vocab_size(size, 21_128)


SIZES = {
    # Parameters of transformers' BertForPreTraining; published as 110M and 340M.
    'base': RecipeSize(
        model=bert.base, parameters=110_106_428, peak=1e-4, length=512, batch=256, pod='v2:4x4',
        mesh=MeshConfig(fsdp=4), published_hardware='16 TPU chips, 4 days'),
    'large': RecipeSize(
        model=bert.large, parameters=336_226_108, peak=1e-4, length=512, batch=256, pod='v3:8x8',
        published_hardware='64 TPU chips, 4 days'),
    # Published without pre-training heads: 4.4M, 11.3M, 29.1M, 41.7M (Turc et al. 2019).
    'tiny': RecipeSize(
        model=bert.tiny, parameters=4_433_468, peak=1e-4, length=512, batch=256,
        pod='v2:4x4'),
    'mini': RecipeSize(
        model=bert.mini, parameters=11_267_900, peak=1e-4, length=512, batch=256,
        pod='v2:4x4', mesh=MeshConfig(fsdp=32)),
    'small': RecipeSize(
        model=bert.small, parameters=29_058_876, peak=1e-4, length=512,
        batch=256, pod='v2:4x4', mesh=MeshConfig(fsdp=32)),
    'medium': RecipeSize(
        model=bert.medium, parameters=41_668_412, peak=1e-4, length=512,
        batch=256, pod='v2:4x4'),
    'chinese': RecipeSize(
        model=set_chinese_vocab(bert.base), parameters=102_882_442, peak=1e-4, length=512,
        batch=256, pod='v2:4x4', laptop_vocab=8000),
    'multilingual': RecipeSize(
        model=set_vocab_size(bert.base, 119_547), parameters=178_566_653, peak=1e-4, length=512,
        batch=256, pod='v3:4x4', mesh=MeshConfig(fsdp=32)),
    'multilingual_uncased': RecipeSize(
        model=set_vocab_size(bert.base, 105_879), parameters=168_055_961, peak=1e-4, length=512,
        batch=256, pod='v3:4x4', mesh=MeshConfig(fsdp=32))}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  data = DataConfig()
  if 'multilingual' in row.name:
    text = TextConfig(lowercase=row.name.endswith('uncased'))
    data = DataConfig(prepare=text, temperature=1 / 0.7)
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MaskedLM(duplicates=10, pooled='whole'), data=data,
      optim=AdamW(peak=row.peak, warmup=10_000, schedule='bert', weight_decay=0.01),
      train=TrainConfig(phases=(Phase(900_000, 128, row.batch), Phase(100_000, 512, row.batch))))


BERT = RecipeFamily('bert', __doc__, SIZES, make_run)
