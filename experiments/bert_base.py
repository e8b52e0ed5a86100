"""BERT-base, as published (Devlin et al. 2019, section 3.1 and appendix A.2).

    python -m experiments.bert_base --data.path=gs://BUCKET/records        # 16 TPU v2 chips (v2-32): about 4 days
    python -m experiments.bert_base --scale=laptop                         # 2 CPU cores: under 4 minutes
    python -m experiments.bert_base --scale=test                           # seconds

One million steps of 256 rows: 128 tokens for 90% of them, then 512. The paper's corpus is BooksCorpus and English
Wikipedia, 3.3 billion words; records of another corpus come from `python -m plm_jax prepare TEXT RECORDS`. On a pod give
the command on every worker with --hosts.distributed=True, as scripts/pod.sh does. Without --data.path the run learns the
English documentation in the installed Python packages.
"""
import dataclasses

from plm_jax.config import Experiment, Scale
from plm_jax.models import bert
from plm_jax.run import main
from plm_jax.scales import scaled


def recipe(scale: Scale) -> Experiment:
  """BERT-base: 12 layers of 768, MLM and NSP. python -m experiments.bert_base [--scale=laptop]"""
  model = bert.base()
  # Every default of Experiment is a value of the paper; matrix products in bfloat16 are what its TPUs did.
  model = dataclasses.replace(model, block=dataclasses.replace(model.block, dtype='bfloat16'))
  return scaled(Experiment('bert_base', model=model, prompts=(
      'Returns the [MASK] of the array.', 'If True, [MASK] a copy of the array.', 'The [MASK] value is None.')), scale)


if __name__ == '__main__':
  main(recipe)
