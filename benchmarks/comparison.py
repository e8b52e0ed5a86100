"""A comparison at equal training time: command line, files, stages and table.

Learning rates of the `swept` arms are chosen by short runs, each with a tenth of the steps and a complete schedule:
the smallest rate whose held-out loss is within TOLERANCE of the best, because too high a rate shows only late in a run.
An arm that is not swept names the arm whose rate it uses. A short run that has learned only word frequencies cannot
compare learning rates: make it longer with a smaller --brief.
"""
import argparse
from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import pathlib
import shutil
import sys
from typing import Any

from benchmarks import equal_time, kept, side_by_side
from benchmarks.equal_time import Arm, Plan, Setting
from benchmarks.real_tasks import ARMS as STARTS
from benchmarks.real_tasks import FINETUNED, TASKS, tuning
import plm_jax
from plm_jax.config.run import PretrainRun

STAGES = 'pace', 'sweep', 'pretrain', 'finetune', 'table'
TOLERANCE = 0.02  # nats: the difference between two seeds of a short run
NOTHING = 'from scratch'


@dataclasses.dataclass(frozen=True)
class Bench:
  """A comparison: its arms, and how they are evaluated."""

  module: str
  about: str
  setting: type[Setting]
  arms: Callable[[Any], Mapping[str, Arm]]
  """function of a setting: its arms by name"""
  config: Callable[[Any, str], PretrainRun]
  """function of a setting and an arm's name: the run, without the values that `planned` adds"""
  judges: Mapping[str, Mapping[str, Any]]
  """title of a column -> fields of the objective that masks held-out text; sweeps are decided by the first"""
  tasks: tuple[str, ...]
  swept: tuple[str, ...]
  peaks: tuple[float, ...]
  pairs: str = ''
  """file of minimal pairs in the folder of the tasks; empty: none"""
  nothing: bool = False
  """also fine-tune an untrained model"""
  prepare: Callable[[Any], None] | None = None
  """called before any run"""


class NotYet(Exception):
  """A result is not in the folder, and may not be computed now."""


