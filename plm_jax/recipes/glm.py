"""GLM: blank infilling on BERT's text (Du et al. 2022, section 3, appendix A and table 7), and on Chinese text.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=glm_large
    python -m plm_jax train glm_large --data.path=gs://BUCKET/records    # 64 TPU v3 chips
    python -m plm_jax train glm_base --scale=laptop                      # 2 CPU cores: 4 minutes
    python -m plm_jax train glm_base --scale=test                        # seconds

120,000 steps (base) or 200,000 of 1,024 rows of 512 tokens: BooksCorpus and English Wikipedia, uncased, documents one
behind another. A row of 512 holds 448 tokens of text; the released code's rows hold 512 and grow with their blanks.
large_doc is GLM-Doc: half of the rows have one blank of half of a document or more. Its vocabulary has [gMASK] for
these, which the paper's models did without. large_sentence is GLM-Sent: half of the rows have whole sentences as their
blanks, marked as [sMASK]. 410m and 515m are GLM-Doc of 30 layers, whose schedule they have: the paper names none.
Of 200,000 steps the rate falls in 160,000, as in the released scripts. Sentences that
become blanks end at . ? ! ; : and newlines, as there.

chinese has a SentencePiece vocabulary that is trained on the text, and the sizes of the released GLM-large-Chinese. Of
its rows 40% have short spans as their blanks, 30% whole sentences and 30% one blank of a quarter of a document or more,
as in the released scripts, whose peak, decay and schedule it has; these do not say how large a batch is, which is
GLM-large's here, and cut 2% of the rows short, which is left out: rows are full of documents one behind another. Its
path has one paragraph a line and an empty line between documents:

    python -m plm_jax train glm_chinese --scale=laptop --data.path=zhwiki.txt
    python -m plm_jax train glm_chinese --scale=test --data.path=zhwiki.txt --model.vocab=8000

10b is GLM-10B: 48 layers of 4,096, with chinese's shares of blanks, a peak of 1e-4, 0.95 and 1e-8, in 250,000 steps of
which the rate falls in 175,000 (config_block_10B.json, ds_block_10B.sh). Its vocabulary is GPT-2's of bytes; here it is
of SentencePiece, and of so many pieces. The text was the Pile's and others', 10b had rows of 512 tokens of text. How
large a batch was, and how long the warmup, these files do not say: they are large's batch and 7,000 steps here.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import glm
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.pairs import FullSentences
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled

DOCUMENTS = BlankInfilling(FullSentences(), documents=0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GLMSize(Size):
  """And which blanks it fills."""

  batch: int = 1024
  warmup: int = 8000
  horizon: int = 160_000
  """steps in which the rate falls, before it is flat; 0: all"""
  floor: float = 0.05
  """share of the peak that it falls to, of the released scripts, as the horizon is"""
  weight_decay: float = 0.1
  objective: BlankInfilling = BlankInfilling(FullSentences())


# Parameters by the released modeling_glm.py; published as 110M, 335M, 410M, 515M (section 3).
SIZES = {
    'base': GLMSize(model=glm.base, parameters=109_338_624, peak=4e-4, warmup=6000, horizon=0, steps=120_000,
                    pod='v3:8x8'),
    'large': GLMSize(model=glm.large, parameters=334_688_256, peak=2e-4, steps=200_000, pod='v3:8x8'),
    'large_doc': GLMSize(model=glm.large, parameters=334_688_256, peak=2e-4, steps=200_000, objective=DOCUMENTS,
                         pod='v3:8x8'),
    'large_sentence': GLMSize(model=glm.large, parameters=334_688_256, peak=2e-4, steps=200_000,
                              objective=BlankInfilling(FullSentences(), sentences=0.5), pod='v3:8x8'),
    '410m': GLMSize(model=glm.medium_410m, parameters=410_265_600, peak=2e-4, steps=200_000, objective=DOCUMENTS,
                    pod='v3:8x8'),
    '515m': GLMSize(model=glm.medium_515m, parameters=514_632_960, peak=2e-4, steps=200_000, objective=DOCUMENTS,
                    pod='v3:8x16'),
    'chinese': GLMSize(model=glm.large_chinese, parameters=355_659_776, peak=4e-4, floor=0.1,
                       horizon=200_000, weight_decay=0.01, steps=250_000,
                       objective=BlankInfilling(FullSentences(), sentences=0.3, documents=0.3, shortest=0.25),
                       pod='v3:8x8'),
    '10b': GLMSize(model=glm.xxl_10b, parameters=9_880_682_496, peak=1e-4, warmup=7000, floor=0.1, horizon=175_000,
                   steps=250_000, objective=BlankInfilling(
                       FullSentences(), sentences=0.3, documents=0.3, shortest=0.25),
                   pod='v4:8x8x8', mesh=MeshConfig(fsdp=64))}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  optim = OptimConfig(
      peak=row.peak, warmup=row.warmup, horizon=row.horizon, schedule='cosine', floor=row.floor, b2=0.98,
      weight_decay=row.weight_decay, bias_correction=True)
  if size == '10b':
    optim = dataclasses.replace(optim, b2=0.95, eps=1e-8)
  text = TextConfig(layout='glm', sentences='clauses' if row.objective.sentences else 'split')
  if size in ('chinese', '10b'):
    text = dataclasses.replace(text, kind='sentencepiece-unigram', lowercase=False)
  run = scaled(Experiment(
      f'glm_{size}', family='glm', model=row.model('bfloat16'), objective=row.objective,
      data=DataConfig(prepare=text, assembly='sentences'), optim=optim, train=row.train()), scale)
  if size == 'chinese' and scale == 'laptop':  # of Chinese, 6,500 characters are 99.95% of the text
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab=8000))
  return run
