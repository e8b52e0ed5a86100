"""GPT-2 on Chinese text, with a SentencePiece vocabulary trained on it.

    python -m plm_jax prepare TEXT gs://BUCKET/records --vocab=50000 --kind=sentencepiece-unigram
    python -m experiments.gpt2_chinese --data.path=gs://BUCKET/records         # a TPU pod
    python -m experiments.gpt2_chinese --scale=laptop --data.path=zhwiki.txt   # 2 CPU cores: 40 minutes
    python -m experiments.gpt2_chinese --scale=test --data.path=zhwiki.txt --model.vocab=8000

GPT-2 small, 12 layers of 768, and rows of 1024 tokens, 512 of them a step, as the paper has it; its schedule it does
not tell: here the peak, the warmup and the line's shape are GPT-3 small's (Brown et al. 2020, appendix B). The path has
one paragraph a line and an empty line between documents. On a pod every worker has to run the command, with
--hosts.distributed=True (see scripts/pod.sh).
"""
import dataclasses

from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import gpt2
from plm_jax.objectives.clm import CausalLM
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """GPT-2 in Chinese: 12 layers of 768. python -m experiments.gpt2_chinese [--scale=laptop] --data.path=TEXT"""
  text = TextConfig(kind='sentencepiece-unigram')
  optim = OptimConfig(peak=6e-4, warmup=2000, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8, weight_decay=0.1,
                      bias_correction=True)
  model = dataclasses.replace(gpt2.small('bfloat16'), vocab=50_048)
  paper = Experiment(
      'gpt2_chinese', family='gpt2', model=model, objective=CausalLM(),
      data=DataConfig(prepare=text, assembly='packed'), optim=optim,
      train=TrainConfig(phases=(Phase(100_000, 1024, 512),)))
  run = scaled(paper, scale)
  # Of Chinese, 6,500 characters are 99.95% of the text.
  return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab=8000)) if scale == 'laptop' else run


if __name__ == '__main__':
  main(recipe)
