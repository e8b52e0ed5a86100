"""Test claims that papers make about their objectives, at laptop scale on real text with several seeds.

    python -m benchmarks.claims
    python -m benchmarks.claims --claim order spans --seeds=3 --steps=1500 --text=corpus.txt.xz

Models have two layers of width 128 and sequences of 32 tokens, and train on two cores. A result at this scale need not
hold at the scale of the paper. The arms of a claim differ only in the subject of the claim. They share text, tokenizer,
seeds and number of steps (for replaced-token detection: floating point operations). A claim holds if its arm is ahead
with every seed. One table is printed per claim.
"""
import argparse
from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import io
import json
import logging
import pathlib
import statistics
import tempfile
from typing import Any

import jax

from benchmarks.side_by_side import machine
from plm_jax import sharding
from plm_jax.config.run import Phase, PretrainRun, TrainConfig
from plm_jax.layers.dense import count_parameters
from plm_jax.objectives.distillation import Distillation
from plm_jax.objectives.masking import Distinct
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import NextSentence, SentenceOrder, Single
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.objectives.sbo import SpanBoundary
from plm_jax.recipes import scale_presets
from plm_jax.runs.pretrain import prepare_corpora
from plm_jax.training.feed import TextFeed
from plm_jax.training.learner import make_learner
from plm_jax.training.train import train

LENGTH, ROWS = 32, 64
TOKENS, ORDER = MaskedLM(Single()), MaskedLM(SentenceOrder())
SPANS = MaskedLM(Single(), masking=Distinct('word', (0.0, 0.0, 1.0)))  # spans of three words


