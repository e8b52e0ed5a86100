"""ERNIE 1.0 (Sun et al. 2019, arXiv:1904.09223), in Chinese.

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=ernie_base --segmenter=words:LIST
    python -m plm_jax train ernie_base --data.path=gs://BUCKET/records      # 16 TPU v3 chips
    python -m plm_jax train ernie_base --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.segmenter=jieba  # 2 CPU cores: 3 minutes
    python -m plm_jax train ernie_base --scale=test --data.path=zhwiki.txt  # seconds

BERT with 18,000 characters and subword tokens, which masks whole phrases and names (section 3.2).
In half of the sequences, whole words of LIST are masked; in the others, single characters. LIST has
one phrase or name per line. Without a list, jieba segments the words.

The paper masks characters, phrases and names in three successive stages. Its text is Chinese
Wikipedia, Baidu Baike, news and Tieba, 173 million sentences (section 4.1). This recipe leaves out
the dialogues of Tieba and their embedding of the speaker. The paper gives neither the number of
steps nor the learning rate: those of BERT are an assumption.
"""
from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
from plm_jax.models import ernie
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

SIZES = {
    # Parameters of transformers' ErnieForPreTraining.
    'base': RecipeSize(
        model=ernie.base, parameters=100_477_778, peak=1e-4, length=512, batch=256, pod='v3:4x4',
        mesh=MeshConfig(fsdp=32), laptop_vocab=8000)}


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  return PretrainRun(
      row.name, family='ernie', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=MaskedLM(masking=Distinct('either'), pooled='whole'),
      data=DataConfig(prepare=TextConfig(segmenter='jieba')),
      optim=AdamW(peak=row.peak, warmup=10_000, schedule='bert', weight_decay=0.01),
      train=TrainConfig(phases=(Phase(900_000, 128, row.batch), Phase(100_000, 512, row.batch))))


ERNIE = RecipeFamily('ernie', __doc__, SIZES, make_run)
