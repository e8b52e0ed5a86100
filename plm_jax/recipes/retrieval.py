"""RetroMAE, DupMAE, Condenser, coCondenser, TSDAE: encoders that are pre-trained for retrieval."""
import dataclasses
import functools

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.errors import ConfigError
from plm_jax.layers.common import Dtype
from plm_jax.loading.loaded_model import read_model_config
from plm_jax.models import bert
from plm_jax.objectives.condenser import CoCondenser, Condenser
from plm_jax.objectives.retro_mae import DupMAE, RetroMAE
from plm_jax.objectives.tsdae import SentenceAutoencoder
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, take_model

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

BERT is bert-base-uncased, from whose weights the authors start, or a run of bert_base. With another
encoder in its place, such as RoBERTa or ModernBERT, the run has the architecture of that encoder,
which needs a [CLS] vector and learned or rotary positions. Settings are those of
examples/pretrain/README.md and src/pretrain of staoxiao/RetroMAE@ee375876: AdamW with peak 1e-4,
warmup over a tenth of the steps, linear decay, weight decay 0.01, eight GPUs.

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


def make_run(
    row: RecipeSize, objective: RetroMAE | Condenser | SentenceAutoencoder
) -> PretrainRun:
  """Build a run with the optimizer of transformers' Trainer, which all four codes use."""
  optim = AdamW(
      peak=row.peak, warmup=row.steps // 10, schedule='linear', eps=1e-8, weight_decay=0.01,
      bias_correction=True)
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1), objective=objective,
      data=DataConfig(), optim=optim, train=row.make_train_config())


def start_from_encoder(run: PretrainRun, folder: str) -> PretrainRun:
  """Return a run with the encoder in a folder, without its pooler.

  Raises:
    ConfigError: the folder has no encoder.
  """
  family, model = read_model_config(folder)
  if not isinstance(model, EncoderConfig):
    raise ConfigError(f'{folder} is a {family}: {run.name} starts from an encoder, such as a BERT')
  return take_model(run, family, model, {'pooler': False})


RETROMAE = RecipeFamily(
    'retromae', RETROMAE_DESCRIPTION, RETROMAE_SIZES,
    functools.partial(make_run, objective=RetroMAE()), start_from_encoder)


DUPMAE_DESCRIPTION = """\
DupMAE, RetroMAE v2 (Xiao et al. 2022, arXiv:2211.08769): pre-training for retrieval.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=dupmae_base --tokenizer=BERT
    python -m plm_jax train dupmae_base --data.path=gs://BUCKET/records --warm-start=BERT
    python -m plm_jax train dupmae_base --scale=laptop  # 2 CPU cores: minutes
    python -m plm_jax train dupmae_base --scale=test    # seconds

RetroMAE, whose other tokens predict the words of the text as a set. So their vectors are trained
for retrieval, too. The paper joins them to the [CLS] vector in fine-tuning, which is not there.

BERT is bert-base-uncased, or a run of bert_base. Settings are those of retromae_base, which
examples/pretrain/README.md (line 15) of staoxiao/RetroMAE@ee375876 gives for both; the loss of the
bag of words has the factor 0.1 (src/pretrain/arguments.py, line 43).
"""
DUPMAE_SIZES = {'base': RETROMAE_SIZES['base']}


DUPMAE = RecipeFamily(
    'dupmae', DUPMAE_DESCRIPTION, DUPMAE_SIZES,
    functools.partial(make_run, objective=DupMAE()), start_from_encoder)


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
assumption, as for retromae_base. cocondenser_base continues from the result.
"""
CONDENSER_SIZES = {
    # Parameters of transformers' BertForMaskedLM (109,514,298) and of two layers (14,175,744).
    'base': RecipeSize(
        model=make_model, parameters=123_690_042, peak=1e-4, steps=266_000, length=128, batch=1024,
        pod='v3:4x4', published_hardware='4 RTX 2080 Ti, a week')}


CONDENSER = RecipeFamily(
    'condenser', CONDENSER_DESCRIPTION, CONDENSER_SIZES,
    functools.partial(make_run, objective=Condenser()), start_from_encoder)


COCONDENSER_DESCRIPTION = """\
coCondenser (Gao and Callan 2022, arXiv:2108.05540): pre-training for retrieval.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=cocondenser_base --tokenizer=BERT
    python -m plm_jax train cocondenser_base --data.path=gs://BUCKET/records \\
        --warm-start=runs/condenser_base
    python -m plm_jax train cocondenser_base --scale=laptop  # 2 CPU cores: minutes
    python -m plm_jax train cocondenser_base --scale=test    # seconds

