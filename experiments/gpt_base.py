"""GPT, as published (Radford et al. 2018, section 4.1).

    python -m plm_jax prepare TEXT gs://BUCKET/records --kind=word-bpe --vocab=40478
    python -m experiments.gpt_base --data.path=gs://BUCKET/records    # 16 TPU v3 chips, or more
    python -m experiments.gpt_base --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m experiments.gpt_base --scale=test                       # seconds

12 layers of 768 on BooksCorpus: 100 epochs in batches of 64 rows of 512 tokens, which for its billion tokens are three
million steps. The paper's text runs on from row to row without a sign; here a row begins with _start_, and _delimiter_
ends a document. Its decay of 0.01 was one of Adam's gradient; it is decoupled here. On a pod every worker has to run
the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import gpt
from plm_jax.objectives.clm import CausalLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """GPT: 12 layers of 768, norms behind. python -m experiments.gpt_base [--scale=laptop]"""
  # The first 2000 updates rise, and a cosine falls to 0 as in the released code.
  optim = OptimConfig(peak=2.5e-4, warmup=2000, schedule='gpt1', eps=1e-8, bias_correction=True)
  paper = Experiment(
      'gpt_base', family='openai-gpt', model=gpt.base('bfloat16'), objective=CausalLM(isolated=False),
      data=DataConfig(prepare=TextConfig(kind='word-bpe'), assembly='packed'), optim=optim,
      train=TrainConfig(phases=(Phase(3_000_000, 512, 64),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
