"""Chinese BART (Shao et al. 2021, arXiv:2109.05729), with whole-word masks on characters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bart_chinese_base --tokenizer=BERT \\
        --segmenter=jieba
    python -m plm_jax train bart_chinese_base --data.path=gs://BUCKET/records      # 16 TPU v3 chips
    python -m plm_jax train bart_chinese_base --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.segmenter=jieba  # 2 CPU cores: 23 minutes
    python -m plm_jax train bart_chinese_base --scale=test --data.path=zhwiki.txt  # seconds

BERT is the folder of bert-base-chinese. The first release uses its 21,128 tokens; the release of
December 2022 has 51,271 tokens and sequence length 1,024. Every sentence of the input and of the
target ends with [SEP]. The noise follows fastnlp/CPT, pretrain/megatron/data/bart_dataset.py:
sentences are permuted; 30% of the Chinese words, as jieba segments them, become one mask each; in
another 3% the first character becomes a mask; and a tenth of these masks are random tokens.

The number of steps, batch size and learning rates are those of its script for eight GPUs,
run_pretrain_bart.sh: 100,000 steps with batch size 256 at sequence length 512, and a cosine from
1e-4 to 1e-6 after a warmup of 1%. No script of large was released; it has the same settings.
Differences: semicolons end no sentence here, words are segmented before sentences are permuted, and
a sequence reserves room for 40 [SEP].

CPT itself, an encoder with two shallow decoders that MLM and this objective share, can be loaded
(`plm_jax/models/cpt.py`), not trained.
"""
from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.layers.common import Dtype
from plm_jax.models import bart
from plm_jax.objectives.denoising import DenoisingAutoencoder, SentencePermutation, WordMasking
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

CHINESE = {'vocab': 21_128, 'max_length': 512}


def base(dtype: Dtype):
  """Make Chinese BART base: 6 + 6 layers of width 768, 21,128 tokens."""
  return validation.with_paths(bart.base(dtype), CHINESE)


def large(dtype: Dtype):
  """Make Chinese BART large: 12 + 12 layers of width 1024, 21,128 tokens."""
  return validation.with_paths(bart.large(dtype), CHINESE)


SIZES = {
    # Parameters of transformers' BartForConditionalGeneration.
    'base': RecipeSize(
        model=base, parameters=116_256_768, peak=1e-4, steps=100_000, length=512, batch=256,
        pod='v3:4x4', laptop_vocab=8000),
    'large': RecipeSize(
        model=large, parameters=375_406_592, peak=1e-4, steps=100_000, length=512, batch=256,
        pod='v3:4x4', laptop_vocab=8000)}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=1000, schedule='cosine', floor=0.01, weight_decay=0.01,
      bias_correction=True)
  # Room for the ends of sentences.
  objective = DenoisingAutoencoder((SentencePermutation(), WordMasking()), reserve=40)
  return PretrainRun(
      row.name, family='bart',
      model=row.make_model(dropout=0.1, attention_dropout=0.1), objective=objective, optim=optim,
      data=DataConfig(prepare=TextConfig(segmenter='jieba')), train=row.make_train_config())


BART_CHINESE = RecipeFamily('bart_chinese', __doc__, SIZES, make_run)
