"""MosaicBERT and the encoders that follow it: ModernBERT, Ettin with its decoders, mmBERT."""
from collections.abc import Callable
import dataclasses
import functools
from typing import Any, Literal

from plm_jax import validation
from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.layers.rope import Rope, TwoRopes
from plm_jax.models import modernbert, mosaicbert
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences, Single
from plm_jax.optim.optimizers import AdamW, StableAdamW
from plm_jax.optim.tuning import TuningConfig
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, batch_size_ramp
from plm_jax.sharding import MeshConfig

MOSAICBERT_DESCRIPTION = """\
MosaicBERT, as published (Portes et al. 2023).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mosaicbert_base
    python -m plm_jax train mosaicbert_base --data.path=gs://BUCKET/records  # 16 TPU v5e chips
    python -m plm_jax train mosaicbert_base --scale=laptop                  # 2 CPU cores: 3 minutes
    python -m plm_jax train mosaicbert_base --scale=test                    # seconds

Values follow the released yamls/main/mosaic-bert-base-uncased.yaml: 70,000 updates with batch size
4,096 at sequence length 128 on C4. 30% of the tokens are masked, 15% in evaluation. The optimizer
is AdamW. Its weight decay at the peak is 1e-5 of the parameter, not multiplied by the learning
rate, and applies to all parameters. Weights are initialized from a normal distribution with
standard deviation 0.02, not truncated. The learning rate warms up over 6% of the run and falls
linearly to 2% of the peak. Gradients are not clipped.

The released sequences are the first 128 tokens of each document; here all windows of a document are
used. The paper reports a GLUE score of 79.6 after 1.13 hours. Later runs may use longer sequences,
because the model has relative positions (ALiBi).
"""
MOSAICBERT_DECAY = 1e-5
"""weight decay of one step at the peak learning rate, as a share of the parameter"""
MOSAICBERT_SIZES = {
    # Parameters of the released BertForMaskedLM; published as 137M.
    'base': RecipeSize(
        model=mosaicbert.base, parameters=137_400_384, peak=5e-4, steps=70_000, length=128,
        batch=4096, accumulate=4, pod='v5e:4x4', published_hardware='8 A100-80, 1.13 hours')}


def make_mosaicbert_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=row.steps * 6 // 100, floor=0.02, schedule='linear', b2=0.98, eps=1e-6,
      bias_correction=True, weight_decay=MOSAICBERT_DECAY / row.peak, exempt=(), clip=0.0)
  return PretrainRun(
      row.name, family='mosaicbert',
      model=row.make_model(dropout=0.1, attention_dropout=0.0, mlp_dropout=0.1), optim=optim,
      objective=MaskedLM(pair=Single(), mask_rate=0.3, held_out_mask_rate=0.15),
      train=row.make_train_config())


MOSAICBERT = RecipeFamily(
    'mosaicbert', MOSAICBERT_DESCRIPTION, MOSAICBERT_SIZES, make_mosaicbert_run)


MODERNBERT_DESCRIPTION = """\
ModernBERT, as published (Warner et al. 2024, section 2 and appendix A).

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
MODERNBERT_SIZES = {
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


def make_modernbert_run(row: ModernBERTSize) -> PretrainRun:
  """Build the published run of a size."""
  tuning = TuningConfig(expand='tile') if row.name == 'modernbert_large' else TuningConfig()
  return dataclasses.replace(make_encoder_run(row), tuning=tuning)


def make_encoder_run(row: ModernBERTSize, packed: bool = True) -> PretrainRun:
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
  pair = FullSentences(together=False) if packed else Single()
  text = TextConfig(kind='byte-bpe', lowercase=False, sentences='none')
  return PretrainRun(
      row.name, family='modernbert', model=model, optim=optim,
      objective=MaskedLM(pair=pair, mask_rate=row.mask_rate, held_out_mask_rate=0.15),
      data=DataConfig(prepare=text, assembly='sentences' if packed else 'document',
                      temperature=row.temperature),
      train=TrainConfig(phases=phases, accumulate=row.accumulate))


MODERNBERT = RecipeFamily(
    'modernbert', MODERNBERT_DESCRIPTION, MODERNBERT_SIZES, make_modernbert_run)


ETTIN_DESCRIPTION = """\
Ettin's encoders, as published (Weller et al. 2025).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ettin_150m
    python -m plm_jax train ettin_150m --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train ettin_17m --scale=laptop                    # 2 CPU cores: 3 minutes
    python -m plm_jax train ettin_17m --scale=test                      # seconds

