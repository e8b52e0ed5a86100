"""DeBERTa v3 base (He et al. 2023, sections 3 and 4).

    python -m experiments.deberta_v3_base --data.path=gs://BUCKET/records    # 64 TPU v3 chips (v3-128), or more
    python -m experiments.deberta_v3_base --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.deberta_v3_base --scale=test                       # seconds

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
  """DeBERTa v3 base: 12 layers of 768, replaced tokens. python -m experiments.deberta_v3_base [--scale=laptop]"""
  text = TextConfig(kind='sentencepiece-unigram', layout='deberta', lowercase=False)
  paper = Experiment(
      'deberta_v3_base', family='deberta-v2', model=deberta_v2.v3_base('bfloat16'),
      objective=ReplacedTokenDetection(sharing='disentangled', width=1.0, depth=0.5, first=True),
      data=DataConfig(prepare=text, assembly='packed'), optim=OptimConfig(peak=5e-4, b2=0.98),
      train=TrainConfig(phases=(Phase(500_000, 512, 8192),), accumulate=8))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
