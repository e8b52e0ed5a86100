"""DeBERTa: versions 1, 2 and 3."""
import dataclasses
import functools

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import deberta
from plm_jax.objectives.masking import Windowed
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize

DEBERTA_DESCRIPTION = """\
DeBERTa (He et al. 2021, sections 5.1 and 5.2, appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=deberta_base
    python -m plm_jax train deberta_base \\
        --data.path=gs://BUCKET/records  # 64 TPU v3 chips (v3-128), or more
    python -m plm_jax train deberta_base --scale=laptop  # 2 CPU cores: 3 minutes
    python -m plm_jax train deberta_base --scale=test    # seconds

Disentangled attention and an enhanced mask decoder: a million steps with batch size 2,048 at
sequence length 512. The paper took 10 days on 64 V100 for base and 20 days on 96 for large. Its
text is Wikipedia, BookCorpus, OpenWebText and Stories, 78 GB. Masking follows the released code:
one n-gram of up to three words in each of successive windows. Sequences are packed full, as in the
released code, but documents in one sequence do not attend to each other here.
"""
DEBERTA_SIZES = {
    # Parameters of transformers' DebertaModel, without a head.
    'base': RecipeSize(
        model=deberta.base, parameters=138_601_728, peak=2e-4, steps=1_000_000, length=512,
        batch=2048, pod='v3:8x8', published_hardware='64 V100, 10 days'),
    'large': RecipeSize(
        model=deberta.large, parameters=405_163_008, peak=2e-4, steps=1_000_000, length=512,
        batch=2048, accumulate=2, pod='v3:8x16', published_hardware='96 V100, 20 days')}
# Shared with version 2.
MASKS = MaskedLM(pair=Single(), masking=Windowed('word', (6 / 11, 3 / 11, 2 / 11)))


def make_deberta_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  text = TextConfig(kind='byte-bpe', lowercase=False)
  return PretrainRun(
      row.name, family='deberta', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MASKS, data=DataConfig(prepare=text, assembly='packed'),
      optim=AdamW(peak=row.peak, warmup=10_000, schedule='bert', weight_decay=0.01),
      train=row.make_train_config())


DEBERTA = RecipeFamily('deberta', DEBERTA_DESCRIPTION, DEBERTA_SIZES, make_deberta_run)


DEBERTA_V2_DESCRIPTION = """\
DeBERTa version 2 (released with He et al. 2021; section 5.3 and appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=deberta_v2_xlarge
    python -m plm_jax train deberta_v2_xlarge --data.path=gs://BUCKET/records  # 128 TPU v4 chips
    python -m plm_jax train deberta_v2_xxlarge --data.path=gs://BUCKET/records  # 256 TPU v4 chips
    python -m plm_jax train deberta_v2_xlarge --scale=laptop                # 2 CPU cores: 4 minutes
    python -m plm_jax train deberta_v2_xlarge --scale=test                  # seconds

Adds shared projections, logarithmic buckets of relative positions and a convolution to version 1: a
million steps with batch size 2,048 at sequence length 512. The paper took 30 days on 256 V100 for
xxlarge. It gives no schedule for xlarge; this recipe uses that of xxlarge. The text is version 1's
and CC-News, 160 GB. Masking and packing follow version 1.
"""
DEBERTA_V2_SIZES = {
    # Parameters of transformers' DebertaV2Model, without a head; published as 900M and 1.5B.
    'xlarge': RecipeSize(
        model=deberta.v2_xlarge, parameters=884_593_152, peak=1.5e-4, steps=1_000_000, length=512,
        batch=2048, accumulate=4, pod='v4:4x4x8'),
    'xxlarge': RecipeSize(
        model=deberta.v2_xxlarge, parameters=1_564_549_632, peak=1.5e-4, steps=1_000_000,
        length=512, batch=2048, accumulate=2, pod='v4:4x8x8',
        published_hardware='256 V100, 30 days')}
# Shared with version 3.
TEXT = DataConfig(
    prepare=TextConfig(kind='sentencepiece-unigram', layout='deberta', lowercase=False),
    assembly='packed')


