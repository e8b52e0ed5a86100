"""Store the TPU compiler's metrics of recipes' training steps as budgets, and check that changes stay within them.

    python -m benchmarks.budgets --write bert_base gpt2_small    # writes benchmarks/budgets/NAME.json
    python -m benchmarks.budgets --check bert_base               # compiles again and compares
    python -m benchmarks.budgets --check bert_base -- --mesh.fsdp=1    # with options of a run

Needs the extra `tpu`, but no TPU; takes a minute or more per recipe. The exit status of a check is 1 if memory, HBM
traffic, FLOPs, bytes sent between devices or the roofline lower bound grew by more than `TOLERANCE`. Compilation is
deterministic: with the same compiler, every difference comes from a change of this project. A file names its compiler;
a check prints both compilers if they differ.
"""
import argparse
from collections.abc import Mapping, Sequence
import importlib.metadata
import json
import pathlib
import sys
from typing import Any, NamedTuple

from plm_jax import recipes, sharding
from plm_jax.cli.run import parse
from plm_jax.compile import report as compiling
from plm_jax.compile.report import CompileReport
from plm_jax.config.run import ConfigError, Phase, RunConfig

FOLDER = pathlib.Path(__file__).parent / 'budgets'
TOLERANCE = 0.02
"""fraction by which a metric may grow"""
Budget = dict[str, Any]


class Change(NamedTuple):
  """A metric that a budget limits, before and now. `phase` is its batch size x sequence length."""

  phase: str
  figure: str
  before: float
  now: float

  @property
  def share(self) -> float:
    """Return the relative growth; if the old value is 0: 1 for any growth, otherwise 0."""
    return self.now / self.before - 1 if self.before else float(self.now > 0)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument('--write', nargs='+', choices=recipes.all_recipes(), metavar='RECIPE')
  what.add_argument('--check', nargs='+', choices=recipes.all_recipes(), metavar='RECIPE')
  ours, options = divided(sys.argv[1:])
  args = parser.parse_args(ours)
  failed = [name for name in args.write or args.check if not (write(name) if args.write else check(name, options))]
  if failed:
    sys.exit(f'{"not compiled" if args.write else "over budget"}: {" ".join(failed)}')


def divided(args: Sequence[str]) -> tuple[list[str], list[str]]:
  """Split arguments at `--` into those before it and those after it."""
  at = args.index('--') if '--' in args else len(args)
  return list(args[:at]), list(args[at + 1:])


def write(name: str) -> bool:
  """Compile a recipe for its pod and write its budget; return False if the recipe cannot be compiled."""
  try:
    found = compiled(name)
  except ConfigError as error:
    print(f'{name}: {error}')
    return False
  FOLDER.mkdir(exist_ok=True)
  (FOLDER / f'{name}.json').write_text(json.dumps(found, indent=2) + '\n')
  return True


def check(name: str, options: Sequence[str] = ()) -> bool:
  """Compile a recipe again, print it next to its budget, and return whether it is within the budget."""
  before = read(name)
  if before is None:
    print(f'{name} has no budget. Write one: python -m benchmarks.budgets --write {name}')
    return False
  try:
    now = compiled(name, options)
  except ConfigError as error:
    print(f'{name}: {error}')
    return False
  print(f'\n{name} compared with its budget:')
  if before['compiler'] != now['compiler']:
    print(f'the budget was written with {before["compiler"]}; this is {now["compiler"]}')
  changes = compared(before, now)
  print(table(changes))
  return not any(change.share > TOLERANCE for change in changes)


def read(name: str) -> Budget | None:
  """Read the budget of a recipe; return None if it has none."""
  path = FOLDER / f'{name}.json'
  return json.loads(path.read_text()) if path.exists() else None


