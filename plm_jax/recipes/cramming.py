"""Cramming, BERT in a day on one GPU (Geiping and Goldstein 2023).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=cramming_base
    python -m plm_jax train cramming_base --data.path=gs://BUCKET/records  # 4 TPU v5e chips
    python -m plm_jax train cramming_base --scale=laptop                   # 2 CPU cores: 3 minutes
    python -m plm_jax train cramming_base --scale=test                     # seconds

Values follow the released bert-o4.yaml and crammed-bert.yaml: sequence length 128 on a part of the
Pile, with a WordPiece vocabulary of 32,768 tokens. 25% of the tokens are masked, and there is no
dropout. Documents follow each other with a [SEP] between them, and attend to each other
(include_sep_token_in_corpus of cramming/config/data/the-pile.yaml). The batch size grows from 128
to 8,192 over 60% of the run. The learning rate warms up from a quarter of its peak over three
quarters of the run, and falls to 0.

Differences from the released run:

- A sequence begins with [CLS] and ends with [SEP], as in fine-tuning.
- Documents of fewer than four characters per token are kept, which trash_cutoff: 0.25 leaves out.
- Sequences come in random order, not by their number of full stops (sentence-length-curriculum),
  because data is always shuffled here.
- The released run ends after one day, on any GPU. This one ends after 600,000 x 128 sequences, 9.8
  billion tokens; a released run sees fewer or more.
"""
from plm_jax.config.run import DataConfig, PretrainRun, TrainConfig
from plm_jax.models import crammed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, batch_size_ramp
from plm_jax.sharding import MeshConfig

TOKENS = 600_000 * 128 * 128
SIZES = {
    # Parameters of the released ScriptableLMForPreTraining; published as 120M.
    'base': RecipeSize(
        model=crammed.base, parameters=119_589_889, peak=1e-3, length=128, batch=8192,
        accumulate=16, pod='v5e:2x2', mesh=MeshConfig(fsdp=4),
        published_hardware='1 RTX A6000, 24 hours')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, clock='tokens', warmup=TOKENS * 3 // 4, warmup_start=0.25, schedule='linear',
      b2=0.98, eps=1e-12, bias_correction=True, weight_decay=0.01, clip=0.5)
  phases = batch_size_ramp(TOKENS, row.length, row.batch, 128, TOKENS * 6 // 10)
  return PretrainRun(
      row.name, family='crammedBERT',
      model=row.make_model(dropout=0.0, attention_dropout=0.0), optim=optim,
      objective=MaskedLM(pair=FullSentences(), mask_rate=0.25), data=DataConfig(assembly='packed'),
      train=TrainConfig(phases=phases, accumulate=row.accumulate))


CRAMMING = RecipeFamily('cramming', __doc__, SIZES, make_run)
