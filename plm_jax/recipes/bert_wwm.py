"""Chinese BERT with whole-word masks (Cui et al. 2021, arXiv:1906.08101) and MacBERT (2020).

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
import dataclasses

from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import bert
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences, NextSentence, SentenceOrder
from plm_jax.optim.optimizers import AdamW, Lamb
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.bert import set_chinese_vocab
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

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
SIZES = {
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


def make_run(row: ChineseBERTSize) -> PretrainRun:
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


BERT_WWM = RecipeFamily('bert_wwm', __doc__, SIZES, make_run)
