"""GPT-BERT, masked and causal at once, on 10 and 100 million words: BabyLM (Charpentier and Samuel 2024).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt_bert_strict
    python -m plm_jax train gpt_bert_strict --data.path=gs://BUCKET/records       # 64 TPU v5e chips
    python -m plm_jax train gpt_bert_strict_small --data.path=gs://BUCKET/records
    python -m plm_jax train gpt_bert_strict --scale=laptop                        # 2 CPU cores: 3 minutes
    python -m plm_jax train gpt_bert_strict --scale=test                          # seconds

strict is base, for the track of 100 million words, strict_small is small, for that of 10 million; TEXT is the track's,
many epochs of it. 15,625 updates with LAMB, of strict_small half as many (released pretraining/train_100m.py and
train_10m.py): rows of 128 tokens, of 256 from 70% of the run on, of 512 for the last tenth. Batches grow in a line from
a quarter to all of 32,768 rows of 128, of which longer rows have as many tokens; here they grow in ten steps. One row
in sixteen is causal (--objective.causal: half of them is the paper's other choice); in the others spans of one to three
tokens are hidden, 30% in all at first, 15% at the end. The rate, 0.01 or 0.0141, rises over 1.6% of the run, falls
along a cosine to a tenth, and over the last 1.6% to 0. Parameters are kept as a mean of the last thousand steps.

The same model fills in blanks, writes, and says which of two sentences is likelier, in either way:

    python -m plm_jax fill-mask runs/gpt_bert_strict 'The cat sat on the [MASK].'
    python -m plm_jax generate runs/gpt_bert_strict 'Once upon a time'
    python -m plm_jax minimal-pairs runs/gpt_bert_strict 'blimp/*.jsonl' --how=causal
    python -m plm_jax finetune --init=runs/gpt_bert_strict --task=cola
"""
import dataclasses

from plm_jax.config import Experiment, Phase, Scale, TrainConfig
from plm_jax.data.settings import TextConfig
from plm_jax.models import gpt_bert
from plm_jax.objectives.mntp import MaskedNextToken
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

STEPS = 15_625
ROWS = 32_768
"""of 128 tokens in a batch at the end, of longer ones as many tokens"""
LENGTHS = (128,) * 7 + (256,) * 2 + (512,)
"""tokens of a row in each tenth of the run"""
SIZES = {
    # Parameters by the released Bert of configs/base.json and small.json; published as 119M and 30M.
    'strict': Size(model=gpt_bert.base, parameters=119_454_532, peak=1e-2, steps=STEPS, length=512, batch=24_576,
                   accumulate=8, pod='v5e:8x8'),
    'strict_small': Size(model=gpt_bert.small, parameters=29_892_164, peak=1.41e-2, steps=STEPS // 2, length=512,
                         batch=24_576, accumulate=8, pod='v5e:8x8')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  ends = row.steps * 16 // 1000
  optim = OptimConfig(
      kind='lamb', peak=row.peak, warmup=ends, schedule='cosine', floor=0.1, cooldown=ends, b2=0.98, eps=1e-8,
      bias_correction=True, weight_decay=0.1, clip=2.0, ema=0.999)
  run = Experiment(
      f'gpt_bert_{size}', family='gptbert', model=row.model('bfloat16'), optim=optim,
      objective=MaskedNextToken(z_loss=1e-4),
      train=TrainConfig(phases=phases(row.steps), accumulate=row.accumulate))
  text = TextConfig(kind='byte-bpe', lowercase=False, newlines=True)
  return scaled(dataclasses.replace(run, data=dataclasses.replace(run.data, prepare=text)), scale)


def phases(steps: int, parts: int = 1024) -> tuple[Phase, ...]:
  """Makes the tenths of a run. parts: what all numbers of rows are multiples of."""
  found = []
  for tenth, length in enumerate(LENGTHS):
    rows = ROWS * LENGTHS[0] / length * (0.25 + 0.75 * (tenth + 0.5) / len(LENGTHS))
    number = steps * (tenth + 1) // len(LENGTHS) - steps * tenth // len(LENGTHS)
    found.append(Phase(number, length, round(rows / parts) * parts))
  return tuple(found)
