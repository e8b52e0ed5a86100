"""T5 and its descendants: v1.1, T5 adapted to language modeling, T5's tasks, mT5, ByT5, UL2."""
import dataclasses
import functools

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import t5
from plm_jax.objectives.span_corruption import (
  UL2_DENOISERS,
  MixtureOfDenoisers,
  PrefixLM,
  SpanCorruption,
)
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.optim.optimizers import Adafactor
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

T5_DESCRIPTION = """\
T5 (Raffel et al. 2020).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5_base
    python -m plm_jax train t5_base --data.path=gs://BUCKET/records      # 256 TPU v3 chips, or more
    python -m plm_jax train t5_11b --data.path=gs://BUCKET/records       # 1,024 TPU v4 chips
    python -m plm_jax train t5_small --scale=laptop                      # 2 CPU cores: 12 minutes
    python -m plm_jax train t5_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train t5_small --scale=test                        # seconds

An encoder-decoder that learns span corruption on C4, 750 GB of English web pages: spans of three
tokens on average, 15% of the text, are removed and form the target. The paper's baseline read 2^35
tokens in 2^19 steps with batch size 128 at sequence length 512 (section 3.1.2). The released
models, like this recipe, read 2^40 tokens in a million steps with batch size 2^11 (section 3.7).
They mixed in supervised tasks; here those come after pre-training, in t5_small_tasks.

The optimizer is Adafactor at the learning rate 1/sqrt(max(step, 10^4)), which factors the attention
kernels with their heads joined. The z loss has the coefficient 1e-4, as in T5X's base.gin and in
every descendant.

T5's SentencePiece normalizes text (NFKC) and makes one space of any white space, as published. So
line breaks and indentation are left out. byt5_small and others learn them.
"""


# All train for a million steps with batch size 2^11 (section 3.7).
T5Size = functools.partial(RecipeSize, peak=0.01, steps=1_000_000, length=512, batch=2048)
# Parameters of transformers' T5ForConditionalGeneration; published as 60M, 220M, 770M, 3B, 11B
# (section 3.7).
T5_SIZES = {
    'small': T5Size(model=t5.small, parameters=60_506_624, pod='v3:8x8'),
    'base': T5Size(
        model=t5.base, parameters=222_903_552, pod='v3:16x16', mesh=MeshConfig(fsdp=32)),
    'large': T5Size(
        model=t5.large, parameters=737_668_096, pod='v3:16x32', mesh=MeshConfig(fsdp=32)),
    '3b': T5Size(model=t5.t5_3b, parameters=2_851_598_336, pod='v4:8x8x8'),
    '11b': T5Size(
        model=t5.t5_11b, parameters=11_307_321_344, pod='v4:8x8x16',
        mesh=MeshConfig(fsdp=32, tensor=4))}
TEXT = TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False)
SPANS = MixtureOfDenoisers(z_loss=1e-4)  # span corruption alone, the default denoiser
PACKED = DataConfig(prepare=TEXT, assembly='packed')
OPTIM = Adafactor(
    peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0, heads='joined')


def make_run(
    row: RecipeSize, family: str = 't5', dropout: float = 0.0,
    objective: MixtureOfDenoisers | TextToText = SPANS, data: DataConfig = PACKED,
    constant: bool = False,
) -> PretrainRun:
  """Build the published run of a T5 or of its descendants, which have no dropout.

  constant: the learning rate is the row's peak throughout.
  """
  changes = dict(peak=row.peak, warmup=0, schedule='constant') if constant else {}
  return PretrainRun(
      row.name, family=family, model=row.make_model(dropout, dropout, dropout),
      objective=objective, data=data, optim=dataclasses.replace(OPTIM, **changes),
      train=row.make_train_config())


T5 = RecipeFamily(
    't5', T5_DESCRIPTION, T5_SIZES, functools.partial(make_run, dropout=0.1))


