"""GPT-3 small (Brown et al. 2020): 125 million parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --layout=gpt2 --newlines --vocab=50257
    python -m experiments.gpt3_small --data.path=gs://BUCKET/records    # 64 TPU v4 chips
    python -m experiments.gpt3_small --scale=laptop    # 2 CPU cores: 40 minutes
    python -m experiments.gpt3_small --scale=test      # seconds

12 layers of 768, every second of which sees a band of 256 tokens, on 300 billion tokens. Batches of 0.5 million tokens
are reached over the first 4 billion, from 131 thousand on (32 thousand in the paper: too few rows for such meshes);
the paper has between 4 and 12 billion, depending on the size, and does not say which for this one. The learning rate
counts tokens too: it rises over 375 million and falls along a cosine to a tenth over 260 billion (section 2.3, table
2.1 and appendix B). Rows run on from document to document, which see each other. On a pod every worker has to run the
command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Scale, TrainConfig, ramp
from plm_jax.data.prepare import TextConfig
from plm_jax.models import gpt3
from plm_jax.objectives.clm import CausalLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """GPT-3 small: 12 layers of 768, dense and banded. python -m experiments.gpt3_small [--scale=laptop]"""
  optim = OptimConfig(
      peak=6e-4, clock='tokens', warmup=375_000_000, horizon=260_000_000_000, schedule='cosine', floor=0.1, b2=0.95,
      eps=1e-8, bias_correction=True, weight_decay=0.1)
  paper = Experiment(
      'gpt3_small', family='gpt3', model=gpt3.small('bfloat16'), objective=CausalLM(isolated=False),
      data=DataConfig(prepare=TextConfig(kind='byte-bpe', layout='gpt2', newlines=True), assembly='packed'),
      optim=optim,
      train=TrainConfig(phases=ramp(300_000_000_000, 2048, 256, first=64, over=4_000_000_000)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
