"""LLaMA-7B, as published (Touvron et al. 2023, section 2 and table 2).

    python -m experiments.llama_7b --data.path=gs://BUCKET/records --hosts.distributed=True \\
        --mesh.fsdp=64    # 64 TPU v4 chips, or more
    python -m experiments.llama_7b --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m experiments.llama_7b --scale=test                       # seconds

32 layers of 4096, 1.0 trillion tokens in batches of 2048 rows of 2048, here in 16 micro-steps. The paper used A100s.
Its corpus is CommonCrawl, C4, GitHub, Wikipedia, books, arXiv and Stack Exchange: give --data.path and --data.weights.
It does not say how weights begin nor what Adam's epsilon is, here 0.02 and 1e-8, nor whether documents in a row see
each other; here they do. On a pod every worker has to run the command (see scripts/pod.sh).
"""
import dataclasses

from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import llama
from plm_jax.objectives.clm import CausalLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """LLaMA-7B: 32 layers of 4096. python -m experiments.llama_7b [--scale=laptop]"""
  model = llama.llama_7b('bfloat16')
  text = TextConfig(kind='sentencepiece-bpe', layout='llama', lowercase=False, newlines=True)
  optim = OptimConfig(peak=3e-4, warmup=2000, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8, bias_correction=True,
                      weight_decay=0.1)
  paper = Experiment(
      'llama_7b', family='llama', objective=CausalLM(isolated=False), optim=optim,
      model=dataclasses.replace(model, stack=dataclasses.replace(model.stack, remat='full')),
      data=DataConfig(prepare=text, assembly='packed'),
      train=TrainConfig(phases=(Phase(238_419, 2048, 2048),), accumulate=16))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
