"""ByT5 small (Xue et al. 2022): 300 million parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=bytes
    python -m experiments.byt5_small --data.path=gs://BUCKET/records    # a TPU pod
    python -m experiments.byt5_small --scale=laptop                     # 2 CPU cores: 15 minutes
    python -m experiments.byt5_small --scale=test                       # seconds

12 + 4 layers of 1,472 that read bytes, on mC4: a million steps of 1,024 rows of 1,024 bytes, of which spans of twenty
on average, 15% of the text, are left out and are the target (section 3.1). Shares of languages as in mT5. On a pod
every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import t5
from plm_jax.objectives.spans import MixtureOfDenoisers, SpanCorruption
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """ByT5 small: 12 + 4 layers of 1,472. python -m experiments.byt5_small [--scale=laptop]"""
  optim = OptimConfig(kind='adafactor', peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0)
  paper = Experiment(
      'byt5_small', family='t5', model=t5.byt5_small('bfloat16'), objective=MixtureOfDenoisers(
          z_loss=1e-4, denoisers=(SpanCorruption(mean=20.0),)),
      data=DataConfig(
          prepare=TextConfig(kind='bytes'),
          assembly='packed', temperature=1 / 0.3),
      optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 1024, 1024),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
