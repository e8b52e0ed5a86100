"""mBART of 25 languages (Liu et al. 2020), and of 50 (Tang et al. 2020).

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --for=mbart_large
    python -m plm_jax prepare GERMAN gs://BUCKET/de --for=mbart_large --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax prepare ROMANIAN gs://BUCKET/ro --for=mbart_large --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax train mbart_large --data.path gs://BUCKET/de gs://BUCKET/ro \\
        --objective.languages de_DE ro_RO    # 512 TPU v4 chips
    python -m plm_jax train mbart_large --scale=laptop                          # 2 CPU cores: 23 minutes
    python -m plm_jax train mbart_large --scale=laptop --train.phases.0.steps=800   # 5 minutes
    python -m plm_jax train mbart_large --scale=test                            # seconds

12 + 12 layers of 1,024 with norms first, on Common Crawl in 25 languages, for 500,000 steps. A corpus is of one
language, whose name ends a text and begins what is written; shares of the rows go with the power 0.7 of the corpora's
sizes. Sentences of a document, each of which ends with </s>, change places, and 35% of the words are masked in spans of
3.5 on average (section 2.2); all parameters decay, and attention has no dropout, as in fairseq. The paper counts 128
thousand tokens of a batch for each of 256 GPUs and calls that BART's configuration; here are BART's 8,192 rows of 512,
and its rate, which the paper does not tell. It lowered dropout at 250,000 and 400,000 steps, which is left out here.

50 is mBART-50 (arXiv:2008.00401, section 3), which goes on from the other in 25 languages more, for 500,000 steps:
--warm-start=mbart_large's run, whose tokens of languages have new rows behind them.
"""
import dataclasses

from plm_jax import checked
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import mbart
from plm_jax.objectives.denoising import DenoisingAutoencoder, SentencePermutation, TextInfilling
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters of the released checkpoint, by transformers' MBartForConditionalGeneration.
    'large': Size(model=mbart.large, parameters=610_851_840, peak=4e-4, steps=500_000, batch=8192,
                  pod='v4:8x8x8', took='256 V100'),
    '50': Size(model=mbart.large_50, parameters=610_879_488, peak=4e-4, steps=500_000, batch=8192,
               pod='v4:8x8x8')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=30_000, schedule='linear', b2=0.98, eps=1e-6, bias_correction=True, clip=0.0,
      exempt=())
  text = TextConfig(kind='sentencepiece-unigram', layout='mbart50' if size == '50' else 'mbart', lowercase=False)
  model = row.model('bfloat16')
  # Of 512 tokens so many ends of sentences; at the smaller scales rows hold a few sentences.
  objective = DenoisingAutoencoder(
      (SentencePermutation(), TextInfilling(0.35, 3.5, unit='word')), languages=('en_XX',),
      reserve=24 if scale == 'paper' else 4)
  return scaled(Experiment(
      f'mbart_{size}', family='mbart', objective=objective,
      model=dataclasses.replace(model, block=checked.replaced(model.block, {'attention.dropout': 0.0})),
      data=DataConfig(prepare=text, temperature=1 / 0.7), optim=optim, train=row.train()), scale)