Condenser goes on, on the text to be searched, with a contrastive loss: the [CLS] vectors of two
spans of a document are closer than those of other documents. A batch of N documents has 2 N spans,
and all spans of the batch are candidates, on all devices. A run of condenser_base gives the encoder
and the layers of the head; with another start, such as BERT, these layers are new.

Settings are those of README.md (lines 101 to 126) of luyug/Condenser@74880ab8: peak 1e-4, warmup
over a tenth of the steps, linear decay, weight decay 0.01, batches of 2,048 documents, eight
epochs. Spans of 128 tokens, chosen at random without overlap, are what its author states in issues
4 and 5 of the repository. The number of steps is an assumption: eight times the 3,213,835 documents
of MS MARCO.

Differences: the two spans come from 504 tokens of running text, one from each half, and not from a
whole document (--objective.reach). There is no option for gradient caching (--cache_chunk_size):
--train.accumulate computes the same gradient with less memory.
"""
COCONDENSER_SIZES = {
    'base': dataclasses.replace(
        CONDENSER_SIZES['base'], steps=12_600, batch=2048,
        published_hardware='4 RTX 2080 Ti, 2 to 3 days')}


COCONDENSER = RecipeFamily(
    'cocondenser', COCONDENSER_DESCRIPTION, COCONDENSER_SIZES,
    functools.partial(make_run, objective=CoCondenser()), start_from_encoder)


TSDAE_DESCRIPTION = """\
TSDAE (Wang et al. 2021, arXiv:2104.06979): sentence vectors from text without labels.

    python -m plm_jax prepare SENTENCES gs://BUCKET/records --for=tsdae_base --tokenizer=BERT \\
        --documents=lines
    python -m plm_jax train tsdae_base --data.path=gs://BUCKET/records --warm-start=BERT
    python -m plm_jax train tsdae_base --scale=laptop  # 2 CPU cores: minutes
    python -m plm_jax train tsdae_base --scale=test    # seconds

The encoder reads a sentence without 60% of its words. A decoder, which shares the encoder's
parameters, reconstructs the sentence from the [CLS] vector. `export` writes the encoder alone.
Fine-tune it with --task=embedding --objective.vector.pooling=cls.

BERT is bert-base-uncased, from whose weights the authors start, or a run of bert_base. SENTENCES
has one sentence per line. Settings are those of UKPLab/sentence-transformers@85ec6455, in
examples/sentence_transformer/unsupervised_learning/TSDAE: README.md (lines 38 to 53) has batches of
8, a constant learning rate of 3e-5, no weight decay and one epoch; train_stsb_tsdae.py (lines 22 to
36, and 82) has sequences of up to 75 tokens, here 80, a multiple of 8, and 990,000 sentences of
Wikipedia.

Differences: words are those of the tokenizer, not NLTK's.
"""
TSDAE_SIZES = {
    # Parameters of transformers' BertLMHeadModel with cross-attention.
    'base': RecipeSize(
        model=make_model, parameters=137_881_146, peak=3e-5, steps=123_750, length=80, batch=8,
        pod='v3:2x2')}


def make_tsdae_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=0, schedule='constant', eps=1e-8, weight_decay=0.0,
      bias_correction=True)
  return dataclasses.replace(make_run(row, SentenceAutoencoder()), optim=optim)


TSDAE = RecipeFamily('tsdae', TSDAE_DESCRIPTION, TSDAE_SIZES, make_tsdae_run, start_from_encoder)
