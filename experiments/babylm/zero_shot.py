"""Zero-shot tasks of the BabyLM challenge: the most likely of several sentences.

Each item has two or more texts, and the model should give the first the highest log-likelihood. The
log probabilities of all tokens of a text are summed, or only those of its completion:

    blimp            whole sentences (BLiMP, its supplement)
    ewok             the second sentence, after the first context
    comps            the property, after an acceptable and an unacceptable concept
    entity_tracking  the contents of a box, after what has happened to the boxes
    wug_adj, wug_past   whole sentences; the probability of the first is correlated with people's

A causal model predicts each token from those before it. A masked model predicts each token in turn
from all others, and only this token is masked. A token that overlaps with the completion belongs to
it. Temperature is 1. The first of equal texts wins.

File formats and scores are those of strict/evaluation_pipeline/sentence_zero_shot in
babylm-org/babylm-eval at 45fe2c1 (read_files.py, dataset.py, compute_results.py, run.py).
"""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import math
from typing import Any, Literal, NamedTuple

from etils import epath
import numpy as np
from scipy import stats

from plm_jax import storage, truncation
from plm_jax.errors import ConfigError
from plm_jax.evaluation import pseudo_likelihood, scoring
from plm_jax.evaluation.pseudo_likelihood import PseudoScorer
from plm_jax.evaluation.scoring import Scorer, Span
from plm_jax.loading.loaded_model import LoadedModel, has_shifted_targets
from plm_jax.sources import labeled_files
from plm_jax.sources.lines import SourceError
from plm_jax.tokenizers import ByteBPE, Tokenizer
from plm_jax.truncation import Truncation

TaskName = Literal['blimp', 'ewok', 'comps', 'entity_tracking', 'wug_adj', 'wug_past']
Backend = Literal['mlm', 'mntp', 'causal']
"""how a model scores, by the names of the challenge: mntp is mlm with targets shifted by one"""

DATASETS: dict[str, TaskName] = {
    'blimp_filtered': 'blimp', 'supplement_filtered': 'blimp', 'ewok_filtered': 'ewok',
    'entity_tracking': 'entity_tracking', 'wug_adj_nominalization': 'wug_adj',
    'wug_past_tense': 'wug_past', 'comps': 'comps', 'blimp_fast': 'blimp',
    'supplement_fast': 'blimp', 'ewok_fast': 'ewok', 'entity_tracking_fast': 'entity_tracking'}
"""folder of the challenge's full_eval or fast_eval -> task"""
ENTITY_SPLITS = 'regular', 'ambiref', 'move_contents'
"""splits of entity tracking, whose accuracies are averaged"""
COMPS_SUBSETS = {
    'comps_base': 'base', 'comps_wugs': 'wugs', 'comps_wugs_dist-before': 'wugs_dist_before'}
OTHER_COMPS = 'wugs_dist_in_between'

ScoreTexts = Callable[[Sequence['ScoredPart']], list[float]]


class ScoredPart(NamedTuple):
  """A text of which the characters from `start` on are scored."""

  text: str
  start: int


@dataclasses.dataclass(frozen=True)
class RankedItem:
  """Texts of which the first should be the most likely."""

  texts: tuple[str, ...]
  completions: tuple[str, ...]
  """ends of the texts, which are scored"""
  subset: str
  """part of the task whose accuracy is computed separately"""
  groups: tuple[tuple[str, str], ...] = ()
  """(name, value) of further groupings, such as ('field', 'syntax')"""
  ratio: float = math.nan
  """share of people who chose the first text (wug_adj, wug_past)"""

  @property
  def parts(self) -> list[ScoredPart]:
    """The texts with the beginnings of their completions."""
    found = []
    for text, completion in zip(self.texts, self.completions, strict=True):
      found.append(ScoredPart(text, len(text) - len(completion)))
    return found