class Table:
  """A comparison with its command-line arguments: its stages, and the files with their results."""

  def __init__(self, bench: Bench, setting: Setting, args: argparse.Namespace):
    self.bench, self.setting, self.args = bench, setting, args
    self.every, self.folder = bench.arms(setting), pathlib.Path(setting.output).expanduser()
    self.arms = args.arms or [name for name, arm in self.every.items() if arm.usual]
    self.only_read = False  # raise NotYet instead of computing a result

  def do(self, stage: str) -> None:
    """Run a stage; results in the folder are not computed again."""
    if stage == 'pace' and not self.args.steps:
      print(', '.join(f'{name} {1e3 * seconds:.0f} ms' for name, seconds in self.pace.items()), 'per step', flush=True)
    for arm in self.arms if stage in ('sweep', 'pretrain', 'finetune') else ():
      if stage == 'sweep' and arm in self.args.swept and len(self.args.peaks) > 1:
        print(f'{arm}: ' + '; '.join(
            f'{peak:g} has {loss:.3f}' for peak, loss in self.sweep(arm).items()), flush=True)
      for seed in self.seeds(arm) if stage != 'sweep' else ():
        found = self.learned(arm, self.peak(arm), seed)
        if stage == 'pretrain':
          losses = {'own': own_loss(found)} | {name: metrics['mlm'] for name, metrics in found['judged'].items()}
          print(f'{arm}, seed {seed}: ' + ', '.join(f'{name} {loss:.3f}' for name, loss in losses.items()), flush=True)
        if stage == 'finetune' and self.bench.pairs:
          print(f'{arm}, seed {seed}, minimal pairs: {self.pairs(arm, seed):.1f}%', flush=True)
        for task in self.bench.tasks if stage == 'finetune' else ():
          scores = kept.shown(self.tuned(arm, seed, task))
          print(f'{arm}, seed {seed}, {task}: {scores}', flush=True)
    if stage == 'finetune' and self.bench.nothing:
      for task in self.bench.tasks:
        print(f'{NOTHING}, {task}: {kept.shown(self.tuned(self.arms[0], 0, task, NOTHING))}', flush=True)
    if stage == 'table':
      self.only_read = True
      print(f'\n{self.text()}')

  @functools.cached_property
  def pace(self) -> dict[str, float]:
    """Seconds per step of every arm: from the folder, or measured."""
    file = self.folder / 'pace.json'
    if not file.exists():
      if self.only_read:
        raise NotYet
      options = [f'--{name}={value}' for name, value in dataclasses.asdict(self.setting).items()]
      found = side_by_side.compare(self.bench.module, [*self.every], options, self.args.rounds)
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_text(json.dumps({'machine': side_by_side.machine('jax'), 'seconds': {
          name: times['median'] for name, times in found.items()}}, indent=1) + '\n')
    return json.loads(file.read_text())['seconds']

  def steps(self, arm: str, brief: bool = False) -> int:
    """Return the number of steps of a whole run, or of a short one (`brief`)."""
    if not self.args.steps and arm not in self.pace:
      sys.exit(f'{self.folder}/pace.json has no pace of {arm}, only of {", ".join(self.pace)}: give --steps, or remove '
               'the file, and all are timed again')
    whole = self.args.steps or equal_time.steps_in(self.args.minutes, self.pace[arm])
    return max(1, whole // self.args.brief) if brief else whole

  def seeds(self, arm: str) -> Sequence[int]:
    """Return the seeds of an arm."""
    return self.args.seeds if self.args.seeds is not None else self.every[arm].seeds

  def run(self, arm: str, peak: float, seed: int, brief: bool = False) -> pathlib.Path:
    """Return the folder of a run, which its arm, steps, learning rate and seed name."""
    return self.folder / ('sweep' if brief else 'runs') / f'{arm}-{self.steps(arm, brief)}-{peak:g}-{seed}'

  def learned(self, arm: str, peak: float, seed: int, brief: bool = False) -> dict[str, Any]:
    """Train a run, unless that is done -> its results."""
    folder = self.run(arm, peak, seed, brief)
    if self.only_read and not pathlib.Path(f'{folder}.json').exists():
      raise NotYet
    plan = Plan(self.steps(arm, brief), peak, seed, str(folder))
    return kept.run(f'{self.bench.module}:pretrained', {
        'setting': dataclasses.asdict(self.setting), 'arm': arm, 'plan': plan}, f'{folder}.json')

  def peak(self, arm: str) -> float:
    """Return the learning rate of an arm: the only one given, or the one chosen by short runs."""
    peaks, arm = self.args.peaks, arm if arm in self.args.swept else self.every[arm].rate_of
    if len(peaks) == 1:
      return peaks[0]
    return chosen(self.sweep(arm))

  def sweep(self, arm: str) -> dict[float, float]:
    """Train an arm briefly with each learning rate, unless that is done.

    Returns:
      The held-out loss of each rate: of the first evaluation by masked tokens, or of the arm's own objective.
    """
    losses = {}
    for peak in self.args.peaks:
      found = self.learned(arm, peak, 0, brief=True)
      losses[peak] = next((metrics['mlm'] for metrics in found['judged'].values()), own_loss(found))
      shutil.rmtree(self.run(arm, peak, 0, brief=True), ignore_errors=True)
    return losses

  def task(self, arm: str, seed: int, task: str, start: str) -> pathlib.Path:
    """Return the folder of the fine-tuning runs of a task."""
    name = f'{task}-{start.replace(" ", "-")}-{self.run(arm, self.peak(arm), seed).name}-{self.args.tuning_peak:g}'
    return self.folder / 'tasks' / name

  def tuned(self, arm: str, seed: int, task: str, start: str = 'pre-trained') -> list[float]:
    """Fine-tune on a task with several seeds, unless that is done -> scores. The models are deleted."""
    real, folder = TASKS[task], self.task(arm, seed, task, start)
    file = folder.with_name(f'{folder.name}.json')
    if file.exists():
      return json.loads(file.read_text())['scores']
    if self.only_read:
      return []
    run = self.run(arm, self.peak(arm), seed)
    brief = real._replace(epochs=real.epochs * self.args.tuning_epochs, length=min(real.length, self.setting.length))
    command = [*tuning(brief, self.args.data, str(run), f'{self.args.tuning_peak:g}'),
               f'--seeds={self.args.tuning_seeds}', f'--output={folder}', *STARTS[start]]
    found = kept.run(FINETUNED, (command, real.measure), file)
    shutil.rmtree(folder, ignore_errors=True)
    return found['scores']

  def pairs(self, arm: str, seed: int) -> float:
    """Return the accuracy in percent on minimal pairs, ten of each paradigm; raise NotYet if it is not known."""
    run = self.run(arm, self.peak(arm), seed)
    file = self.folder / 'tasks' / f'pairs-{run.name}.json'
    if self.only_read and not file.exists():
      raise NotYet
    return kept.run('benchmarks.comparison:judge_pairs', [str(run), self.args.data, self.bench.pairs], file)['accuracy']

  def scores(self, arm: str, start: str = 'pre-trained') -> list[str]:
    """Format the scores of each task, over all seeds of pre-training and fine-tuning."""
    seeds = self.seeds(arm) if start != NOTHING else (0,)
    return [kept.shown([score for seed in seeds for score in self.tuned(arm, seed, task, start)])
            for task in self.bench.tasks]

  def row(self, arm: str) -> list[str]:
    """Format the results of an arm; raise NotYet if there are none."""
    peak, tokens, runs = self.peak(arm), self.setting.rows * self.setting.length, []
    for seed in self.seeds(arm):
      with contextlib.suppress(NotYet):
        runs.append(self.learned(arm, peak, seed))
    if not runs:
      raise NotYet
    read = self.steps(arm) * tokens / 1e6
    row = [f'{runs[0]["parameters"]:,}', f'{peak:g}', '-' if self.args.steps else f'{tokens / self.pace[arm]:,.0f}',
           f'{self.steps(arm):,}', f'{read * runs[0]["filled"]:.2f}', f'{read * (1 - runs[0]["filled"]):.2f}']
    for name in self.bench.judges:
      if name in runs[0]['judged']:
        row += [kept.shown([run['judged'][name]['mlm'] for run in runs], 3),
                kept.shown([100 * run['judged'][name]['mlm_accuracy'] for run in runs])]
      else:
        row += ['-', '-']
    row += [kept.shown([own_loss(run) for run in runs], 3), *self.scores(arm)]
    if self.bench.pairs:
      try:
        row.append(kept.shown([self.pairs(arm, seed) for seed in self.seeds(arm)], 1))
      except NotYet:
        row.append('-')
    return row

  def text(self) -> str:
    """Format the table of the results that there are."""
    columns = ['arm', 'parameters', 'peak', 'tokens per second', 'steps', 'tokens read, millions', 'padding, millions',
               *(part for name in self.bench.judges for part in (f'held-out loss, {name}', 'accuracy, %')),
               'held-out loss, its own rows', *(f'{task}, {TASKS[task].measure}' for task in self.bench.tasks)]
    if self.bench.pairs:
      columns.append('minimal pairs, accuracy')
    rows = [columns, ['---'] * len(columns)]
    for arm in self.arms:
      rows.append([self.every[arm].title, *['-'] * (len(columns) - 1)])
      with contextlib.suppress(NotYet):
        rows[-1][1:] = self.row(arm)
    if self.bench.nothing:
      rows.append([NOTHING, *['-'] * (len(columns) - 1)])
      with contextlib.suppress(NotYet):
        rows[-1][-len(self.bench.tasks):] = self.scores(self.arms[0], NOTHING)
    return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def own_loss(found: Mapping[str, Any]) -> float:
  """Return the held-out loss of a run's own objective. Older files have no `loss`: their runs are masked LMs."""
  return found['loss'] if 'loss' in found else found['own']['mlm']


def judge_pairs(given: Sequence[str]) -> dict[str, float]:
  """Measure the accuracy of a model on minimal pairs.

  Args:
    given: folder of the run, folder of the data, name of the file of the pairs.
  """
  run, data, name = given
  judged = plm_jax.minimal_pairs(run, str(kept.place(data, name)), limit=10)
  return {'accuracy': 100 * sum(pair.right for pair in judged) / len(judged)}


def parsed(bench: Bench, typed: Sequence[str] | None = None) -> tuple[Setting, argparse.Namespace]:
  """Parse the command line."""
  parser = argparse.ArgumentParser(description=f'{bench.about}\n{equal_time.__doc__}\n{__doc__}',
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  fields = dataclasses.fields(bench.setting)
  for field in fields:
    needed = field.default is dataclasses.MISSING
    parser.add_argument(f'--{field.name}', type=field.type, required=needed, default=None if needed else field.default)
  parser.add_argument('--data', default='', help='folder of the tasks, at any depth')
  parser.add_argument('--minutes', type=float, default=30, help='training time of each arm')
  parser.add_argument('--steps', type=int, default=0, help='steps of each arm, in place of --minutes')
  parser.add_argument('--rounds', type=int, default=8, help='rounds in which seconds per step are measured')
  parser.add_argument('--arms', nargs='*', default=[])
  parser.add_argument('--seeds', nargs='*', type=int, help='seeds of each arm, in place of its own')
  parser.add_argument('--only', nargs='*', choices=STAGES, default=STAGES, help='stages')
  parser.add_argument('--peaks', nargs='*', type=float, default=bench.peaks,
                      help='learning rates to choose from; a single value is used without a sweep')
  parser.add_argument('--swept', nargs='*', default=bench.swept,
                      help='arms whose learning rate is chosen by short runs')
  parser.add_argument('--brief', type=int, default=10, help='factor by which short runs are shorter')
  parser.add_argument('--tuning-peak', type=float, default=5e-4)
  parser.add_argument('--tuning-seeds', type=int, default=3)
  parser.add_argument('--tuning-epochs', type=float, default=1, help="factor on a task's epochs")
  parser.add_argument('--contestant', help=argparse.SUPPRESS)
  args = parser.parse_args(typed)
  setting = bench.setting(**{field.name: getattr(args, field.name) for field in fields})
  known = [*bench.arms(setting)]
  if wrong := {*args.arms, *args.swept} - {*known}:
    parser.error(f'arms are {", ".join(known)}, got {", ".join(sorted(wrong))}')
  if 'finetune' in args.only and not args.data and not args.contestant:
    parser.error('--data is missing: the folder of the tasks')
  return setting, args


def same(setting: Setting) -> None:
  """Write the setting to the folder; exit if the folder has runs of another one, whose names could be equal."""
  own = {name: value for name, value in dataclasses.asdict(setting).items() if name not in ('text', 'output')}
  file = pathlib.Path(setting.output).expanduser() / 'setting.json'
  if file.exists() and (other := json.loads(file.read_text())) != own:
    sys.exit(f'{file.parent} holds runs of {other}, and this is {own}: give another --output')
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(json.dumps(own) + '\n')


def pretrained(bench: Bench, given: Mapping[str, Any]) -> dict[str, Any]:
  """Train a run in this process -> its results. given: fields of the setting, the arm's name, a plan."""
  config = bench.config(bench.setting(**given['setting']), given['arm'])
  return equal_time.pretrained(equal_time.planned(config, Plan(*given['plan'])), bench.judges)


def main(bench: Bench) -> None:
  """Run the stages that the command line names."""
  setting, args = parsed(bench)
  if args.contestant:
    equal_time.timed(bench.config(setting, args.contestant))
    return
  same(setting)
  print(side_by_side.machine('jax'), flush=True)
  if bench.prepare and [*args.only] != ['table']:
    bench.prepare(setting)
  table = Table(bench, setting, args)
  for stage in (stage for stage in STAGES if stage in args.only):
    table.do(stage)


def chosen(losses: Mapping[float, float]) -> float:
  """Return the smallest learning rate whose loss is within TOLERANCE of the best.

  >>> chosen({5e-4: 5.0, 1e-3: 4.51, 2e-3: 4.5})
  0.001
  """
  return min(peak for peak, loss in losses.items() if loss <= min(losses.values()) + TOLERANCE)
