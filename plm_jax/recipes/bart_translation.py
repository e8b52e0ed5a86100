"""Translation by BART-large, in two stages (Lewis et al. 2020, sections 3.4 and 5.4).

    python -m plm_jax train bart_translation_source --warm-start=BART  # 16 TPU v3 chips
    python -m plm_jax train bart_translation \\
        --warm-start=runs/bart_translation_source  # second stage
    python -m plm_jax train bart_translation_source --scale=laptop \\
        --warm-start=runs/bart_base-laptop --data.path=task:columns-de-en:train.tsv
    python -m plm_jax train bart_translation --scale=laptop \\
        --warm-start=runs/bart_translation_source-laptop \\
        --data.path=task:columns-de-en:train.tsv
    python -m plm_jax train bart_translation_source --scale=test \\
        --data.path=task:columns-de-en:train.tsv
    python -m plm_jax text-to-text runs/bart_translation task:columns-ro-en:test.tsv --beams=5

BART is bart-large, the folder of a run or of a transformers checkpoint; its tokenizer is used. A
Transformer encoder of six layers, trained from scratch, reads the foreign text. Its output replaces
the token embeddings of BART's encoder. The first stage, bart_translation_source, trains this
encoder, BART's positions, and the self-attention input projections of the first layer of BART's
encoder (--optim.only); everything else stays frozen. The second stage trains all parameters `for a
small number of iterations'; the number and the learning rate are choices of this recipe. The paper
decodes with 5 beams and a length penalty of 1.

The data is WMT 2016, Romanian to English, from TFDS. The paper added the back-translations of
Sennrich et al. (2016): give them as another --data.path, task:columns-ro-en:FILE. The source
encoder has its own token embeddings over the same vocabulary as BART's; the paper also allows a
vocabulary of its own. The paper gives neither learning rates nor numbers of updates: those of the
first stage are the original Transformer's, and label smoothing is that of the paper's other texts
(section 5.3).
"""
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import bart
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

# Parameters of BART-large (406,291,456), six layers of width 1,024, and embeddings of 50,265 tokens
# and 1,026 positions.
SIZES = {
    'source': RecipeSize(
        model=bart.large, parameters=534_392_832, peak=5e-4, steps=100_000, length=256, batch=96,
        pod='v3:4x4'),
    'whole': RecipeSize(
        name='bart_translation', model=bart.large, parameters=534_392_832, peak=3e-5, steps=10_000,
        length=256, batch=96, pod='v3:4x4')}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a stage."""
  if row.name == 'bart_translation_source':
    optim = AdamW(
        peak=row.peak, warmup=4000, schedule='inverse_sqrt', b2=0.98, eps=1e-8,
        bias_correction=True, weight_decay=0.0, only=bart.SOURCE_STAGE)
  else:
    optim = AdamW(
        peak=row.peak, warmup=500, schedule='linear', b2=0.98, eps=1e-8, bias_correction=True,
        weight_decay=0.01)
  data = DataConfig(
      path=('task:columns-ro-en:tfds:wmt16_translate/ro-en',), prepare=TextConfig(kind='byte-bpe'),
      assembly='examples')
  return PretrainRun(
      row.name, family='bart',
      model=bart.add_source_encoder(row.make_model(dropout=0.1, attention_dropout=0.1)),
      objective=TextToText(decoder_length=256, specials=2, smoothing=0.1), data=data, optim=optim,
      train=row.make_train_config())


BART_TRANSLATION = RecipeFamily('bart_translation', __doc__, SIZES, make_run)