T5_V1_1_DESCRIPTION = """\
T5 version 1.1 (Raffel et al. 2020, as released afterwards).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5_v1_1_base
    python -m plm_jax train t5_v1_1_base --data.path=gs://BUCKET/records   # 256 TPU v3 chips
    python -m plm_jax train t5_v1_1_xxl --data.path=gs://BUCKET/records    # 1,024 TPU v4 chips
    python -m plm_jax train t5_v1_1_small --scale=laptop                   # 2 CPU cores: 12 minutes
    python -m plm_jax train t5_v1_1_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train t5_v1_1_small --scale=test                     # seconds

T5 with gated feed-forward networks, untied embeddings, and no dropout in pre-training, on C4 alone:
a million steps with batch size 2,048 at sequence length 512. Spans of three tokens on average, 15%
of the text, are removed and form the target. The optimizer is Adafactor at the learning rate
1/sqrt(max(step, 10^4)). The z loss has the coefficient 1e-4, as in the released code.
"""
# Parameters of transformers' T5ForConditionalGeneration.
T5_V1_1_SIZES = {
    'small': T5Size(model=t5.v1_1_small, parameters=76_961_152, pod='v3:8x8'),
    'base': T5Size(
        model=t5.v1_1_base, parameters=247_577_856, pod='v3:16x16', mesh=MeshConfig(fsdp=32)),
    'large': T5Size(
        model=t5.v1_1_large, parameters=783_150_080, pod='v3:16x32', mesh=MeshConfig(fsdp=32)),
    'xl': T5Size(
        model=t5.v1_1_xl, parameters=2_849_757_184, pod='v4:8x8x8', mesh=MeshConfig(fsdp=16)),
    'xxl': T5Size(
        model=t5.v1_1_xxl, parameters=11_135_332_352, pod='v4:8x8x16',
        mesh=MeshConfig(fsdp=32, tensor=4))}


T5_V1_1 = RecipeFamily('t5_v1_1', T5_V1_1_DESCRIPTION, T5_V1_1_SIZES, make_run)


T5_LM_DESCRIPTION = """\
T5 v1.1 adapted to language modeling (Lester et al. 2021, arXiv:2104.08691, section 3.3).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5_lm_base --tokenizer=T5
    python -m plm_jax train t5_lm_base --data.path=gs://BUCKET/records \\
        --warm-start=T5  # 256 TPU v3 chips
    python -m plm_jax train t5_lm_small --scale=laptop                     # 2 CPU cores: 12 minutes
    python -m plm_jax train t5_lm_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train t5_lm_small --scale=test                       # seconds

T5 is a run of t5_v1_1 of this size, or its checkpoint. 100,000 more steps with batch size 2^11 on
C4 with the prefix language modeling objective: the encoder reads the start of a text, and the
decoder writes the rest, as long as possible (Raffel et al. 2020, section 3.3.1). The number of
steps is that of released_checkpoints.md of google-research/text-to-text-transfer-transformer. It
does not name the batch size or the learning rate: T5's batch size, and the learning rate 0.001 that
1/sqrt(step) has reached, are an assumption.
"""
T5_LM_SIZES = {name: dataclasses.replace(row, peak=1e-3, steps=100_000)
         for name, row in T5_V1_1_SIZES.items()}
T5_LM = RecipeFamily('t5_lm', T5_LM_DESCRIPTION, T5_LM_SIZES, functools.partial(
    make_run, objective=MixtureOfDenoisers((PrefixLM(),), z_loss=1e-4), constant=True))


