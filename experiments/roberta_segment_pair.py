"""RoBERTa's input format SEGMENT-PAIR + NSP (Liu et al. 2019, section 4.2 and table 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --vocab=50265
    python -m experiments.roberta_segment_pair --data.path=gs://BUCKET/records    # 16 TPU v3 chips (v3-32)
    python -m experiments.roberta_segment_pair --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.roberta_segment_pair --scale=test                       # seconds

BERT's own format: two segments of many sentences, 512 tokens in all, and whether the second follows. 1,000,000 steps
of 256 rows on BooksCorpus and Wikipedia. On a pod every worker has to run the command, with --hosts.distributed=True
(see scripts/pod.sh).
"""
import dataclasses

from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import roberta
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import NextSentence
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """Two segments and NSP. python -m experiments.roberta_segment_pair [--scale=laptop]"""
  data = DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False))
  # The rate is that of table 3 for 256 rows; section 3.1: BERT's warmup, b2 of 0.98, full rows from the first step on.
  optim = OptimConfig(peak=1e-4, warmup=10_000, schedule='linear', b2=0.98, bias_correction=True, clip=0.0)
  paper = Experiment(
      'roberta_segment_pair', family='roberta', model=dataclasses.replace(roberta.base('bfloat16'), pooler=True),
      objective=MaskedLM(pair=NextSentence(short=0.0, separators=2)), data=data, optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 512, 256),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
