"""LTG-BERT and its descendants for BabyLM: GPT-BERT, MDLM."""
from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import gpt_bert, ltg_bert
from plm_jax.objectives.masked_diffusion import MaskedDiffusion
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.mntp import MaskedNextToken
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import Lamb, OptimConfig
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

LTG_BERT_DESCRIPTION = """\
LTG-BERT for BabyLM (Samuel et al. 2023; Samuel 2023; released babylm/train/train.py).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ltg_bert_strict
    python -m plm_jax train ltg_bert_strict --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train ltg_bert_strict_small --data.path=gs://BUCKET/records
    python -m plm_jax train ltg_bert_strict --scale=laptop                  # 2 CPU cores: 3 minutes
    python -m plm_jax train ltg_bert_strict --scale=test                    # seconds

strict is the base model for the track of 100 million words, and strict_small the small model for
the track of 10 million. TEXT is the text of the track; training takes many epochs of it.

15,625 updates with LAMB, with batch size 32,768 at sequence length 128, and for the last tenth
8,192 at length 512: as many tokens as BERT in half of the steps at each length. A tenth of the
sequences is cut to a random length. Spans of tokens are masked, of three tokens on average, 15% in
all. Each span as a whole becomes [MASK] (80%), random tokens (10%), or stays (dataset.py,
SpanMaskingStrategy; there the number of masked tokens is binomial, and spans may overlap). The
learning rate of 0.01 warms up over 1.6% of the run and falls along a cosine to a tenth. All layers
have dropout, and the weight decay is 0.1.

BabyLM evaluates minimal pairs (BLiMP and its supplement, in JSON Lines) and fine-tuning on GLUE:

    python -m plm_jax minimal-pairs runs/ltg_bert_strict 'blimp/*.jsonl' --page=blimp.html
    python -m plm_jax finetune --init=runs/ltg_bert_strict --task=cola
"""
STEPS = 15_625
WARMUP = STEPS * 16 // 1000
LONG = STEPS // 10
"""updates at the end with sequences that are four times as long"""
SPANS = tuple((2 / 3) ** number / (3 * (1 - (2 / 3) ** 9)) for number in range(9))
"""probabilities of spans of 1 to 9 tokens: a truncated geometric distribution"""
LTG_BERT_SIZES = {
    # Parameters of the released Bert, by babylm/configs/base.json and small.json; published as 98M.
    'strict': RecipeSize(
        model=ltg_bert.base, parameters=98_229_760, peak=1e-2, length=512, batch=32_768,
        accumulate=8, pod='v5e:8x8'),
    'strict_small': RecipeSize(
        model=ltg_bert.small, parameters=27_741_952, peak=1e-2, length=512, batch=32_768,
        accumulate=16, pod='v5e:8x8')}


