"""Measure how BERT, whole-word masking and MacBERT mask Chinese text, and compare with the published shares.

    python -m benchmarks.chinese_masks --text=zhwiki.txt.xz --output=runs/chinese
    python -m benchmarks.chinese_masks --text=zhwiki.txt.xz --output=runs/chinese --lines=1000 --length=128 --show=3

The first lines of a text become training sequences of the runs of `benchmarks.chinese`, with the code of the runs and
each window once. The runs and this command share the list of similar words, which is made first if it does not exist.
The table has shares in percent, followed by the published values in parentheses (Devlin et al. 2019, section 3.1; Cui
et al. 2021 and 2020). Whole words cannot always fill the masking budget of a sequence exactly, so whole-word masking
predicts slightly less than that share. For MacBERT, the shares of replaced and kept items count words; for the other
arms, tokens. `drawn` is the sampled length of spans in words. `runs` is the length of the runs of adjacent predicted
words that result. They differ: the last span of a sequence is cut, a span that overlaps another is left out (more often
a long one), and two adjacent spans form one run. A window of one sentence always gets the second text of another
document, as in BERT's released code, so the share of such pairs exceeds one half. --show prints example sequences:
predicted words appear as {before→after}, and a mask as □.
"""
import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import lzma
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import chinese, equal_time
from benchmarks.side_by_side import machine
from plm_jax import validation
from plm_jax.objectives import corruption

LONGEST = 4  # maximum number of words in an n-gram
Alike = Mapping[str, frozenset[str]]
Shares = dict[str, float]
MASKS: Shares = {'mask': 80, 'random': 10, 'kept': 10}
PUBLISHED: dict[str, Shares] = {
    'bert': {'predicted': 15, **MASKS, 'question': 50},
    'words': {'predicted': 15, **MASKS, 'whole': 100, 'question': 50},
    'macbert': {'predicted': 15, 'mask': 0, 'alike': 80, 'random': 10, 'kept': 10, 'whole': 100,
                'drawn 1': 40, 'drawn 2': 30, 'drawn 3': 20, 'drawn 4': 10, 'question': 50}}
ROWS = {
    'predicted': 'of the tokens of a row predicted', 'mask': 'of these [MASK]', 'alike': 'a word like it',
    'random': 'random', 'kept': 'as it was', 'listed': 'of predicted words in the list',
    'unlisted alike': 'of those that are not, replaced by a word like it',
    'other': 'tokens changed that are not predicted',
    'whole': 'of words of several tokens, any predicted: all are',
    **{f'drawn {n}': f'spans of {n} words, drawn' for n in range(1, LONGEST + 1)},
    **{f'runs {n}': f'runs of {n} words' for n in range(1, LONGEST + 1)}, f'runs {LONGEST + 1}': 'longer runs',
    'question': 'second text of another document; texts that changed places (MacBERT)'}


class Drawn(NamedTuple):
  """Sequences before and after masking.

  Shapes: tokens (before), new (after) and words (word numbers) [B, L]; real (not padding) and predicted, bool [B, L];
  question, the label of the pair task [B]; spans, the sampled length in words of each visited span [N], empty if single
  tokens are masked.
  """

  tokens: np.ndarray
  new: np.ndarray
  words: np.ndarray
  real: np.ndarray
  predicted: np.ndarray
  question: np.ndarray
  spans: np.ndarray


