"""MDLM for BabyLM, a masked diffusion language model (Kosmopoulou et al. 2025).

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

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.layers.common import Dtype
from plm_jax.models import gpt_bert
from plm_jax.objectives.masked_diffusion import MaskedDiffusion
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.gpt_bert import make_optimizer
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

STEPS = 10_000


def base(dtype: Dtype = 'float32') -> EncoderConfig:
  """Make a GPT-BERT base that predicts masked tokens at their own positions."""
  return validation.with_paths(gpt_bert.base(dtype), {'head.shifted': False})


SIZES = {
    'strict': RecipeSize(
        model=base, parameters=119_454_532, peak=7e-3, steps=STEPS, length=128, batch=1024,
        accumulate=4, pod='v5e:4x4')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  text = TextConfig(kind='byte-bpe', lowercase=False, sentences='none')
  return PretrainRun(
      row.name, family='gptbert',
      model=row.make_model(dropout=0.1, attention_dropout=0.1),
      optim=make_optimizer(row),
      objective=MaskedDiffusion(schedule='cosine', frequency_power=0.02),
      data=DataConfig(prepare=text), train=row.make_train_config())


MDLM = RecipeFamily('mdlm', __doc__, SIZES, make_run)
