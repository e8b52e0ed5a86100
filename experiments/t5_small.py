"""T5 small (Raffel et al. 2020): 60 million parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=sentencepiece-unigram \\
        --layout=t5 --no-lowercase --vocab=32100
    python -m experiments.t5_small --data.path=gs://BUCKET/records    # a TPU pod
    python -m experiments.t5_small --scale=laptop                     # 2 CPU cores: 15 minutes
    python -m experiments.t5_small --scale=test                       # seconds

6 + 6 layers of 512 on C4, 750 GB of English web pages. Spans of three tokens on average, 15% of the text, are left out
and are the target. The paper's baseline saw 2^35 tokens in 2^19 steps of 128 rows of 512 (section 3.1.2); the released
models, as here, 2^40 in a million steps of 2^11 rows (section 3.7), with supervised tasks mixed in: those come after
it here, by experiments.t5_small_tasks. Adafactor, at a rate of 1/sqrt(max(step, 10^4)). On a pod every worker has to
run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import t5
from plm_jax.objectives.spans import MixtureOfDenoisers
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """T5 small: 6 + 6 layers of 512. python -m experiments.t5_small [--scale=laptop]"""
  optim = OptimConfig(kind='adafactor', peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0)
  paper = Experiment(
      't5_small', family='t5', model=t5.small('bfloat16'), objective=MixtureOfDenoisers(),
      data=DataConfig(
          prepare=TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False),
          assembly='packed'),
      optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 512, 2048),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