ModernBERT's architecture from 17 million to a billion parameters. All values are from
pretraining/configs/standard/SIZE/encoder_SIZE.yaml of JHU-CLSP/ettin-encoder-vs-decoder. This
recipe is the first of three parts: 1.7 trillion tokens, sequence length 1,024, batch size 4,608.
The learning rate warms up and stays constant; 30% of the tokens are masked. The files also name a
batch size warmup, which only the sequence packer reads (src/text_data.py of
AnswerDotAI/ModernBERT), and they turn packing off. Therefore the batch size is constant, and a
sequence is a part of one document.

The second part (de_decay) is 250 billion tokens (1b: 83.3). The learning rate falls along 1 - sqrt
to half of the peak, and 160,000 is the base of the rotary positions in all layers:

    python -m plm_jax train ettin_150m --warm-start=RUN --output=RUN2 \\
        --train.phases.0.steps=6782 --train.phases.0.length=7999 --train.phases.0.batch=4608 \\
        --optim.warmup=0 --optim.cooldown=250000000000 --optim.floor=0.5 \\
        --model.block.attention.position.whole.theta=160000 \\
        --model.block.attention.position.band.theta=160000

For 17m, local layers keep 10,000 there: leave out the last option. The third part (prolong_decay)
is 50 billion tokens (1b: 16.7). The learning rate falls from half of the peak to 4% of that, with
15% of the tokens masked and 160,000 in all layers:

    python -m plm_jax train ettin_150m --warm-start=RUN2 --output=RUN3 \\
        --train.phases.0.steps=1356 --train.phases.0.length=7999 --train.phases.0.batch=4608 \\
        --optim.warmup=0 --optim.cooldown=50000000000 --optim.peak=4e-4 \\
        --optim.weight-decay=0.025 --optim.floor=0.04 --objective.mask-rate=0.15 \\
        --model.block.attention.position.whole.theta=160000 \\
        --model.block.attention.position.band.theta=160000

A decoder becomes an encoder (cross-objective training) by 50 billion more tokens of masked LM (1b:
16.7 billion, with a warmup of 1 billion and a decay of 3.3 billion). DECODER is a run of
`ettin_decoder_150m` after its last part. The learning rate warms up over 3 billion tokens to half
of the peak, and falls linearly to 2% of that over the last 10 billion; 15% of the tokens are masked
(pretraining/configs/cross-train/base/decoder_base.yaml, lines 4 to 6, 55, 56 and 87 to 107). The
language model head of the decoder is kept:

    python -m plm_jax train ettin_150m --warm-start=DECODER --output=ENCODER \\
        --train.phases.0.steps=1356 --train.phases.0.length=7999 --train.phases.0.batch=4608 \\
        --optim.schedule=trapezoid --optim.warmup=3000000000 --optim.cooldown=10000000000 \\
        --optim.peak=4e-4 --optim.weight-decay=0.025 --optim.floor=0.02 \\
        --objective.mask-rate=0.15 \\
        --model.block.attention.position.whole.theta=160000 \\
        --model.block.attention.position.band.theta=160000

Difference: tokens are counted as full sequences. The released runs do not count padding and take
more updates. The text is open, in the order in which it was read (jhu-clsp/ettin-data-order).

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""


def make_ettin_size(
    model: Callable[..., Any], parameters: int, peak: float, decay: float, warmup: int,
) -> ModernBERTSize:
  """Make a size."""
  return ModernBERTSize(
      model=model, parameters=parameters, peak=peak, length=1024, batch=4608,
      tokens=1700 * BILLION, accumulate=12, decay=decay, warmup=warmup, pod='v5e:8x8')


