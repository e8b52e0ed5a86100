"""GPT-2 small (Radford et al. 2019): 124 million parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --layout=gpt2 --newlines --vocab=50257
    python -m experiments.gpt2_small --data.path=gs://BUCKET/records    # 64 TPU v3 chips, or more
    python -m experiments.gpt2_small --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m experiments.gpt2_small --scale=test                       # seconds

12 layers of 768 on WebText, 8 million documents or 40 GB, in batches of 512 rows of 1,024 tokens that see what precedes
them in the row, whatever document it is of. The paper tells neither steps nor learning rate, which was tuned for each
size: peak, warmup, cosine and the other settings of Adam are those of GPT-3 of this size (Brown et al. 2020, table 2.1
and appendix B), for 262 billion tokens. On a pod every worker has to run the command, with --hosts.distributed=True
(see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import gpt2
from plm_jax.objectives.clm import CausalLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """GPT-2 small: 12 layers of 768. python -m experiments.gpt2_small [--scale=laptop]"""
  optim = OptimConfig(
      peak=6e-4, warmup=700, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8, bias_correction=True, weight_decay=0.1)
  paper = Experiment(
      'gpt2_small', family='gpt2', model=gpt2.small('bfloat16'), objective=CausalLM(isolated=False),
      data=DataConfig(prepare=TextConfig(kind='byte-bpe', layout='gpt2', newlines=True), assembly='packed'),
      optim=optim,
      train=TrainConfig(phases=(Phase(500_000, 1024, 512),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
