"""BERT, as published (Devlin et al. 2019, section 3.1 and appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bert_base
    python -m plm_jax train bert_base --data.path=gs://BUCKET/records    # 16 TPU v2 chips (v2-32): about 4 days
    python -m plm_jax train bert_base --scale=laptop                     # 2 CPU cores: under 4 minutes
    python -m plm_jax train bert_base --scale=test                       # seconds

MLM and NSP, one million steps of 256 rows: 128 tokens for 90% of them, then 512. The paper's corpus is BooksCorpus and
English Wikipedia, 3.3 billion words. Its TPUs multiplied in bfloat16; the released code wrote every text out ten times,
masked anew each time (dupe_factor), and answers NSP without dropout.
"""
from plm_jax.config import Experiment, Scale
from plm_jax.models import bert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' BertForPreTraining; published as 110M and 340M.
    'base': Size(model=bert.base, parameters=110_106_428, peak=1e-4, batch=256, pod='v2:4x4',
                 took='16 TPU chips, 4 days'),
    'large': Size(model=bert.large, parameters=336_226_108, peak=1e-4, batch=256, pod='v3:8x8',
                  mesh=MeshConfig(fsdp=8), took='64 TPU chips, 4 days')}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size. The defaults of Experiment are the paper's."""
  model = SIZES[size].model('bfloat16')
  return scaled(Experiment(f'bert_{size}', model=model, objective=MaskedLM(duplicates=10, pooled='whole')), scale)
