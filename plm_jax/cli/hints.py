"""What the reader of a report might do next, in English, or in Chinese where the text is Chinese."""
from collections.abc import Mapping
import dataclasses
from typing import Any, Literal

from etils import epath
import numpy as np

from plm_jax.config import Experiment
from plm_jax.data import records
from plm_jax.data.windows import Windows
from plm_jax.objectives import figures
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.wordpiece import is_chinese

Usual = Literal['beginning', 'text']
LOOKED_AT = 128, 128  # windows, and tokens of each, in which unknown tokens are counted
UNKNOWN = 0.001  # of the tokens: more are many
TIMES = 40  # that a text is read: more teach little that is new
HELDOUT = 10_000  # tokens: figures of fewer are rough
BARELY = 1.5  # times the accuracy of always the most frequent answer

ENGLISH = {
    'unknown': '{unknown:.1%} of the tokens are unknown to the tokenizer ([UNK]): {mend}',
    'larger': 'a larger vocabulary knows more of the rare characters: --model.vocab={vocab}',
    'foreign': 'is it made for this text? Without --data.prepare.tokenizer one is trained on it',
    'again': 'the text was read {times:.0f} times: more text will help more than more steps',
    'rough': 'only {heldout:,} tokens are held out: figures on so few are rough; --data.prepare.heldout=0.05 holds out '
             'more',
    'barely': 'the {question} accuracy is hardly above that of always the most frequent answer: the run was short, '
              'and more steps (--train.phases.0.steps) or more text will help; `python -m plm_jax inspect` shows what '
              'the model was given',
    'hint': 'hint:   ', 'beginning': 'the beginning of a text', 'text': 'a text'}
CHINESE = {
    'unknown': '{unknown:.1%} 的词元不在词表中（[UNK]）：{mend}',
    'larger': '词表更大，认得的生僻字就更多：--model.vocab={vocab}',
    'foreign': '分词器适合这份语料吗？去掉 --data.prepare.tokenizer，就会在语料上训练一个',
    'again': '语料已读了 {times:.0f} 遍：增加语料比增加步数更有用',
    'rough': '留出的文本只有 {heldout:,} 个词元，数字只是粗略的；--data.prepare.heldout=0.05 可以多留一些',
    'barely': '准确率几乎不高于“总猜最常见的答案”：'
              '训练还太短，增加步数（--train.phases.0.steps）或语料会有帮助；'
              '用 `python -m plm_jax inspect` 可以看到模型读到的是什么',
    'hint': '提示：  ', 'beginning': '一段文字的开头', 'text': '一段文字'}


@dataclasses.dataclass(frozen=True)
class Text:
  """What of a run's text hints are about."""

  chinese: bool
  unknown: float
  """share of the tokens"""
  heldout: int
  """tokens"""

  @property
  def words(self) -> Mapping[str, str]:
    """What is said, in the language of the reader."""
    return CHINESE if self.chinese else ENGLISH


def text_of(folder: epath.PathLike, tokenizer: Tokenizer | None) -> Text:
  """Looks at some of the training text in a folder of records."""
  known: Any = tokenizer
  heldout = records.read_meta(folder).tokens('heldout')
  windows = Windows(folder, 'train', LOOKED_AT[1], 'packed')
  read = windows.read(np.unique(np.linspace(0, len(windows) - 1, LOOKED_AT[0]).astype(np.int64)))
  tokens = read['tokens'][read['segments'] > 0]
  if not known or not hasattr(known, 'decode'):
    return Text(False, 0.0, heldout)
  unknown = float((tokens == known.vocab.unk).mean()) if known.vocab.unk >= 0 else 0.0
  return Text(is_chinese(known.decode(tokens[tokens != known.vocab.unk])), unknown, heldout)


def hints(config: Experiment, text: Text, epochs: float, heldout: Mapping[str, float]) -> list[str]:
  """Returns what to do about a run that came to the held-out figures, a line each; none where all is well."""
  said, words = [], text.words
  if text.unknown > UNKNOWN:
    mend = words['foreign' if config.data.prepare.tokenizer else 'larger'].format(
        vocab=max(8192, 2 * config.model.vocab))
    said.append(words['unknown'].format(unknown=text.unknown, mend=mend))
  if epochs > TIMES:
    said.append(words['again'].format(times=epochs))
  if 0 < text.heldout < HELDOUT:
    said.append(words['rough'].format(heldout=text.heldout))
  for name in list(config.objective.terms)[:config.scale != 'test']:  # which learns nothing
    baseline = heldout.get(f'{name}_baseline', 0.0)
    if 0 < baseline < 0.5 and heldout.get(f'{name}_accuracy', 1.0) < BARELY * baseline:
      said.append(words['barely'].format(question=figures.question(name)))
  return said
