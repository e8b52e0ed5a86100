"""XLNet-base, on BERT's text (Yang et al. 2019, sections 3.1 and 3.4).

    python -m experiments.xlnet_base --data.path=gs://BUCKET/records    # 16 TPU v3 chips (v3-32), or more
    python -m experiments.xlnet_base --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.xlnet_base --scale=test                       # seconds

12 layers of 768 on BooksCorpus and English Wikipedia, rows of 512 tokens. The paper gives no schedule for this size: it
is BERT-base's here, a million steps of 256 rows and the same peak, the rest as table 8 and the released code have it.
On a pod every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import xlnet
from plm_jax.objectives.plm import PermutationLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """XLNet-base: 12 layers of 768, permutation language modelling. python -m experiments.xlnet_base [--scale=laptop]"""
  text = TextConfig(kind='sentencepiece-unigram', layout='xlnet', lowercase=False)
  # Adam's epsilon of 1e-6 and the decay of 0.01 are BERT's too; the line's end is of the released train.py.
  optim = OptimConfig(peak=1e-4, warmup=10_000, schedule='linear', floor=0.001)
  paper = Experiment(
      'xlnet_base', family='xlnet', model=xlnet.base('bfloat16'), objective=PermutationLM(),
      data=DataConfig(prepare=text), optim=optim, train=TrainConfig(phases=(Phase(1_000_000, 512, 256),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
