"""DeBERTa-large (He et al. 2021, section 5.1 and appendix A.2).

    python -m experiments.deberta_large --data.path=gs://BUCKET/records    # 128 TPU v3 chips (v3-256), or more
    python -m experiments.deberta_large --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.deberta_large --scale=test                       # seconds

A million steps of 2,048 rows of 512 tokens: 20 days on 96 V100 in the paper. Its text is Wikipedia, BookCorpus,
OpenWebText and Stories, 78 GB. Masks cover up to three words, as in the released code; rows are packed full there
too, but here documents in one row do not see each other. On a pod every worker has to run the command, with
--hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import deberta
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """DeBERTa large: 24 layers of 1,024, masked words. python -m experiments.deberta_large [--scale=laptop]"""
  text = TextConfig(kind='byte-bpe', lowercase=False)
  # Adam and its schedule are BERT's, but for the peak.
  paper = Experiment(
      'deberta_large', family='deberta', model=deberta.large('bfloat16'),
      objective=MaskedLM(pair=Single(), unit='word', lengths=(6 / 11, 3 / 11, 2 / 11)),
      data=DataConfig(prepare=text, assembly='packed'), optim=OptimConfig(peak=2e-4),
      train=TrainConfig(phases=(Phase(1_000_000, 512, 2048),), accumulate=4))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
