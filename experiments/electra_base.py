"""ELECTRA-base (Clark et al. 2020, section 3 and table 6).

    python -m experiments.electra_base --data.path=gs://BUCKET/records    # 16 TPU v3 chips (v3-32)
    python -m experiments.electra_base --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.electra_base --scale=test                       # seconds

766,000 steps of 256 rows of 512 tokens, 4 days on 16 TPU v3 chips in the paper. BERT's text: Wikipedia and
BooksCorpus. Of the tokens to predict 85% are masked and the rest kept, as in the released code. On a pod every worker
has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
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
  """ELECTRA-base: 12 layers of 768, replaced tokens. python -m experiments.electra_base [--scale=laptop]"""
  mlm = MaskedLM(pair=Consecutive(), mask_share=0.85, random_share=0.0)
  paper = Experiment(
      'electra_base', family='electra', model=electra.base('bfloat16'),
      objective=ReplacedTokenDetection(mlm=mlm, width=1 / 3), optim=OptimConfig(peak=2e-4),
      train=TrainConfig(phases=(Phase(766_000, 512, 256),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
