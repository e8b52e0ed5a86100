"""XLNet, as published (Yang et al. 2019, sections 3.1 and 3.4, appendix A.5, table 8).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=xlnet_base
    python -m plm_jax train xlnet_base --data.path=gs://BUCKET/records     # 16 TPU v3 chips (v3-32), or more
    python -m plm_jax train xlnet_large --data.path=gs://BUCKET/records    # 512 TPU v3 chips: 5.5 days
    python -m plm_jax train xlnet_base --scale=laptop                      # 2 CPU cores: 3 minutes
    python -m plm_jax train xlnet_base --scale=test                        # seconds

Permutation language modelling, in two streams and with memory. large: 500,000 steps of 8,192 rows of 512 tokens; the
paper trained it on 512 TPU v3 chips in 5.5 days: eight rows a core, here in four micro-steps. The command of the
released code has batches of 2,048. Its corpus is BooksCorpus, English Wikipedia, Giga5, ClueWeb 2012-B and Common
Crawl, 33 billion tokens. base, on BooksCorpus and Wikipedia: the paper gives no schedule; it is BERT-base's here, a
million steps of 256 rows and the same peak, the rest as table 8 and the released code have it, whose GELU is that of
tanh; table 8 has no dropout inside the position-wise network, where the released code has 0.1.
"""
import dataclasses

from plm_jax import checked
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import xlnet
from plm_jax.objectives.plm import PermutationLM
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


@dataclasses.dataclass(frozen=True, kw_only=True)
class XLNetSize(Size):
  """And its warmup, in steps."""

  warmup: int


SIZES = {
    # Parameters by transformers' XLNetModel, without a head. Peak, warmup and batch of large: table 8.
    'base': XLNetSize(model=xlnet.base, parameters=116_718_336, peak=1e-4, warmup=10_000, steps=1_000_000, batch=256,
                      pod='v3:4x4'),
    'large': XLNetSize(model=xlnet.large, parameters=360_268_800, peak=4e-4, warmup=40_000, steps=500_000, batch=8192,
                       accumulate=4, pod='v3:16x32', took='512 TPU v3 chips, 5.5 days')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  model = row.model('bfloat16')
  model = dataclasses.replace(model, block=checked.replaced(model.block, {'mlp.activation': 'gelu_tanh'}))
  # Adam's epsilon of 1e-6 and the decay of 0.01 are BERT's too; the line's end is of the released train.py.
  optim = OptimConfig(peak=row.peak, warmup=row.warmup, schedule='linear', floor=0.001)
  return scaled(Experiment(
      f'xlnet_{size}', family='xlnet', model=model, objective=PermutationLM(),
      data=DataConfig(prepare=TextConfig(kind='sentencepiece-unigram', layout='xlnet', lowercase=False)),
      optim=optim, train=row.train()), scale)
