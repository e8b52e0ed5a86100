"""BERT, Chinese BERT and MacBERT, ERNIE, SpanBERT."""
from collections.abc import Callable
import dataclasses
import functools

from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import bert
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences, NextSentence, SentenceOrder
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.optim.optimizers import AdamW, Lamb
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

BERT_DESCRIPTION = """\
BERT, as published (Devlin et al. 2019, section 3.1 and appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bert_base
    python -m plm_jax train bert_base \\
        --data.path=gs://BUCKET/records  # 16 TPU v2 chips (v2-32); paper: 4 days
    python -m plm_jax train bert_base --scale=laptop  # 2 CPU cores: 2 to 4 minutes
    python -m plm_jax train bert_base --scale=test    # seconds

Masked language modeling (MLM) and next sentence prediction (NSP): one million steps with batch size
256, at sequence length 128 for 90% of the steps and 512 for the rest. The paper's corpus is
BooksCorpus and English Wikipedia, 3.3 billion words. Its TPUs multiplied in bfloat16. The released
code stored ten differently masked copies of every text (dupe_factor) and applied no dropout before
the NSP classifier.

tiny, mini, small and medium are the small models of Turc et al. 2019 (arXiv:1908.08962, table 1),
pre-trained with the settings of base. chinese is bert-base-chinese: Chinese Wikipedia in simplified
and traditional characters. Its vocabulary has 21,128 tokens: single Chinese characters, and subword
tokens of other words.
multilingual and multilingual_uncased are mBERT, on the Wikipedias of 104 and 102 languages, with
119,547 and 105,879 tokens. Languages are sampled by size to the power 0.7 (multilingual.md of
google-research/bert): give one corpus per language to --data.path. Neither release describes its
training run; this recipe uses the settings of base.
"""


def set_vocab_size(size: Callable[..., EncoderConfig], vocab: int) -> Callable[..., EncoderConfig]:
  """Return a model function with another vocabulary size."""
  return lambda dtype: dataclasses.replace(size(dtype), vocab=vocab)


def set_chinese_vocab(size: Callable[..., EncoderConfig]) -> Callable[..., EncoderConfig]:
  """Return a model function with the 21,128 tokens of bert-base-chinese, mostly characters."""
  return set_vocab_size(size, 21_128)


BERTSize = functools.partial(RecipeSize, peak=1e-4, length=512, batch=256)
BERT_SIZES = {
    # Parameters of transformers' BertForPreTraining; published as 110M and 340M.
    'base': BERTSize(
        model=bert.base, parameters=110_106_428, pod='v2:4x4', mesh=MeshConfig(fsdp=4),
        published_hardware='16 TPU chips, 4 days'),
    'large': BERTSize(
        model=bert.large, parameters=336_226_108, pod='v3:8x8',
        published_hardware='64 TPU chips, 4 days'),
    # Published without pre-training heads: 4.4M, 11.3M, 29.1M, 41.7M (Turc et al. 2019).
    'tiny': BERTSize(model=bert.tiny, parameters=4_433_468, pod='v2:4x4'),
    'mini': BERTSize(
        model=bert.mini, parameters=11_267_900, pod='v2:4x4', mesh=MeshConfig(fsdp=32)),
    'small': BERTSize(
        model=bert.small, parameters=29_058_876, pod='v2:4x4', mesh=MeshConfig(fsdp=32)),
    'medium': BERTSize(model=bert.medium, parameters=41_668_412, pod='v2:4x4'),
    'chinese': BERTSize(
        model=set_chinese_vocab(bert.base), parameters=102_882_442, pod='v2:4x4',
        laptop_vocab=8000),
    'multilingual': BERTSize(
        model=set_vocab_size(bert.base, 119_547), parameters=178_566_653, pod='v3:4x4',
        mesh=MeshConfig(fsdp=32)),
    'multilingual_uncased': BERTSize(
        model=set_vocab_size(bert.base, 105_879), parameters=168_055_961, pod='v3:4x4',
        mesh=MeshConfig(fsdp=32))}


def make_bert_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  data = DataConfig()
  if 'multilingual' in row.name:
    text = TextConfig(lowercase=row.name.endswith('uncased'))
    data = DataConfig(prepare=text, temperature=1 / 0.7)
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MaskedLM(duplicates=10, pooled='whole'), data=data,
      optim=AdamW(peak=row.peak, warmup=10_000, schedule='bert', weight_decay=0.01),
      train=TrainConfig(phases=(Phase(900_000, 128, row.batch), Phase(100_000, 512, row.batch))))


BERT = RecipeFamily('bert', BERT_DESCRIPTION, BERT_SIZES, make_bert_run)