def make_ltg_bert_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = Lamb(
      peak=row.peak, warmup=WARMUP, schedule='cosine', floor=0.1, b2=0.98,
      bias_correction=True, weight_decay=0.1, clip=2.0,
      exempt=('bias', 'scale', 'tokens', 'relative'))
  phases = Phase(STEPS - LONG, 128, row.batch), Phase(LONG, 512, row.batch // 4)
  return PretrainRun(
      row.name, family='ltgbert',
      model=row.make_model(dropout=0.1, attention_dropout=0.1), optim=optim,
      objective=MaskedLM(pair=Single(short=0.1), masking=Distinct(lengths=SPANS, replaced='span')),
      data=DataConfig(prepare=TextConfig(lowercase=False)),
      train=TrainConfig(phases=phases, accumulate=row.accumulate))


LTG_BERT = RecipeFamily('ltg_bert', LTG_BERT_DESCRIPTION, LTG_BERT_SIZES, make_ltg_bert_run)


GPT_BERT_DESCRIPTION = """\
GPT-BERT, a masked and causal language model for BabyLM (Charpentier and Samuel 2024).

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
FINAL_BATCH = 32_768
"""final batch size at sequence length 128; longer sequences keep the number of tokens"""
DATA = DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False, sentences='none'))
LENGTHS = (128,) * 7 + (256,) * 2 + (512,)
"""sequence length in each tenth of the run"""
GPT_BERT_SIZES = {
    # Parameters of the released Bert, by configs/base.json and small.json; published as 119M and
    # 30M.
    'strict': RecipeSize(
        model=gpt_bert.base, parameters=119_454_532, peak=1e-2, steps=STEPS, length=512,
        batch=24_576, accumulate=16, pod='v5e:8x8'),
    'strict_small': RecipeSize(
        model=gpt_bert.small, parameters=29_892_164, peak=1.41e-2, steps=STEPS // 2, length=512,
        batch=24_576, accumulate=16, pod='v5e:8x8')}


def make_gpt_bert_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='gptbert',
      model=row.make_model(dropout=0.1, attention_dropout=0.1), optim=make_optimizer(row),
      objective=MaskedNextToken(replaced='span', z_loss=1e-4), data=DATA,
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


GPT_BERT = RecipeFamily('gpt_bert', GPT_BERT_DESCRIPTION, GPT_BERT_SIZES, make_gpt_bert_run)


MDLM_DESCRIPTION = """\
MDLM for BabyLM, a masked diffusion language model (Kosmopoulou et al. 2025).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mdlm_strict
    python -m plm_jax train mdlm_strict --data.path=gs://BUCKET/records     # 16 TPU v5e chips
    python -m plm_jax train mdlm_strict --scale=laptop                      # 2 CPU cores: 3 minutes
    python -m plm_jax train mdlm_strict --scale=test                        # seconds

A winner of the BabyLM challenge 2025, strict track (arXiv:2509.05056; released in
DespoinaKK/babylm-diffusion, slurm-scripts/config-cosine.json). TEXT is the text of the track: 100
million words, of which training takes about ten epochs.

The loss is the evidence bound of masked diffusion (MDLM: Sahoo et al. 2024) with a cosine noise
schedule, so that 36% of the tokens are masked on average. Rarer tokens are masked with a higher
probability: their rank weights have a power that grows from 0 to 0.02 over the run (at every step
here, at every epoch in the released code). The model is the base model of GPT-BERT, which predicts
masked tokens at their own positions. 10,000 updates with LAMB, with 1,024 sequences of 128 tokens.
The learning rate of 0.007 warms up over 1.6% of the run, falls along a cosine to a tenth, and over
the last 1.6% to 0. An EMA of the parameters averages about the last thousand steps.

Differences: the publication states epochs only, so the number of updates assumes 1.3 tokens per
word. Times are stratified over the batch; in the released code, over the 32 sequences of each GPU.
The mask token has probability 0, as in Sahoo et al. 2024; the released code lets the model predict
it. The model has no time conditioning; the released model can also be evaluated without it.
--objective.schedule=linear --objective.frequency-power=0 is the objective of MDLM and
LLaDA themselves.

The model fills masks, generates text by iterative unmasking, and estimates an upper bound of the
perplexity:

    python -m plm_jax fill-mask runs/mdlm_strict 'The cat sat on the [MASK].'
    python -m plm_jax generate runs/mdlm_strict 'Once upon a time' --temperature=1
    python -m plm_jax perplexity runs/mdlm_strict held-out.txt
    python -m plm_jax minimal-pairs runs/mdlm_strict 'blimp/*.jsonl'

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""


def mdlm_base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a GPT-BERT base that predicts masked tokens at their own positions."""
  return validation.with_paths(gpt_bert.base(dtype), {'head.shifted': False})


MDLM_SIZES = {
    'strict': RecipeSize(
        model=mdlm_base, parameters=119_454_532, peak=7e-3, steps=10_000, length=128, batch=1024,
        accumulate=4, pod='v5e:4x4')}


def make_mdlm_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='gptbert',
      model=row.make_model(dropout=0.1, attention_dropout=0.1),
      optim=make_optimizer(row),
      objective=MaskedDiffusion(schedule='cosine', frequency_power=0.02),
      data=DATA, train=row.make_train_config())


MDLM = RecipeFamily('mdlm', MDLM_DESCRIPTION, MDLM_SIZES, make_mdlm_run)
