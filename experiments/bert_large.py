"""BERT-large, as published (Devlin et al. 2019, section 3.1 and appendix A.2).

    python -m experiments.bert_large --data.path=gs://BUCKET/records     # 64 TPU v3 chips: about 4 days
    python -m experiments.bert_large --scale=laptop                      # 2 CPU cores: under 4 minutes
    python -m experiments.bert_large --scale=test                        # seconds

One million steps of 256 rows: 128 tokens for 90% of them, then 512. The paper's corpus is BooksCorpus and English
Wikipedia, 3.3 billion words; records of your own come from `python -m plm_jax prepare TEXT RECORDS`. On a pod every
worker has to run the command, with --hosts.distributed=True (see scripts/pod.sh). Without --data.path the run learns
the English documentation in the installed Python packages.
"""
from plm_jax.cli.run import main
from plm_jax.config import Experiment, Scale
from plm_jax.models import bert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.training.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """BERT-large: 24 layers of 1024, MLM and NSP. python -m experiments.bert_large [--scale=laptop]"""
  # The defaults of Experiment are the paper's. Its TPUs multiplied in bfloat16; the released code wrote every text out
  # ten times, masked anew each time (dupe_factor).
  return scaled(Experiment('bert_large', model=bert.large('bfloat16'), objective=MaskedLM(duplicates=10)), scale)


if __name__ == '__main__':
  main(recipe)