T5_TASKS_DESCRIPTION = """\
T5 on text-to-text tasks: GLUE (Raffel et al. 2020, section 3.1.2).

    python -m plm_jax train t5_small_tasks --warm-start=gs://BUCKET/t5_small  # a TPU host
    python -m plm_jax train t5_small_tasks --warm-start=T5 --data.path \\
        task:squad:train-v1.1.json task:summarize:train.jsonl \\
        task:translate-en-de:train.tsv  # tasks of your own
    python -m plm_jax text-to-text runs/t5_small_tasks task:sst2:tfds:glue/sst2:validation

2^18 steps with batch size 128 at sequence length 512 and a constant learning rate of 0.001.
Sequences are packed with as many examples as fit. Tasks are mixed in proportion to their numbers of
examples; --data.cap and --data.temperature change that (section 3.5.2). The paper fine-tuned its
released models on each task separately: give a single --data.path. T5 is the folder of a run or of
a transformers checkpoint, such as google-t5/t5-small; its tokenizer is used. For other sizes give
--model too, as in the t5 recipes.
"""
T5_TASKS_SIZES = {
    # Section 3.1.2: constant learning rate of 0.001, 2^18 steps with batch size 128.
    'small': RecipeSize(
        name='t5_small_tasks', model=t5.small, parameters=60_506_624, peak=1e-3, steps=1 << 18,
        length=512, batch=128, pod='v3:2x2')}
TASKS = ('cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte')
TASK_DATA = DataConfig(
    path=tuple(f'task:{task}:tfds:glue/{task}' for task in TASKS), prepare=TEXT,
    assembly='examples')
T5_TASKS = RecipeFamily('t5_tasks', T5_TASKS_DESCRIPTION, T5_TASKS_SIZES, functools.partial(
    make_run, dropout=0.1, objective=TextToText(decoder_length=128, z_loss=1e-4), data=TASK_DATA,
    constant=True))


MT5_DESCRIPTION = """\
mT5 (Xue et al. 2021).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=mt5_small
    python -m plm_jax train mt5_small --data.path=gs://BUCKET/records      # 256 TPU v3 chips
    python -m plm_jax train mt5_small --scale=laptop                       # 2 CPU cores: 12 minutes
    python -m plm_jax train mt5_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train mt5_small --scale=test                         # seconds

T5 v1.1 with a vocabulary of 250,000 tokens on mC4, 101 languages: a million steps with batch size
1,024 at sequence length 1,024. Give the records of every language in --data.path. Languages are
sampled by size to the power 0.3 (section 3.2), as --data.temperature sets.

umT5 (Chung et al. 2023) is mT5 with position biases of its own in every layer, and UniMax sampling
of languages. Its checkpoints can be read and written. There is no recipe, because the settings of
its training could not be verified; these options of mT5 give the model and the sampling:

    --family=umt5 --model.block.attention.position.no-shared --model.vocab=256384
    --data.temperature=1 --data.unimax-epochs=1
"""


# All train for a million steps of 1,024 sequences of 1,024 tokens (section 3.2).
MT5Size = functools.partial(RecipeSize, peak=0.01, steps=1_000_000, length=1024, batch=1024)
MT5_SIZES = {
    # Parameters of transformers' MT5ForConditionalGeneration; published as 300M, 580M, 1.2B, 3.7B,
    # 13B (section 3.2).
    'small': MT5Size(model=t5.mt5_small, parameters=300_176_768, pod='v3:16x16'),
    'base': MT5Size(model=t5.mt5_base, parameters=582_401_280, pod='v3:16x32'),
    'large': MT5Size(model=t5.mt5_large, parameters=1_229_581_312, pod='v4:8x8x8'),
    'xl': MT5Size(
        model=t5.mt5_xl, parameters=3_742_619_648, pod='v4:8x8x8', mesh=MeshConfig(fsdp=32)),
    'xxl': MT5Size(
        model=t5.mt5_xxl, parameters=12_921_057_280, pod='v4:8x8x16',
        mesh=MeshConfig(fsdp=32, tensor=4))}
MT5 = RecipeFamily('mt5', MT5_DESCRIPTION, MT5_SIZES, functools.partial(
    make_run, family='mt5', data=dataclasses.replace(PACKED, temperature=1 / 0.3)))


