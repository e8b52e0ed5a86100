"""GPT-BERT, a masked and causal language model for BabyLM (Charpentier and Samuel 2024).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt_bert_strict
    python -m plm_jax train gpt_bert_strict --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train gpt_bert_strict_small --data.path=gs://BUCKET/records
    python -m plm_jax train gpt_bert_strict --scale=laptop                  # 2 CPU cores: 3 minutes
    python -m plm_jax train gpt_bert_strict --scale=test                    # seconds

strict is the base model for the track of 100 million words, and strict_small the small model for
the track of 10 million. TEXT is the text of the track; training takes many epochs of it.

15,625 updates with LAMB, half as many for strict_small (released pretraining/train_100m.py and
train_10m.py). The sequence length is 128, 256 from 70% of the run on, and 512 for the last tenth.
The batch size grows linearly from a quarter to all of 32,768 sequences of 128 tokens, and longer
sequences keep the number of tokens. Here the batch size grows in ten steps. The learning rate, 0.01
or 0.0141, warms up over 1.6% of the run, falls along a cosine to a tenth, and over the last 1.6% to
0. An EMA of the parameters averages about the last thousand steps.

One sequence in sixteen is causal (--objective.causal; the paper's other choice is one half). In the
others, spans of one to three tokens are masked, 30% in all at first and 15% at the end. Each span
as a whole becomes [MASK] (80%), random tokens (10%), or stays (pretraining/dataset.py,
SpanMaskingStrategy).

The same model fills masks, generates text, and scores which of two sentences is more likely, in
either mode:

    python -m plm_jax fill-mask runs/gpt_bert_strict 'The cat sat on the [MASK].'
    python -m plm_jax generate runs/gpt_bert_strict 'Once upon a time'
    python -m plm_jax minimal-pairs runs/gpt_bert_strict 'blimp/*.jsonl' --how=causal
    python -m plm_jax finetune --init=runs/gpt_bert_strict --task=cola

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""

from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import gpt_bert
from plm_jax.objectives.mntp import MaskedNextToken
from plm_jax.optim.optimizers import Lamb, OptimConfig
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

STEPS = 15_625
FINAL_BATCH = 32_768
"""final batch size at sequence length 128; longer sequences keep the number of tokens"""
LENGTHS = (128,) * 7 + (256,) * 2 + (512,)
"""sequence length in each tenth of the run"""
SIZES = {
    # Parameters of the released Bert, by configs/base.json and small.json; published as 119M and
    # 30M.
    'strict': RecipeSize(
        model=gpt_bert.base, parameters=119_454_532, peak=1e-2, steps=STEPS, length=512,
        batch=24_576, accumulate=16, pod='v5e:8x8'),
    'strict_small': RecipeSize(
        model=gpt_bert.small, parameters=29_892_164, peak=1.41e-2, steps=STEPS // 2, length=512,
        batch=24_576, accumulate=16, pod='v5e:8x8')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  text = TextConfig(kind='byte-bpe', lowercase=False, sentences='none')
  return PretrainRun(
      row.name, family='gptbert',
      model=row.make_model(dropout=0.1, attention_dropout=0.1), optim=make_optimizer(row),
      objective=MaskedNextToken(replaced='span', z_loss=1e-4), data=DataConfig(prepare=text),
      train=TrainConfig(phases=make_phases(row.steps), accumulate=row.accumulate))


def make_optimizer(row: RecipeSize) -> OptimConfig:
  """Make the optimizer of a size: LAMB with an EMA, warmup and cooldown over 1.6% of the steps."""
  ends = row.steps * 16 // 1000
  return Lamb(
      peak=row.peak, warmup=ends, schedule='cosine', floor=0.1, cooldown=ends, b2=0.98,
      eps=1e-8, bias_correction=True, weight_decay=0.1, clip=2.0, ema=0.999)


def make_phases(steps: int) -> tuple[Phase, ...]:
  """Make the ten phases of a run, whose batch sizes are multiples of 1024."""
  found = []
  for tenth, length in enumerate(LENGTHS):
    share = 0.25 + 0.75 * (tenth + 0.5) / len(LENGTHS)
    rows = FINAL_BATCH * LENGTHS[0] / length * share
    number = steps * (tenth + 1) // len(LENGTHS) - steps * tenth // len(LENGTHS)
    found.append(Phase(number, length, round(rows / 1024) * 1024))
  return tuple(found)


GPT_BERT = RecipeFamily('gpt_bert', __doc__, SIZES, make_run)
