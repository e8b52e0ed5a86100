"""BART (Lewis et al. 2020).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bart_base
    python -m plm_jax train bart_base --data.path=gs://BUCKET/records     # 16 TPU v3 chips
    python -m plm_jax train bart_large --data.path=gs://BUCKET/records    # 1,024 TPU v3 chips
    python -m plm_jax train bart_base --scale=laptop                      # 2 CPU cores: 23 minutes
    python -m plm_jax train bart_base --scale=laptop --train.phases.0.steps=800   # 5 minutes
    python -m plm_jax train bart_base --scale=test                        # seconds

base: a million steps on books and Wikipedia, the paper's comparison of objectives (section 4), of which text infilling
alone was the best. Rows are BERT's, 256 of 512 tokens. large: 500,000 steps of 8,000 rows (section 5.1; 8,192 here,
which devices share) on the 160 GB of text of RoBERTa. Sentences of a document change places, and 30% of its words are
masked in spans, three under one mask on average; the decoder writes the text as it was. As in fairseq's denoising task,
words are counted and rows are whole sentences of one document. The paper stopped dropout for the last tenth of the
steps, which is left out here. It tells neither rate nor warmup: those of large are RoBERTa-large's (Liu et al. 2019,
table 9), those of base fairseq's for 256 rows (1e-4; 6e-4 would be for 8,192) with BERT's warmup. All parameters decay,
as with every Adam of fairseq.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import bart
from plm_jax.objectives.denoising import DenoisingAutoencoder, SentencePermutation, TextInfilling
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

INFILLING = TextInfilling(unit='word')


@dataclasses.dataclass(frozen=True, kw_only=True)
class BARTSize(Size):
  """And its noise."""

  warmup: int
  objective: DenoisingAutoencoder = DenoisingAutoencoder(noises=(SentencePermutation(), INFILLING))


SIZES = {
    # Parameters of the released checkpoints; published as 139M and 406M.
    'base': BARTSize(model=bart.base, parameters=139_420_416, peak=1e-4, warmup=10_000, steps=1_000_000, batch=256,
                     objective=DenoisingAutoencoder(noises=(INFILLING,)), pod='v3:4x4'),
    'large': BARTSize(model=bart.large, parameters=406_291_456, peak=4e-4, warmup=30_000, steps=500_000, batch=8192,
                      pod='v3:32x32')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=row.warmup, schedule='linear', b2=0.98, bias_correction=True, clip=0.0,
      exempt=())
  return scaled(Experiment(
      f'bart_{size}', family='bart', model=row.model('bfloat16'), objective=row.objective,
      data=DataConfig(prepare=TextConfig(kind='byte-bpe')), optim=optim, train=row.train()), scale)
