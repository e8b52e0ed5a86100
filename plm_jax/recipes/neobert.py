"""NeoBERT, as published (Le Breton et al. 2025, section 3 and table 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=neobert_base
    python -m plm_jax train neobert_base --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train neobert_base_long --warm-start=RUN --data.path=gs://BUCKET/records
    python -m plm_jax train neobert_base --scale=laptop                   # 2 CPU cores: 3 minutes
    python -m plm_jax train neobert_base --scale=test                     # seconds

Two runs; the second starts from the first:

- base: a million updates of 2.1 million tokens of RefinedWeb at sequence length 1,024. 20% of the
  tokens are masked, and all of these become [MASK]. The optimizer is AdamW, and all parameters
  decay, norms too (optimizer/optimizer.py). The learning rate warms up for 2,000 updates, falls
  along a cosine to a tenth over 900,000, and then stays constant.
- base_long: 50,000 updates with batch size 512 at sequence length 4,096, at the learning rate at
  which base ended.

The released job of base_long (jobs/neobert-4096.sh of chandar-lab/NeoBERT) has 8 x 8 x 8 sequences
and a peak of 1e-4, but no schedule that runs as written: pretrain.py refuses its milestones. Those
of trainer_phase_2.py (scheduler.decay_steps=0) keep a tenth of the peak, 1e-5, from the first
update on. This recipe uses that value. That trainer also mixes three sets of documents: all, those
of 1,024 tokens or more, and those of 2,048 or more; here all documents are read. A sequence holds
one document. The vocabulary is BERT's.
"""
import dataclasses

from plm_jax.config.run import PretrainRun
from plm_jax.models import neobert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

SIZES = {
    # Parameters of the released NeoBERTLMHead; published as 250M.
    'base': RecipeSize(
        model=neobert.base, parameters=245_136_954, peak=1e-4, steps=1_000_000, length=1024,
        batch=2048, accumulate=4, pod='v5e:8x8'),
    'base_long': RecipeSize(
        model=neobert.base, parameters=245_136_954, peak=1e-5, steps=50_000, length=4096, batch=512,
        accumulate=8, pod='v5e:8x8')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=2000, horizon=900_000, floor=0.1, schedule='cosine', b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.01, exempt=())
  if row.name == 'neobert_base_long':
    optim = dataclasses.replace(optim, warmup=0, horizon=0, floor=0.0, schedule='constant')
  return PretrainRun(
      row.name, family='neobert', model=row.make_model(dropout=0.0, attention_dropout=0.0),
      optim=optim,
      objective=MaskedLM(pair=Single(), mask_rate=0.2, mask_share=1.0, random_share=0.0),
      train=row.make_train_config())


NEOBERT = RecipeFamily('neobert', __doc__, SIZES, make_run)