DEBERTA_V2 = RecipeFamily(
    'deberta_v2', DEBERTA_V2_DESCRIPTION, DEBERTA_V2_SIZES,
    lambda row: dataclasses.replace(make_deberta_run(row), family='deberta-v2', data=TEXT))


DEBERTA_V3_DESCRIPTION = """\
DeBERTa version 3 (He et al. 2023, sections 3 and 4).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=deberta_v3_base
    python -m plm_jax train deberta_v3_base \\
        --data.path=gs://BUCKET/records  # 256 TPU v3 chips (v3-512)
    python -m plm_jax train deberta_v3_base --scale=laptop  # 2 CPU cores: 4 minutes
    python -m plm_jax train deberta_v3_base --scale=test    # seconds

Replaced token detection, as in ELECTRA: 500,000 steps with batch size 8,192 at sequence length 512.
The text is version 2's, 160 GB. The generator is as wide as the discriminator and half as deep. The
two share embeddings, which learn from the generator's gradient alone; the discriminator adds a
difference of its own (gradient-disentangled embedding sharing).

Training follows the released code (apps/tasks/rtd_task.py). Each network has its own optimizer and
its own gradient clipping. The discriminator's loss has the weight 10, where the paper has 50. Masks
are single tokens, one in each window of six, from the left until 15% are masked.

Peak learning rates are those of the paper's pre-training table, with one assumption: 6e-4, because
the table could not be read. The paper's analysis with 125,000 steps has 5e-4, and the released
rtd.sh has 1e-4 for batch size 256. The paper gives no schedule for xsmall; this recipe uses that of
small and base. The released rtd.sh has 3e-4 for xsmall with batch size 64, in a demonstration on
WikiText-103 of a million updates. To follow it, give --optim.peak=3e-4 --train.phases.0.batch=64
--train.phases.0.steps=1000000.

multilingual is mDeBERTa: base with 250,000 tokens on CC100, 2.5 trillion characters in 100
languages. Languages are sampled by size to the power 0.3, as in XLM-R and mT5; section 5.4 compares
with these and does not state its own power. Give one corpus per language to --data.path.
"""
V3Size = functools.partial(RecipeSize, peak=6e-4, steps=500_000, length=512, batch=8192)
DEBERTA_V3_SIZES = {
    # Parameters of transformers' DebertaV2Model, without a head; published without token embeddings
    # as 22M, 44M, 86M, 304M, and the embeddings as 48M, 98M, 98M, 131M (README of
    # microsoft/DeBERTa).
    'xsmall': V3Size(
        model=deberta.v3_xsmall, parameters=70_682_112, accumulate=4, pod='v3:8x8'),
    'small': V3Size(
        model=deberta.v3_small, parameters=141_304_320, accumulate=4, pod='v3:8x8'),
    'base': V3Size(model=deberta.v3_base, parameters=183_831_552, pod='v3:16x16'),
    'large': V3Size(
        model=deberta.v3_large, parameters=434_012_160, peak=3e-4, accumulate=4, pod='v4:4x8x8'),
    # Published as 86M without the 190M of the token embeddings.
    'multilingual': V3Size(
        name='mdeberta_v3_base', model=deberta.mdeberta_v3_base, parameters=278_218_752,
        accumulate=2, pod='v4:4x8x8')}
V3_MASKS = MaskedLM(pair=Single(), masking=Windowed(), mask_share=1.0, random_share=0.0)
V3_OBJECTIVE = ReplacedTokenDetection(
    V3_MASKS, weight=10.0, sharing='disentangled', optimizers='two', width=1.0, depth=0.5,
    first=True)


def make_deberta_v3_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  temperature = 1 / 0.3 if row.name == 'mdeberta_v3_base' else 1.0
  return PretrainRun(
      row.name, family='deberta-v2',
      model=row.make_model(dropout=0.1, attention_dropout=0.1), objective=V3_OBJECTIVE,
      data=dataclasses.replace(TEXT, temperature=temperature),
      optim=AdamW(peak=row.peak, warmup=10_000, schedule='bert', b2=0.98, weight_decay=0.01),
      train=row.make_train_config())


DEBERTA_V3 = RecipeFamily(
    'deberta_v3', DEBERTA_V3_DESCRIPTION, DEBERTA_V3_SIZES, make_deberta_v3_run)
