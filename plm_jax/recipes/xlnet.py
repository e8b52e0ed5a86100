"""XLNet and MPNet: prediction of tokens in a random order."""
import dataclasses

from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import mpnet, xlnet
from plm_jax.objectives.masked_permuted import MaskedPermutedLM
from plm_jax.objectives.plm import PermutationLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, make_fairseq_adam

XLNET_DESCRIPTION = """\
XLNet, as published (Yang et al. 2019, sections 3.1 and 3.4, appendix A.5, table 8).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=xlnet_base
    python -m plm_jax train xlnet_base \\
        --data.path=gs://BUCKET/records  # 16 TPU v3 chips (v3-32), or more
    python -m plm_jax train xlnet_large \\
        --data.path=gs://BUCKET/records  # 512 TPU v3 chips; paper: 5.5 days
    python -m plm_jax train xlnet_base --scale=laptop  # 2 CPU cores: 3 minutes
    python -m plm_jax train xlnet_base --scale=test    # seconds

Permutation language modeling with two-stream attention and segment memory.

large: 500,000 steps with batch size 8,192 at sequence length 512. The paper trained it on 512 TPU
v3 chips in 5.5 days, with eight sequences per core; here gradients are accumulated over four
micro-batches. The command of the released code has batch size 2,048. The corpus is BooksCorpus,
English Wikipedia, Giga5, ClueWeb 2012-B and Common Crawl, 33 billion tokens.

base, on BooksCorpus and Wikipedia: the paper gives no schedule. This recipe uses that of BERT base,
a million steps with batch size 256 and the same peak learning rate. All other settings follow table
8 and the released code, including the tanh approximation of GELU. Table 8 has no dropout inside the
feed-forward network, where the released code has 0.1.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class XLNetSize(RecipeSize):
  """A size with its warmup steps."""

  warmup: int


XLNET_SIZES = {
    # Parameters of transformers' XLNetModel, without a head. Peak learning rate, warmup and batch
    # size of large: table 8.
    'base': XLNetSize(
        model=xlnet.base, parameters=116_718_336, peak=1e-4, warmup=10_000, steps=1_000_000,
        length=512, batch=256, pod='v3:4x4'),
    'large': XLNetSize(
        model=xlnet.large, parameters=360_268_800, peak=4e-4, warmup=40_000, steps=500_000,
        length=512, batch=8192, accumulate=4, pod='v3:16x32',
        published_hardware='512 TPU v3 chips, 5.5 days')}


def make_xlnet_run(row: XLNetSize) -> PretrainRun:
  """Build the published run of a size."""
  model = validation.with_paths(
      row.make_model(dropout=0.1, attention_dropout=0.1), {'block.mlp.activation': 'gelu_tanh'})
  text = TextConfig(kind='sentencepiece-unigram', layout='xlnet', lowercase=False)
  # Epsilon of 1e-6 and weight decay of 0.01 as in BERT; the final learning rate is that of the
  # released train.py.
  optim = AdamW(
      peak=row.peak, warmup=row.warmup, schedule='linear', floor=0.001, weight_decay=0.01)
  return PretrainRun(
      row.name, family='xlnet', model=model, objective=PermutationLM(),
      data=DataConfig(prepare=text), optim=optim, train=row.make_train_config())


XLNET = RecipeFamily('xlnet', XLNET_DESCRIPTION, XLNET_SIZES, make_xlnet_run)


MPNET_DESCRIPTION = """\
MPNet (Song et al. 2020, arXiv:2004.09297): masked and permuted pre-training (section 3.1).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mpnet_base
    python -m plm_jax train mpnet_base --data.path=gs://BUCKET/records    # 256 TPU v3 chips
    python -m plm_jax train mpnet_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train mpnet_base --scale=test                       # seconds

500,000 steps with batch size 8,192 at sequence length 512, on the 160 GB of text of RoBERTa. 15% of
the tokens are predicted, in random order and as whole words; the encoder has T5's relative position
bias. From README.md of microsoft/MPNet: sequences are filled with whole sentences, across document
boundaries; Adam's second beta is 0.98, weight decay is 0.01, and gradients are not clipped.

Not verified against the paper: the peak learning rate and the warmup, which are those of RoBERTa
base (Liu et al. 2019, table 9). The command in README.md, a shorter run on less text, has 5e-4 and
10,000 steps.

Differences: the released code ends every line with </s>; here </s> separates documents. Padding is
neither predicted nor attended to. The published vocabulary is that of uncased BERT with RoBERTa's
special tokens: give the released tokenizer with --tokenizer to `prepare`. A new one is byte-level
BPE, because padding has the id 1 in this model.
"""
MPNET_SIZES = {
    # Parameters of transformers' MPNetForMaskedLM; published as 110M (section 3.1).
    'base': RecipeSize(
        model=mpnet.base, parameters=109_518_527, peak=6e-4, steps=500_000, length=512, batch=8192,
        pod='v3:16x16', published_hardware='32 V100, 35 days')}


def make_mpnet_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='mpnet', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MaskedPermutedLM(),
      data=DataConfig(
          prepare=TextConfig(kind='byte-bpe', lowercase=False), assembly='sentences'),
      optim=make_fairseq_adam(row.peak, warmup=24_000), train=row.make_train_config())


MPNET = RecipeFamily('mpnet', MPNET_DESCRIPTION, MPNET_SIZES, make_mpnet_run)
