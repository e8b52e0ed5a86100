"""ERNIE 1.0 (Sun et al. 2019, arXiv:1904.09223), in Chinese.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ernie_base --segmenter=words:LIST
    python -m plm_jax train ernie_base --data.path=gs://BUCKET/records    # 16 TPU v3 chips
    python -m plm_jax train ernie_base --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.segmenter=jieba                                     # 2 CPU cores: 3 minutes
    python -m plm_jax train ernie_base --scale=test --data.path=zhwiki.txt    # seconds

BERT of 18,000 characters and pieces, whose masks hide phrases and names (section 3.2): in half of the rows words of
LIST, a phrase or a name a line, as a whole; in the others characters. jieba finds words where there is no list. The
paper has a stage for characters, one for phrases and one for names, one after another, on Chinese Wikipedia, Baidu
Baike, news and Tieba, 173 million sentences (section 4.1), whose dialogues, which have an embedding of who speaks, are
left out here. It tells neither steps nor rate: here they are BERT's.
"""
from plm_jax.config import DataConfig, Experiment, Scale
from plm_jax.data.settings import TextConfig
from plm_jax.models import ernie
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.recipes.bert import in_chinese
from plm_jax.recipes.table import Size
from plm_jax.sharding import MeshConfig
from plm_jax.training.scales import scaled

SIZES = {
    # Parameters by transformers' ErnieForPreTraining.
    'base': Size(model=ernie.base, parameters=100_477_778, peak=1e-4, batch=256, pod='v3:4x4',
                 mesh=MeshConfig(fsdp=32))}


def recipe(size: str, scale: Scale) -> Experiment:
  """Builds the run of a size."""
  data = DataConfig(prepare=TextConfig(segmenter='jieba' if scale == 'paper' else 'none'))
  return in_chinese(scaled(Experiment(
      f'ernie_{size}', family='ernie', model=SIZES[size].model('bfloat16'),
      objective=MaskedLM(unit='either', pooled='whole'), data=data), scale))
