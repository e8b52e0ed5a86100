"""BART-large (Lewis et al. 2020): 406 million parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --vocab=50265
    python -m experiments.bart_large --data.path=gs://BUCKET/records    # 1,024 TPU v3 chips
    python -m experiments.bart_large --scale=laptop                     # 2 CPU cores: 15 minutes
    python -m experiments.bart_large --scale=test                       # seconds

12 + 12 layers of 1,024 on the 160 GB of text of RoBERTa: 500,000 steps of 8,000 rows (section 5.1; 8,192 here, which
devices share). Sentences change places, and 30% of the tokens are masked in spans, three under one mask on average;
the decoder writes the text as it was. The paper tells neither learning rate nor warmup: they are those of
RoBERTa-large (Liu et al. 2019, table 9). It stopped dropout for the last tenth of the steps, which is left out here.
On a pod every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import bart
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """BART-large: 12 + 12 layers of 1,024. python -m experiments.bart_large [--scale=laptop]"""
  optim = OptimConfig(
      peak=4e-4, warmup=30_000, schedule='linear', b2=0.98, bias_correction=True, clip=0.0)
  paper = Experiment(
      'bart_large', family='bart', model=bart.large('bfloat16'),
      objective=DenoisingAutoencoder(),
      data=DataConfig(prepare=TextConfig(kind='byte-bpe'), assembly='sentences'), optim=optim,
      train=TrainConfig(phases=(Phase(500_000, 512, 8192),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
