"""T5 v1.1 base (Raffel et al. 2020, as released afterwards): 248 million parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=sentencepiece-unigram \\
        --layout=t5 --no-lowercase --vocab=32100
    python -m experiments.t5_v1_1_base --data.path=gs://BUCKET/records    # a TPU pod
    python -m experiments.t5_v1_1_base --scale=laptop                     # 2 CPU cores: 15 minutes
    python -m experiments.t5_v1_1_base --scale=test                       # seconds

12 + 12 layers of 768 with gated networks, two matrices for tokens, and no dropout in pre-training, on C4 alone: a
million steps of 2,048 rows of 512 tokens, of which spans of three tokens on average, 15% of the text, are left out and
are the target. Adafactor, at a rate of 1/sqrt(max(step, 10^4)); a z loss of 1e-4, as in the released code. On a pod
every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import t5
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """T5 v1.1 base: 12 + 12 layers of 768. python -m experiments.t5_v1_1_base [--scale=laptop]"""
  optim = OptimConfig(kind='adafactor', peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0)
  paper = Experiment(
      't5_v1_1_base', family='t5', model=t5.v1_1_base('bfloat16'), objective=MixtureOfDenoisers(z_loss=1e-4),
      data=DataConfig(
          prepare=TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False),
          assembly='packed'),
      optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 512, 2048),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
