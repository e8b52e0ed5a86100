"""Chinese encoders of half an hour of two cores, by how words are masked: characters, whole words, MacBERT's n-grams.

    python -m benchmarks.chinese --text=zhwiki.txt.xz --data=DIR --output=runs/chinese
    python -m benchmarks.chinese --text=zhwiki.txt.xz --data=DIR --output=runs/chinese --only pace     # a quiet machine
    python -m benchmarks.chinese --text=zhwiki.txt.xz --data=DIR --output=runs/chinese --only finetune table

Stages: pace, sweep, pretrain, finetune, table; what is kept in the folder is not done again, and an interrupted stage
goes on where it was. DIR has chnsenticorp_train.tsv.gz and _dev.tsv.gz, and weibo_ner_train.conll.gz and _dev.conll.gz.
Arms, of which each is an encoder of characters, and words are jieba's:

    bert      15% of characters are masked, wherever they stand; is the second text the next one
    words     the same of whole words (Cui et al. 2021)
    macbert   n-grams of one to four words, each word replaced by another that is like it; have two texts changed places
              (Cui et al. 2020)

Positions are rotary, norms stand before sublayers and the MLP is gated, as in `benchmarks.modern`: with learned
positions and norms behind, 1,800 steps did not get a BERT off the plateau of characters' frequencies, where masks say
nothing. Words like others are in the list --similar; without one it is made first, from word2vec of the same text
(`benchmarks.similar_words`). Held-out losses are of [MASK]s, characters or whole words, which MacBERT never sees in
training: of it they say only what it makes of them. What masks do to text is told by `benchmarks.chinese_masks`.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from benchmarks import comparison, equal_time, kept, modern
from benchmarks.comparison import Bench
from benchmarks.equal_time import Arm, Setting
from plm_jax import validation
from plm_jax.config.run import PretrainRun
from plm_jax.objectives.row_builders import SentenceOrder
from plm_jax.recipes.bert_wwm import NGRAMS


@dataclasses.dataclass(frozen=True)
class ChineseSetting(Setting):
  """And which words are like others."""

  similar: str = ''

  @property
  def listed(self) -> str:
    """Names the file of the list, one of the user's or that which is made."""
    return self.similar or f'{self.output}/similar.txt'


def arms(setting: ChineseSetting) -> Mapping[str, Arm]:
  """Returns what each arm changes."""
  words = {'objective.unit': 'word'}
  ngrams = {'objective.lengths': NGRAMS, 'objective.synonyms': setting.listed, 'objective.pair': SentenceOrder()}
  return {'bert': Arm('characters (BERT)', {}, 'bert'), 'words': Arm('whole words', words, 'bert'),
          'macbert': Arm('n-grams of similar words (MacBERT)', words | ngrams, 'bert')}


def config(setting: ChineseSetting, arm: str) -> PretrainRun:
  """Returns the run of an arm; the words of jieba are marked in the records of all."""
  run = validation.with_paths(equal_time.encoder(setting), {
      'data.prepare.segmenter': 'jieba', **modern.pre_norm(setting), **modern.rotary()})
  return validation.with_paths(run, {'name': arm, **arms(setting)[arm].changes})


def listed(setting: ChineseSetting) -> None:
  """Makes the list of words that are like others, unless there is one."""
  if not setting.similar:
    kept.run('benchmarks.similar_words:made', {
        'text': setting.text, 'out': setting.listed, 'folder': f'{setting.output}/word2vec', 'epochs': 3, 'least': 5},
        f'{setting.output}/similar.json')


BENCH = Bench(
    'benchmarks.chinese', __doc__ or '', ChineseSetting, arms, config,
    {'characters': {}, 'words': {'unit': 'word'}}, ('chnsenticorp', 'weibo'), swept=('bert',), peaks=(1e-3,),
    nothing=True, prepare=listed)


def pretrained(given: Mapping[str, Any]) -> dict[str, Any]:
  """Does a run in this process: `comparison.pretrained`."""
  return comparison.pretrained(BENCH, given)


if __name__ == '__main__':
  comparison.main(BENCH)
