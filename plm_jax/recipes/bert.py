"""BERT, as published (Devlin et al. 2019, section 3.1 and appendix A.2).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=bert_base
    python -m plm_jax train bert_base --data.path=gs://BUCKET/records    # 16 TPU v2 chips (v2-32): about 4 days
    python -m plm_jax train bert_base --scale=laptop                     # 2 CPU cores: 2 to 4 minutes
    python -m plm_jax train bert_base --scale=test                       # seconds

MLM and NSP, one million steps of 256 rows: 128 tokens for 90% of them, then 512. The paper's corpus is BooksCorpus and
English Wikipedia, 3.3 billion words. Its TPUs multiplied in bfloat16; the released code wrote every text out ten times,
masked anew each time (dupe_factor), and answers NSP without dropout.

tiny, mini, small and medium are those of Turc et al. 2019 (arXiv:1908.08962, table 1), which learned as base did.
chinese is bert-base-chinese: Chinese Wikipedia in simplified and traditional characters, each of which is a token, and
pieces of other words, 21,128 in all. multilingual and multilingual_uncased are mBERT, of the Wikipedias of 104 and 102
languages in 119,547 and 105,879 pieces, whose shares go with the power 0.7 of their sizes (multilingual.md of
google-research/bert): give a corpus of each language to --data.path. Neither tells of its run; here it is base's.
"""
from collections.abc import Callable
import dataclasses

from plm_jax import checked
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config import Experiment, Scale
from plm_jax.models import bert
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.scales import scaled


def pieces(size: Callable[..., EncoderConfig], vocab: int) -> Callable[..., EncoderConfig]:
  """Makes a size of so many pieces."""
  return lambda dtype: dataclasses.replace(size(dtype), vocab=vocab)


def chinese(size: Callable[..., EncoderConfig]) -> Callable[..., EncoderConfig]:
  """Makes a size of the 21,128 pieces of bert-base-chinese, characters most of them."""
  return pieces(size, 21_128)


def in_chinese(run: Experiment) -> Experiment:
  """Returns a run of Chinese text that has the laptop's vocabulary, 8,000: 6,500 characters are 99.95% of the text."""
  return checked.replaced(run, {'model.vocab': 8000}) if run.scale == 'laptop' else run


def plain(size: Callable[[], EncoderConfig]) -> Callable[..., EncoderConfig]:
  """Makes a size that takes the type it computes in."""
  return lambda dtype: checked.replaced(size(), {'block.dtype': dtype})


SIZES = {
    # Parameters by transformers' BertForPreTraining; published as 110M and 340M.
    'base': Size(model=bert.base, parameters=110_106_428, peak=1e-4, batch=256, pod='v2:4x4',
                 mesh=MeshConfig(fsdp=4), took='16 TPU chips, 4 days'),
    'large': Size(model=bert.large, parameters=336_226_108, peak=1e-4, batch=256, pod='v3:8x8',
                  took='64 TPU chips, 4 days'),
    # Without the heads for pre-training 4.4M, 11.3M, 29.1M, 41.7M (Turc et al. 2019).
    'tiny': Size(model=plain(bert.tiny), parameters=4_433_468, peak=1e-4, batch=256, pod='v2:4x4'),
    'mini': Size(model=plain(bert.mini), parameters=11_267_900, peak=1e-4, batch=256, pod='v2:4x4',
                 mesh=MeshConfig(fsdp=32)),
    'small': Size(model=plain(bert.small), parameters=29_058_876, peak=1e-4, batch=256, pod='v2:4x4',
                  mesh=MeshConfig(fsdp=32)),
    'medium': Size(model=plain(bert.medium), parameters=41_668_412, peak=1e-4, batch=256, pod='v2:4x4'),
    'chinese': Size(model=chinese(bert.base), parameters=102_882_442, peak=1e-4, batch=256, pod='v2:4x4'),
    'multilingual': Size(model=pieces(bert.base, 119_547), parameters=178_566_653, peak=1e-4, batch=256,
                         pod='v3:4x4', mesh=MeshConfig(fsdp=32)),
    'multilingual_uncased': Size(model=pieces(bert.base, 105_879), parameters=168_055_961, peak=1e-4, batch=256,
                                 pod='v3:4x4', mesh=MeshConfig(fsdp=32))}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size. The defaults of Experiment are the paper's."""
  model = SIZES[size].model('bfloat16')
  run = Experiment(f'bert_{size}', model=model, objective=MaskedLM(duplicates=10, pooled='whole'))
  if size.startswith('multilingual'):
    text = dataclasses.replace(run.data.prepare, lowercase=size.endswith('uncased'))
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, prepare=text, temperature=1 / 0.7))
  run = scaled(run, scale)
  return in_chinese(run) if size == 'chinese' else run
