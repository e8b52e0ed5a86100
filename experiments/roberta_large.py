"""RoBERTa-large, as published (Liu et al. 2019, section 5 and table 9).

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --vocab=50265
    python -m experiments.roberta_large --data.path=gs://BUCKET/records    # 128 TPU v3 chips (v3-256)
    python -m experiments.roberta_large --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.roberta_large --scale=test                       # seconds

500,000 steps of 8,192 rows of 512 tokens, in 8 micro-steps; the paper had 1,024 V100 GPUs for about a day in 100,000
steps. 160 GB of text: BooksCorpus, Wikipedia, CC-News, OpenWebText, Stories. Rows are FULL-SENTENCES: they run on into
the next document, and all documents in a row see each other; --objective.pair.together=False keeps them apart. On a
pod every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import roberta
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import FullSentences
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """RoBERTa-large: 24 layers of 1024, dynamic masks. python -m experiments.roberta_large [--scale=laptop]"""
  data = DataConfig(assembly='sentences', prepare=TextConfig(kind='byte-bpe', lowercase=False))
  # fairseq's Adam corrects the bias of its means; table 9 has no clipping.
  optim = OptimConfig(peak=4e-4, warmup=30_000, schedule='linear', b2=0.98, bias_correction=True, clip=0.0)
  paper = Experiment(
      'roberta_large', family='roberta', model=roberta.large('bfloat16'), objective=MaskedLM(pair=FullSentences()),
      data=data, optim=optim, train=TrainConfig(phases=(Phase(500_000, 512, 8192),), accumulate=8))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
