"""Suggest what to do after a run, in English, or in Chinese where the text is Chinese."""
from collections.abc import Mapping
import dataclasses
import re
from typing import Any, Literal

from etils import epath
import numpy as np

from plm_jax import unicode_words
from plm_jax.config.run import PretrainRun
from plm_jax.data import records
from plm_jax.data.windows import Windows
from plm_jax.errors import name_field
from plm_jax.objectives import metric_names
from plm_jax.preparation import tokenizer_fit
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.wordpiece import is_chinese

PromptKind = Literal['beginning', 'text']
SAMPLED_WINDOWS = 128, 128
"""windows, and tokens per window, in which unknown tokens are counted"""
MANY_UNKNOWN = 0.001
"""largest share of unknown tokens without a hint"""
MANY_EPOCHS = 40
"""epochs over a text after which more of them teach little (see `run_hints`)"""
FEW_HELDOUT = 10_000
"""held-out tokens below which metrics are rough"""
SCRIPT_TOKENS = 4096
"""tokens that are examined for the script of a text"""
UNSPACED_SCRIPTS = re.compile(f'[{tokenizer_fit.KANA}{unicode_words.DICTIONARY_SCRIPTS}]')
BASELINE_FACTOR = 1.25
"""below this multiple, an accuracy is hardly better than that of a model without context"""

ENGLISH = {
    'unknown': '{unknown:.1%} of the tokens are unknown to the tokenizer ([UNK]): {mend}',
    'again': 'the text was read {times:.0f} times: more text will help more than more steps',
    'rough': 'only {heldout:,} tokens are held out: figures on so few are rough; '
             '{heldout_option}=0.05 holds out more',
    'barely': 'the {question} accuracy is hardly above that of a model that ignores the context '
              '({floor:.1%}): more steps ({steps_option}), a higher learning rate '
              '({peak_option}) or more text will help; `python -m plm_jax inspect` shows what '
              'the model was given',
    'hint': 'hint:   ', 'beginning': 'the beginning of a text', 'text': 'a text'}
CHINESE = {
    'unknown': '{unknown:.1%} 的词元不在词表中（[UNK]）：{mend}',
    'again': '语料已读了 {times:.0f} 遍：增加语料比增加步数更有用',
    'rough': '留出的文本只有 {heldout:,} 个词元，数字只是粗略的；'
             '{heldout_option}=0.05 可以多留一些',
    'barely': '准确率几乎不高于不看上下文的模型（{floor:.1%}）：'
              '增加步数（{steps_option}）、提高学习率（{peak_option}）或增加语料会有帮助；'
              '用 `python -m plm_jax inspect` 可以看到模型读到的是什么',
    'hint': '提示：  ', 'beginning': '一段文字的开头', 'text': '一段文字'}


@dataclasses.dataclass(frozen=True)
class TextFacts:
  """Facts about the text of a run that hints depend on."""

  chinese: bool
  unknown: float
  """share of unknown tokens"""
  heldout: int
  """number of held-out tokens"""
  full: bool = True
  """single characters take as much of the vocabulary as they may"""
  unspaced: bool = False
  """many tokens are of scripts without spaces between words, other than Chinese"""

  @property
  def words(self) -> Mapping[str, str]:
    """Messages in the language of the text."""
    return CHINESE if self.chinese else ENGLISH


def examine_text(folder: epath.PathLike, tokenizer: Tokenizer | None) -> TextFacts:
  """Examine a sample of the training text in a folder of token records."""
  known: Any = tokenizer
  heldout = records.read_meta(folder).tokens('heldout')
  count, length = SAMPLED_WINDOWS
  windows = Windows(folder, 'train', length, 'packed')
  sample = np.unique(np.linspace(0, len(windows) - 1, count).astype(np.int64))
  read = windows.read(sample)
  tokens = read['tokens'][read['segments'] > 0]
  if not known or not hasattr(known, 'decode'):
    return TextFacts(False, 0.0, heldout)
  unknown = float((tokens == known.vocab.unk).mean()) if known.vocab.unk >= 0 else 0.0
  chinese = is_chinese(known.decode(tokens[tokens != known.vocab.unk]))
  pieces = [known.pieces[i].removeprefix('##') for i in tokens[:SCRIPT_TOKENS].tolist()]
  matches = sum(UNSPACED_SCRIPTS.match(piece) is not None for piece in pieces)
  unspaced = matches > tokenizer_fit.MANY_SHARE * len(pieces)
  return TextFacts(chinese, unknown, heldout, tokenizer_fit.is_vocab_full(known), unspaced)


def run_hints(
    config: PretrainRun, text: TextFacts, epochs: float, heldout: Mapping[str, float]) -> list[str]:
  """Return hints for a finished run, one per line; none where all is well.

  Args:
    config: the run.
    text: facts about its text.
    epochs: epochs over its text.
    heldout: held-out metrics.
  """
  found, words = [], text.words
  if text.unknown > MANY_UNKNOWN:
    remedy = tokenizer_fit.choose_remedy(config.data.prepare, text.full, text.unspaced)
    advice = tokenizer_fit.ADVICE['zh' if text.chinese else 'en'][remedy].format(
        vocab=max(8192, 2 * config.model.vocab), **tokenizer_fit.ADVICE_FIELDS)
    found.append(words['unknown'].format(unknown=text.unknown, mend=advice))
  if epochs > MANY_EPOCHS:
    found.append(words['again'].format(times=epochs))
  if 0 < text.heldout < FEW_HELDOUT and not config.data.heldout_path:
    found.append(words['rough'].format(
        heldout=text.heldout, heldout_option=name_field('data.prepare.heldout')))
  if config.scale == 'test':  # too short to learn anything
    return found
  for name in list(config.objective.terms)[:1]:
    baseline = heldout.get(f'{name}_baseline', 0.0)
    accuracy = heldout.get(f'{name}_accuracy', 1.0)
    floor = accuracy_without_context(config, baseline)
    if 0 < baseline < 0.5 and accuracy < BASELINE_FACTOR * floor:
      found.append(words['barely'].format(
          question=metric_names.term_name(name), floor=floor,
          steps_option=name_field('train.phases.0.steps'),
          peak_option=name_field('optim.peak')))
  return found


def accuracy_without_context(config: PretrainRun, baseline: float) -> float:
  """Return the accuracy of a model that copies visible tokens and guesses the most frequent one.

  BERT's masking leaves a tenth of the tokens to predict unchanged, and these are easily copied.

  Args:
    config: the run.
    baseline: accuracy of always guessing the most frequent token.
  """
  objective: Any = config.objective
  if not hasattr(objective, 'mask_share'):
    return baseline
  unchanged = max(0.0, 1 - objective.mask_share - objective.random_share)
  return unchanged + (1 - unchanged) * baseline