# Parameters of transformers' ModernBertForMaskedLM; published as 17M, 32M, 68M, 150M, 400M and 1B.
ETTIN_SIZES = {
    '17m': make_ettin_size(modernbert.ettin_17m, 16_913_600, 3e-3, decay=3e-4, warmup=4 * BILLION),
    '32m': make_ettin_size(modernbert.ettin_32m, 32_081_344, 3e-3, decay=3e-4, warmup=4 * BILLION),
    '68m': make_ettin_size(modernbert.ettin_68m, 68_457_664, 3e-3, decay=3e-4, warmup=3 * BILLION),
    '150m': make_ettin_size(modernbert.base, 149_655_232, 8e-4, decay=1e-5, warmup=3 * BILLION),
    '400m': make_ettin_size(modernbert.large, 395_881_664, 5e-4, decay=1e-5, warmup=2 * BILLION),
    '1b': make_ettin_size(modernbert.ettin_1b, 1_031_314_112, 5e-4, decay=5e-5, warmup=2 * BILLION)}


ETTIN = RecipeFamily(
    'ettin', ETTIN_DESCRIPTION, ETTIN_SIZES, functools.partial(make_encoder_run, packed=False))


ETTIN_DECODER_DESCRIPTION = """\
Ettin's decoders, as published (Weller et al. 2025).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ettin_decoder_150m
    python -m plm_jax train ettin_decoder_150m --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train ettin_decoder_17m --scale=laptop            # 2 CPU cores: 40 minutes
    python -m plm_jax train ettin_decoder_17m --scale=test              # seconds

Ettin's decoders have the layers, text and settings of its encoders (`ettin`), but causal attention
and next-token prediction. pretraining/configs/standard/SIZE/decoder_SIZE.yaml of
JHU-CLSP/ettin-encoder-vs-decoder has no other differences from encoder_SIZE.yaml. The commands of
the second and the third part are those in `ettin`, without the mask rate.

An encoder becomes a decoder (cross-objective training) by 50 billion more tokens, with the settings
of the other direction (pretraining/configs/cross-train/base/encoder_base.yaml, lines 4 to 6, 55,
56, 65 and 92 to 112). ENCODER is a run of `ettin_150m` after its last part:

    python -m plm_jax train ettin_decoder_150m --warm-start=ENCODER --output=DECODER \\
        --train.phases.0.steps=1356 --train.phases.0.length=7999 --train.phases.0.batch=4608 \\
        --optim.schedule=trapezoid --optim.warmup=3000000000 --optim.cooldown=10000000000 \\
        --optim.peak=4e-4 --optim.weight-decay=0.025 --optim.floor=0.02 \\
        --model.block.attention.position.whole.theta=160000 \\
        --model.block.attention.position.band.theta=160000

Differences: as in `ettin`; also, sequences are packed documents that do not attend to each other,
while the released runs pad sequences. The other sizes have the layers of the encoders
(plm_jax/models/modernbert.py), and no recipe.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""


def make_ettin_decoder_run(row: ModernBERTSize) -> PretrainRun:
  """Build the published run of a size: the encoder's with another model and objective."""
  run = make_encoder_run(row)
  return dataclasses.replace(
      run, family='modernbert-decoder', objective=CausalLM(),
      data=dataclasses.replace(run.data, assembly='packed'))


ETTIN_DECODER_SIZES = {
    '17m': dataclasses.replace(ETTIN_SIZES['17m'], model=modernbert.ettin_decoder_17m),
    '150m': dataclasses.replace(ETTIN_SIZES['150m'], model=modernbert.ettin_decoder_150m)}


ETTIN_DECODER = RecipeFamily(
    'ettin_decoder', ETTIN_DECODER_DESCRIPTION, ETTIN_DECODER_SIZES, make_ettin_decoder_run)


