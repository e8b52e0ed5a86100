"""GPT-3 2B7 (Brown et al. 2020): 2.7 billion parameters.

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=byte-bpe --layout=gpt2 --newlines --vocab=50257
    python -m experiments.gpt3_2b7 --data.path=gs://BUCKET/records \
        --mesh.fsdp=64    # 64 TPU v4 chips
    python -m experiments.gpt3_2b7 --scale=laptop    # 2 CPU cores: 40 minutes
    python -m experiments.gpt3_2b7 --scale=test      # seconds

32 layers of 2,560, every second of which sees a band of 256 tokens, on 300 billion tokens. Batches of 1.0 million
tokens are reached over the first 6 billion, from 131 thousand on (32 thousand in the paper: too few rows for such
meshes); the paper has between 4 and 12 billion, depending on the size, and does not say which for this one. The
learning rate counts tokens too: it rises over 375 million and falls along a cosine to a tenth over 260 billion (section
2.3, table 2.1 and appendix B). Rows run on from document to document, which see each other. On a pod every worker has
to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
import dataclasses

from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Scale, TrainConfig, ramp
from plm_jax.data.prepare import TextConfig
from plm_jax.models import gpt3
from plm_jax.objectives.clm import CausalLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """GPT-3 2b7: 32 layers of 2,560, dense and banded. python -m experiments.gpt3_2b7 [--scale=laptop]"""
  model = gpt3.b2_7('bfloat16')
  model = dataclasses.replace(model, stack=dataclasses.replace(model.stack, remat='full'))
  optim = OptimConfig(
      peak=1.6e-4, clock='tokens', warmup=375_000_000, horizon=260_000_000_000, schedule='cosine', floor=0.1, b2=0.95,
      eps=1e-8, bias_correction=True, weight_decay=0.1)
  paper = Experiment(
      'gpt3_2b7', family='gpt3', model=model, objective=CausalLM(isolated=False),
      data=DataConfig(prepare=TextConfig(kind='byte-bpe', layout='gpt2', newlines=True), assembly='packed'),
      optim=optim,
      train=TrainConfig(phases=ramp(300_000_000_000, 2048, 512, first=64, over=6_000_000_000)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
