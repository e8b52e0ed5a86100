"""T5 11B (Raffel et al. 2020): 11.3 billion parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=sentencepiece-unigram \\
        --layout=t5 --no-lowercase --vocab=32100
    python -m experiments.t5_11b --data.path=gs://BUCKET/records --mesh.fsdp=128    # 1,024 TPU v4 chips
    python -m experiments.t5_11b --scale=laptop                     # 2 CPU cores: 15 minutes
    python -m experiments.t5_11b --scale=test                       # seconds

24 + 24 layers of 1,024 with networks of 65,536 and 128 heads of 128 on C4, 750 GB of English web pages. Spans of three
tokens on average, 15% of the text, are left out and are the target. The paper's baseline saw 2^35 tokens in 2^19 steps
of 128 rows of 512 (section 3.1.2); the released models, as here, 2^40 in a million steps of 2^11 rows (section 3.7),
with supervised tasks mixed in: those come after it here, by experiments.t5_small_tasks. Adafactor, at a rate of
1/sqrt(max(step, 10^4)). On a pod every worker has to run the command, with --hosts.distributed=True (see
scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import t5
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """T5 11B: 24 + 24 layers of 1,024. python -m experiments.t5_11b [--scale=laptop]"""
  optim = OptimConfig(kind='adafactor', peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0)
  paper = Experiment(
      't5_11b', family='t5', model=t5.t5_11b('bfloat16'), objective=MixtureOfDenoisers(),
      data=DataConfig(
          prepare=TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False),
          assembly='packed'),
      optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 512, 2048),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
