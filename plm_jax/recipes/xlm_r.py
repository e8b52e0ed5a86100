"""XLM-R (Conneau et al. 2020, arXiv:1911.02116).

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --for=xlm_r_base
    python -m plm_jax prepare GERMAN gs://BUCKET/de --for=xlm_r_base \\
        --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax prepare SWAHILI gs://BUCKET/sw --for=xlm_r_base \\
        --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax train xlm_r_base --data.path gs://BUCKET/de gs://BUCKET/sw  # 512 TPU v3 chips
    python -m plm_jax train xlm_r_base --scale=laptop                       # 2 CPU cores: 3 minutes
    python -m plm_jax train xlm_r_base --scale=test                         # seconds

RoBERTa on CC100, 2.5 TB of web text in 100 languages, with one vocabulary of 250,000 tokens: 1.5
million updates with batch size 8,192 (section 3). Give the records of every language in
--data.path. Languages are sampled by size to the power 0.3, as --data.temperature sets; the text of
the tokenizer should have the same shares. Held-out metrics are also reported per language, as in
`python -m plm_jax evaluate RUN TEXT TEXT`.

Neither the paper nor examples/xlmr of fairseq gives a learning rate or a warmup. The learning rate,
warmup, masking and optimizer of RoBERTa are an assumption.
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import xlm_roberta
from plm_jax.objectives.masking import Everywhere
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily
from plm_jax.recipes.roberta import RoBERTaSize
from plm_jax.sharding import MeshConfig

SIZES = {
    # Parameters of transformers' XLMRobertaForMaskedLM; published as 270M and 550M (table 5).
    'base': RoBERTaSize(
        model=xlm_roberta.base, parameters=278_295_186, peak=6e-4, warmup=24_000, steps=1_500_000,
        length=512, batch=8192, pod='v3:16x32', mesh=MeshConfig(fsdp=32),
        published_hardware='500 V100'),
    'large': RoBERTaSize(
        model=xlm_roberta.large, parameters=560_142_482, peak=4e-4, warmup=30_000, steps=1_500_000,
        length=512, batch=8192, accumulate=2, pod='v3:16x32', published_hardware='500 V100')}


def make_run(row: RoBERTaSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=row.warmup, schedule='linear', b2=0.98, bias_correction=True,
      weight_decay=0.01, clip=0.0, exempt=())
  text = TextConfig(kind='sentencepiece-unigram', layout='xlm-r', lowercase=False)
  return PretrainRun(
      row.name, family='xlm-roberta',
      model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MaskedLM(pair=FullSentences(), masking=Everywhere(), pooled='whole'),
      data=DataConfig(prepare=text, assembly='sentences', temperature=1 / 0.3), optim=optim,
      train=row.make_train_config())


XLM_R = RecipeFamily('xlm_r', __doc__, SIZES, make_run)