class Word(NamedTuple):
  """A word of a sequence.

  `text` and `new` are its text before and after masking, and `predicted` marks its predicted tokens. `outer` is True
  for the first and the last word of a text, which may be incomplete.
  """

  row: int
  text: str
  new: str
  predicted: tuple[bool, ...]
  outer: bool = False


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--text', required=True)
  parser.add_argument('--output', required=True, help='folder of benchmarks.chinese with the list of similar words')
  parser.add_argument('--similar', default='', help='file of another list of similar words')
  parser.add_argument('--lines', type=int, default=1000)
  parser.add_argument('--length', type=int, default=128)
  parser.add_argument('--show', type=int, default=0, help='sequences to print per kind of masks')
  args = parser.parse_args()
  setting = chinese.ChineseSetting(args.text, args.output, length=args.length, similar=args.similar)
  chinese.listed(setting)
  known = equal_time.records_of(chinese.config(setting, 'bert'))  # this tokenizer knows more characters
  part = pathlib.Path(args.output, f'first-{args.lines}.txt')
  part.write_text(first_lines(args.text, args.lines))
  setting = dataclasses.replace(setting, text=str(part), similar=setting.listed)
  options = {'data.prepare.tokenizer': str(known / 'tokenizer')}
  alike = read(pathlib.Path(setting.listed).read_text())
  print(machine('jax', 'jieba'))
  found, examples = {}, []
  for arm in chinese.arms(setting):
    rows, pieces, mask = drawn(validation.with_paths(chinese.config(setting, arm), options))
    words = spelt(rows, pieces)
    found[arm] = {**of_tokens(rows, mask), **of_words(words), **of_spans(rows.spans)}
    if arm == 'macbert':
      found[arm] |= {**of_alike(words, alike), **of_runs(words)}
    examples += [f'\n{arm}: {line}' for line in itertools.islice(shown(words, pieces[mask]), args.show)]
    print(f'{arm}: {len(rows.tokens):,} rows of {args.length}, {rows.predicted.sum():,} predicted tokens', flush=True)
  print(f'\n{table(found)}', *examples, sep='\n')


def first_lines(path: str, number: int) -> str:
  """Read the first `number` non-empty lines of a text, with the empty lines that separate documents."""
  with (lzma.open if path.endswith('.xz') else open)(path, 'rt', encoding='utf-8', newline='\n') as file:
    lines: list[str] = []
    for line in file:
      number -= bool(line.strip())
      if number < 0:
        break
      lines.append(line)
  return ''.join(lines)


def read(text: str) -> Alike:
  """Parse a list of similar words: each line has a word, followed by words similar to it."""
  lines = (line.split() for line in text.splitlines())
  return {word: frozenset(others) for word, *others in lines if others}


