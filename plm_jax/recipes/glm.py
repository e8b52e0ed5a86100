"""GLM: blank infilling (Du et al. 2022, section 3, appendix A and table 7), also in Chinese.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=glm_large
    python -m plm_jax train glm_large --data.path=gs://BUCKET/records  # 64 TPU v3 chips
    python -m plm_jax train glm_base --scale=laptop                    # 2 CPU cores: 4 minutes
    python -m plm_jax train glm_base --scale=test                      # seconds

200,000 steps (base: 120,000) with batch size 1,024 at sequence length 512, on BooksCorpus and
English Wikipedia, uncased, with documents packed one after another. A sequence of 512 holds 448
tokens of text; the released code's sequences hold 512 and grow with their blanks. The learning rate
falls until step 168,000: the scripts' cosine has 160,000 steps, and learning_rates.py counts them
from the end of the warmup. Base has a cosine of 120,000 steps, so its rate ends at 5.6% of the
peak. Its script (config/ds_block_base.sh) runs for 150,000 steps; 120,000 is the number in the
paper. Sentences that become blanks end at . ? ! ; : and newlines, as there.

- large_doc is GLM-Doc: half of the sequences have one blank of half of a document or more. Its
  vocabulary has [gMASK] for these blanks; the paper's models did not.
- large_sentence is GLM-Sent: in half of the sequences, whole sentences are the blanks, marked as
  [sMASK].
- 410m and 515m are GLM-Doc with 30 layers and its schedule: the paper names none for them.

chinese has the sizes of the released GLM-large-Chinese, and a SentencePiece vocabulary trained on
the text. 40% of its sequences have short spans as blanks, 30% whole sentences, and 30% one blank of
a quarter of a document or more. These shares, the peak learning rate, weight decay and schedule are
those of the released scripts. The scripts do not state the batch size, here that of GLM-large. They
also shorten 2% of the sequences, which is left out: sequences are packed full with documents. The
text has one paragraph per line and an empty line between documents:

    python -m plm_jax train glm_chinese --scale=laptop --data.path=zhwiki.txt
    python -m plm_jax train glm_chinese --scale=test --data.path=zhwiki.txt --model.vocab=8000

10b is GLM-10B: 48 layers of width 4,096, for 250,000 steps. The learning rate falls for 175,000
steps after a warmup of 7,000. Half of the sequences have short spans as blanks, 30% whole
sentences, and 20% one blank of a quarter of a document or more. The peak learning rate is 1e-4,
betas 0.9 and 0.95, epsilon 1e-8 (config/ds_block_10B.sh and config_block_10B.json of THUDM/GLM).
The original vocabulary is GPT-2's byte-level BPE; here it is a SentencePiece vocabulary of the same
size. The text was the Pile and CC-News, in sequences with 512 tokens of text. The files name 21
sequences per GPU and no number of GPUs: the batch size of large is an assumption.
"""
import dataclasses

from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import glm
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

DOCUMENTS = BlankInfilling(FullSentences(), documents=0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GLMSize(RecipeSize):
  """A size with its schedule and its blanks."""

  length: int = 512
  batch: int = 1024
  warmup: int = 8000
  cosine: int = 160_000
  """steps after the warmup over which the learning rate falls, as in the released scripts"""
  floor: float = 0.05
  """final learning rate as a share of the peak, as in the released scripts"""
  weight_decay: float = 0.1
  objective: BlankInfilling = BlankInfilling(FullSentences())


# Parameters of the released modeling_glm.py; published as 110M, 335M, 410M, 515M (section 3).
SIZES = {
    'base': GLMSize(
        model=glm.base, parameters=109_338_624, peak=4e-4, warmup=6000, cosine=120_000,
        steps=120_000, pod='v3:8x8'),
    'large': GLMSize(
        model=glm.large, parameters=334_688_256, peak=2e-4, steps=200_000, pod='v3:8x8'),
    'large_doc': GLMSize(
        model=glm.large, parameters=334_688_256, peak=2e-4, steps=200_000, objective=DOCUMENTS,
        pod='v3:8x8'),
    'large_sentence': GLMSize(
        model=glm.large, parameters=334_688_256, peak=2e-4, steps=200_000,
        objective=BlankInfilling(FullSentences(), sentences=0.5), pod='v3:8x8'),
    '410m': GLMSize(
        model=glm.glm_410m, parameters=410_265_600, peak=2e-4, steps=200_000,
        objective=DOCUMENTS, pod='v3:8x8'),
    '515m': GLMSize(
        model=glm.glm_515m, parameters=514_632_960, peak=2e-4, steps=200_000,
        objective=DOCUMENTS, pod='v3:8x16'),
    'chinese': GLMSize(
        model=glm.large_chinese, parameters=355_659_776, peak=4e-4, floor=0.1, cosine=200_000,
        weight_decay=0.01, steps=250_000,
        objective=BlankInfilling(FullSentences(), sentences=0.3, documents=0.3, shortest=0.25),
        pod='v3:8x8', laptop_vocab=8000),
    '10b': GLMSize(
        model=glm.glm_10b, parameters=9_880_682_496, peak=1e-4, warmup=7000, floor=0.1,
        cosine=175_000, steps=250_000,
        objective=BlankInfilling(FullSentences(), sentences=0.3, documents=0.2, shortest=0.25),
        pod='v4:8x8x8', mesh=MeshConfig(fsdp=64))}


def make_run(row: GLMSize) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, warmup=row.warmup, horizon=row.warmup + row.cosine, schedule='cosine',
      floor=row.floor, b2=0.98, weight_decay=row.weight_decay, bias_correction=True)
  if row.name == 'glm_10b':
    optim = dataclasses.replace(optim, b2=0.95, eps=1e-8)
  text = TextConfig(layout='glm', sentences='clauses' if row.objective.sentences else 'split')
  if row.name in ('glm_chinese', 'glm_10b'):
    text = dataclasses.replace(text, kind='sentencepiece-unigram', lowercase=False)
  return PretrainRun(
      row.name, family='glm', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=row.objective, data=DataConfig(prepare=text, assembly='sentences'), optim=optim,
      train=row.make_train_config())


GLM = RecipeFamily('glm', __doc__, SIZES, make_run)