class RankedResult(NamedTuple):
  """An item with the log-likelihoods of its completions."""

  item: RankedItem
  logprobs: tuple[float, ...]

  @property
  def choice(self) -> int:
    """Index of the most likely completion; the first of equal ones."""
    return int(np.argmax(self.logprobs))


class TaskScore(NamedTuple):
  """The score of a task, and of its parts."""

  score: float | None
  """unweighted mean of the accuracies of the subsets, in percent; for wug_adj and wug_past
  Spearman's correlation; None where it is not defined, for fewer than two different items"""
  parts: dict[str, float]
  """subset -> accuracy in percent"""
  items: int
  """number of items"""


def read_items(folder: epath.PathLike, task: TaskName, limit: int = 0) -> list[RankedItem]:
  """Read the items of the .jsonl files in a folder, sorted by file.

  limit: maximum number of items per subset; 0: all.

  Raises:
    SourceError: there are none, or a line has not the fields of the task.
  """
  folder = storage.resolve_path(folder)
  found, seen = [], {}
  for file in sorted(folder.glob('*.jsonl')):
    for row, where in labeled_files.iterate_rows(str(file)):
      try:
        item = make_item(row, task, file.stem)
      except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f'{where}: not an item of the BabyLM task {task}: {error!r}; its fields '
                          f'are {", ".join(map(str, row))}') from error
      seen[item.subset] = seen.get(item.subset, 0) + 1
      if not limit or seen[item.subset] <= limit:
        found.append(item)
  if not found:
    raise SourceError(f'{folder} has no .jsonl file with items of the task {task}')
  return found


def make_item(row: Mapping[str, Any], task: TaskName, file: str) -> RankedItem:
  """Make the item of a line. file: name of its file without .jsonl."""
  if task == 'blimp':
    texts = row['sentence_good'], row['sentence_bad']
    if 'field' not in row:
      return RankedItem(texts, texts, file, (('field', 'supplement'),))
    field = str(row['field']).replace('syntax_semantics', 'syntax/semantics')
    groups = ('field', field), ('linguistics_term', str(row['linguistics_term']))
    return RankedItem(texts, texts, row['UID'], groups)
  if task == 'ewok':
    # Both targets follow the first context.
    targets = row['Target1'], row['Target2']
    groups = []
    for name, column in (('context_type', 'ContextType'), ('context_contrast', 'ContextDiff'),
                         ('target_contrast', 'TargetDiff')):
      groups.append((name, str(row[column])))
    return RankedItem(
        tuple(f'{row["Context1"]} {target}' for target in targets),
        tuple(f' {target}' for target in targets), row['Domain'], tuple(groups))
  if task == 'comps':
    phrase = row['property_phrase']
    texts = f'{row["prefix_acceptable"]} {phrase}', f'{row["prefix_unacceptable"]} {phrase}'
    return RankedItem(texts, (phrase, phrase), COMPS_SUBSETS.get(file, OTHER_COMPS))
  if task == 'entity_tracking':
    texts = tuple(row['input_prefix'] + option for option in row['options'])
    return RankedItem(texts, tuple(row['options']), f'{file}_{row["numops"]}_ops')
  texts = tuple(row['sentences'].split('\t'))
  return RankedItem(texts, texts, task, ratio=float(row['ratio']))


def rank_items(score: ScoreTexts, items: Sequence[RankedItem]) -> list[RankedResult]:
  """Score the completions of items, each distinct one once."""
  parts: dict[ScoredPart, None] = {}
  for item in items:
    parts |= dict.fromkeys(item.parts)
  scores = dict(zip(parts, score(list(parts)), strict=True))
  results = []
  for item in items:
    results.append(RankedResult(item, tuple(scores[part] for part in item.parts)))
  return results


