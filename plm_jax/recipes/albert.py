"""ALBERT, version 2 (Lan et al. 2020, section 4.1, and google-research/albert).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=albert_base
    python -m plm_jax train albert_base \\
        --data.path=gs://BUCKET/records  # a TPU v3 pod of 64 to 512 chips
    python -m plm_jax train albert_base --scale=laptop  # 2 CPU cores: 3 minutes
    python -m plm_jax train albert_base --scale=test    # seconds

All layers share their parameters. LAMB, batch size 4,096 at sequence length 512, peak learning rate
0.00176 after 3,125 warmup steps. N-grams of up to three words are masked, and sentence order
prediction (SOP) replaces NSP: two consecutive texts are swapped half of the time. Version 2 trains
for 10 million steps (base) or 3 million, without dropout. The paper trained for 125,000 steps with
dropout. Its last runs of xxlarge took 1.5 million steps and removed dropout at the end (section
4.8). The paper's corpus is BERT's, 16 GB, with a lower-cased vocabulary of 30,000 tokens; version 2
used more text. As in the released code, a subword token with a letter that is not English counts as
a whole word.

chinese is the released Chinese base model with BERT's 21,128 tokens, most of them single
characters. Give --segmenter=jieba to `prepare`, so that n-grams consist of words. The release does
not describe its training run; this recipe uses the settings of base.
"""
import functools

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import albert
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import SentenceOrder
from plm_jax.optim.optimizers import Lamb
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.bert import set_chinese_vocab
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

ALBERTSize = functools.partial(
    RecipeSize, peak=0.00176, steps=3_000_000, length=512, batch=4096)
# Parameters of transformers' AlbertForPreTraining; published as 12M, 18M, 60M, 235M (table 1). Peak
# learning rate and batch size: section 4.1; steps: release notes of version 2.
SIZES = {
    'base': ALBERTSize(
        model=albert.base, parameters=11_813_810, steps=10_000_000, pod='v3:16x16',
        published_hardware='64 to 512 TPU v3 chips'),
    'large': ALBERTSize(
        model=albert.large, parameters=17_847_474, pod='v3:16x16',
        published_hardware='64 to 512 TPU v3 chips'),
    'xlarge': ALBERTSize(
        model=albert.xlarge, parameters=59_021_490, pod='v3:16x16',
        published_hardware='64 to 512 TPU v3 chips'),
    'xxlarge': ALBERTSize(
        model=albert.xxlarge, parameters=223_158_450, pod='v3:16x32',
        published_hardware='64 to 512 TPU v3 chips'),
    'chinese': ALBERTSize(
        model=set_chinese_vocab(albert.base), parameters=10_669_322, steps=10_000_000,
        pod='v3:16x16', laptop_vocab=8000)}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  # Lengths of n-grams: p(n) is proportional to 1/n. The released code writes every text 40 times
  # with different masks.
  objective = MaskedLM(
      pair=SentenceOrder(), masking=Distinct('word', (6 / 11, 3 / 11, 2 / 11)), pooled='whole',
      duplicates=40)
  text = (TextConfig() if row.name == 'albert_chinese'
          else TextConfig(kind='sentencepiece-unigram', layout='albert'))
  return PretrainRun(
      row.name, family='albert',
      model=albert.make_v2(row.make_model(dropout=0.0, attention_dropout=0.0)), objective=objective,
      data=DataConfig(prepare=text),
      optim=Lamb(
          peak=row.peak, warmup=3125, schedule='bert', weight_decay=0.01),
      train=row.make_train_config())


ALBERT = RecipeFamily('albert', __doc__, SIZES, make_run)
