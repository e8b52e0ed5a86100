"""ALBERT-large, version 2 (Lan et al. 2020, section 4.1, and google-research/albert).

    python -m experiments.albert_large --data.path=gs://BUCKET/records    # a TPU v3 pod of 64 to 512 chips
    python -m experiments.albert_large --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.albert_large --scale=test                       # seconds

LAMB, batches of 4,096 rows of 512 tokens, peak 0.00176 after 3,125 steps; n-grams of up to three words are masked
together, and two texts that follow each other change places half of the time. Version 2 takes 3 million steps without
dropout. The paper took 125,000 steps, with dropout. The paper's corpus is BERT's, 16 GB, in 30,000 lower-cased pieces;
version 2 had more text. Records of your own come from `python -m plm_jax prepare TEXT RECORDS`. On a pod every worker
has to run the command, with --hosts.distributed=True (see scripts/pod.sh). Without --data.path the run learns the
English documentation in the installed Python packages.
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import albert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import SentenceOrder
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """ALBERT-large: 24 layers of 1024 that are one, MLM and SOP. python -m experiments.albert_large [--scale=laptop]"""
  text = TextConfig(kind='sentencepiece-unigram', layout='albert')
  # p(n) is proportional to 1/n. The released code writes every text out 40 times, masked anew each time.
  objective = MaskedLM(pair=SentenceOrder(), unit='word', lengths=(6 / 11, 3 / 11, 2 / 11), duplicates=40)
  return scaled(Experiment(
      'albert_large', family='albert', model=albert.second(albert.large('bfloat16')), objective=objective,
      data=DataConfig(prepare=text), optim=OptimConfig(kind='lamb', peak=0.00176, warmup=3125),
      train=TrainConfig(phases=(Phase(3_000_000, 512, 4096),))), scale)


if __name__ == '__main__':
  main(recipe)
