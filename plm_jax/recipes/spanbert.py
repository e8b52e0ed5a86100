"""SpanBERT (Joshi et al. 2020, section 4.2; the base model is that of the released code).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=spanbert_base
    python -m plm_jax train spanbert_base --data.path=gs://BUCKET/records  # 16 TPU v3 chips (v3-32)
    python -m plm_jax train spanbert_base --scale=laptop                   # 2 CPU cores: 3 minutes
    python -m plm_jax train spanbert_base --scale=test                     # seconds

Masked language modeling on spans of words, with the span boundary objective (SBO): each masked
token is predicted from its position, and from the boundaries of its span. 2,400,000 updates of
131,072 tokens of text. This is about 390 sequences per update, each of one document and at most 512
tokens long (footnote 8); here 384, which devices share evenly. The paper's large model took 15 days
on 32 V100 GPUs. The text is BERT's: BooksCorpus and English Wikipedia, cased. Training starts from
scratch; --warm-start=FOLDER starts from a BERT, with all of its heads and a new SBO head.

Where the paper and the released command differ, the recipe follows the paper: a weight decay of 0.1
(0.01 in pretraining/README.md), and 20 tokens of a span predicted from its boundary (15), which is
also the default of the released code. As in the released code, random tokens are sampled from the
text, and weight decay applies to all parameters.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import spanbert
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

SIZES = {
    # Parameters of the released PairBERT: BertForPreTraining without NSP, and the SBO head.
    'base': RecipeSize(
        model=spanbert.base, parameters=110_301_480, peak=1e-4, steps=2_400_000, length=512,
        batch=384, pod='v3:4x4'),
    'large': RecipeSize(
        model=spanbert.large, parameters=336_999_976, peak=1e-4, steps=2_400_000, length=512,
        batch=384, pod='v3:8x8', published_hardware='32 V100, 15 days')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  # Section 4.2: decoupled weight decay of 0.1, epsilon 1e-8, BERT's warmup and peak learning rate.
  optim = AdamW(
      peak=row.peak, warmup=10_000, schedule='linear', eps=1e-8, weight_decay=0.1, exempt=(),
      bias_correction=True)
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=SpanBoundary(random='text'), data=DataConfig(prepare=TextConfig(lowercase=False)),
      optim=optim, train=row.make_train_config())


SPANBERT = RecipeFamily('spanbert', __doc__, SIZES, make_run)