BYT5_DESCRIPTION = """\
ByT5 (Xue et al. 2022).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=byt5_small
    python -m plm_jax train byt5_small --data.path=gs://BUCKET/records     # 256 TPU v3 chips
    python -m plm_jax train byt5_small --scale=laptop                      # 2 CPU cores: 12 minutes
    python -m plm_jax train byt5_small --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train byt5_small --scale=test                        # seconds

An encoder-decoder on bytes, whose encoder has three times as many layers as its decoder, on mC4: a
million steps with batch size 1,024 and sequences of 1,024 bytes. Spans of twenty bytes on average,
15% of the text, are removed and form the target (section 3.1; README of google-research/byt5:
1,048,576 tokens per batch, rsqrt_no_ramp_down). Languages are sampled as in mT5.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""
BYT5_SIZES = {
    # Parameters of transformers' T5ForConditionalGeneration; published as 300M, 582M, 1.23B, 3.74B,
    # 12.9B (table 1).
    'small': MT5Size(model=t5.byt5_small, parameters=299_637_760, pod='v3:16x16'),
    'base': MT5Size(
        model=t5.byt5_base, parameters=581_653_248, pod='v3:16x32', mesh=MeshConfig(fsdp=32)),
    'large': MT5Size(model=t5.byt5_large, parameters=1_228_183_552, pod='v4:8x8x8'),
    'xl': MT5Size(
        model=t5.byt5_xl, parameters=3_737_801_728, pod='v4:8x8x8', mesh=MeshConfig(fsdp=32)),
    'xxl': MT5Size(
        model=t5.byt5_xxl, parameters=12_906_899_328, pod='v4:8x8x16',
        mesh=MeshConfig(fsdp=32, tensor=4))}
BYT5_DATA = DataConfig(
    prepare=TextConfig(kind='bytes', sentences='none'), assembly='packed', temperature=1 / 0.3)
BYT5 = RecipeFamily('byt5', BYT5_DESCRIPTION, BYT5_SIZES, functools.partial(
    make_run, data=BYT5_DATA,
    objective=MixtureOfDenoisers((SpanCorruption(mean_span_length=20.0),), z_loss=1e-4)))


UL2_DESCRIPTION = """\
UL2 (Tay et al. 2023).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ul2_20b
    python -m plm_jax train ul2_20b --data.path=gs://BUCKET/records        # 512 TPU v4 chips
    python -m plm_jax train ul2_20b --scale=laptop                         # 2 CPU cores: 12 minutes
    python -m plm_jax train ul2_20b --scale=laptop --train.phases.0.steps=1600  # 5 minutes
    python -m plm_jax train ul2_20b --scale=test                           # seconds

An encoder-decoder of 32 + 32 layers of width 4,096 with SwiGLU, on C4: two million steps with batch
size 1,024 at sequence length 512. The objective is a mixture of seven denoisers, one per sequence:
spans of 3 or 8 tokens on average, 15% of the text; the end of the text; and spans that cover half
of the text or have 64 tokens. A token at the start names the kind of denoiser, one of three
(section 3.1). Half of a text in spans of three needs more sentinels than T5's tokenizer has. The
numbers of steps and sequences, and the absence of dropout, follow the model card of google/ul2.

Adafactor at the learning rate 1/sqrt(max(step, 10^4)) and a z loss of 1e-4 are an assumption from
T5's released code: no configuration of a pre-training run was released.
"""
UL2_SIZES = {
    # Parameters with tied embeddings; published as 19.5B. With untied ones, as in T5 v1.1, there
    # would be 19.59B.
    '20b': RecipeSize(
        model=t5.ul2_20b, parameters=19_459_613_696, peak=0.01, steps=2_000_000, length=512,
        batch=1024, pod='v4:8x8x8', mesh=MeshConfig(fsdp=128))}
UL2_DATA = DataConfig(prepare=dataclasses.replace(TEXT, sentinels=160), assembly='packed')
UL2 = RecipeFamily('ul2', UL2_DESCRIPTION, UL2_SIZES, functools.partial(
    make_run, objective=MixtureOfDenoisers(UL2_DENOISERS, sentinels=160, z_loss=1e-4),
    data=UL2_DATA))
