"""ALBERT, version 2 (Lan et al. 2020, section 4.1, and google-research/albert).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=albert_base
    python -m plm_jax train albert_base --data.path=gs://BUCKET/records    # a TPU v3 pod of 64 to 512 chips
    python -m plm_jax train albert_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train albert_base --scale=test                       # seconds

LAMB, batches of 4,096 rows of 512 tokens, peak 0.00176 after 3,125 steps; n-grams of up to three words are masked
together, and two texts that follow each other change places half of the time. The layers of a model are one. Version 2
takes 10 million steps (base) or 3 million, without dropout; the paper took 125,000 steps with dropout, and for its last
runs of xxlarge 1.5 million, of which it dropped dropout at the end (section 4.8). The paper's corpus is BERT's, 16 GB,
in 30,000 lower-cased pieces; version 2 had more text. As released, a piece with a letter that is not English is a word
of its own.

chinese is the released Chinese base, of BERT's 21,128 pieces, characters most of them: give --segmenter=jieba to
`prepare`, so that n-grams are of words; it says nothing of its run, which is base's here.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import albert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import SentenceOrder
from plm_jax.recipes.bert import chinese, in_chinese
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

# Parameters by transformers' AlbertForPreTraining; published as 12M, 18M, 60M, 235M (table 1). Peak and batch are those
# of section 4.1, steps of the release notes of version 2.
SIZES = {
    'base': Size(model=albert.base, parameters=11_813_810, peak=0.00176, steps=10_000_000, batch=4096, pod='v3:16x16',
                 took='64 to 512 TPU v3 chips'),
    'large': Size(model=albert.large, parameters=17_847_474, peak=0.00176, steps=3_000_000, batch=4096, pod='v3:16x16',
                  took='64 to 512 TPU v3 chips'),
    'xlarge': Size(model=albert.xlarge, parameters=59_021_490, peak=0.00176, steps=3_000_000, batch=4096,
                   pod='v3:16x16', took='64 to 512 TPU v3 chips'),
    'xxlarge': Size(model=albert.xxlarge, parameters=223_158_450, peak=0.00176, steps=3_000_000, batch=4096,
                    pod='v3:16x32', took='64 to 512 TPU v3 chips'),
    'chinese': Size(model=chinese(albert.base), parameters=10_669_322, peak=0.00176, steps=10_000_000, batch=4096,
                    pod='v3:16x16')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  # p(n) is proportional to 1/n. The released code writes every text out 40 times, masked anew each time.
  objective = MaskedLM(pair=SentenceOrder(), unit='word', lengths=(6 / 11, 3 / 11, 2 / 11), pooled='whole',
                       duplicates=40)
  text = TextConfig() if size == 'chinese' else TextConfig(kind='sentencepiece-unigram', layout='albert')
  run = scaled(Experiment(
      f'albert_{size}', family='albert', model=albert.second(row.model('bfloat16')), objective=objective,
      data=DataConfig(prepare=text), optim=OptimConfig(kind='lamb', peak=row.peak, warmup=3125), train=row.train()),
      scale)
  return in_chinese(run) if size == 'chinese' else run
