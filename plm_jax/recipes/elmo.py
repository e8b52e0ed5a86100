"""ELMo (Peters et al. 2018).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=elmo_original
    python -m plm_jax train elmo_original --data.path=gs://BUCKET/records    # 16 TPU v3 chips, or more
    python -m plm_jax train elmo_small --scale=laptop                        # 2 CPU cores: 16 minutes
    python -m plm_jax train elmo_small --scale=laptop --train.phases.0.steps=1200  # 5 minutes
    python -m plm_jax train elmo_small --scale=test                          # seconds

Settings of allenai/bilm-tf, bin/train_elmo.py: 10 epochs of the 1 Billion Word Benchmark in batches of 3 times 128 rows
of 20 words, whose LSTMs go on from batch to batch; Adagrad with 0.2, clipping at 10, softmax over 8,192 words that are
drawn. The authors had three GTX 1080 for two weeks; small and medium are of AllenNLP's page, which says no more of
their training. TEXT is a sentence a line, with spaces between words and signs. A perplexity is e to the power of the
held-out loss of its direction; the authors' was 39.7 on average. Smaller scales find words in plain text themselves,
and the laptop's lets a twentieth of the rows begin without a state in each batch (--objective.fresh), of which its few
steps would have seen none.
"""
import dataclasses

from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.settings import TextConfig
from plm_jax.models import elmo
from plm_jax.objectives.bilm import BidirectionalLM
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig

STEPS = 10 * (768_648_884 // (384 * 20))

# Parameters with a softmax of 793,471 words.
SIZES = {
    'small': Size(model=elmo.small, parameters=115_951_055, peak=0.2, steps=STEPS, length=20, batch=384,
                  pod='v3:4x4', mesh=MeshConfig(fsdp=32)),
    'medium': Size(model=elmo.medium, parameters=231_949_775, peak=0.2, steps=STEPS, length=20, batch=384,
                   pod='v3:4x4', mesh=MeshConfig(fsdp=32)),
    'original': Size(model=elmo.original, parameters=500_651_471, peak=0.2, steps=STEPS, length=20, batch=384,
                     pod='v3:4x4', mesh=MeshConfig(fsdp=32), took='three GTX 1080, two weeks')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  row = SIZES[size]
  text = TextConfig(kind='words', lowercase=False, sentences='line', sample=10 ** 15)
  optim = OptimConfig(
      kind='adagrad', peak=row.peak, warmup=0, schedule='constant', eps=1e-30, weight_decay=0.0, clip=10.0)
  paper = Experiment(
      f'elmo_{size}', family='elmo', model=row.model('bfloat16'), objective=BidirectionalLM(),
      data=DataConfig(prepare=text, assembly='packed', block=1024), optim=optim, train=row.train())
  if scale == 'paper':
    return paper
  plain = dataclasses.replace(paper, scale=scale, data=dataclasses.replace(
      paper.data, prepare=TextConfig(kind='words-and-signs', lowercase=False, sample=10_000_000)))
  if scale == 'laptop':
    return dataclasses.replace(
        plain, model=elmo.resized(row.model(), width=64, cells=512, words=8000, filters=64),
        objective=dataclasses.replace(paper.objective, samples=1024, fresh=0.05),
        train=TrainConfig(phases=(Phase(4000, 20, 32),), log_every=20, eval_every=500, eval_batches=16, save_every=500))
  return dataclasses.replace(
      plain, model=elmo.resized(row.model(), width=16, cells=24, words=1000, filters=8),
      objective=dataclasses.replace(paper.objective, samples=64),
      train=TrainConfig(phases=(Phase(6, 20, 8), Phase(2, 30, 8)), log_every=2, eval_every=4, eval_batches=2,
                        save_every=4))
