"""BART, Chinese BART, translation by BART, and mBART."""
import dataclasses

from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import bart
from plm_jax.objectives.denoising import (
  DenoisingAutoencoder,
  SentencePermutation,
  TextInfilling,
  WordMasking,
)
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, make_fairseq_adam

BART_DESCRIPTION = """\
BART (Lewis et al. 2020).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bart_base
    python -m plm_jax train bart_base --data.path=gs://BUCKET/records      # 16 TPU v3 chips
    python -m plm_jax train bart_large --data.path=gs://BUCKET/records     # 1,024 TPU v3 chips
    python -m plm_jax train bart_base --scale=laptop                       # 2 CPU cores: 23 minutes
    python -m plm_jax train bart_base --scale=laptop --train.phases.0.steps=800  # 5 minutes
    python -m plm_jax train bart_base --scale=test                         # seconds

A denoising autoencoder: the encoder reads corrupted text, and the decoder writes the original.

- base: a million steps on books and Wikipedia with BERT's batch size of 256 at sequence length 512.
  This is the paper's comparison of objectives (section 4), and text infilling alone was the best.
- large: 500,000 steps with batch size 8,000 (section 5.1; 8,192 here, which devices share evenly)
  on the 160 GB of text of RoBERTa. Sentences of a document are permuted, and 30% of its words are
  masked in spans of three on average, with one mask per span.

As in fairseq's denoising task, masking counts words, and a sequence holds whole sentences of one
document. The paper stopped dropout for the last tenth of the steps, which is left out here. It
gives neither learning rate nor warmup. Those of large are RoBERTa-large's (Liu et al. 2019, table
9). Those of base are fairseq's for batch size 256 (1e-4; 6e-4 would be for 8,192) with BERT's
warmup. Weight decay applies to all parameters, as in every Adam of fairseq.

RoBERTa's and BART's text has no line breaks: as in fairseq, each line is encoded alone.
"""
INFILLING = TextInfilling(unit='word')


@dataclasses.dataclass(frozen=True, kw_only=True)
class BARTSize(RecipeSize):
  """A size with its warmup steps and noise."""

  warmup: int
  objective: DenoisingAutoencoder = DenoisingAutoencoder(noises=(SentencePermutation(), INFILLING))


BART_SIZES = {
    # Parameters of the released checkpoints; published as 139M and 406M.
    'base': BARTSize(
        model=bart.base, parameters=139_420_416, peak=1e-4, warmup=10_000, steps=1_000_000,
        length=512, batch=256, objective=DenoisingAutoencoder(noises=(INFILLING,)), pod='v3:4x4'),
    'large': BARTSize(
        model=bart.large, parameters=406_291_456, peak=4e-4, warmup=30_000, steps=500_000,
        length=512, batch=8192, pod='v3:32x32')}


def make_bart_run(row: BARTSize) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='bart', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=row.objective, data=DataConfig(prepare=TextConfig(kind='byte-bpe')),
      optim=make_fairseq_adam(row.peak, row.warmup), train=row.make_train_config())


BART = RecipeFamily('bart', BART_DESCRIPTION, BART_SIZES, make_bart_run)


BART_CHINESE_DESCRIPTION = """\
Chinese BART (Shao et al. 2021, arXiv:2109.05729), with whole-word masks on characters.

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
CHINESE = {'vocab': 21_128, 'max_length': 512}


BART_CHINESE_SIZES = {
    # Parameters of transformers' BartForConditionalGeneration.
    'base': RecipeSize(
        model=lambda dtype: validation.with_paths(bart.base(dtype), CHINESE),
        parameters=116_256_768, peak=1e-4, steps=100_000, length=512, batch=256,
        pod='v3:4x4', laptop_vocab=8000),
    'large': RecipeSize(
        model=lambda dtype: validation.with_paths(bart.large(dtype), CHINESE),
        parameters=375_406_592, peak=1e-4, steps=100_000, length=512, batch=256,
        pod='v3:4x4', laptop_vocab=8000)}


def make_bart_chinese_run(row: RecipeSize) -> PretrainRun:
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


BART_CHINESE = RecipeFamily(
    'bart_chinese', BART_CHINESE_DESCRIPTION, BART_CHINESE_SIZES, make_bart_chinese_run)


BART_TRANSLATION_DESCRIPTION = """\
Translation by BART-large, in two stages (Lewis et al. 2020, sections 3.4 and 5.4).

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
# Parameters of BART-large (406,291,456), six layers of width 1,024, and embeddings of 50,265 tokens
# and 1,026 positions.
BART_TRANSLATION_SIZES = {
    'source': RecipeSize(
        model=bart.large, parameters=534_392_832, peak=5e-4, steps=100_000, length=256, batch=96,
        pod='v3:4x4'),
    'whole': RecipeSize(
        name='bart_translation', model=bart.large, parameters=534_392_832, peak=3e-5, steps=10_000,
        length=256, batch=96, pod='v3:4x4')}


def make_bart_translation_run(row: RecipeSize) -> PretrainRun:
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


BART_TRANSLATION = RecipeFamily(
    'bart_translation', BART_TRANSLATION_DESCRIPTION, BART_TRANSLATION_SIZES,
    make_bart_translation_run)


MBART_DESCRIPTION = """\
mBART of 25 languages (Liu et al. 2020), and of 50 (Tang et al. 2020).

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
MBART_SIZES = {
    # Parameters of the released checkpoint, by transformers' MBartForConditionalGeneration.
    'large': RecipeSize(
        model=bart.mbart_large, parameters=610_851_840, peak=4e-4, steps=500_000, length=512,
        batch=8192, pod='v4:8x8x8', published_hardware='256 V100'),
    '50': RecipeSize(
        model=bart.mbart_large_50, parameters=610_879_488, peak=4e-4, steps=500_000, length=512,
        batch=8192, pod='v4:8x8x8')}


def make_mbart_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  layout = 'mbart50' if row.name == 'mbart_50' else 'mbart'
  text = TextConfig(kind='sentencepiece-unigram', layout=layout, lowercase=False)
  objective = DenoisingAutoencoder(
      (SentencePermutation(), TextInfilling(0.35, 3.5, unit='word')), languages=('en_XX',),
      reserve=24)  # room for the ends of sentences
  return PretrainRun(
      row.name, family='mbart', objective=objective,
      model=row.make_model(dropout=0.1, attention_dropout=0.0),
      data=DataConfig(prepare=text, temperature=1 / 0.7),
      optim=make_fairseq_adam(row.peak, warmup=30_000), train=row.make_train_config())


MBART = RecipeFamily('mbart', MBART_DESCRIPTION, MBART_SIZES, make_mbart_run)
