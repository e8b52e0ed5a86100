"""mBART of 25 languages (Liu et al. 2020): 611 million parameters.

    python -m plm_jax prepare ALL_TEXT gs://BUCKET/all --kind=sentencepiece-unigram \\
        --layout=mbart --no-lowercase --vocab=250027
    python -m plm_jax prepare GERMAN gs://BUCKET/de --tokenizer=gs://BUCKET/all/tokenizer
    python -m plm_jax prepare ROMANIAN gs://BUCKET/ro --tokenizer=gs://BUCKET/all/tokenizer
    python -m experiments.mbart_large --data.path gs://BUCKET/de gs://BUCKET/ro \\
        --objective.languages de_DE ro_RO --mesh.fsdp=8 --train.accumulate=4    # a TPU pod
    python -m experiments.mbart_large --scale=laptop    # 2 CPU cores: 15 minutes
    python -m experiments.mbart_large --scale=test      # seconds

12 + 12 layers of 1,024 with norms first, on Common Crawl in 25 languages, for 500,000 steps. A corpus is of one
language, whose name ends a text and begins what is written; shares of the rows go with the power 0.7 of the corpora's
sizes. Sentences of a document change places, and 35% of the tokens are masked in spans of 3.5 on average (section 2.2).
The paper counts 128 thousand tokens of a batch for each of 256 GPUs and calls that BART's configuration; here are
BART's 8,192 rows of 512, and its rate, which the paper does not tell. It lowered dropout at 250,000 and 400,000 steps,
which is left out here. On a pod every worker has to run the command, with --hosts.distributed=True (see
scripts/pod.sh).
"""
from plm_jax.cli.run import main
from plm_jax.config import DataConfig, Experiment, Phase, Scale, TrainConfig
from plm_jax.data.prepare import TextConfig
from plm_jax.models import mbart
from plm_jax.objectives.denoising import DenoisingAutoencoder, SentencePermutation, TextInfilling
from plm_jax.training.optim import OptimConfig
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """mBART: 12 + 12 layers of 1,024, norms first. python -m experiments.mbart_large [--scale=laptop]"""
  optim = OptimConfig(
      peak=4e-4, warmup=30_000, schedule='linear', b2=0.98, eps=1e-6, bias_correction=True, clip=0.0)
  paper = Experiment(
      'mbart_large', family='mbart', model=mbart.large('bfloat16'),
      objective=DenoisingAutoencoder((SentencePermutation(), TextInfilling(0.35, 3.5)), languages=('en_XX',)),
      data=DataConfig(
          prepare=TextConfig(kind='sentencepiece-unigram', layout='mbart', lowercase=False), temperature=1 / 0.7),
      optim=optim,
      train=TrainConfig(phases=(Phase(500_000, 512, 8192),)))
  return scaled(paper, scale)


if __name__ == '__main__':
  main(recipe)
