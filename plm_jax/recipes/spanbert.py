"""SpanBERT (Joshi et al. 2020, section 4.2; the base model is of the released code).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=spanbert_base
    python -m plm_jax train spanbert_base --data.path=gs://BUCKET/records    # 16 TPU v3 chips (v3-32)
    python -m plm_jax train spanbert_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train spanbert_base --scale=test                       # seconds

Spans of words are masked and predicted, from their place and from their boundaries: 2,400,000 updates of 131,072 tokens
of text, which are about 390 rows of one document each, of 512 tokens at most (footnote 8): 384 here, which devices
share. The paper's large model took 15 days on 32 V100 GPUs. BERT's text: BooksCorpus and English Wikipedia, cased. It
starts fresh; --warm-start=FOLDER starts from a BERT, whose heads are taken over but for the new one.

Where the paper and the released command differ it is the paper's here: a decay of 0.1 (0.01 in pretraining/README.md)
and, as in the released code without that command, 20 tokens of a span predicted from its boundary (15). Random tokens
are other tokens of the text, and all parameters decay, as in the released code.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import spanbert
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by the released PairBERT: BertForPreTraining without NSP, and the head of boundaries.
    'base': Size(model=spanbert.base, parameters=110_301_480, peak=1e-4, steps=2_400_000, batch=384, pod='v3:4x4'),
    'large': Size(model=spanbert.large, parameters=336_999_976, peak=1e-4, steps=2_400_000, batch=384, pod='v3:8x8',
                  took='32 V100, 15 days')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  # Section 4.2: a decoupled decay of 0.1, an epsilon of 1e-8, BERT's warmup and peak.
  optim = OptimConfig(
      peak=row.peak, warmup=10_000, schedule='linear', eps=1e-8, weight_decay=0.1, exempt=(), bias_correction=True)
  return scaled(Experiment(
      f'spanbert_{size}', model=row.model('bfloat16'), objective=SpanBoundary(random='text'),
      data=DataConfig(prepare=TextConfig(lowercase=False)), optim=optim, train=row.train()), scale)
