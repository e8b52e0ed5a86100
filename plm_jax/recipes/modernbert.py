"""ModernBERT, as published (Warner et al. 2024, section 2 and appendix A).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=modernbert_base
    python -m plm_jax train modernbert_base --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train modernbert_base_long --warm-start=RUN --data.path=gs://BUCKET/records
    python -m plm_jax train modernbert_base_decay --warm-start=RUN --data.path=gs://BUCKET/records
    python -m plm_jax train modernbert_large --warm-start=BASE --data.path=gs://BUCKET/records
    python -m plm_jax train modernbert_base --scale=laptop                  # 2 CPU cores: 3 minutes
    python -m plm_jax train modernbert_base --scale=test                    # seconds

All values are from the six files in yamls/modernbert of AnswerDotAI/ModernBERT, branch
pretraining_documentation. There are three runs, and each starts from the one before:

- base, large: 1,719 billion tokens, sequence length 1,024. The batch size grows from 768 to 4,608
  over 50 billion tokens (large: from 448 to 4,928 over 10 billion). The learning rate warms up over
  3 billion tokens (large: 2) and then stays constant.
- base_long, large_long: 250 billion tokens, sequence length 8,192, batch size 576 (large: 616),
  learning rate 3e-4 (large: 5e-5). The base of the rotary positions in global layers becomes
  160,000 instead of 10,000.
- base_decay, large_decay: 50 billion tokens more, batch size 576 (large: 624). The learning rate
  falls along 1 - sqrt to a thousandth.

BASE is a run of modernbert_base: large starts from its weights, tiled from the middle
(--tuning.expand=tile, which the recipe sets). Without --warm-start large trains from scratch. After
900 billion tokens large was set back once and continued at 5e-5 with a tenth of the weight decay:
warm-start it from itself with --optim.peak=5e-5.

30% of the tokens are masked, 15% in evaluation. The optimizer is StableAdamW. Its weight decay at
the peak is 1e-5 of the parameter (large_long, large_decay: 1e-6), not multiplied by the learning
rate. Dropout is 0.1 on the attention output. A sequence holds as many whole documents as fit, which
do not attend to each other, as in the paper; a longer document fills several.

Differences: there each document of a sequence has its own [CLS], here the sequence has one. The
optimizer state is reset in each run; there its moments are kept. The text, from the web, code and
science, is not published.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
import dataclasses
from typing import Any, Literal

from plm_jax import validation
from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.layers.rope import Rope, TwoRopes
from plm_jax.models import modernbert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.optim.optimizers import StableAdamW
from plm_jax.optim.tuning import TuningConfig
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, batch_size_ramp
from plm_jax.sharding import MeshConfig

BILLION = 1_000_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBERTSize(RecipeSize):
  """A size or part of training, with its schedules in tokens."""

  length: int = 1024
  tokens: int
  """tokens of the run"""
  first_batch: int = 0
  """initial batch size; 0: the batch size is constant"""
  ramp_tokens: int = 0
  """tokens over which the batch size grows"""
  warmup: int = 0
  """tokens of learning rate warmup"""
  cooldown: int = 0
  """tokens at the end over which the learning rate falls"""
  floor: float = 0.0
  """final learning rate, as a share of the peak"""
  schedule: Literal['wsd', 'trapezoid'] = 'wsd'
  """shape of the final decay: 1 - sqrt, or linear"""
  decay: float = 1e-5
  """weight decay of one step at the peak learning rate, as a share of the parameter"""
  rope_thetas: tuple[float, float] = (10_000.0, 10_000.0)
  """bases of the rotary positions in global and local layers"""
  mask_rate: float = 0.3
  """share of the tokens that are masked"""
  b2: float = 0.98
  """decay rate of the mean of squared gradients"""
  eps: float = 1e-6
  """epsilon of the optimizer"""
  temperature: float = 1.0
  """language sampling: the weight of a corpus is its size ^ (1 / temperature)"""
  phases: tuple[Phase, ...] = ()
  """phases of a run in which more than the batch size changes; empty: from the fields above"""


# Parameters of transformers' ModernBertForMaskedLM; published as 149M and 395M. Hours: table 3.
BASE = ModernBERTSize(
    model=modernbert.base, parameters=149_655_232, peak=8e-4, batch=4608, accumulate=12,
    tokens=1719 * BILLION, first_batch=768, ramp_tokens=50 * BILLION, warmup=3 * BILLION,
    pod='v5e:8x8', published_hardware='8 H100, 194 hours')
LARGE = ModernBERTSize(
    model=modernbert.large, parameters=395_881_664, peak=5e-4, batch=4928, accumulate=7,
    tokens=1719 * BILLION, first_batch=448, ramp_tokens=10 * BILLION, warmup=2 * BILLION,
    pod='v5e:8x8', published_hardware='8 H100, 425 hours')


def make_later_size(
    first: ModernBERTSize, peak: float, batch: int, decay: float, **own: Any) -> ModernBERTSize:
  """Make a later part of training, at sequence length 8,192. own: other fields that differ."""
  return dataclasses.replace(
      first, peak=peak, length=8192, batch=batch, decay=decay, first_batch=0, ramp_tokens=0,
      warmup=0, rope_thetas=(160_000.0, 10_000.0), **own)


LONG: dict[str, Any] = dict(tokens=250 * BILLION)
DECAY: dict[str, Any] = dict(tokens=50 * BILLION, cooldown=50 * BILLION, floor=0.001)
POD: dict[str, Any] = dict(pod='v5e:16x16', accumulate=9, mesh=MeshConfig(tensor=4))
SIZES = {
    'base': BASE,
    'large': LARGE,
    'base_long': make_later_size(
        BASE, 3e-4, 576, 1e-5, published_hardware='8 H100, 40 hours', **LONG, **POD),
    'base_decay': make_later_size(
        BASE, 3e-4, 576, 1e-5, published_hardware='8 H100, 12 hours', **DECAY, **POD),
    # The batch sizes 616 and 624 are multiples of only 8 and 16 groups of four chips.
    'large_long': make_later_size(
        LARGE, 5e-5, 616, 1e-6, published_hardware='', pod='v5e:4x8', accumulate=77,
        mesh=MeshConfig(tensor=4), **LONG),
    'large_decay': make_later_size(
        LARGE, 5e-5, 624, 1e-6, published_hardware='', pod='v5e:8x8', accumulate=39,
        mesh=MeshConfig(tensor=4), **DECAY)}


def make_run(row: ModernBERTSize) -> PretrainRun:
  """Build the published run of a size."""
  run = make_modernbert_run(row)
  if row.name == 'modernbert_large':
    run = dataclasses.replace(run, tuning=TuningConfig(expand='tile'))
  return run


def make_modernbert_run(row: ModernBERTSize, packed: bool = True) -> PretrainRun:
  """Build a run of ModernBERT's architecture.

  packed: a sequence holds several documents; otherwise a part of one document.
  """
  whole, band = row.rope_thetas
  model = validation.with_paths(row.make_model(dropout=0.0, attention_dropout=0.0), {
      'block.attention.out_dropout': 0.1,
      'block.attention.position': TwoRopes(Rope(whole), Rope(band))})
  optim = StableAdamW(
      peak=row.peak, clock='tokens', warmup=row.warmup, cooldown=row.cooldown,
      floor=row.floor, schedule=row.schedule, b2=row.b2, eps=row.eps, bias_correction=True,
      weight_decay=row.decay / row.peak, clip=0.0)
  if row.phases:
    phases = row.phases
  elif row.first_batch:
    phases = batch_size_ramp(row.tokens, row.length, row.batch, row.first_batch, row.ramp_tokens)
  else:
    steps = -(-row.tokens // (row.length * row.batch))  # rounded up
    phases = Phase(steps, row.length, row.batch),
  pair, assembly = Single(), 'document'
  if packed:
    pair, assembly = FullSentences(together=False), 'sentences'
  text = TextConfig(kind='byte-bpe', lowercase=False, sentences='none')
  return PretrainRun(
      row.name, family='modernbert', model=model, optim=optim,
      objective=MaskedLM(pair=pair, mask_rate=row.mask_rate, held_out_mask_rate=0.15),
      data=DataConfig(prepare=text, assembly=assembly, temperature=row.temperature),
      train=TrainConfig(phases=phases, accumulate=row.accumulate))


MODERNBERT = RecipeFamily('modernbert', __doc__, SIZES, make_run)
