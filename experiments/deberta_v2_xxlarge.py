"""DeBERTa v2 xxlarge, 1.5 billion parameters (He et al. 2021, section 5.3 and appendix A.2).

    python -m experiments.deberta_v2_xxlarge --data.path=gs://BUCKET/records --mesh.fsdp=8  # 256 TPU v4 chips (v4-512)
    python -m experiments.deberta_v2_xxlarge --scale=laptop                                  # 2 CPU cores: minutes
    python -m experiments.deberta_v2_xxlarge --scale=test                                    # seconds

A million steps of 2,048 rows of 512 tokens: 30 days on 256 V100 in the paper. Its text is v1's and CC-News, 160 GB.
Masks cover up to three words, as in the released code; rows are packed full there too, but here documents in one row
do not see each other. On a pod every worker has to run the command, with --hosts.distributed=True (see
scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import deberta_v2
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Single
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """DeBERTa v2 xxlarge: 48 layers of 1,536, masked words. python -m experiments.deberta_v2_xxlarge [--scale=laptop]"""
  text = TextConfig(kind='sentencepiece-unigram', layout='deberta', lowercase=False)
  # Adam and its schedule are BERT's, but for the peak.
  paper = Experiment(
      'deberta_v2_xxlarge', family='deberta-v2', model=deberta_v2.xxlarge('bfloat16'),
      objective=MaskedLM(pair=Single(), unit='word', lengths=(6 / 11, 3 / 11, 2 / 11)),
      data=DataConfig(prepare=text, assembly='packed'), optim=OptimConfig(peak=1.5e-4),
      train=TrainConfig(phases=(Phase(1_000_000, 512, 2048),), accumulate=4))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
