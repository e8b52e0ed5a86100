"""Estimate where a training step stops scaling, without hardware: one batch compiled for more and more chips.

    python -m benchmarks.scaling bert_large --pods v4:2x2x4 v4:4x4x4 v4:8x8x4 v4:8x8x16
    python -m benchmarks.scaling t5_11b --pods v4:4x4x4 v4:8x8x8 --mesh 16x1 64x1 64x4

Needs the extra `tpu`, but no TPU. The batch is that of the recipe's last phase. This is strong scaling, as for a user
who rents more chips for a published run. Each line shows the mesh with the smallest roofline lower bound, and what
limits it, among the meshes (--mesh, FSDPxTENSOR) that divide the batch evenly. If the recipe uses gradient
accumulation, each micro-step has as many sequences per device as on the recipe's pod. Efficiency is tokens per second
per chip, relative to the smallest pod that fits. Several slices are written 2xv5e:16x16.
"""
import argparse
from collections.abc import Iterator
import dataclasses
import re

from benchmarks.side_by_side import machine
from plm_jax import recipes, sharding
from plm_jax.cli import costs
from plm_jax.compile import report as compiling
from plm_jax.compile.report import CHIPS, CompileReport
from plm_jax.config.run import ConfigError, RunConfig
from plm_jax.sharding import MeshConfig, MeshError
from plm_jax.training.learner import make_learner, placeholder_vocab

HEAD = ('pod', 'chips', 'mesh', 'rows a device', 'GiB', 'compute', 'memory', 'network', 'between slices', 'bound, ms',
        'MFU', 'tokens per second', 'efficiency')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('recipe', choices=recipes.all_recipes(), metavar='RECIPE')
  parser.add_argument('--pods', nargs='+', required=True, metavar='TOPOLOGY', help='pods, smallest first')
  parser.add_argument('--mesh', nargs='+', default=[(1, 1), (8, 1), (64, 1)], type=split, metavar='FSDPxTENSOR')
  args = parser.parse_args()
  config = recipes.find_recipe(args.recipe)()
  phase = config.train.phases[-1]
  print(f'{args.recipe}, {phase.batch} x {phase.length}; {machine("jax", "libtpu")}\n')
  print(f'| {" | ".join(HEAD)} |\n{"|---" * len(HEAD)}|')
  first = None
  for pod in args.pods:
    kind, devices = costs.parse_topology(pod)
    best = min(compiled(config, pod, args.mesh), key=lambda found: found[1].lower_bound, default=None)
    if best is None:
      print(f'| {pod} | {costs.count_chips(kind, devices)} | nothing fits |', flush=True)
      continue
    run, report = best
    speed = phase.batch * phase.length / report.lower_bound
    first = first or speed / devices
    cells = (
      pod,
      f'{costs.count_chips(kind, devices):,}',
      named(run),
      f'{phase.batch / run.mesh.data / run.mesh.fsdp:g}',
      f'{report.hbm_bytes / 2**30:.1f}',
      *(f'{1e3 * report.lower_bounds[name]:.1f}' if name in report.lower_bounds else '' for name in HEAD[5:9]),
      f'{1e3 * report.lower_bound:.1f} ({report.bound_by})',
      f'{report.mfu:.0%}',
      f'{speed:,.0f}',
      f'{speed / devices / first:.0%}',
    )
    print(f'| {" | ".join(cells)} |', flush=True)


def split(text: str) -> tuple[int, int]:
  """Parse FSDPxTENSOR.

  Raises:
    argparse.ArgumentTypeError: the text does not have this form.
  """
  found = re.fullmatch(r'(\d+)x(\d+)', text)
  if not found:
    raise argparse.ArgumentTypeError(f'{text!r} is not FSDPxTENSOR, such as 8x1')
  return int(found[1]), int(found[2])


def named(run: RunConfig) -> str:
  """Format a mesh and its number of gradient accumulation steps."""
  mesh, steps = run.mesh, run.train.accumulate
  return f'{mesh.data} x {mesh.fsdp} x {mesh.tensor}' + (f', {steps} micro-steps' if steps > 1 else '')


def compiled(config: RunConfig, pod: str, meshes: list[tuple[int, int]]) -> Iterator[tuple[RunConfig, CompileReport]]:
  """Compile the last phase on every mesh that divides its batch evenly.

  Yields:
    The run and the report of each mesh that fits into device memory.
  """
  devices = compiling.topology_devices(pod)
  phase, hbm = config.train.phases[-1], CHIPS[devices[0].device_kind].hbm_gib
  own = len(compiling.topology_devices(recipes.find_recipe(config.name).row.pod)) // config.mesh.tensor
  rows = max(1, phase.batch // own // config.train.accumulate)
  for fsdp, tensor in meshes:
    if len(devices) % (fsdp * tensor * sharding.count_slices(devices)):
      continue
    mesh = MeshConfig(len(devices) // fsdp // tensor, fsdp, tensor)
    steps = max(1, phase.batch // (mesh.data * fsdp) // rows) if config.train.accumulate > 1 else 1
    run = dataclasses.replace(config, mesh=mesh, train=dataclasses.replace(config.train, accumulate=steps))
    try:
      placed = sharding.make_mesh(mesh, devices)
      sharding.check_batch(phase.batch, steps, placed)
      report = compiling.analyze_step(run, make_learner(run, placeholder_vocab(run)), phase, placed)
    except (ConfigError, MeshError) as error:
      print(f'<!-- {pod}, {named(run)}: {compiling.first_line(error)} -->', flush=True)
      continue
    if report.hbm_bytes <= hbm * 2 ** 30:
      yield run, report


if __name__ == '__main__':
  main()
