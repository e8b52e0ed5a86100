"""Ettin's encoders, as published (Weller et al. 2025, and the configurations in JHU-CLSP/ettin-encoder-vs-decoder).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ettin_150m
    python -m plm_jax train ettin_150m --data.path=gs://BUCKET/records    # 64 TPU v5e chips
    python -m plm_jax train ettin_17m --scale=laptop                      # 2 CPU cores: 3 minutes
    python -m plm_jax train ettin_17m --scale=test                        # seconds

ModernBERT's wiring from 17 million parameters to a billion, in the first part of its run: 1.7 trillion tokens in rows
of 1,024, 4,608 of them in an update, towards which batches grow from as many as a GPU took at once, here from 768; the
rate rises and stays; 30% of tokens are masked. The two parts behind it begin from its run:

    python -m plm_jax train ettin_150m --warm-start=RUN --output=RUN2 --train.phases.0.steps=6782 \\
        --train.phases.0.length=7999 --train.phases.0.batch=4608 --optim.warmup=0 --optim.cooldown=250000000000 \\
        --optim.floor=0.5 --model.block.attention.position.whole.theta=160000

is 250 billion tokens along 1 - sqrt to half of the peak; then 50 billion (1b: 17) at half of the peak, down to a
twenty-fifth, with 15% of tokens masked and 160,000 in all layers. The text is open, and in the order in which it was
read (jhu-clsp/ettin-data-order).
"""
from collections.abc import Callable
from typing import Any

from plm_jax.config import Experiment, Scale
from plm_jax.models import modernbert
from plm_jax.recipes.modernbert import BILLION, ModernBERTSize, run


def sized(model: Callable[..., Any], parameters: int, peak: float, over: int, accumulate: int,
          **own: Any) -> ModernBERTSize:
  """Makes a size; over: billions of tokens, over which batches grow."""
  return ModernBERTSize(
      model=model, parameters=parameters, peak=peak, batch=4608, first=768, over=over * BILLION, tokens=1700 * BILLION,
      accumulate=accumulate, pod='v5e:8x8', **own)


# Parameters by transformers' ModernBertForMaskedLM; published as 17M, 32M, 68M, 150M, 400M and 1B.
SIZES = {
    '17m': sized(modernbert.ettin_17m, 16_913_600, 3e-3, 125, 1, decay=3e-4, warmup=4 * BILLION),
    '32m': sized(modernbert.ettin_32m, 32_081_344, 3e-3, 100, 2, decay=3e-4, warmup=4 * BILLION),
    '68m': sized(modernbert.ettin_68m, 68_457_664, 3e-3, 75, 2, decay=3e-4, warmup=3 * BILLION),
    '150m': sized(modernbert.base, 149_655_232, 8e-4, 50, 12, decay=1e-5, warmup=3 * BILLION),
    '400m': sized(modernbert.large, 395_881_664, 5e-4, 10, 12, decay=1e-5, warmup=2 * BILLION),
    '1b': sized(modernbert.ettin_1b, 1_031_314_112, 5e-4, 3, 12, decay=5e-5, warmup=2 * BILLION)}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  return run(f'ettin_{size}', SIZES[size], scale)
