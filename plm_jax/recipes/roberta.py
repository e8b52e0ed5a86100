"""RoBERTa and XLM-R."""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import roberta
from plm_jax.objectives.masking import Everywhere
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences, NextSentence
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, make_fairseq_adam
from plm_jax.sharding import MeshConfig

ROBERTA_DESCRIPTION = """\
RoBERTa (Liu et al. 2019): the models (section 5, table 9) and input formats (4.2, table 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=roberta_base
    python -m plm_jax train roberta_base --data.path=gs://BUCKET/records  # 256 TPU v3 chips
    python -m plm_jax train roberta_base --scale=laptop                   # 2 CPU cores: 3 minutes
    python -m plm_jax train roberta_base --scale=test                     # seconds

base and large: 500,000 steps with batch size 8,192 at sequence length 512 and dynamic masking. The
paper took about a day for 100,000 steps on 1,024 V100 GPUs. The text is 160 GB: BooksCorpus,
Wikipedia, CC-News, OpenWebText and Stories. Sequences have the format FULL-SENTENCES: as many whole
sentences as fit, across document boundaries, with attention between the documents.
--objective.pair.together=False separates documents in attention. Masking follows fairseq: <s> and
</s> may be masked too, and the number of masks is rounded up or down at random.

The four input formats are compared on BooksCorpus and Wikipedia, in a million steps with the tokens
of batch size 256 at sequence length 512:

- segment_pair: BERT's own format, two segments of several sentences, with next sentence prediction.
- sentence_pair: two single sentences, with next sentence prediction. Such sequences are short, so
  the batch is larger. Where a sentence has about 30 tokens, 2,048 sequences of 128 tokens hold the
  text of 256 of 512.
- full_sentences: as in base.
- doc_sentences: whole sentences of one document. Sequences at the ends of documents are short, and
  the paper enlarges the batch to match the tokens of FULL-SENTENCES. The factor depends on the
  text.

To compute the batch size of doc_sentences that has the tokens of 256 full sequences, run:

    python -m plm_jax packing RECORDS --length=512 --batch=256

The default of 288 fits articles of 4,000 tokens on average. Shorter documents need a larger batch:
give --train.phases.0.batch.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoBERTaSize(RecipeSize):
  """A size with its warmup steps and input format."""

  length: int = 512
  warmup: int = 10_000
  pair: FullSentences | NextSentence = FullSentences()


def make_format_size(
    pair: FullSentences | NextSentence, length: int = 512, batch: int = 256) -> RoBERTaSize:
  """Make the size of an input format.

  The learning rate is that of table 3 for batch size 256. Section 3.1: BERT's warmup, a second beta
  of 0.98, and full sequences from the first step on. Next sentence prediction adds BERT's pooler
  and its head, 592,130 parameters.
  """
  parameters = 124_697_433
  if isinstance(pair, NextSentence):
    parameters += 592_130
  return RoBERTaSize(
      model=roberta.base, parameters=parameters, peak=1e-4, steps=1_000_000, length=length,
      batch=batch, pod='v3:4x4', pair=pair)


ROBERTA_SIZES = {
    # Parameters of transformers' RobertaForMaskedLM; published as 125M and 355M. Peak learning
    # rate, warmup and batch size: table 9.
    'base': RoBERTaSize(
        model=roberta.base, parameters=124_697_433, peak=6e-4, warmup=24_000, steps=500_000,
        batch=8192, pod='v3:16x16', published_hardware='1,024 V100, 1 day for 100,000 steps'),
    'large': RoBERTaSize(
        model=roberta.large, parameters=355_412_057, peak=4e-4, warmup=30_000, steps=500_000,
        batch=8192, pod='v3:16x16', published_hardware='1,024 V100, 1 day for 100,000 steps'),
    'segment_pair': make_format_size(NextSentence(short=0.0, separators=2)),
    'sentence_pair': make_format_size(
        NextSentence(short=0.0, unit='sentence', separators=2), length=128, batch=2048),
    'full_sentences': make_format_size(FullSentences()),
    'doc_sentences': make_format_size(FullSentences(), batch=288)}


def make_roberta_run(row: RoBERTaSize) -> PretrainRun:
  """Build the published run of a size."""
  model = row.make_model(dropout=0.1, attention_dropout=0.1)
  one_document = row.name == 'roberta_doc_sentences'
  if isinstance(row.pair, NextSentence):
    model = dataclasses.replace(model, pooler=True)
    one_document = True
  text = TextConfig(kind='byte-bpe', lowercase=False)
  assembly = 'document' if one_document else 'sentences'
  return PretrainRun(
      row.name, family='roberta', model=model,
      objective=MaskedLM(pair=row.pair, masking=Everywhere(), pooled='whole'),
      data=DataConfig(prepare=text, assembly=assembly),
      optim=make_fairseq_adam(row.peak, row.warmup), train=row.make_train_config())


ROBERTA = RecipeFamily('roberta', ROBERTA_DESCRIPTION, ROBERTA_SIZES, make_roberta_run)


XLM_R_DESCRIPTION = """\
XLM-R (Conneau et al. 2020, arXiv:1911.02116).

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
XLM_R_SIZES = {
    # Parameters of transformers' XLMRobertaForMaskedLM; published as 270M and 550M (table 5).
    'base': RoBERTaSize(
        model=roberta.xlm_r_base, parameters=278_295_186, peak=6e-4, warmup=24_000, steps=1_500_000,
        batch=8192, pod='v3:16x32', mesh=MeshConfig(fsdp=32),
        published_hardware='500 V100'),
    'large': RoBERTaSize(
        model=roberta.xlm_r_large, parameters=560_142_482, peak=4e-4, warmup=30_000,
        steps=1_500_000, batch=8192, accumulate=2, pod='v3:16x32', published_hardware='500 V100')}


def make_xlm_r_run(row: RoBERTaSize) -> PretrainRun:
  """Build the published run of a size."""
  text = TextConfig(kind='sentencepiece-unigram', layout='xlm-r', lowercase=False)
  return PretrainRun(
      row.name, family='xlm-roberta', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MaskedLM(pair=FullSentences(), masking=Everywhere(), pooled='whole'),
      data=DataConfig(prepare=text, assembly='sentences', temperature=1 / 0.3),
      optim=make_fairseq_adam(row.peak, row.warmup), train=row.make_train_config())


XLM_R = RecipeFamily('xlm_r', XLM_R_DESCRIPTION, XLM_R_SIZES, make_xlm_r_run)
