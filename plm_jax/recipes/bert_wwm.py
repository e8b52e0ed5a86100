"""Chinese BERTs whose masks are of whole words (Cui et al. 2021, arXiv:1906.08101), and MacBERT (Cui et al. 2020).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bert_wwm_ext --tokenizer=BERT --segmenter=jieba
    python -m plm_jax train bert_wwm_ext --data.path=gs://BUCKET/records --warm-start=BERT    # TPU v3
    python -m plm_jax train macbert_base --data.path=gs://BUCKET/records --objective.similar=LIST --warm-start=BERT
    python -m plm_jax train bert_wwm_base --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.segmenter=jieba                                             # 2 CPU cores: 3 minutes
    python -m plm_jax train bert_wwm_base --scale=test --data.path=zhwiki.txt      # seconds

BERT is the folder of bert-base-chinese, or of a run of bert_chinese, whose tokenizer and weights all but the large ones
begin with: a token is a character. A word is what jieba finds, where the authors had LTP; of text that is segmented
already give --segmenter=spaces, and --segmenter=words:FILE has the words of a list. The authors' table of runs
(README of ymcui/Chinese-BERT-wwm) gives, in this order: base, Chinese Wikipedia, 100,000 steps of 2,560 rows of 128
and as many of 384 rows of 512, LAMB; ext, 5.4 billion words of the web too, a million and 400,000; roberta_ext, a
million of 384 rows of 512, AdamW, no next sentence; roberta_ext_large, two million of 512 rows, from the beginning.
Their peak is 1e-4, their warmup a tenth of the steps, here BERT's 10,000.

macbert_base and macbert_large: n-grams of one to four words (40, 30, 20 and 10%) have 15% of the text; of their words
80% become another that is like them, 10% a random one, and 10% stay; texts change places (SOP). LIST has a word a line,
and behind it words like it, best first, of which those of as many characters are used; without a list, and of words
that are not in it, masks are [MASK] and random tokens. The authors took theirs from word vectors; from a checkout,
`python -m benchmarks.similar_words TEXT LIST --folder=RUN` learns some and makes a list of them. Their steps are those
of roberta_ext and roberta_ext_large here: from memory of the paper.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.settings import TextConfig
from plm_jax.models import bert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import FullSentences, NextSentence, SentenceOrder
from plm_jax.recipes.bert import chinese, in_chinese
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

NGRAMS = (0.4, 0.3, 0.2, 0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChineseSize(Size):
  """And what its rows are."""

  peak: float = 1e-4
  pair: NextSentence | FullSentences | SentenceOrder = NextSentence()
  short: int = 0
  """updates of a phase of rows of 128 tokens, before one of 384 rows of 512; 0: there is one phase"""
  long: int = 0
  """updates of that"""
  kind: str = 'adamw'


# Parameters by transformers' BertForPreTraining, and of those without a question about pairs BertForMaskedLM; published
# as 102M and 324M (README of ymcui/MacBERT, without heads).
SIZES = {
    'base': ChineseSize(model=chinese(bert.base), parameters=102_882_442, short=100_000, long=100_000, batch=2560,
                        kind='lamb', pod='v3:8x8', mesh=MeshConfig(fsdp=32)),
    'ext': ChineseSize(model=chinese(bert.base), parameters=102_882_442, short=1_000_000, long=400_000, batch=2560,
                       kind='lamb', pod='v3:8x8', mesh=MeshConfig(fsdp=32)),
    'roberta_ext': ChineseSize(name='roberta_wwm_ext', model=chinese(bert.base), parameters=102_290_312,
                               pair=FullSentences(reserve=0), steps=1_000_000, batch=384, pod='v3:8x8',
                               mesh=MeshConfig(fsdp=32)),
    'roberta_ext_large': ChineseSize(name='roberta_wwm_ext_large', model=chinese(bert.large), parameters=325_545_608,
                                     pair=FullSentences(reserve=0), steps=2_000_000, batch=512, pod='v3:8x16'),
    'macbert_base': ChineseSize(name='macbert_base', model=chinese(bert.base), parameters=102_882_442,
                                pair=SentenceOrder(), steps=1_000_000, batch=384, pod='v3:8x8',
                                mesh=MeshConfig(fsdp=32)),
    'macbert_large': ChineseSize(name='macbert_large', model=chinese(bert.large), parameters=326_597_258,
                                 pair=SentenceOrder(), steps=2_000_000, batch=512, pod='v3:8x16')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  model = dataclasses.replace(row.model('bfloat16'), pooler=row.pair.question is not None)
  objective = MaskedLM(pair=row.pair, unit='word', lengths=NGRAMS if size.startswith('macbert') else (1.0,),
                       pooled='whole')
  train = row.train() if row.steps else TrainConfig(
      phases=(Phase(row.short, 128, row.batch), Phase(row.long, 512, 384)))
  optim = OptimConfig(kind='lamb' if row.kind == 'lamb' else 'adamw', peak=row.peak)
  return in_chinese(scaled(Experiment(
      row.name or f'bert_wwm_{size}', model=model, objective=objective,
      data=DataConfig(prepare=TextConfig(segmenter='jieba' if scale == 'paper' else 'none')),
      optim=optim, train=train), scale))
