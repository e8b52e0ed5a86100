"""GLM-Doc: GLM-large, blank infilling of two kinds on BERT's text (Du et al. 2022, section 3.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --vocab=30526 --layout=glm
    python -m experiments.glm_large_doc --data.path=gs://BUCKET/records    # a TPU pod
    python -m experiments.glm_large_doc --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.glm_large_doc --scale=test                       # seconds

24 layers of 1024, 200,000 steps of 1024 rows of 512 tokens, as GLM-large; but half of the rows have one blank of
half of a document or more. Its vocabulary has [gMASK] for these, which the paper's models did without. On a pod every
worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
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
  """GLM-Doc: 24 layers of 1024, blank infilling. python -m experiments.glm_large_doc [--scale=laptop]"""
  # Table 7; that the line ends at a twentieth of the peak is of the released scripts.
  optim = OptimConfig(peak=2e-4, warmup=8000, schedule='cosine', floor=0.05, b2=0.98, weight_decay=0.1,
                      bias_correction=True)
  paper = Experiment(
      'glm_large_doc', family='glm', model=glm.large('bfloat16'),
      objective=BlankInfilling(FullSentences(), documents=0.5),
      data=DataConfig(prepare=TextConfig(layout='glm'), assembly='sentences'), optim=optim,
      train=TrainConfig(phases=(Phase(200_000, 512, 1024),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
