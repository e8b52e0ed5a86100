from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.objectives.denoising import DenoisingAutoencoder
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.translation_rows import Translations
from plm_jax.training.feed import corpus_names


def named(*path, **run):
  return corpus_names(PretrainRun('run', data=DataConfig(path=path), **run))


def test_corpora_have_unique_names_for_metrics():
  """Languages if they are given, otherwise the ends of the paths; each name once."""
  assert named('gs://bucket/de', 'text/sw.txt.gz', 'wiki/zh/*.txt',
               'embedded') == ('de', 'sw', 'zh', 'embedded')
  assert named('task:sst2:a.tsv', 'task:columns-de-en:b.tsv') == ('sst2', 'columns-de-en')
  assert named('tfds:wiki40b/en:train', 'tfds:imdb') == ('en', 'imdb')
  assert named('a/train.txt,b.txt', 'b/train.txt', 'c/train') == ('train', 'train-2', 'train-3')
  assert named('x', 'y', objective=DenoisingAutoencoder(languages=('de_DE', 'ro_RO'))) == (
      'de_DE', 'ro_RO')
  pair = MaskedLM(pair=Translations(languages=('de', 'de-en')))
  assert named('x', 'y', objective=pair) == ('de', 'de-en')
  assert named('x.txt', objective=pair) == ('x',)
