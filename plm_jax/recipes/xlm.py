"""XLM, of masked and of translation language modelling (Lample and Conneau 2019, arXiv:1901.07291, sections 3 and 5.1).

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --for=xlm_xnli15
    python -m plm_jax prepare GERMAN gs://BUCKET/de --for=xlm_xnli15 --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax prepare SWAHILI gs://BUCKET/sw --for=xlm_xnli15 --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax train xlm_xnli15 --data.path gs://BUCKET/de gs://BUCKET/sw    # 256 TPU v3 chips
    python -m plm_jax train xlm_xnli15 --scale=laptop                               # 2 CPU cores: 3 minutes
    python -m plm_jax train xlm_xnli15 --scale=test                                 # seconds
    python -m plm_jax train xlm_xnli15_tlm --warm-start=runs/xlm_xnli15 --objective.pair.languages de sw de-sw \\
        --data.path gs://BUCKET/de gs://BUCKET/sw task:columns-de-sw:pairs.tsv.gz
    python -m plm_jax train xlm_xnli15_tlm --scale=laptop --objective.pair.languages de en de-en \\
        --data.path de.txt en.txt task:columns-de-en:pairs.tsv

Streams of 256 tokens of the Wikipedias of XNLI's 15 languages, 64 for each of 64 GPUs, without weight decay; a token
has the embedding of its language, which is the place of its corpus in --data.path, and shares of languages go with the
power 0.7 of their sizes. The rate is between 1e-4 and 5e-4 in the paper, 1e-4 in the released commands; a run ends
there where the held-out perplexity of the languages no longer falls, and here after 500,000 updates. The pieces are of
SentencePiece, where the authors had words of Moses in BPE.

xnli15_tlm goes on with translations beside each other, two texts in a row that help to guess each other's masks
(section 3.3): the parallel corpora of --data.path are columns of tables, and --objective.pair.languages names what each
corpus is in, in the order of the run before. Updates of the paper alternate between streams and pairs, these of 4,000
tokens for each GPU: a share that --data.weights sets, and that otherwise goes with the sizes of the corpora.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import xlm
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import FullSentences
from plm_jax.objectives.translations import Translations
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' XLMWithLMHeadModel; published as 250M (README of facebookresearch/XLM).
    'xnli15': Size(model=xlm.xnli15, parameters=249_071_384, peak=1e-4, steps=500_000, length=256, batch=4096,
                   pod='v3:16x16', took='64 V100'),
    'xnli15_tlm': Size(model=xlm.xnli15, parameters=249_071_384, peak=1e-4, steps=500_000, length=256, batch=4096,
                       pod='v3:16x16', took='64 V100')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=30_000, schedule='inverse_sqrt', b2=0.98, bias_correction=True, weight_decay=0.0)
  return scaled(Experiment(
      f'xlm_{size}', family='xlm', model=row.model('bfloat16'),
      objective=MaskedLM(pair=Translations() if size.endswith('tlm') else FullSentences(), says_language=True),
      data=DataConfig(prepare=TextConfig(kind='sentencepiece-unigram'), assembly='sentences', temperature=1 / 0.7),
      optim=optim, train=row.train()), scale)