def summarize(results: Sequence[RankedResult], task: TaskName) -> TaskScore:
  """Compute the score of a task as the challenge does."""
  if task.startswith('wug'):
    return TaskScore(correlate_with_people(results), {}, len(results))
  right: dict[str, list[bool]] = {}
  for result in results:
    right.setdefault(result.item.subset, []).append(result.choice == 0)
  parts = {name: 100 * sum(some) / len(some) for name, some in right.items()}
  means = list(parts.values())
  if task == 'entity_tracking':
    means = []
    for split in ENTITY_SPLITS:
      some = [share for name, share in parts.items() if name.startswith(split)]
      if some:
        means.append(sum(some) / len(some))
  if not means:
    raise SourceError('entity tracking has the files regular.jsonl, ambiref.jsonl and '
                      f'move_contents.jsonl, got the subsets {", ".join(parts)}')
  return TaskScore(sum(means) / len(means), parts, len(results))


def correlate_with_people(results: Sequence[RankedResult]) -> float | None:
  """Compute Spearman's correlation of the probability of the first text with people's choices.

  The probability is relative to that of the other text. None if it is not defined.
  """
  model = [first_probability(result) for result in results]
  people = [result.item.ratio for result in results]
  if len(set(model)) < 2 or len(set(people)) < 2:
    return None
  correlation: Any = stats.spearmanr(model, people)
  return float(correlation[0])


def first_probability(result: RankedResult) -> float:
  """Return the softmax of the first log-likelihood.

  In float32, as in the challenge's code: probabilities that are rounded to 0 or 1 have equal ranks.
  """
  logprobs = np.array(result.logprobs, np.float32)
  likelihoods = np.exp(logprobs - logprobs.max())
  return float(likelihoods[0] / likelihoods.sum())


def format_predictions(results: Sequence[RankedResult], task: TaskName) -> dict[str, Any]:
  """Return the predictions as the challenge's predictions.json has them."""
  found: dict[str, Any] = {}
  for result in results:
    item = result.item
    some = found.setdefault(item.subset, {'predictions': []})['predictions']
    shown = item.texts if task == 'comps' else item.completions
    line: dict[str, Any] = {'id': f'{item.subset}_{len(some)}', 'pred': shown[result.choice]}
    if task.startswith('wug'):
      line['prob'] = first_probability(result)
    some.append(line)
  return found


def find_datasets(folder: epath.PathLike) -> dict[str, TaskName]:
  """Return the datasets in the folder full_eval or fast_eval of the challenge, with their tasks.

  Raises:
    ConfigError: there is none.
  """
  home = storage.resolve_path(folder)
  found: dict[str, TaskName] = {}
  for name, task in DATASETS.items():
    if (home / name).is_dir():
      found[name] = task
  if not found:
    raise ConfigError(f'{folder} has none of the folders {", ".join(DATASETS)}: give the folder '
                      'full_eval or fast_eval of evaluation_data of BabyLM')
  return found


def write_predictions(
    folder: epath.PathLike, name: str, results: Sequence[RankedResult], task: TaskName) -> None:
  """Write predictions.json, and the log-likelihoods of all texts as scores.jsonl.

  Args:
    folder: folder of the results of a checkpoint and a backend.
    name: name of the dataset.
    results: of all items.
    task: that of the dataset.
  """
  home = storage.resolve_path(folder) / task / name
  storage.write(home / 'predictions.json', json.dumps(format_predictions(results, task)))
  lines = []
  for result in results:
    lines.append(json.dumps({
        'subset': result.item.subset, 'texts': result.item.texts,
        'completions': result.item.completions, 'logprobs': result.logprobs}, ensure_ascii=False))
  storage.write(home / 'scores.jsonl', ''.join(f'{line}\n' for line in lines))


# Scores of completions.


def make_scorer(trained: LoadedModel, backend: Backend, start: bool = True) -> ScoreTexts:
  """Return a function that scores the ends of texts.

  Args:
    trained: the model.
    backend: whether tokens are masked, or predicted from left to right.
    start: causal: put the start token before each text, as the tokenizer of an exported model does;
      otherwise the first token of a text is not scored.

  Raises:
    CheckpointError: the model does not score texts in this way.
  """
  if backend == 'causal':
    causal = scoring.make_scorer(trained, start, trained.mesh)
    return lambda parts: score_causal(causal, parts)
  masked = pseudo_likelihood.make_pseudo_scorer(trained)
  return lambda parts: score_masked(masked, parts)


