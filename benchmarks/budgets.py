"""What the TPU compiler says of recipes' steps, kept in files: a change that takes more shows as a change of figures.

    python -m benchmarks.budgets --write bert_base gpt2_small    # into benchmarks/budgets/NAME.json
    python -m benchmarks.budgets --check bert_base               # compiled again, beside the file
    python -m benchmarks.budgets --check bert_base -- --mesh.fsdp=1    # with options of a run, as if it were changed so

Needs the extra `tpu`, and no TPU; a minute or more a recipe. A check ends with 1 where memory, traffic, FLOPs, what is
sent or the bound grew by more than `TOLERANCE`. The same compiler makes the same program twice: what differs is ours. A
file says which compiler it is from, and so does the check where it has another.
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
"""share by which a figure may grow"""
Budget = dict[str, Any]


class Change(NamedTuple):
  """A figure that a budget limits."""

  phase: str
  figure: str
  before: float
  now: float

  @property
  def share(self) -> float:
    """Of what was before, that has come on top."""
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
  """Divides arguments at `--`: what is before, what is behind."""
  at = args.index('--') if '--' in args else len(args)
  return list(args[:at]), list(args[at + 1:])


def write(name: str) -> bool:
  """Compiles a recipe for its pod and writes its budget. Tells whether it fits."""
  try:
    found = compiled(name)
  except ConfigError as error:
    print(f'{name}: {error}')
    return False
  FOLDER.mkdir(exist_ok=True)
  (FOLDER / f'{name}.json').write_text(json.dumps(found, indent=2) + '\n')
  return True


def check(name: str, options: Sequence[str] = ()) -> bool:
  """Compiles a recipe again and prints it beside its budget. Tells whether it is within."""
  before = read(name)
  if before is None:
    print(f'{name} has no budget: python -m benchmarks.budgets --write {name}')
    return False
  try:
    now = compiled(name, options)
  except ConfigError as error:
    print(f'{name}: {error}')
    return False
  print(f'\n{name} beside its budget:')
  if before['compiler'] != now['compiler']:
    print(f'the budget is of {before["compiler"]}, this is of {now["compiler"]}')
  changes = compared(before, now)
  print(table(changes))
  return not any(change.share > TOLERANCE for change in changes)


def read(name: str) -> Budget | None:
  """Reads the budget of a recipe; None where it has none."""
  path = FOLDER / f'{name}.json'
  return json.loads(path.read_text()) if path.exists() else None


def compiled(name: str, options: Sequence[str] = ()) -> Budget:
  """Compiles a recipe for its pod -> its budget. Raises ConfigError where it does not fit."""
  recipe = recipes.find_recipe(name)
  config = parse(recipe, ['--mode=compile', f'--topology={recipe.row.pod}', *options])
  return budget(config, compiling.compile_run(config), len(compiling.topology_devices(config.topology)))


def budget(config: RunConfig, reports: Sequence[CompileReport], devices: int) -> Budget:
  """Returns what is written: figures of four digits, a step's of one device."""
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
  """Returns the figures of one phase."""
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
  """Returns a number, or those of a mapping, in a unit, to four digits."""
  if isinstance(value, Mapping):
    return {name: rounded(each, unit) for name, each in value.items()}
  return float(f'{value / unit:.4g}')


LIMITED = ('HBM, GiB', 'traffic, GB', 'compiled TFLOP', 'sent, MB', 'bound, ms')


def compared(before: Budget, now: Budget) -> list[Change]:
  """Compares the figures that are limited, phase by phase. Raises ConfigError where the phases are others: what the
  recipe trains has changed, and its budget has to be written anew."""
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
  """Lays out changes."""
  rows = [f'{"rows x tokens":16}{"figure":18}{"budget":>10}{"now":>10}{"change":>9}']
  for change in changes:
    verdict = '  GREW' if change.share > TOLERANCE else '  less: write it' if change.share < -TOLERANCE else ''
    rows.append(f'{change.phase:16}{change.figure:18}{change.before:>10,.4g}{change.now:>10,.4g}{change.share:>+9.1%}'
                f'{verdict}')
  return '\n'.join(rows)


if __name__ == '__main__':
  main()
