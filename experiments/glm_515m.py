"""GLM-515M: blank infilling of two kinds on BERT's text (Du et al. 2022, section 3.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --vocab=30526 --layout=glm
    python -m experiments.glm_515m --data.path=gs://BUCKET/records    # a TPU pod
    python -m experiments.glm_515m --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.glm_515m --scale=test                       # seconds

30 layers of 1152, 200,000 steps of 1024 rows of 512 tokens; half of the rows have one blank of half
of a document or more, as in GLM-Doc, whose schedule this is: the paper names none for this size. On a pod every worker
has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import glm
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.pairs import FullSentences
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """GLM-515M: 30 layers of 1152, blank infilling. python -m experiments.glm_515m [--scale=laptop]"""
  optim = OptimConfig(peak=2e-4, warmup=8000, schedule='cosine', floor=0.05, b2=0.98, weight_decay=0.1,
                      bias_correction=True)
  paper = Experiment(
      'glm_515m', family='glm', model=glm.medium_515m('bfloat16'),
      objective=BlankInfilling(FullSentences(), documents=0.5),
      data=DataConfig(prepare=TextConfig(layout='glm'), assembly='sentences'), optim=optim,
      train=TrainConfig(phases=(Phase(200_000, 512, 1024),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