BERT_WWM_DESCRIPTION = """\
Chinese BERT with whole-word masks (Cui et al. 2021, arXiv:1906.08101) and MacBERT (2020).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bert_wwm_ext --tokenizer=BERT \\
        --segmenter=jieba
    python -m plm_jax train bert_wwm_ext --data.path=gs://BUCKET/records --warm-start=BERT  # TPU v3
    python -m plm_jax train macbert_base --data.path=gs://BUCKET/records \\
        --objective.masking.synonyms=LIST --warm-start=BERT
    python -m plm_jax train bert_wwm_base --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.segmenter=jieba  # 2 CPU cores: 3 minutes
    python -m plm_jax train bert_wwm_base --scale=test --data.path=zhwiki.txt              # seconds

BERT is the folder of bert-base-chinese, or of a run of bert_chinese. All models but the large ones
start from its weights, and all use its tokenizer: one token per character. jieba segments the text
into words; the authors used LTP. For text that is already segmented, give --segmenter=spaces.
--segmenter=words:FILE takes the words from a list.

The authors' table of runs is in the README of ymcui/Chinese-BERT-wwm:

- base: Chinese Wikipedia, 100,000 steps with batch size 2,560 at sequence length 128, then 100,000
  with batch size 384 at length 512, LAMB.
- ext: 5.4 billion words that also include web text, a million and 400,000 of these steps, LAMB.
- roberta_ext: a million steps with batch size 384 at length 512, AdamW, no next sentence
  prediction.
- roberta_ext_large: two million steps with batch size 512, from scratch.

The peak learning rate is 1e-4 there. The warmup is a tenth of the steps there, and BERT's 10,000
steps here. Masks are static: the README writes "without dynamic masking" about RoBERTa-wwm-ext. Ten
sets of masks, BERT's dupe_factor, are an assumption.

macbert_base and macbert_large (Cui et al. 2020) mask 15% of the text as n-grams of one to four
words (40, 30, 20 and 10%). 80% of these words are replaced by similar words, 10% by random words,
and 10% stay. The sentence-pair objective is sentence order prediction (SOP). Each line of LIST
holds a word and then words that are similar to it, best first. Only similar words with as many
characters are used. Without a list, and for words that are not in it, masks are [MASK] and random
tokens. The authors took similar words from word vectors. In a checkout, `python -m
benchmarks.similar_words TEXT LIST --folder=RUN` trains word vectors and writes such a list. The
numbers of steps are an assumption: they are those of roberta_ext and roberta_ext_large, because the
README of ymcui/MacBERT gives none and no training code was released.
"""
NGRAMS = (0.4, 0.3, 0.2, 0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChineseBERTSize(RecipeSize):
  """A size with its sentence pairs, phases and optimizer."""

  peak: float = 1e-4
  laptop_vocab: int = 8000
  length: int = 512
  pair: NextSentence | FullSentences | SentenceOrder = NextSentence()
  short_steps: int = 0
  """updates at sequence length 128, before those at length 512 with batch size 384; 0: the run has
  one phase"""
  long_steps: int = 0
  """updates of that second phase"""
  optimizer: type[AdamW] = AdamW


# Parameters of transformers' BertForPreTraining, or BertForMaskedLM without an objective for
# sentence pairs; published without heads as 102M and 324M (README of ymcui/MacBERT).
BERT_WWM_SIZES = {
    'base': ChineseBERTSize(
        model=set_chinese_vocab(bert.base), parameters=102_882_442, short_steps=100_000,
        long_steps=100_000, batch=2560, optimizer=Lamb, pod='v3:8x8', mesh=MeshConfig(fsdp=32)),
    'ext': ChineseBERTSize(
        model=set_chinese_vocab(bert.base), parameters=102_882_442, short_steps=1_000_000,
        long_steps=400_000, batch=2560, optimizer=Lamb, pod='v3:8x8', mesh=MeshConfig(fsdp=32)),
    'roberta_ext': ChineseBERTSize(
        name='roberta_wwm_ext', model=set_chinese_vocab(bert.base), parameters=102_290_312,
        pair=FullSentences(), steps=1_000_000, batch=384, pod='v3:8x8',
        mesh=MeshConfig(fsdp=32)),
    'roberta_ext_large': ChineseBERTSize(
        name='roberta_wwm_ext_large', model=set_chinese_vocab(bert.large), parameters=325_545_608,
        pair=FullSentences(), steps=2_000_000, batch=512, pod='v3:8x16'),
    'macbert_base': ChineseBERTSize(
        name='macbert_base', model=set_chinese_vocab(bert.base), parameters=102_882_442,
        pair=SentenceOrder(), steps=1_000_000, batch=384, pod='v3:8x8', mesh=MeshConfig(fsdp=32)),
    'macbert_large': ChineseBERTSize(
        name='macbert_large', model=set_chinese_vocab(bert.large), parameters=326_597_258,
        pair=SentenceOrder(), steps=2_000_000, batch=512, pod='v3:8x16')}


def make_bert_wwm_run(row: ChineseBERTSize) -> PretrainRun:
  """Build the published run of a size."""
  model = row.make_model(dropout=0.1, attention_dropout=0.1)
  model = dataclasses.replace(model, pooler=row.pair.pair_task is not None)
  lengths = NGRAMS if row.name.startswith('macbert') else (1.0,)
  objective = MaskedLM(
      pair=row.pair, masking=Distinct('word', lengths), pooled='whole', duplicates=10)
  if row.steps:
    train = row.make_train_config()
  else:
    phases = Phase(row.short_steps, 128, row.batch), Phase(row.long_steps, 512, 384)
    train = TrainConfig(phases=phases)
  optim = row.optimizer(
      peak=row.peak, warmup=10_000, schedule='bert',
      weight_decay=0.01)
  return PretrainRun(
      row.name, model=model, objective=objective,
      data=DataConfig(prepare=TextConfig(segmenter='jieba')), optim=optim, train=train)


BERT_WWM = RecipeFamily('bert_wwm', BERT_WWM_DESCRIPTION, BERT_WWM_SIZES, make_bert_wwm_run)


ERNIE_DESCRIPTION = """\
ERNIE 1.0 (Sun et al. 2019, arXiv:1904.09223), in Chinese.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ernie_base --segmenter=words:LIST
    python -m plm_jax train ernie_base --data.path=gs://BUCKET/records      # 16 TPU v3 chips
    python -m plm_jax train ernie_base --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.segmenter=jieba  # 2 CPU cores: 3 minutes
    python -m plm_jax train ernie_base --scale=test --data.path=zhwiki.txt  # seconds

BERT with 18,000 characters and subword tokens, which masks whole phrases and names (section 3.2).
In half of the sequences, whole words of LIST are masked; in the others, single characters. LIST has
one phrase or name per line. Without a list, jieba segments the words.

The paper masks characters, phrases and names in three successive stages. Its text is Chinese
Wikipedia, Baidu Baike, news and Tieba, 173 million sentences (section 4.1). This recipe leaves out
the dialogues of Tieba and their embedding of the speaker. The paper gives neither the number of
steps nor the learning rate: those of BERT are an assumption.
"""
ERNIE_SIZES = {
    # Parameters of transformers' ErnieForPreTraining.
    'base': BERTSize(
        model=bert.ernie_base, parameters=100_477_778, pod='v3:4x4', mesh=MeshConfig(fsdp=32),
        laptop_vocab=8000)}


def make_ernie_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  return dataclasses.replace(
      make_bert_run(row), family='ernie',
      objective=MaskedLM(masking=Distinct('either'), pooled='whole'),
      data=DataConfig(prepare=TextConfig(segmenter='jieba')))


ERNIE = RecipeFamily('ernie', ERNIE_DESCRIPTION, ERNIE_SIZES, make_ernie_run)


SPANBERT_DESCRIPTION = """\
SpanBERT (Joshi et al. 2020, section 4.2; the base model is that of the released code).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=spanbert_base
    python -m plm_jax train spanbert_base --data.path=gs://BUCKET/records  # 16 TPU v3 chips (v3-32)
    python -m plm_jax train spanbert_base --scale=laptop                   # 2 CPU cores: 3 minutes
    python -m plm_jax train spanbert_base --scale=test                     # seconds

Masked language modeling on spans of words, with the span boundary objective (SBO): each masked
token is predicted from its position, and from the boundaries of its span. 2,400,000 updates of
131,072 tokens of text. This is about 390 sequences per update, each of one document and at most 512
tokens long (footnote 8); here 384, which devices share evenly. The paper's large model took 15 days
on 32 V100 GPUs. The text is BERT's: BooksCorpus and English Wikipedia, cased. Training starts from
scratch; --warm-start=FOLDER starts from a BERT, with all of its heads and a new SBO head.

Where the paper and the released command differ, the recipe follows the paper: a weight decay of 0.1
(0.01 in pretraining/README.md), and 20 tokens of a span predicted from its boundary (15), which is
also the default of the released code. As in the released code, random tokens are sampled from the
text, and weight decay applies to all parameters.
"""
SPANBERT_SIZES = {
    # Parameters of the released PairBERT: BertForPreTraining without NSP, and the SBO head.
    'base': RecipeSize(
        model=bert.spanbert_base, parameters=110_301_480, peak=1e-4, steps=2_400_000, length=512,
        batch=384, pod='v3:4x4'),
    'large': RecipeSize(
        model=bert.spanbert_large, parameters=336_999_976, peak=1e-4, steps=2_400_000, length=512,
        batch=384, pod='v3:8x8', published_hardware='32 V100, 15 days')}


def make_spanbert_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  # Section 4.2: decoupled weight decay of 0.1, epsilon 1e-8, BERT's warmup and peak learning rate.
  optim = AdamW(
      peak=row.peak, warmup=10_000, schedule='linear', eps=1e-8, weight_decay=0.1, exempt=(),
      bias_correction=True)
  return PretrainRun(
      row.name, model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=SpanBoundary(random='text'), data=DataConfig(prepare=TextConfig(lowercase=False)),
      optim=optim, train=row.make_train_config())


SPANBERT = RecipeFamily('spanbert', SPANBERT_DESCRIPTION, SPANBERT_SIZES, make_spanbert_run)