MMBERT_DESCRIPTION = """\
mmBERT, as published (Marone et al. 2025, arXiv:2509.06888).

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --for=mmbert_base
    python -m plm_jax prepare GERMAN gs://BUCKET/de --for=mmbert_base \\
        --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax train mmbert_base --data.path LANGUAGE_1 ... LANGUAGE_60
    python -m plm_jax train mmbert_base_long --warm-start=RUN --train.phases.0.corpora=110 \\
        --data.path LANGUAGE_1 ... LANGUAGE_110 OTHERS
    python -m plm_jax train mmbert_small --scale=laptop                 # 2 CPU cores: 3 minutes
    python -m plm_jax train mmbert_small --scale=test                   # seconds

ModernBERT's architecture with Gemma 2's vocabulary. Values are from configs/ of JHU-CLSP/mmBERT;
tokens, languages and temperatures are from the paper. There are three stages in two runs, because
a run has one base of the rotary positions. The second run starts from the first:

- base, small: 2.3 trillion tokens of 60 languages, sequence length 1,024, 30% masked. The batch
  size grows over 60 billion tokens (small: 100), the learning rate warms up over 3 billion (small:
  4) and then stays constant. Languages are sampled by their size to the power of 0.7.
- base_long, small_long: sequence length 8,192, rope base 160,000 in all layers. The first phase has
  600 billion tokens of 110 languages, power 0.5, 15% masked. The second phase has 100 billion
  tokens of 1,833 languages, power 0.3, 5% masked, and the learning rate falls along 1 - sqrt to
  0.02 of the peak (small: along a line to 0.04). List the 110 languages of the first phase first. A
  data mixture has at most 1,024 corpora: join the smallest languages with commas into one corpus.

The optimizer is StableAdamW with betas 0.9 and 0.95 and epsilon 1e-8. Its weight decay is
8e-5 per update at the peak learning rate (small_long: 4e-5); --optim.weight-decay is this value
divided by the peak. Dropout is 0.1 on the attention output. Documents in the same sequence do not
attend to each other.

Assumptions: the batch begins with 48 sequences on each of eight GPUs (the file has
batch_size_warmup_min_size 48), and grows to 4,608. The long runs also use 4,608 sequences. The file
mmBERT-base.yaml, of 400 billion tokens, has a mask rate of 0.25; the paper has 0.3 for the whole
first run. The files halve the learning rate of small from the first run to the second.

Differences: those of modernbert. The paper decays base three times, with other mixtures, and merges
the models; here there is one decay. Use Gemma 2's tokenizer with --tokenizer; a new one is
byte-level BPE, which has no unknown characters either.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
MMBERT_FIRST: dict[str, Any] = dict(
    peak=8e-4, decay=8e-5, b2=0.95, eps=1e-8, temperature=1 / 0.7, tokens=2300 * BILLION,
    batch=4608, first_batch=384)
# 600 and 100 billion tokens.
MMBERT_PHASES = (
    Phase(15_895, 8192, 4608, mask_rate=0.15, temperature=1 / 0.5),
    Phase(2650, 8192, 4608, mask_rate=0.05, temperature=1 / 0.3))
MMBERT_LONG: dict[str, Any] = dict(
    tokens=700 * BILLION, length=8192, phases=MMBERT_PHASES, first_batch=0, ramp_tokens=0, warmup=0,
    cooldown=100 * BILLION, rope_thetas=(160_000.0, 160_000.0), pod='v5e:16x16', accumulate=18)
# Parameters of transformers' ModernBertForMaskedLM; published as 140M and 307M.
MMBERT_SMALL = ModernBERTSize(
    model=modernbert.mmbert_small, parameters=140_897_536, warmup=4 * BILLION,
    ramp_tokens=100 * BILLION, accumulate=6, pod='v5e:8x8', **MMBERT_FIRST)
MMBERT_BASE = ModernBERTSize(
    model=modernbert.mmbert_base, parameters=307_786_240, warmup=3 * BILLION,
    ramp_tokens=60 * BILLION, accumulate=6, pod='v5e:8x8', **MMBERT_FIRST)
MMBERT_SIZES = {
    'small': MMBERT_SMALL,
    'base': MMBERT_BASE,
    'small_long': dataclasses.replace(
        MMBERT_SMALL, peak=4e-4, decay=4e-5, floor=0.04, schedule='trapezoid', **MMBERT_LONG),
    'base_long': dataclasses.replace(MMBERT_BASE, floor=0.02, **MMBERT_LONG)}


MMBERT = RecipeFamily('mmbert', MMBERT_DESCRIPTION, MMBERT_SIZES, make_encoder_run)