class Bench:
  """Train and evaluate runs; all output is in one folder."""

  def __init__(self, folder: pathlib.Path, text: str, steps: int, tokenizer: str = '', heldout: float = 0.01):
    self.folder, self.text, self.steps = folder, text, steps
    base = scale_presets.make_laptop_run(PretrainRun('claims'))
    prepare = dataclasses.replace(base.data.prepare, tokenizer=tokenizer, heldout=heldout)
    self.base = dataclasses.replace(base, data=dataclasses.replace(base.data, path=(text,), prepare=prepare))
    self.records, self.tokenizer = prepare_corpora(self.base)

  def little(self) -> 'Bench':
    """Return a bench that trains on a tenth of the text, so that a run has several epochs; the rest is held out."""
    return Bench(self.folder, self.text, self.steps, str(self.records[0] / 'tokenizer'), heldout=0.9)

  def config(self, name: str, seed: int, objective: Any, steps: int = 0, **changes: Any) -> PretrainRun:
    steps = steps or self.steps
    return dataclasses.replace(
        self.base, name=name, seed=seed, objective=objective, output=str(self.folder / f'{name}-{seed}'),
        train=TrainConfig(phases=(Phase(steps, LENGTH, ROWS),), log_every=max(1, steps // 4), eval_every=steps,
                          eval_batches=64, save_every=steps), **changes)

  def train(self, config: PretrainRun) -> tuple[Any, dict[str, float]]:
    """Train a run and return (parameters, held-out metrics)."""
    print('.', end='', flush=True)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
      result = train(config, lambda mesh: TextFeed(config, self.records, self.tokenizer, mesh), self.tokenizer)
    return result.params, result.heldout

  def judge(self, config: PretrainRun, params, objective: Any) -> dict[str, float]:
    """Return the held-out metrics of `objective` for parameters trained with another objective."""
    config = dataclasses.replace(config, objective=objective)
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
      feed = TextFeed(config, self.records, self.tokenizer, mesh)
      return feed.make_evaluator(make_learner(config, self.tokenizer.vocab), mesh)(params, config.train.phases[-1])

  def order_after(self, config: PretrainRun) -> float:
    """Return the accuracy of sentence-order prediction after a finished run is briefly trained on that task.

    The number of steps is small, so that the accuracy measures the finished run: with a quarter of its steps, all arms
    learn the task equally well.
    """
    tuned = self.config(f'{config.name}-tuned', config.seed, ORDER, self.steps // 16, warm_start=config.folder)
    return self.train(tuned)[1]['sop_accuracy']


def masking(bench: Bench, seed: int) -> Mapping[str, float]:
  bench, losses = bench.little(), {}
  for name, duplicates in {'new masks in every epoch': 0, 'the same masks in every epoch': 1}.items():
    config = bench.config(f'masking-{duplicates}', seed, MaskedLM(Single(), duplicates=duplicates))
    losses[name] = bench.judge(config, bench.train(config)[0], TOKENS)['mlm']
  return losses


def order(bench: Bench, seed: int) -> Mapping[str, float]:
  accuracies = {}
  for name, pair in {'SOP': SentenceOrder(), 'NSP': NextSentence(), 'neither': Single()}.items():
    config = bench.config(f'order-{name}', seed, MaskedLM(pair))
    bench.train(config)
    accuracies[name] = bench.order_after(config)
  return accuracies


def spans(bench: Bench, seed: int) -> Mapping[str, float]:
  accuracies = {}
  for name, objective in {'spans and their boundaries': SpanBoundary(), 'tokens': TOKENS,
                          'spans': SpanBoundary(weight=0.0)}.items():
    config = bench.config(f'spans-{name}', seed, objective)
    accuracies[name] = bench.judge(config, bench.train(config)[0], SPANS)['mlm_accuracy']
  return accuracies


def sharing(bench: Bench, seed: int) -> Mapping[str, float]:
  """Compare parameter sharing in four layers; also store parameters and seconds per step for the table."""
  losses = {}
  for name, groups, shared in (('attention', 1, 'attention'), ('MLP', 1, 'mlp'), ('all', 1, 'all'), ('none', 0, 'all')):
    stack = dataclasses.replace(bench.base.model.stack, layers=4, groups=groups, shared=shared)
    model = dataclasses.replace(bench.base.model, stack=stack)
    config = bench.config(f'sharing-{name}', seed, TOKENS, model=model)
    params, heldout = bench.train(config)
    lines = [json.loads(line) for line in (pathlib.Path(config.folder) / 'metrics.jsonl').read_text().splitlines()]
    speed = statistics.median(line['tokens_per_second'] for line in lines if line.get('tokens_per_second'))
    FACTS.setdefault(f'shared: {name}', []).append(LENGTH * ROWS / speed)
    SIZES[f'shared: {name}'] = count_parameters(params['backbone']['stack'])
    losses[f'shared: {name}'] = heldout['mlm']
  return losses


def distillation(bench: Bench, seed: int) -> Mapping[str, float]:
  """Compare students of two layers with and without a teacher of four layers that is trained twice as long."""
  large = dataclasses.replace(bench.base.model, stack=dataclasses.replace(bench.base.model.stack, layers=4))
  teacher = bench.config('teacher', seed, TOKENS, 2 * bench.steps, model=large)
  bench.train(teacher)
  students = {
      'teacher': Distillation(teacher.folder, large),
      'its layers alone': Distillation(teacher.folder, large, soft=0.0, hard=1.0, cosine=0.0), 'none': TOKENS}
  losses = {}
  for number, (name, objective) in enumerate(students.items()):
    config = bench.config(f'student-{number}', seed, objective)
    losses[name] = bench.judge(config, bench.train(config)[0], TOKENS)['mlm']
  return losses


def replaced(bench: Bench, seed: int) -> Mapping[str, float]:
  """Compare RTD and MLM at equal floating point operations: RTD also runs a generator, so it trains fewer steps."""
  rtd, model = ReplacedTokenDetection(), bench.base.model
  steps = round(bench.steps * TOKENS.step_flops(model, LENGTH) / rtd.step_flops(model, LENGTH))
  accuracies = {}
  for name, objective, number in (('RTD', rtd, steps), ('MLM', TOKENS, bench.steps)):
    config = bench.config(f'replaced-{name}', seed, objective, number)
    bench.train(config)
    accuracies[name] = bench.order_after(config)
  return accuracies


@dataclasses.dataclass(frozen=True)
class Claim:
  """A claim of a paper: the first of its arms is better than the second."""

  paper: str
  says: str
  measure: str
  higher: bool
  arms: Callable[[Bench, int], Mapping[str, float]]


TUNED = 'accuracy on the order of two sentences, after a short training on that'
CLAIMS = {
    'masking': Claim('RoBERTa, 4.1', 'dynamic masks are as good as static ones or better', 'MLM loss', False, masking),
    'order': Claim('ALBERT, 4.6', 'SOP teaches the order of sentences, NSP does not', TUNED, True, order),
    'spans': Claim('SpanBERT, 6', 'span masking with SBO recovers spans better than token masking',
                   'MLM accuracy on masked spans of three words', True, spans),
    'sharing': Claim('ALBERT, 4.5', "sharing attention costs less than sharing the MLP", 'MLM loss', False, sharing),
    'distillation': Claim('DistilBERT, 4', 'a student learns more with a teacher', 'MLM loss', False, distillation),
    'replaced': Claim('ELECTRA, 3.4', 'RTD is better than MLM for the same compute', TUNED, True, replaced),
}
FACTS: dict[str, list[float]] = {}  # arm -> seconds per step
SIZES: dict[str, int] = {}  # arm -> parameters of its layers


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--claim', nargs='*', choices=CLAIMS, default=list(CLAIMS))
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--steps', type=int, default=1500)
  parser.add_argument('--text', default='embedded', help='text file, or any other source of prepare')
  args = parser.parse_args()
  logging.disable(logging.WARNING)
  with tempfile.TemporaryDirectory() as folder:
    bench = Bench(pathlib.Path(folder), args.text, args.steps)
    print(f'{machine("jax")}; {args.text}, {args.steps} steps of {ROWS} x {LENGTH}, {args.seeds} seeds\n')
    for name in args.claim:
      print(name, end=' ', flush=True)
      runs = [CLAIMS[name].arms(bench, seed) for seed in range(args.seeds)]
      print('\n' + table(CLAIMS[name], runs), flush=True)


def table(claim: Claim, runs: list[Mapping[str, float]]) -> str:
  """Format the scores of each arm, and whether the claim held."""
  lines = [f'\n**{claim.says}** ({claim.paper}); {claim.measure}\n', '| arm | mean | each seed |', '|---|---|---|']
  for arm in runs[0]:
    values = [run[arm] for run in runs]
    about = f' ({SIZES[arm]:,} parameters, {1e3 * statistics.median(FACTS[arm]):.0f} ms a step)' if arm in SIZES else ''
    lines.append(f'| {arm}{about} | {statistics.mean(values):.4f} | {", ".join(f"{value:.4f}" for value in values)} |')
  first, second = list(runs[0])[:2]
  ahead = sum((run[first] > run[second]) == claim.higher for run in runs)
  verdict = 'held' if ahead == len(runs) else 'did not hold' if not ahead else 'undecided'
  return '\n'.join([*lines, f'\n{verdict}: "{first}" ahead of "{second}" with {ahead} of {len(runs)} seeds\n'])


if __name__ == '__main__':
  main()
