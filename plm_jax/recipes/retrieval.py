"""RetroMAE and Condenser: encoders that are pre-trained for retrieval."""
import dataclasses

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.layers.common import Dtype
from plm_jax.models import bert
from plm_jax.objectives.condenser import Condenser
from plm_jax.objectives.retro_mae import RetroMAE
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

RETROMAE_DESCRIPTION = """\
RetroMAE (Xiao et al. 2022, arXiv:2205.12035): pre-training for retrieval.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=retromae_base --tokenizer=BERT
    python -m plm_jax train retromae_base --data.path=gs://BUCKET/records --warm-start=BERT
    python -m plm_jax train retromae_base --scale=laptop  # 2 CPU cores: minutes
    python -m plm_jax train retromae_base --scale=test    # seconds

The encoder masks 30% of the words. A decoder of one layer reconstructs the text from the [CLS]
vector of the encoder, while each position sees half of the words (enhanced decoding). `export`
writes the encoder with its masked-LM head. Fine-tune it for search with --task=embedding
--objective.vector.pooling=cls.

BERT is bert-base-uncased, from whose weights the authors start, or a run of bert_base. Settings are
those of examples/pretrain/README.md and src/pretrain of staoxiao/RetroMAE@ee375876: AdamW with peak
1e-4, warmup over a tenth of the steps, linear decay, weight decay 0.01, eight GPUs.

- base: eight epochs of Wikipedia and BookCorpus, batch size 256, sequences of up to 512 tokens. The
  number of steps is an assumption: eight times BERT's 3.3 billion words, with 1.3 tokens per word,
  in sequences of 510 tokens.
- msmarco: from base, 20 epochs of the 8,841,823 passages of MS MARCO, batch size 1,024, at most 150
  tokens; here 152, a multiple of 8. Give one passage per document.

Differences: the released code rounds the number of masked words otherwise.
"""


def make_model(dtype: Dtype) -> EncoderConfig:
  """Make BERT-base without its pooler, which nothing trains here."""
  return dataclasses.replace(bert.base(dtype), pooler=False)


RETROMAE_SIZES = {
    # Parameters of transformers' BertForMaskedLM (109,514,298) and of one layer (7,087,872).
    'base': RecipeSize(
        model=make_model, parameters=116_602_170, peak=1e-4, steps=263_000, length=512, batch=256,
        pod='v3:4x4', published_hardware='8 GPUs'),
    'msmarco': RecipeSize(
        model=make_model, parameters=116_602_170, peak=1e-4, steps=172_700, length=152, batch=1024,
        pod='v3:4x4', published_hardware='8 GPUs')}


def make_retromae_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  return make_run(row, RetroMAE())


def make_run(row: RecipeSize, objective: RetroMAE | Condenser) -> PretrainRun:
  """Build a run with the optimizer of transformers' Trainer, which both codes use."""
  optim = AdamW(
      peak=row.peak, warmup=row.steps // 10, schedule='linear', eps=1e-8, weight_decay=0.01,
      bias_correction=True)
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1), objective=objective,
      data=DataConfig(), optim=optim, train=row.make_train_config())


RETROMAE = RecipeFamily('retromae', RETROMAE_DESCRIPTION, RETROMAE_SIZES, make_retromae_run)


CONDENSER_DESCRIPTION = """\
Condenser (Gao and Callan 2021, arXiv:2104.08253): pre-training for retrieval.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=condenser_base --tokenizer=BERT
    python -m plm_jax train condenser_base --data.path=gs://BUCKET/records --warm-start=BERT
    python -m plm_jax train condenser_base --scale=laptop  # 2 CPU cores: minutes
    python -m plm_jax train condenser_base --scale=test    # seconds

The encoder masks 15% of the words. Two more layers predict them from the [CLS] vector of the last
layer and the other tokens of the middle one, so that [CLS] has to carry what the late layers learn.
`export` writes the encoder with its masked-LM head. Fine-tune it for search with --task=embedding
--objective.vector.pooling=cls.

BERT is bert-base-uncased, from whose weights the authors start, or a run of bert_base. Settings are
those of the README of luyug/Condenser@74880ab8: peak 1e-4, warmup over a tenth of the steps, linear
decay, weight decay 0.01, eight epochs of Wikipedia and BookCorpus. Batches of 1,024 sequences of
128 tokens are what its author states in issue 4 of the repository. The number of steps is an
assumption, as for retromae_base.

coCondenser, which adds a contrastive loss between spans of a document, is not there.
"""
CONDENSER_SIZES = {
    # Parameters of transformers' BertForMaskedLM (109,514,298) and of two layers (14,175,744).
    'base': RecipeSize(
        model=make_model, parameters=123_690_042, peak=1e-4, steps=266_000, length=128, batch=1024,
        pod='v3:4x4', published_hardware='4 RTX 2080 Ti, a week')}


def make_condenser_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  return make_run(row, Condenser())


CONDENSER = RecipeFamily('condenser', CONDENSER_DESCRIPTION, CONDENSER_SIZES, make_condenser_run)
