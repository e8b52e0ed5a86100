"""mmBERT, as published (Marone et al. 2025, arXiv:2509.06888).

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
import dataclasses
from typing import Any

from plm_jax.config.run import Phase
from plm_jax.models import modernbert
from plm_jax.recipes.modernbert import BILLION, ModernBERTSize, make_modernbert_run
from plm_jax.recipes.recipe_size import RecipeFamily

FIRST: dict[str, Any] = dict(
    peak=8e-4, decay=8e-5, b2=0.95, eps=1e-8, temperature=1 / 0.7, tokens=2300 * BILLION,
    batch=4608, first_batch=384)
# 600 and 100 billion tokens.
PHASES = (
    Phase(15_895, 8192, 4608, mask_rate=0.15, temperature=1 / 0.5),
    Phase(2650, 8192, 4608, mask_rate=0.05, temperature=1 / 0.3))
LONG: dict[str, Any] = dict(
    tokens=700 * BILLION, length=8192, phases=PHASES, first_batch=0, ramp_tokens=0, warmup=0,
    cooldown=100 * BILLION, rope_thetas=(160_000.0, 160_000.0), pod='v5e:16x16', accumulate=18)
# Parameters of transformers' ModernBertForMaskedLM; published as 140M and 307M.
SMALL = ModernBERTSize(
    model=modernbert.mmbert_small, parameters=140_897_536, warmup=4 * BILLION,
    ramp_tokens=100 * BILLION, accumulate=6, pod='v5e:8x8', **FIRST)
BASE = ModernBERTSize(
    model=modernbert.mmbert_base, parameters=307_786_240, warmup=3 * BILLION,
    ramp_tokens=60 * BILLION, accumulate=6, pod='v5e:8x8', **FIRST)
SIZES = {
    'small': SMALL,
    'base': BASE,
    'small_long': dataclasses.replace(
        SMALL, peak=4e-4, decay=4e-5, floor=0.04, schedule='trapezoid', **LONG),
    'base_long': dataclasses.replace(BASE, floor=0.02, **LONG)}


MMBERT = RecipeFamily('mmbert', __doc__, SIZES, make_modernbert_run)
