"""PaLM-62B, as published (Chowdhery et al. 2022, sections 2 and 5).

    python -m experiments.palm_62b --data.path=gs://BUCKET/records --hosts.distributed=True \\
        --mesh.fsdp=128 --mesh.tensor=4    # 512 TPU v4 chips, or more
    python -m experiments.palm_62b --scale=laptop                      # 2 CPU cores: 40 minutes
    python -m experiments.palm_62b --scale=test                        # seconds

64 layers of 8192, 780 billion tokens in rows of 2048, of which a batch has 512, then 1024, then 2048, here in 4
micro-steps. The paper says of the smaller sizes that their schedule was similar. Adafactor without factors, its updates
averaged; decay is the square of the learning rate; the loss has 1e-4 of the squared logarithm of softmax's denominator.
Adafactor's clipping of updates and their size by that of the parameter, layer by layer, are as T5 has them. The paper's
vocabulary has 256,000 pieces. On a pod every worker has to run the command (see scripts/pod.sh).
"""
import dataclasses

from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import palm
from plm_jax.objectives.clm import CausalLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """PaLM-62B: 64 layers of 8192. python -m experiments.palm_62b [--scale=laptop]"""
  model = palm.palm_62b('bfloat16')
  text = TextConfig(kind='sentencepiece-bpe', layout='llama', lowercase=False, newlines=True)
  optim = OptimConfig(kind='adafactor', peak=1e-2, warmup=10_000, schedule='t5', weight_decay=1.0, decay_power=2.0,
                      factored=0, momentum=0.9)
  phases = (Phase(50_000, 2048, 512), Phase(65_000, 2048, 1024), Phase(140_000, 2048, 2048))
  paper = Experiment(
      'palm_62b', family='cohere', objective=CausalLM(isolated=False, z_loss=1e-4), optim=optim,
      model=dataclasses.replace(model, stack=dataclasses.replace(model.stack, remat='full')),
      data=DataConfig(prepare=text, assembly='packed'), train=TrainConfig(phases=phases, accumulate=4))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