def compiled(name: str, options: Sequence[str] = ()) -> Budget:
  """Compile a recipe for its pod and return its budget; raise ConfigError if it cannot be compiled."""
  recipe = recipes.find_recipe(name)
  config = parse(recipe, ['--mode=compile', f'--topology={recipe.row.pod}', *options])
  return budget(config, compiling.compile_run(config), len(compiling.topology_devices(config.topology)))


def budget(config: RunConfig, reports: Sequence[CompileReport], devices: int) -> Budget:
  """Return the content of a budget file: metrics of a step per device, to four significant digits."""
  mesh = sharding.fit_mesh(config.mesh, devices)
  return {
      'topology': config.topology,
      'devices': devices,
      'kind': reports[0].kind,
      'mesh': {'data': devices // mesh.fsdp // mesh.tensor, 'fsdp': mesh.fsdp, 'tensor': mesh.tensor},
      'micro-steps': config.train.accumulate,
      'compiler': ', '.join(f'{name} {importlib.metadata.version(name)}' for name in ('jax', 'libtpu')),
      'phases': [figures(phase, report) for phase, report in
                 zip(compiling.extreme_phases(config.train.phases), reports, strict=True)]}


def figures(phase: Phase, report: CompileReport) -> dict[str, Any]:
  """Return the metrics of one phase."""
  sent: dict[str, float] = {}
  for (kind, _), (_, _, size) in report.collectives.items():
    sent[kind] = sent.get(kind, 0.0) + size
  return {
      'rows': phase.batch,
      'tokens': phase.length,
      'HBM, GiB': rounded({**report.memory, 'total': report.hbm_bytes}, 2 ** 30),
      'traffic, GB': rounded(report.hbm_traffic, 1e9),
      'model TFLOP': rounded(report.model_flops, 1e12),
      'compiled TFLOP': rounded(report.flops, 1e12),
      'sent, MB': rounded({**dict(sorted(sent.items())), 'total': report.sent_bytes}, 1e6),
      'bounds, ms': rounded(report.lower_bounds, 1e-3),
      'bound by': report.bound_by,
      'bound, ms': rounded(report.lower_bound, 1e-3),
      'MFU': rounded(report.mfu, 1)}


def rounded(value: Any, unit: float) -> Any:
  """Convert a number, or the numbers of a mapping, to a unit, rounded to four significant digits."""
  if isinstance(value, Mapping):
    return {name: rounded(each, unit) for name, each in value.items()}
  return float(f'{value / unit:.4g}')


LIMITED = ('HBM, GiB', 'traffic, GB', 'compiled TFLOP', 'sent, MB', 'bound, ms')


def compared(before: Budget, now: Budget) -> list[Change]:
  """Compare the limited metrics of two budgets, phase by phase.

  Raises:
    ConfigError: the phases differ in batch size or length; the budget must be written again.
  """
  def kinds(budget):
    return [f'{phase["rows"]} x {phase["tokens"]}' for phase in budget['phases']]
  if kinds(before) != kinds(now):
    raise ConfigError(f'the budget is of steps of {", ".join(kinds(before))}, the recipe has {", ".join(kinds(now))}: '
                      'write it anew')
  def total(value):
    return value['total'] if isinstance(value, Mapping) else value
  return [Change(kind, figure, total(old[figure]), total(new[figure]))
          for kind, old, new in zip(kinds(now), before['phases'], now['phases'], strict=True) for figure in LIMITED]


def table(changes: Sequence[Change]) -> str:
  """Format changes as a table."""
  rows = [f'{"rows x tokens":16}{"figure":18}{"budget":>10}{"now":>10}{"change":>9}']
  for change in changes:
    verdict = '  GREW' if change.share > TOLERANCE else '  less: write it' if change.share < -TOLERANCE else ''
    rows.append(f'{change.phase:16}{change.figure:18}{change.before:>10,.4g}{change.now:>10,.4g}{change.share:>+9.1%}'
                f'{verdict}')
  return '\n'.join(rows)


if __name__ == '__main__':
  main()
