"""mmBERT, as published (Marone et al. 2025, arXiv:2509.06888).

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --for=mmbert_base
    python -m plm_jax prepare GERMAN gs://BUCKET/de --for=mmbert_base \\
        --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax train mmbert_base --data.path gs://BUCKET/de gs://BUCKET/sw   # and so on
    python -m plm_jax train mmbert_base_long --warm-start=RUN --data.path ...       # 110 languages
    python -m plm_jax train mmbert_base_decay --warm-start=RUN2 --data.path ...     # 1,833
    python -m plm_jax train mmbert_small --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train mmbert_small --scale=test                       # seconds

ModernBERT's architecture with Gemma 2's vocabulary. Values are from configs/ of JHU-CLSP/mmBERT;
tokens, languages and temperatures from the paper. There are three runs, and each starts from the
one before. They are not phases of one run because the languages and the rope base change:

- base, small: 2.3 trillion tokens of 60 languages, sequence length 1,024, 30% masked. The batch
  size grows over 60 billion tokens (small: 100), the learning rate warms up over 3 billion (small:
  4) and then stays constant. Languages are sampled by their size to the power of 0.7.
- base_long, small_long: 600 billion tokens of 110 languages, sequence length 8,192, 15% masked,
  power 0.5. The base of the rotary positions becomes 160,000 in all layers.
- base_decay, small_decay: 100 billion tokens of 1,833 languages, 5% masked, power 0.3. The learning
  rate falls along 1 - sqrt to 0.02 of the peak (small: 0.04).

The optimizer is StableAdamW with betas 0.9 and 0.95 and epsilon 1e-8. Its weight decay at the peak
is 8e-5 of the parameter (later runs of small: 4e-5), not multiplied by the learning rate. Dropout
is 0.1 on the attention output. Documents of a sequence do not attend to each other.

Our readings: the batch begins with 48 sequences on each of eight GPUs (the file has
batch_size_warmup_min_size 48), and grows to 4,608. Batches of the later runs have as many
sequences. The file mmBERT-base.yaml, of 400 billion tokens, has a mask rate of 0.25; the paper has
0.3 for all of the first run. When the learning rate of small is halved is not in the files.

Differences: as for ModernBERT. The paper decays base three times, with other mixtures, and merges
the models; here there is one decay. Use Gemma 2's tokenizer with --tokenizer; a new one is
byte-level BPE, which has no unknown characters either.
"""
import dataclasses
from typing import Any

from plm_jax.config.run import PretrainRun, Scale
from plm_jax.models import modernbert
from plm_jax.recipes.modernbert import BILLION, ModernBERTSize, make_run
from plm_jax.sharding import MeshConfig

FIRST: dict[str, Any] = dict(
    peak=8e-4, decay=8e-5, b2=0.95, eps=1e-8, temperature=1 / 0.7, tokens=2300 * BILLION,
    batch=4608, first_batch=384)
LATER: dict[str, Any] = dict(
    length=8192, first_batch=0, ramp_tokens=0, warmup=0, rope_thetas=(160_000.0, 160_000.0))
LONG: dict[str, Any] = dict(
    tokens=600 * BILLION, mask_rate=0.15, temperature=1 / 0.5, **LATER)
DECAY: dict[str, Any] = dict(
    tokens=100 * BILLION, cooldown=100 * BILLION, mask_rate=0.05, temperature=1 / 0.3, **LATER)
# Parameters of transformers' ModernBertForMaskedLM; published as 140M and 307M.
SMALL = ModernBERTSize(
    model=modernbert.mmbert_small, parameters=140_897_536, warmup=4 * BILLION,
    ramp_tokens=100 * BILLION, accumulate=6, pod='v5e:8x8', **FIRST)
BASE = ModernBERTSize(
    model=modernbert.mmbert_base, parameters=307_786_240, warmup=3 * BILLION,
    ramp_tokens=60 * BILLION, accumulate=6, pod='v5e:8x8', **FIRST)
POD: dict[str, Any] = dict(pod='v5e:16x16', mesh=MeshConfig(tensor=4))
HALF: dict[str, Any] = dict(peak=4e-4, decay=4e-5)
SIZES = {
    'small': SMALL,
    'base': BASE,
    'small_long': dataclasses.replace(SMALL, accumulate=36, **HALF, **LONG, **POD),
    'small_decay': dataclasses.replace(SMALL, accumulate=36, floor=0.04, **HALF, **DECAY, **POD),
    'base_long': dataclasses.replace(BASE, accumulate=72, **LONG, **POD),
    'base_decay': dataclasses.replace(BASE, accumulate=72, floor=0.02, **DECAY, **POD)}


def recipe(size: str, scale: Scale) -> PretrainRun:
  """Build the run of a size."""
  return make_run(f'mmbert_{size}', SIZES[size], scale)
