"""Ettin's encoders, as published (Weller et al. 2025).

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

Difference: tokens are counted as full sequences. The released runs do not count padding and take
more updates. The text is open, in the order in which it was read (jhu-clsp/ettin-data-order).

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
from collections.abc import Callable
from typing import Any

from plm_jax.config.run import PretrainRun
from plm_jax.models import modernbert
from plm_jax.recipes.modernbert import BILLION, ModernBERTSize, make_modernbert_run
from plm_jax.recipes.recipe_size import RecipeFamily


def make_size(
    model: Callable[..., Any], parameters: int, peak: float, decay: float, warmup: int,
) -> ModernBERTSize:
  """Make a size."""
  return ModernBERTSize(
      model=model, parameters=parameters, peak=peak, length=1024, batch=4608,
      tokens=1700 * BILLION, accumulate=12, decay=decay, warmup=warmup, pod='v5e:8x8')


# Parameters of transformers' ModernBertForMaskedLM; published as 17M, 32M, 68M, 150M, 400M and 1B.
SIZES = {
    '17m': make_size(modernbert.ettin_17m, 16_913_600, 3e-3, decay=3e-4, warmup=4 * BILLION),
    '32m': make_size(modernbert.ettin_32m, 32_081_344, 3e-3, decay=3e-4, warmup=4 * BILLION),
    '68m': make_size(modernbert.ettin_68m, 68_457_664, 3e-3, decay=3e-4, warmup=3 * BILLION),
    '150m': make_size(modernbert.base, 149_655_232, 8e-4, decay=1e-5, warmup=3 * BILLION),
    '400m': make_size(modernbert.large, 395_881_664, 5e-4, decay=1e-5, warmup=2 * BILLION),
    '1b': make_size(modernbert.ettin_1b, 1_031_314_112, 5e-4, decay=5e-5, warmup=2 * BILLION)}


def make_run(row: ModernBERTSize) -> PretrainRun:
  """Build the published run of a size."""
  return make_modernbert_run(row, packed=False)


ETTIN = RecipeFamily('ettin', __doc__, SIZES, make_run)