def drawn(config: Any) -> tuple[Drawn, Sequence[str], int]:
  """Build and mask the sequences of a run, each window once.

  Returns:
    (sequences, tokens of the tokenizer by id, id of the mask token).
  """
  def every(feed, learner, mesh):
    del mesh
    objective, vocab, key = learner.objective, learner.vocab, learner.key('corruption')
    @jax.jit
    def batch(windows):
      keys = jax.vmap(lambda k: jax.random.split(k, 2))(corruption.example_keys(key, windows, objective.duplicates))
      rows = objective.pair.arrange(keys[:, 0], windows, vocab)
      new = objective.corrupt(key, windows, vocab)
      predicted = jnp.zeros(new['tokens'].shape).at[
          jnp.arange(len(keys))[:, None], new['positions']].max(new['weights']) > 0
      spans = jax.vmap(lambda k, words: begun(k, words, objective.masking.lengths))(keys[:, 1], rows['words'])
      return (rows['tokens'], new['tokens'], rows['words'], rows['segments'] > 0, predicted,
              new[objective.pair.pair_task], spans)
    steps = max(1, len(feed.pipelines[0].corpora[0]) // config.train.phases[0].batch)
    found = [jax.device_get(batch(feed.read_batch(step))) for step in range(steps)]
    *arrays, spans = (np.concatenate(parts) for parts in zip(*found, strict=True))
    spans = spans[spans > 0] if objective.masking.unit == 'word' else np.zeros(0, int)
    return Drawn(*arrays, spans), feed.tokenizer.pieces, vocab.mask  # pyright: ignore
  return equal_time.with_feed(config, every)


def begun(key, words, lengths: tuple[float, ...]):
  """Return the sampled length in words of each span of a sequence.

  Args:
    key: key of the masks of the sequence, [].
    words: word numbers of the sequence, 0 for none, [L].
    lengths: probabilities of spans of 1, 2, ... words.

  Returns:
    lengths [L]; 0 if no span begins or the rest of the sequence is shorter than the longest span.
  """
  _, count, _ = corruption.number_units(words)
  order, wanted = corruption.draw_span_order(jax.random.split(key)[0], count, len(words), lengths)
  return jnp.where(order + len(lengths) <= count, wanted, 0)


def spelt(rows: Drawn, pieces: Sequence[str]) -> list[Word]:
  """Return the words of all sequences, in order."""
  def text(ids: np.ndarray) -> str:
    return ''.join(pieces[int(number)].removeprefix('##') for number in ids)
  found = []
  for row, words in enumerate(rows.words):
    inside = np.flatnonzero(words)
    if not len(inside):
      continue
    groups = np.split(inside, np.flatnonzero(np.diff(words[inside])) + 1)
    around = np.pad(words, (0, 1))  # 0 after the last token; index -1 reads it before the first
    found += [Word(row, text(rows.tokens[row, group]), text(rows.new[row, group]),
                   tuple(rows.predicted[row, group].tolist()), not (around[group[0] - 1] and around[group[-1] + 1]))
              for group in groups]
  return found


def of_tokens(rows: Drawn, mask: int) -> Shares:
  """Measure how tokens are masked, and the labels of the pair task, in percent."""
  before, after = rows.tokens[rows.predicted], rows.new[rows.predicted]
  shares = {'predicted': percent(rows.predicted.sum(), rows.real.sum()),
            'mask': percent((after == mask).sum(), len(after)), 'kept': percent((after == before).sum(), len(after)),
            'other': percent(((rows.tokens != rows.new) & ~rows.predicted).sum(), rows.real.sum()),
            'question': percent(rows.question.sum(), len(rows.question))}
  return {**shares, 'random': 100 - shares['mask'] - shares['kept']}


def of_words(words: Iterable[Word]) -> Shares:
  """Measure how many of the words of several tokens with any predicted token are predicted as a whole, in percent."""
  some = [word.predicted for word in words if len(word.predicted) > 1 and any(word.predicted)]
  return {'whole': percent(sum(map(all, some)), len(some))}


def of_alike(words: Iterable[Word], alike: Alike) -> Shares:
  """Measure how predicted words are replaced, in percent, if the list has similar words of equal length for them.

  Also measures the share of such words, and replacements of the others. The first and the last word of a text are not
  counted, because they may be parts of longer words.
  """
  every = [word for word in words if all(word.predicted) and not word.outer]
  others = {word.text: {other for other in alike.get(word.text, ()) if len(other) == len(word.text)} for word in every}
  own = [word for word in every if others[word.text]]
  like = sum(word.new in others[word.text] for word in own)
  kept = sum(word.new == word.text for word in own)
  rest = [word for word in every if not others[word.text]]
  strange = sum(word.new in alike.get(word.text, ()) for word in rest)
  return {'alike': percent(like, len(own)), 'kept': percent(kept, len(own)),
          'random': percent(len(own) - like - kept, len(own)), 'listed': percent(len(own), len(every)),
          'unlisted alike': percent(strange, len(rest))}


def of_spans(spans: np.ndarray) -> Shares:
  """Measure the distribution of the sampled span lengths, in percent; empty if all spans have one word."""
  counts = Counter(spans.tolist())
  if max(counts, default=1) == 1:
    return {}
  return {f'drawn {n}': percent(counts[n], len(spans)) for n in range(1, LONGEST + 1)}


def of_runs(words: Iterable[Word]) -> Shares:
  """Measure the distribution of the lengths of runs of adjacent predicted words, in percent."""
  runs: Counter[int] = Counter()
  for chosen, group in itertools.groupby(words, lambda word: (word.row, all(word.predicted))):
    if chosen[1]:
      runs[min(len([*group]), LONGEST + 1)] += 1
  return {f'runs {n}': percent(runs[n], sum(runs.values())) for n in range(1, LONGEST + 2)}


def percent(part: Any, whole: Any) -> float:
  """Return a share in percent; 0 if the whole is 0."""
  return 100 * float(part) / float(whole) if whole else 0.0


def table(found: Mapping[str, Shares]) -> str:
  """Format the measured shares next to the published ones."""
  def cell(arm: str, name: str) -> str:
    if name not in found[arm]:
      return '-'
    published = f' ({PUBLISHED[arm][name]:g})' if name in PUBLISHED[arm] else ''
    return f'{found[arm][name]:.1f}{published}'
  lines = [f'| % (published) | {" | ".join(found)} |', '|---' * (1 + len(found)) + '|']
  lines += [f'| {title} | {" | ".join(cell(arm, name) for arm in found)} |' for name, title in ROWS.items()]
  return '\n'.join(lines)


def shown(words: Iterable[Word], mask: str) -> Iterable[str]:
  """Yield sequences as text in which predicted words are marked."""
  for _, group in itertools.groupby(words, lambda word: word.row):
    yield ''.join(f'{{{word.text}→{word.new.replace(mask, "□")}}}' if any(word.predicted) else word.text
                  for word in group)


if __name__ == '__main__':
  main()
