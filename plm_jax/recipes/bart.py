"""BART (Lewis et al. 2020).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bart_base
    python -m plm_jax train bart_base --data.path=gs://BUCKET/records      # 16 TPU v3 chips
    python -m plm_jax train bart_large --data.path=gs://BUCKET/records     # 1,024 TPU v3 chips
    python -m plm_jax train bart_base --scale=laptop                       # 2 CPU cores: 23 minutes
    python -m plm_jax train bart_base --scale=laptop --train.phases.0.steps=800  # 5 minutes
    python -m plm_jax train bart_base --scale=test                         # seconds

A denoising autoencoder: the encoder reads corrupted text, and the decoder writes the original.

- base: a million steps on books and Wikipedia with BERT's batch size of 256 at sequence length 512.
  This is the paper's comparison of objectives (section 4), and text infilling alone was the best.
- large: 500,000 steps with batch size 8,000 (section 5.1; 8,192 here, which devices share evenly)
  on the 160 GB of text of RoBERTa. Sentences of a document are permuted, and 30% of its words are
  masked in spans of three on average, with one mask per span.

As in fairseq's denoising task, masking counts words, and a sequence holds whole sentences of one
document. The paper stopped dropout for the last tenth of the steps, which is left out here. It
gives neither learning rate nor warmup. Those of large are RoBERTa-large's (Liu et al. 2019, table
9). Those of base are fairseq's for batch size 256 (1e-4; 6e-4 would be for 8,192) with BERT's
warmup. Weight decay applies to all parameters, as in every Adam of fairseq.

RoBERTa's and BART's text has no line breaks: as in fairseq, each line is encoded alone.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import bart
from plm_jax.objectives.denoising import DenoisingAutoencoder, SentencePermutation, TextInfilling
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

INFILLING = TextInfilling(unit='word')


@dataclasses.dataclass(frozen=True, kw_only=True)
class BARTSize(RecipeSize):
  """A size with its warmup steps and noise."""

  warmup: int
  objective: DenoisingAutoencoder = DenoisingAutoencoder(noises=(SentencePermutation(), INFILLING))


SIZES = {
    # Parameters of the released checkpoints; published as 139M and 406M.
    'base': BARTSize(
        model=bart.base, parameters=139_420_416, peak=1e-4, warmup=10_000, steps=1_000_000,
        length=512, batch=256, objective=DenoisingAutoencoder(noises=(INFILLING,)), pod='v3:4x4'),
    'large': BARTSize(
        model=bart.large, parameters=406_291_456, peak=4e-4, warmup=30_000, steps=500_000,
        length=512, batch=8192, pod='v3:32x32')}


def make_run(row: BARTSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=row.warmup, schedule='linear', b2=0.98, bias_correction=True,
      weight_decay=0.01, clip=0.0, exempt=())
  return PretrainRun(
      row.name, family='bart', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=row.objective, data=DataConfig(prepare=TextConfig(kind='byte-bpe')), optim=optim,
      train=row.make_train_config())


BART = RecipeFamily('bart', __doc__, SIZES, make_run)
