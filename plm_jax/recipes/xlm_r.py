"""XLM-R (Conneau et al. 2020, arXiv:1911.02116).

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --for=xlm_r_base
    python -m plm_jax prepare GERMAN gs://BUCKET/de --for=xlm_r_base --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax prepare SWAHILI gs://BUCKET/sw --for=xlm_r_base --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax train xlm_r_base --data.path gs://BUCKET/de gs://BUCKET/sw    # 512 TPU v3 chips
    python -m plm_jax train xlm_r_base --scale=laptop                               # 2 CPU cores: 3 minutes
    python -m plm_jax train xlm_r_base --scale=test                                 # seconds

RoBERTa on CC100, 2.5 TB of the web in 100 languages, with one vocabulary of 250,000 pieces: 1.5 million updates of
8,192 rows (section 3). Give the records of every language in --data.path: their shares are of their sizes to the power
of 0.3, as --data.temperature says; the text of the tokenizer should have such shares too. Held-out figures are of each
language too, as are those of `python -m plm_jax evaluate RUN TEXT TEXT`. The paper gives neither rate nor warmup: here
they are RoBERTa's, as are masks and the optimizer.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import xlm_roberta
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import FullSentences
from plm_jax.recipes.roberta import RoBERTaSize
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' XLMRobertaForMaskedLM; published as 270M and 550M (table 5).
    'base': RoBERTaSize(model=xlm_roberta.base, parameters=278_295_186, peak=6e-4, warmup=24_000, steps=1_500_000,
                        batch=8192, pod='v3:16x32', mesh=MeshConfig(fsdp=32), took='500 V100'),
    'large': RoBERTaSize(model=xlm_roberta.large, parameters=560_142_482, peak=4e-4, warmup=30_000, steps=1_500_000,
                         batch=8192, accumulate=2, pod='v3:16x32', took='500 V100')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=row.warmup, schedule='linear', b2=0.98, bias_correction=True, clip=0.0, exempt=())
  return scaled(Experiment(
      f'xlm_r_{size}', family='xlm-roberta', model=row.model('bfloat16'),
      objective=MaskedLM(pair=FullSentences(), choice='everywhere', pooled='whole'),
      data=DataConfig(prepare=TextConfig(kind='sentencepiece-unigram', layout='xlm-r', lowercase=False),
                      assembly='sentences', temperature=1 / 0.3),
      optim=optim, train=row.train()), scale)
