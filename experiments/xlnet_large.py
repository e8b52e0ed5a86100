"""XLNet-large, as published (Yang et al. 2019, section 3.1 and appendix A.5, table 8).

    python -m experiments.xlnet_large --data.path=gs://BUCKET/records --hosts.distributed=True
    python -m experiments.xlnet_large --scale=laptop                    # 2 CPU cores: minutes
    python -m experiments.xlnet_large --scale=test                      # seconds

24 layers of 1024, 500,000 steps of 8192 rows of 512 tokens; the paper trained it on 512 TPU v3 chips in 5.5 days:
eight rows a core, here in four micro-steps. The command of the released code has batches of 2048. The paper's corpus is
BooksCorpus, English Wikipedia, Giga5, ClueWeb 2012-B and Common Crawl, 33 billion tokens. On a pod every worker has to
run the command (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import xlnet
from plm_jax.objectives.plm import PermutationLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """XLNet-large: 24 layers of 1024, permutation modelling. python -m experiments.xlnet_large [--scale=laptop]"""
  text = TextConfig(kind='sentencepiece-unigram', layout='xlnet', lowercase=False)
  # Adam's epsilon of 1e-6 and the decay of 0.01 are BERT's too; the line's end is of the released train.py.
  optim = OptimConfig(peak=4e-4, warmup=40_000, schedule='linear', floor=0.001)
  paper = Experiment(
      'xlnet_large', family='xlnet', model=xlnet.large('bfloat16'), objective=PermutationLM(),
      data=DataConfig(prepare=text), optim=optim, train=TrainConfig(phases=(Phase(500_000, 512, 8192),), accumulate=4))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
