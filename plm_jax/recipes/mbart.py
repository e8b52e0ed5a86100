"""mBART of 25 languages (Liu et al. 2020), and of 50 (Tang et al. 2020).

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --for=mbart_large
    python -m plm_jax prepare GERMAN gs://BUCKET/de --for=mbart_large \\
        --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax prepare ROMANIAN gs://BUCKET/ro --for=mbart_large \\
        --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax train mbart_large --data.path gs://BUCKET/de gs://BUCKET/ro \\
        --objective.languages de_DE ro_RO  # 512 TPU v4 chips
    python -m plm_jax train mbart_large --scale=laptop                     # 2 CPU cores: 23 minutes
    python -m plm_jax train mbart_large --scale=laptop --train.phases.0.steps=800  # 5 minutes
    python -m plm_jax train mbart_large --scale=test                       # seconds

A multilingual denoising autoencoder: 12 + 12 layers of width 1,024 with pre-norm, on Common Crawl
in 25 languages, for 500,000 steps. Each corpus has one language. Its language token ends the input
and begins the target. Languages are sampled by size to the power 0.7. The sentences of a document,
each ending with </s>, are permuted. 35% of the words are masked in spans of 3.5 on average (section
2.2). Weight decay applies to all parameters, and attention has no dropout, as in fairseq.

The paper counts 128 thousand tokens per batch for each of 256 GPUs and calls that BART's
configuration. This recipe uses BART's batch size of 8,192 at sequence length 512, and BART's
learning rate, which the paper does not give. The paper lowered dropout at 250,000 and 400,000
steps, which is left out here.

50 is mBART-50 (arXiv:2008.00401, section 3), which continues mbart_large with 25 more languages:
give --warm-start with a run of mbart_large. The embeddings of the new language tokens are appended.
Its 500,000 steps, and the batch size and learning rate of mbart_large, are an assumption.
"""

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import mbart
from plm_jax.objectives.denoising import DenoisingAutoencoder, SentencePermutation, TextInfilling
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

SIZES = {
    # Parameters of the released checkpoint, by transformers' MBartForConditionalGeneration.
    'large': RecipeSize(
        model=mbart.large, parameters=610_851_840, peak=4e-4, steps=500_000, length=512, batch=8192,
        pod='v4:8x8x8', published_hardware='256 V100'),
    '50': RecipeSize(
        model=mbart.large_50, parameters=610_879_488, peak=4e-4, steps=500_000, length=512,
        batch=8192, pod='v4:8x8x8')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=30_000, schedule='linear', b2=0.98, eps=1e-6, bias_correction=True,
      weight_decay=0.01, clip=0.0, exempt=())
  layout = 'mbart50' if row.name == 'mbart_50' else 'mbart'
  text = TextConfig(kind='sentencepiece-unigram', layout=layout, lowercase=False)
  objective = DenoisingAutoencoder(
      (SentencePermutation(), TextInfilling(0.35, 3.5, unit='word')), languages=('en_XX',),
      reserve=24)  # room for the ends of sentences
  return PretrainRun(
      row.name, family='mbart', objective=objective,
      model=row.make_model(dropout=0.1, attention_dropout=0.0),
      data=DataConfig(prepare=text, temperature=1 / 0.7), optim=optim,
      train=row.make_train_config())


MBART = RecipeFamily('mbart', __doc__, SIZES, make_run)
