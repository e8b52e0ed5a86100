"""ModernBERT, as published (Warner et al. 2024, section 2 and appendix A).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=modernbert_base
    python -m plm_jax train modernbert_base --data.path=gs://BUCKET/records    # 64 TPU v5e chips
    python -m plm_jax train modernbert_base_long --warm-start=RUN --data.path=gs://BUCKET/records
    python -m plm_jax train modernbert_base_decay --warm-start=RUN --data.path=gs://BUCKET/records
    python -m plm_jax train modernbert_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train modernbert_base --scale=test                       # seconds

Three runs, one from where the other ended. base and large: 1.7 trillion tokens in rows of 1,024, of which batches grow
from 768 rows to 4,608 over 50 billion tokens (large: from 448 to 4,928 over 10 billion); the rate rises over 3 billion
tokens (large: 2) and stays. long: 250 billion tokens in rows of 8,192, and the base of the rope of layers that see all
becomes 160,000 instead of 10,000. decay: 50 billion tokens more, along 1 - sqrt to 0. The 72 rows of long and decay are
as remembered, as is that large has them at 5e-5. 30% of tokens are masked, 15% in evaluation. StableAdamW, whose decay
is 1e-5 of the parameter at the peak, not times the rate; a tenth of what attention gives is dropped. large went back
once, after 900 billion tokens, and on at 5e-5: give it again with --optim.peak=5e-5 and --warm-start. Rows are whole
sentences, as many as fit, and documents in a row do not see each other, as in the paper; there each has a [CLS] of its
own, here a row has one. The text, of the web, code and science, is not published.
"""
import dataclasses

from plm_jax import checked
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig, ramp
from plm_jax.data.settings import TextConfig
from plm_jax.layers.rope import Rope, TwoRopes
from plm_jax.models import modernbert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import FullSentences
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

BILLION = 1_000_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBERTSize(Size):
  """And how much is learned from, and how."""

  length: int = 1024
  tokens: int
  """of the run"""
  first: int = 0
  """rows in the first batches; 0: batches do not grow"""
  over: int = 0
  """tokens over which they grow"""
  warmup: int = 0
  """tokens over which the rate rises"""
  cooldown: int = 0
  """tokens over which it falls at the end"""
  floor: float = 0.0
  """share of the peak to which it falls"""
  decay: float = 1e-5
  """share of a parameter that is subtracted in a step at the peak"""
  thetas: tuple[float, float] = (10_000.0, 10_000.0)
  """bases of rope in layers that see all, and in those that see a band"""


# Parameters by transformers' ModernBertForMaskedLM; published as 149M and 395M. Table 3 has the settings and the hours.
BASE = ModernBERTSize(
    model=modernbert.base, parameters=149_655_232, peak=8e-4, batch=4608, accumulate=12, tokens=1700 * BILLION,
    first=768, over=50 * BILLION, warmup=3 * BILLION, pod='v5e:8x8', took='8 H100, 194 hours')
LARGE = ModernBERTSize(
    model=modernbert.large, parameters=395_881_664, peak=5e-4, batch=4928, accumulate=7, tokens=1700 * BILLION,
    first=448, over=10 * BILLION, warmup=2 * BILLION, pod='v5e:8x8', took='8 H100, 425 hours')


def later(took: str, tokens: int, cooldown: int = 0) -> ModernBERTSize:
  """Makes a later run of base, of long rows."""
  return dataclasses.replace(
      BASE, peak=3e-4, length=8192, batch=72, tokens=tokens, first=0, over=0, warmup=0, cooldown=cooldown, accumulate=9,
      thetas=(160_000.0, 10_000.0), took=took, pod='v5e:4x8', mesh=MeshConfig(tensor=4))


SIZES = {
    'base': BASE, 'large': LARGE,
    'base_long': later('8 H100, 40 hours', 250 * BILLION),
    'base_decay': later('8 H100, 12 hours', 50 * BILLION, 50 * BILLION)}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  return run(f'modernbert_{size}', SIZES[size], scale)


def run(name: str, row: ModernBERTSize, scale: Scale) -> Experiment:
  """Builds a run of ModernBERT's wiring."""
  whole, band = row.thetas
  model = row.backbone()
  block = checked.replaced(
      model.block, {'attention.out_dropout': 0.1, 'attention.position': TwoRopes(Rope(whole), Rope(band))})
  optim = OptimConfig(
      kind='stable_adamw', peak=row.peak, clock='tokens', warmup=row.warmup, cooldown=row.cooldown, floor=row.floor,
      schedule='wsd', b2=0.98, eps=1e-6, bias_correction=True, weight_decay=row.decay / row.peak, clip=0.0)
  if row.first:
    phases = ramp(row.tokens, row.length, row.batch, row.first, row.over)
  else:
    phases = Phase(row.tokens // (row.length * row.batch), row.length, row.batch),
  return scaled(Experiment(
      name, family='modernbert', model=dataclasses.replace(model, block=block), optim=optim,
      objective=MaskedLM(pair=FullSentences(together=False), rate=0.3, held_out_rate=0.15),
      data=DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False, newlines=True), assembly='sentences'),
      train=TrainConfig(phases=phases, accumulate=row.accumulate)), scale)
