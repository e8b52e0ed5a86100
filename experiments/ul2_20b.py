"""UL2 (Tay et al. 2023): 19.5 billion parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=sentencepiece-unigram \\
        --layout=t5 --sentinels=160 --no-lowercase --vocab=32128
    python -m experiments.ul2_20b --data.path=gs://BUCKET/records --mesh.fsdp=128    # a TPU pod
    python -m experiments.ul2_20b --scale=laptop                              # 2 CPU cores: 15 minutes
    python -m experiments.ul2_20b --scale=test                                # seconds

32 + 32 layers of 4,096 with SwiGLU, on C4: two million steps of 1,024 rows of 512 tokens. Of a row one of seven
denoisers is asked: spans of 3 or 8 tokens on average, 15% of the text; the end of the text; spans as many as half of
the text, or of 64 tokens. A token in front says which of the three kinds (section 3.1). Half of a text in spans of
three is more of them than T5's tokenizer has sentinels. Adafactor, at a rate of 1/sqrt(max(step, 10^4)), and a z loss
of 1e-4, as in T5's released code; no dropout. On a pod every worker has to run the command, with
--hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import t5
from plm_jax.objectives.spans import UL2, MixtureOfDenoisers
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """UL2: 32 + 32 layers of 4,096. python -m experiments.ul2_20b [--scale=laptop]"""
  optim = OptimConfig(kind='adafactor', peak=0.01, warmup=10_000, schedule='t5', clip=0.0, weight_decay=0.0)
  paper = Experiment(
      'ul2_20b', family='t5', model=t5.ul2_20b('bfloat16'),
      objective=MixtureOfDenoisers(UL2, sentinels=160, z_loss=1e-4),
      data=DataConfig(
          prepare=TextConfig(kind='sentencepiece-unigram', layout='t5', sentinels=160, lowercase=False),
          assembly='packed'),
      optim=optim,
      train=TrainConfig(phases=(Phase(2_000_000, 512, 1024),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
