"""ELMo (Peters et al. 2018).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=elmo_original
    python -m plm_jax train elmo_original \\
        --data.path=gs://BUCKET/records  # 16 TPU v3 chips, or more
    python -m plm_jax train elmo_small --scale=laptop                      # 2 CPU cores: 16 minutes
    python -m plm_jax train elmo_small --scale=laptop --train.phases.0.steps=1200  # 5 minutes
    python -m plm_jax train elmo_small --scale=test                        # seconds

A bidirectional LSTM language model on characters. Settings follow allenai/bilm-tf,
bin/train_elmo.py: 10 epochs of the 1 Billion Word Benchmark with batch size 3 x 128 and 20 words
per sequence. LSTM states are carried from batch to batch. Adagrad with learning rate 0.2, gradient
clipping at 10, and a sampled softmax over 8,192 words. The authors used three GTX 1080 for two
weeks. small and medium are sizes on AllenNLP's page, which describes no other training settings.

TEXT has one sentence per line, with spaces between words and punctuation. The perplexity of a
direction is the exponential of its held-out loss; the authors reached 39.7 on average over both
directions. The smaller scales split plain text into words themselves. At the laptop scale, a
twentieth of the sequences starts without a state in each batch (--objective.fresh), because a short
run would otherwise see none.
"""
import functools

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import elmo
from plm_jax.objectives.bilm import BidirectionalLM
from plm_jax.optim.optimizers import Adagrad
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

# 10 epochs of 768,648,884 words.
ELMoSize = functools.partial(
    RecipeSize, peak=0.2, steps=10 * (768_648_884 // (384 * 20)), length=20, batch=384,
    pod='v3:4x4', mesh=MeshConfig(fsdp=32))
# Parameters with a softmax over 793,471 words.
SIZES = {
    'small': ELMoSize(model=elmo.small, parameters=115_951_055),
    'medium': ELMoSize(model=elmo.medium, parameters=231_949_775),
    'original': ELMoSize(
        model=elmo.original, parameters=500_651_471,
        published_hardware='three GTX 1080, two weeks')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  text = TextConfig(kind='words', lowercase=False, sentences='line', sample=10 ** 15)
  optim = Adagrad(
      peak=row.peak, warmup=0, schedule='constant', eps=1e-30, weight_decay=0.0, clip=10.0)
  return PretrainRun(
      row.name, family='elmo', model=row.model('bfloat16'),
      objective=BidirectionalLM(), data=DataConfig(prepare=text, assembly='packed', block=1024),
      optim=optim, train=row.make_train_config())


ELMO = RecipeFamily('elmo', __doc__, SIZES, make_run)
