"""RoBERTa's input format SENTENCE-PAIR + NSP (Liu et al. 2019, section 4.2 and table 2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --vocab=50265
    python -m experiments.roberta_sentence_pair --data.path=gs://BUCKET/records    # 16 TPU v3 chips (v3-32)
    python -m experiments.roberta_sentence_pair --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.roberta_sentence_pair --scale=test                       # seconds

Two single sentences, and whether the second follows. Such rows are much shorter than 512 tokens, so there are more
of them: 2,048 of 128 tokens have the text of 256 of 512 where a sentence has some 30 tokens. 1,000,000 steps. On a pod
every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
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
  """Two sentences and NSP. python -m experiments.roberta_sentence_pair [--scale=laptop]"""
  data = DataConfig(prepare=TextConfig(kind='byte-bpe', lowercase=False))
  # The rate is that of table 3 for 256 rows; section 3.1: BERT's warmup, b2 of 0.98, full rows from the first step on.
  optim = OptimConfig(peak=1e-4, warmup=10_000, schedule='linear', b2=0.98, bias_correction=True, clip=0.0)
  paper = Experiment(
      'roberta_sentence_pair', family='roberta', model=dataclasses.replace(roberta.base('bfloat16'), pooler=True),
      objective=MaskedLM(pair=NextSentence(short=0.0, unit='sentence', separators=2)), data=data, optim=optim,
      train=TrainConfig(phases=(Phase(1_000_000, 128, 2048),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
