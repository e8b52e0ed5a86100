"""Compare masking units of Chinese encoders trained for half an hour on two cores: characters, words, MacBERT n-grams.

    python -m benchmarks.chinese --text=zhwiki.txt.xz --data=DIR --output=runs/chinese
    python -m benchmarks.chinese --text=zhwiki.txt.xz --data=DIR --output=runs/chinese --only pace     # a quiet machine
    python -m benchmarks.chinese --text=zhwiki.txt.xz --data=DIR --output=runs/chinese --only finetune table

Stages: pace, sweep, pretrain, finetune, table. Results in the folder are not computed again, and an interrupted stage
resumes. DIR contains chnsenticorp_train.tsv.gz and _dev.tsv.gz, and weibo_ner_train.conll.gz and _dev.conll.gz. Every
arm is an encoder of characters; jieba segments words. Arms:

    bert      mask 15% of the characters, anywhere; next-sentence prediction
    words     the same with whole-word masking (Cui et al. 2021)
    macbert   mask n-grams of one to four words by replacing each word with a similar one; sentence-order prediction
              (Cui et al. 2020)

The model has rotary positions, pre-norm and a gated MLP, as in `benchmarks.modern`. With learned positions and
post-norm, a BERT did not leave the plateau of the characters' frequencies in 1,800 steps, and there masking makes no
difference. The option --similar names the list of similar words; without it, the list is first made with word2vec from
the same text (`benchmarks.similar_words`). Held-out losses are measured on [MASK]s, of characters or whole words. MacBERT
never sees [MASK] in training, so its losses only show how it handles an unseen token. `benchmarks.chinese_masks`
measures how each arm masks text.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from benchmarks import comparison, equal_time, kept, modern
from benchmarks.comparison import Bench
from benchmarks.equal_time import Arm, Setting
from plm_jax import validation
from plm_jax.config.run import PretrainRun
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.row_builders import SentenceOrder
from plm_jax.recipes.bert import NGRAMS


@dataclasses.dataclass(frozen=True)
class ChineseSetting(Setting):
  """Setting of a comparison at equal time, with a list of similar words (a path; empty: the list is made)."""

  similar: str = ''

  @property
  def listed(self) -> str:
    """Return the path of the list of similar words: the user's, or the one made in the output folder."""
    return self.similar or f'{self.output}/similar.txt'


def arms(setting: ChineseSetting) -> Mapping[str, Arm]:
  """Return the arms by name, with the options that each changes."""
  words = {'objective.masking.unit': 'word'}
  ngrams = {'objective.masking.lengths': NGRAMS, 'objective.masking.synonyms': setting.listed,
            'objective.pair': SentenceOrder()}
  return {'bert': Arm('characters (BERT)', {}, 'bert'), 'words': Arm('whole words', words, 'bert'),
          'macbert': Arm('n-grams of similar words (MacBERT)', words | ngrams, 'bert')}


def config(setting: ChineseSetting, arm: str) -> PretrainRun:
  """Return the run of an arm; the token records of every arm mark jieba's words."""
  run = validation.with_paths(equal_time.encoder(setting), {
      'data.prepare.segmenter': 'jieba', **modern.pre_norm(setting.width), **modern.rotary()})
  return validation.with_paths(run, {'name': arm, **arms(setting)[arm].changes})


def listed(setting: ChineseSetting) -> None:
  """Make the list of similar words, unless the user named one or it is already made."""
  if not setting.similar:
    kept.run('benchmarks.similar_words:made', {
        'text': setting.text, 'out': setting.listed, 'folder': f'{setting.output}/word2vec', 'epochs': 3, 'least': 5},
        f'{setting.output}/similar.json')


BENCH = Bench(
    'benchmarks.chinese', __doc__ or '', ChineseSetting, arms, config,
    {'characters': {}, 'words': {'masking': Distinct('word')}}, ('chnsenticorp', 'weibo'), swept=('bert',), peaks=(1e-3,),
    nothing=True, prepare=listed)


def pretrained(given: Mapping[str, Any]) -> dict[str, Any]:
  """Train a run in this process and return its results; see `comparison.pretrained`."""
  return comparison.pretrained(BENCH, given)


if __name__ == '__main__':
  comparison.main(BENCH)