def find_backends(trained: LoadedModel) -> list[Backend]:
  """List the ways in which a model can score texts.

  Raises:
    ConfigError: there is none.
  """
  found: list[Backend] = []
  if 'mlm' in trained.heads:
    found.append('mntp' if has_shifted_targets(trained.model) else 'mlm')
  if trained.lm_head_name and trained.model.kind in ('encoder', 'decoder'):
    found.append('causal')
  if not found:
    raise ConfigError('the model cannot score texts: zero-shot tasks need a masked or causal '
                      'language model')
  return found


def score_masked(scorer: PseudoScorer, parts: Sequence[ScoredPart]) -> list[float]:
  """Score the ends of texts: each token is masked in turn."""
  ids, firsts = encode_parts(scorer.tokenizer, parts)
  scorer.check_lengths([part.text for part in parts], ids)
  return [float(some.sum()) for some in scorer.token_logprobs(ids, firsts)]


def score_causal(scorer: Scorer, parts: Sequence[ScoredPart]) -> list[float]:
  """Score the ends of texts from left to right. A context that is too long is truncated at its
  beginning, which is reported."""
  spans = {}
  encoded = zip(*encode_parts(scorer.tokenizer, parts), strict=True)
  for number, (ids, first) in enumerate(encoded):
    begin = scorer.start_ids(first) if scorer.start else []
    span = Span([*begin, *ids], max(1, first + len(begin)))
    if span.predicted > 0:  # without a start token, the first token of a text is not predicted
      spans[number] = span
  scores = [0.0] * len(parts)
  found = scorer.score_whole_spans(list(spans.values()))
  for number, score in zip(spans, found, strict=True):
    scores[number] = score.logprob
  lost = [score.truncated for score in found]
  truncation.report(Truncation(
      len(parts), sum(count > 0 for count in lost),
      sum(len(span.ids) for span in spans.values()), sum(lost)))
  return scores


def encode_parts(
    tokenizer: Tokenizer, parts: Sequence[ScoredPart]) -> tuple[list[list[int]], list[int]]:
  """Encode texts -> (ids of each, number of its first token that is scored)."""
  flat, lengths, offsets = tokenizer.encode_with_offsets([part.text for part in parts])
  sizes = tokenizer.byte_lengths[flat]
  ids, firsts = [], []
  ends = np.cumsum(lengths)
  for part, end, length in zip(parts, ends, lengths, strict=True):
    own = slice(end - length, end)
    ids.append(flat[own].tolist())
    if isinstance(tokenizer, ByteBPE):
      firsts.append(find_first_by_bytes(part, sizes[own]))
    else:
      firsts.append(find_first_by_offsets(part, offsets[own]))
  return ids, firsts


def find_first_by_bytes(part: ScoredPart, sizes: np.ndarray) -> int:
  """Return the number of the first token that overlaps with the scored end of a text.

  Tokens of byte-level BPE may begin within a character, so that their offsets do not suffice.

  sizes: [tokens] bytes of each token, a space that the tokenizer puts before the text included.
  """
  added = sizes.sum() - len(part.text.encode())
  start = len(part.text[:part.start].encode()) + added
  return int(np.searchsorted(np.cumsum(sizes), start, 'right'))


def find_first_by_offsets(part: ScoredPart, offsets: np.ndarray) -> int:
  """Return the number of the first token that overlaps with the scored end of a text.

  offsets: [tokens] character at which each token begins.
  """
  first = int(np.searchsorted(offsets, part.start))
  following = int(offsets[first]) if first < len(offsets) else len(part.text)
  # What precedes this token, and is not white space, is in a token that began before.
  if first and part.text[part.start:following].strip():
    first -= 1
  return first
