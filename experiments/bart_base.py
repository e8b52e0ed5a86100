"""BART-base (Lewis et al. 2020): 139 million parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --vocab=50265
    python -m experiments.bart_base --data.path=gs://BUCKET/records    # a TPU pod
    python -m experiments.bart_base --scale=laptop                     # 2 CPU cores: 15 minutes
    python -m experiments.bart_base --scale=test                       # seconds

6 + 6 layers of 768 for a million steps on books and Wikipedia: the paper's comparison of objectives (section 4), of
which text infilling alone was the best. Rows are BERT's, 256 of 512 tokens. Learning rate and warmup, which it does
not tell, are those of RoBERTa-base (Liu et al. 2019, table 9). On a pod every worker has to run the command, with
--hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import bart
from plm_jax.objectives.denoising import DenoisingAutoencoder, TextInfilling
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """BART-base: 6 + 6 layers of 768. python -m experiments.bart_base [--scale=laptop]"""
  optim = OptimConfig(
      peak=6e-4, warmup=24_000, schedule='linear', b2=0.98, bias_correction=True, clip=0.0)
  paper = Experiment(
      'bart_base', family='bart', model=bart.base('bfloat16'),
      objective=DenoisingAutoencoder(noises=(TextInfilling(),)),
      data=DataConfig(prepare=TextConfig(kind='byte-bpe'), assembly='sentences'), optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 512, 256),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
