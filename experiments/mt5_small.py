"""mT5 small (Xue et al. 2021): 300 million parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=sentencepiece-unigram \\
        --layout=t5 --no-lowercase --vocab=250100
    python -m experiments.mt5_small --data.path=gs://BUCKET/records    # a TPU pod
    python -m experiments.mt5_small --scale=laptop                     # 2 CPU cores: 15 minutes
    python -m experiments.mt5_small --scale=test                       # seconds

T5 v1.1 small with a vocabulary of 250,000 pieces on mC4, 101 languages: a million steps of 1,024 rows of 1,024 tokens.
Give the records of every language in --data.path: their shares are of their sizes to the power of 0.3 (section 3.2),
as --data.temperature says. On a pod every worker has to run the command, with --hosts.distributed=True (see
scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import mt5
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """mT5 small: 8 + 8 layers of 512. python -m experiments.mt5_small [--scale=laptop]"""
  optim = OptimConfig(kind='adafactor', peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0)
  paper = Experiment(
      'mt5_small', family='mt5', model=mt5.small('bfloat16'), objective=MixtureOfDenoisers(z_loss=1e-4),
      data=DataConfig(
          prepare=TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False),
          assembly='packed', temperature=1 / 0.3),
      optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 1024, 1024),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
