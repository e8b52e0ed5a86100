"""GLM on Chinese text, with a SentencePiece vocabulary trained on it (the released GLM-large-Chinese's sizes).

    python -m plm_jax prepare TEXT gs://BUCKET/records --vocab=50048 --kind=sentencepiece-unigram --layout=glm
    python -m experiments.glm_chinese --data.path=gs://BUCKET/records         # a TPU pod
    python -m experiments.glm_chinese --scale=laptop --data.path=zhwiki.txt   # 2 CPU cores: minutes
    python -m experiments.glm_chinese --scale=test --data.path=zhwiki.txt --model.vocab=8000

24 layers of 1024, 250,000 steps of 1024 rows of 512 tokens. Of the rows 40% have short spans as their blanks, 30% whole
sentences and 30% one blank of a quarter of a document or more, as in the released scripts; these do not say how large a
batch is, which is GLM-large's here. The path has one paragraph a line and an empty line between documents. On a pod
every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
import dataclasses

from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import glm
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.pairs import FullSentences
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """GLM in Chinese: 24 layers of 1024. python -m experiments.glm_chinese [--scale=laptop] --data.path=TEXT"""
  text = TextConfig(kind='sentencepiece-unigram', layout='glm')
  objective = BlankInfilling(FullSentences(), sentences=0.3, documents=0.3, shortest=0.25)
  optim = OptimConfig(peak=2e-4, warmup=8000, schedule='cosine', floor=0.1, b2=0.98, weight_decay=0.1,
                      bias_correction=True)
  paper = Experiment(
      'glm_chinese', family='glm', model=glm.large_chinese('bfloat16'), objective=objective,
      data=DataConfig(prepare=text, assembly='sentences'), optim=optim,
      train=TrainConfig(phases=(Phase(250_000, 512, 1024),)))
  run = scaled(paper, scale)
  # Of Chinese, 6,500 characters are 99.95% of the text.
  return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab=8000)) if scale == 'laptop' else run


if __name__ == '__main__':
  main(recipe)
