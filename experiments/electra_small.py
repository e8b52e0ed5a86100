"""ELECTRA-small (Clark et al. 2020, section 3 and table 6).

    python -m experiments.electra_small --data.path=gs://BUCKET/records    # 1 TPU v3 chip or more
    python -m experiments.electra_small --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.electra_small --scale=test                       # seconds

A million steps of 128 rows of 128 tokens: 4 days on one V100 in the paper. BERT's text: Wikipedia and BooksCorpus. Of
the tokens to predict 85% are masked and the rest kept, as in the released code. On a pod every worker has to run the
command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import Experiment, Phase, Scale, TrainConfig
from plm_jax.models import electra
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.pairs import Consecutive
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """ELECTRA-small: 12 layers of 256, replaced tokens. python -m experiments.electra_small [--scale=laptop]"""
  mlm = MaskedLM(pair=Consecutive(), mask_share=0.85, random_share=0.0)
  paper = Experiment(
      'electra_small', family='electra', model=electra.small('bfloat16'),
      objective=ReplacedTokenDetection(mlm=mlm, width=1 / 4), optim=OptimConfig(peak=5e-4),
      train=TrainConfig(phases=(Phase(1_000_000, 128, 128),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
