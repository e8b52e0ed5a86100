"""Chinese BART (Shao et al. 2021, arXiv:2109.05729), whose noise counts words and whose pieces are characters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bart_chinese_base --tokenizer=BERT --segmenter=jieba
    python -m plm_jax train bart_chinese_base --data.path=gs://BUCKET/records                  # 16 TPU v3 chips
    python -m plm_jax train bart_chinese_base --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.segmenter=jieba                                             # 2 CPU cores: 23 minutes
    python -m plm_jax train bart_chinese_base --scale=test --data.path=zhwiki.txt  # seconds

BERT is the folder of bert-base-chinese, whose 21,128 pieces the first release has; that of December 2022 has 51,271,
and rows of 1,024. Sentences change places, 30% of the words, as jieba finds them, are masked in spans of three on
average, and a tenth of these masks are random tokens (fastnlp/CPT, pretrain/megatron/data/bart_dataset.py). Steps, rows
and rates are those of its script for eight GPUs, run_pretrain_bart.sh: 100,000 steps of 256 rows of 512, and a cosine
from 1e-4 to 1e-6 behind a warmup of a hundredth. large, of which no script was released, has them too.

CPT itself, an encoder that MLM and this task share, with two shallow decoders, is read (`plm_jax/models/cpt.py`), not
trained.
"""
from plm_jax import checked
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.layers.common import Dtype
from plm_jax.models import bart
from plm_jax.objectives.denoising import DenoisingAutoencoder, SentencePermutation, TextInfilling
from plm_jax.recipes.bert import in_chinese
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

CHINESE = {'vocab': 21_128, 'max_length': 512}


def base(dtype: Dtype):
  """Makes Chinese BART base: 6 and 6 layers of width 768, 21,128 pieces."""
  return checked.replaced(bart.base(dtype), CHINESE)


def large(dtype: Dtype):
  """Makes Chinese BART large: 12 and 12 layers of width 1024, 21,128 pieces."""
  return checked.replaced(bart.large(dtype), CHINESE)


SIZES = {
    # Parameters by transformers' BartForConditionalGeneration.
    'base': Size(model=base, parameters=116_256_768, peak=1e-4, steps=100_000, batch=256, pod='v3:4x4'),
    'large': Size(model=large, parameters=375_406_592, peak=1e-4, steps=100_000, batch=256, pod='v3:4x4')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(peak=row.peak, warmup=1000, schedule='cosine', floor=0.01, bias_correction=True)
  objective = DenoisingAutoencoder((SentencePermutation(), TextInfilling(random=0.1, unit='word')))
  return in_chinese(scaled(Experiment(
      f'bart_chinese_{size}', family='bart', model=row.model('bfloat16'), objective=objective,
      data=DataConfig(prepare=TextConfig(segmenter='jieba' if scale == 'paper' else 'none')),
      optim=optim, train=row.train()), scale))
