"""GLM-base: blank infilling on BERT's text (Du et al. 2022, section 3.1 and appendix A).

    python -m plm_jax prepare TEXT gs://BUCKET/records --vocab=30526 --layout=glm
    python -m experiments.glm_base --data.path=gs://BUCKET/records    # a TPU pod
    python -m experiments.glm_base --scale=laptop                     # 2 CPU cores: minutes
    python -m experiments.glm_base --scale=test                       # seconds

12 layers of 768, 120,000 steps of 1024 rows of 512 tokens: BooksCorpus and English Wikipedia, uncased, documents one
behind another. A row of 512 holds 448 tokens of text; the released code's rows hold 512 and grow with their blanks. On
a pod every worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh).
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
  """GLM-base: 12 layers of 768, blank infilling. python -m experiments.glm_base [--scale=laptop]"""
  # Table 7; that the line ends at a twentieth of the peak is of the released scripts.
  optim = OptimConfig(peak=4e-4, warmup=6000, schedule='cosine', floor=0.05, b2=0.98, weight_decay=0.1,
                      bias_correction=True)
  paper = Experiment(
      'glm_base', family='glm', model=glm.base('bfloat16'), objective=BlankInfilling(FullSentences()),
      data=DataConfig(prepare=TextConfig(layout='glm'), assembly='sentences'), optim=optim,
      train=TrainConfig(phases=(Phase(120_000, 512, 1024),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
