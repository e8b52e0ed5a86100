"""DeBERTa v3 large (He et al. 2023, sections 3 and 4).

    python -m experiments.deberta_v3_large --data.path=gs://BUCKET/records    # 128 TPU v4 chips (v4-256), or more
    python -m experiments.deberta_v3_large --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.deberta_v3_large --scale=test                       # seconds

500,000 steps of 8,192 rows of 512 tokens. Its text is v2's, 160 GB. The generator is as wide and half as deep; the
two share embeddings with the generator's gradient alone, and a difference of the discriminator's own. On a pod every
worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import deberta_v2
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """DeBERTa v3 large: 24 layers of 1,024, replaced tokens. python -m experiments.deberta_v3_large [--scale=laptop]"""
  text = TextConfig(kind='sentencepiece-unigram', layout='deberta', lowercase=False)
  paper = Experiment(
      'deberta_v3_large', family='deberta-v2', model=deberta_v2.v3_large('bfloat16'),
      objective=ReplacedTokenDetection(sharing='disentangled', width=1.0, depth=0.5, first=True),
      data=DataConfig(prepare=text, assembly='packed'), optim=OptimConfig(peak=3e-4, b2=0.98),
      train=TrainConfig(phases=(Phase(500_000, 512, 8192),), accumulate=16))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
