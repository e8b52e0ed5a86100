"""Translation by BART-large, in two stages (Lewis et al. 2020, sections 3.4 and 5.4).

    python -m plm_jax train bart_translation_source --warm-start=BART                       # 16 TPU v3 chips; then the
    python -m plm_jax train bart_translation --warm-start=runs/bart_translation_source      # second, from what it made
    python -m plm_jax train bart_translation_source --scale=laptop --warm-start=runs/bart_base-laptop \\
        --data.path=task:columns-de-en:train.tsv
    python -m plm_jax train bart_translation --scale=laptop --warm-start=runs/bart_translation_source-laptop \\
        --data.path=task:columns-de-en:train.tsv
    python -m plm_jax train bart_translation_source --scale=test --data.path=task:columns-de-en:train.tsv
    python -m plm_jax text-to-text runs/bart_translation task:columns-ro-en:test.tsv --beams=5

BART is bart-large, the folder of a run or of a checkpoint of transformers; its tokenizer comes with it. A Transformer
encoder of six layers, begun afresh, reads the foreign text, and its output takes the place of the token vectors of
BART's encoder. The first stage, bart_translation_source, trains it, BART's positions, and the projections into
self-attention of the first layer of BART's encoder (--optim.only); all else stays as it is. In the second all
parameters learn, `for a small number of iterations': number and rate are those of this recipe. The paper's beams are 5,
with a length penalty of 1.

Romanian to English, WMT 2016, as TFDS has it; the paper added the back-translations of Sennrich et al. (2016): give
them as another --data.path, task:columns-ro-en:FILE. The source encoder has a token table of its own, over the same
pieces as BART's; the paper allows pieces of its own too. It tells neither rates nor numbers of updates: those of the
first stage are the original Transformer's here, and label smoothing that of its other texts (section 5.3).
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import bart
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

# Parameters of BART-large (406,291,456), six layers of 1,024 and a table of 50,265 pieces and 1,026 positions more.
SIZES = {
    'source': Size(model=bart.large, parameters=534_392_832, peak=5e-4, steps=100_000, length=256, batch=96,
                   pod='v3:4x4'),
    'whole': Size(name='bart_translation', model=bart.large, parameters=534_392_832, peak=3e-5, steps=10_000,
                  length=256, batch=96, pod='v3:4x4')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a stage."""
  row = SIZES[size]
  if size == 'source':
    optim = OptimConfig(
        peak=row.peak, warmup=4000, schedule='inverse_sqrt', b2=0.98, eps=1e-8, bias_correction=True, weight_decay=0.0,
        only=bart.SOURCE_STAGE)
  else:
    optim = OptimConfig(
        peak=row.peak, warmup=500, schedule='linear', b2=0.98, eps=1e-8, bias_correction=True)
  return scaled(Experiment(
      row.name or 'bart_translation_source', family='bart', model=bart.translator(row.model('bfloat16')),
      objective=TextToText(decoder_length=256, specials=2, smoothing=0.1),
      data=DataConfig(path=('task:columns-ro-en:tfds:wmt16_translate/ro-en',), prepare=TextConfig(kind='byte-bpe'),
                      assembly='examples'),
      optim=optim, train=row.train()), scale)
