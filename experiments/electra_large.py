"""ELECTRA-large (Clark et al. 2020, section 3 and table 6).

    python -m experiments.electra_large --data.path=gs://BUCKET/records    # 128 TPU v3 chips (v3-256)
    python -m experiments.electra_large --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.electra_large --scale=test                       # seconds

400,000 steps of 2,048 rows of 512 tokens (ELECTRA-400K). XLNet's text: ClueWeb, CommonCrawl and Gigaword beside
BERT's. Of the tokens to predict 85% are masked and the rest kept, as in the released code. On a pod every worker has
to run the command, with --hosts.distributed=True (see scripts/pod.sh).
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
  """ELECTRA-large: 24 layers of 1,024, replaced tokens. python -m experiments.electra_large [--scale=laptop]"""
  mlm = MaskedLM(pair=Consecutive(), rate=0.25, mask_share=0.85, random_share=0.0)
  paper = Experiment(
      'electra_large', family='electra', model=electra.large('bfloat16'),
      objective=ReplacedTokenDetection(mlm=mlm, width=1 / 4), optim=OptimConfig(peak=2e-4),
      train=TrainConfig(phases=(Phase(400_000, 512, 2048),), accumulate=2))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
