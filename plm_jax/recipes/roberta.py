"""RoBERTa (Liu et al. 2019): the published models (section 5, table 9), and four formats of rows (4.2, table 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=roberta_base
    python -m plm_jax train roberta_base --data.path=gs://BUCKET/records    # 256 TPU v3 chips
    python -m plm_jax train roberta_base --scale=laptop                     # 2 CPU cores: 3 minutes
    python -m plm_jax train roberta_base --scale=test                       # seconds

base and large: 500,000 steps of 8,192 rows of 512 tokens with dynamic masks; the paper had 1,024 V100 GPUs for about a
day in 100,000 steps. 160 GB of text: BooksCorpus, Wikipedia, CC-News, OpenWebText, Stories. Rows are FULL-SENTENCES:
whole sentences, as many as fit, on into the next document, and all documents in a row see each other;
--objective.pair.together=False keeps them apart. Masks are fairseq's: <s> and </s> may be masked too, and the number is
rounded up or down at random.

The formats are compared on BooksCorpus and Wikipedia, in a million steps of as many tokens as 256 rows of 512.
segment_pair is BERT's own: two segments of many sentences, and whether the second follows. sentence_pair: two single
sentences, and whether the second follows; such rows are short, so there are more of them: 2,048 of 128 tokens have the
text of 256 of 512 where a sentence has some 30 tokens. full_sentences: as base. doc_sentences: whole sentences of one
document; rows at the ends of documents are short, and the paper makes the batch larger to have the tokens of
FULL-SENTENCES again. How much depends on the text:

    python -m plm_jax rows RECORDS --length=512 --batch=256

says how many rows of this format have the tokens of 256 rows of the other. 288 is for articles of 4,000 tokens on
average, shorter ones need more: give --train.phases.0.batch another.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import roberta
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import FullSentences, NextSentence
from plm_jax.recipes.table import Size
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoBERTaSize(Size):
  """And what its rows are."""

  warmup: int = 10_000
  pair: FullSentences | NextSentence = FullSentences()


def formatted(pair: FullSentences | NextSentence, length: int = 512, batch: int = 256) -> RoBERTaSize:
  """Makes a format of rows. The rate is that of table 3 for 256 rows; section 3.1: BERT's warmup, b2 of 0.98, full rows
  from the first step on. What asks for the next sentence has BERT's pooler and head for it, 592,130 parameters."""
  parameters = 124_697_433 + 592_130 * isinstance(pair, NextSentence)
  return RoBERTaSize(model=roberta.base, parameters=parameters, peak=1e-4, steps=1_000_000, length=length, batch=batch,
                     pod='v3:4x4', pair=pair)


SIZES = {
    # Parameters by transformers' RobertaForMaskedLM; published as 125M and 355M. Table 9 has peak, warmup and batch.
    'base': RoBERTaSize(model=roberta.base, parameters=124_697_433, peak=6e-4, warmup=24_000, steps=500_000, batch=8192,
                        pod='v3:16x16', took='1,024 V100, 1 day for 100,000 steps'),
    'large': RoBERTaSize(model=roberta.large, parameters=355_412_057, peak=4e-4, warmup=30_000, steps=500_000,
                         batch=8192, pod='v3:16x16', took='1,024 V100, 1 day for 100,000 steps'),
    'segment_pair': formatted(NextSentence(short=0.0, separators=2)),
    'sentence_pair': formatted(NextSentence(short=0.0, unit='sentence', separators=2), length=128, batch=2048),
    'full_sentences': formatted(FullSentences()),
    'doc_sentences': formatted(FullSentences(reserve=0), batch=288)}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  model, pairs = row.model('bfloat16'), isinstance(row.pair, NextSentence)
  if pairs:
    model = dataclasses.replace(model, pooler=True)
  # fairseq's Adam corrects the bias of its means, and all parameters decay; table 9 has no clipping.
  optim = OptimConfig(
      peak=row.peak, warmup=row.warmup, schedule='linear', b2=0.98, bias_correction=True, clip=0.0, exempt=())
  within_documents = pairs or size == 'doc_sentences'
  return scaled(Experiment(
      f'roberta_{size}', family='roberta', model=model,
      objective=MaskedLM(pair=row.pair, choice='everywhere', pooled='whole'),
      data=DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False),
                      assembly='document' if within_documents else 'sentences'),
      optim=optim, train=row.train()), scale)
