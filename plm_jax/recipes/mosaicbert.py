"""MosaicBERT, as published (Portes et al. 2023).

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
from plm_jax.config.run import PretrainRun
from plm_jax.models import mosaicbert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

DECAY = 1e-5
"""weight decay of one step at the peak learning rate, as a share of the parameter"""
SIZES = {
    # Parameters of the released BertForMaskedLM; published as 137M.
    'base': RecipeSize(
        model=mosaicbert.base, parameters=137_400_384, peak=5e-4, steps=70_000, length=128,
        batch=4096, accumulate=4, pod='v5e:4x4', published_hardware='8 A100-80, 1.13 hours')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=row.steps * 6 // 100, floor=0.02, schedule='linear', b2=0.98, eps=1e-6,
      bias_correction=True, weight_decay=DECAY / row.peak, exempt=(), clip=0.0)
  return PretrainRun(
      row.name, family='mosaicbert',
      model=row.make_model(dropout=0.1, attention_dropout=0.0, mlp_dropout=0.1), optim=optim,
      objective=MaskedLM(pair=Single(), mask_rate=0.3, held_out_mask_rate=0.15),
      train=row.make_train_config())


MOSAICBERT = RecipeFamily('mosaicbert', __doc__, SIZES, make_run)
