"""The search for a mesh, with a compiler that answers from a table."""
import dataclasses
import types

import pytest

from plm_jax import recipes, validation
from plm_jax.cli.run import parse
from plm_jax.compile import report as compiling
from plm_jax.compile import search
from plm_jax.compile.report import CompileReport
from plm_jax.config.run import ConfigError, Phase
from plm_jax.runs.run import run
from plm_jax.sharding import MeshConfig

KIND = 'TPU v5 lite'


def config(*args: str, rows: int = 32):
  found = parse(recipes.find_recipe('bert_base'),
                ['--mode=compile', '--topology=v5e:4x4', '--search', *args])
  phases = (Phase(90, 128, rows), Phase(10, 512, rows))
  return dataclasses.replace(found, train=dataclasses.replace(found.train, phases=phases))


def meshes(runs):
  return [(run.mesh.data, run.mesh.fsdp, run.mesh.tensor) for run in runs]


def test_candidates_are_compiled_in_this_order():
  (first,), second, *later = search.list_candidates(config(), 16)
  assert meshes(first) == [(16, 1, 1), (8, 2, 1), (4, 4, 1), (2, 8, 1), (1, 16, 1)]
  # Eight devices do not divide twelve heads.
  assert [*map(meshes, second)] == [[(8, 1, 2), (4, 2, 2), (2, 4, 2), (1, 8, 2)],
                                    [(4, 1, 4), (2, 2, 4), (1, 4, 4)]]
  assert {(run.train.accumulate, run.model.stack.remat) for runs in (first, *second)
          for run in runs} == {(1, 'none')}
  assert (later[0][0][0].train.accumulate, later[0][0][0].model.stack.remat) == (1, 'dots')
  # Of 8 rows sixteen devices have none each, but where two or more share them.
  assert [*map(meshes, next(search.list_candidates(config(rows=8), 16)))] == [*map(meshes, second)]

  # ELMo has neither heads nor blocks.
  elmo = dataclasses.replace(recipes.find_recipe('elmo_small')(), topology='v2:2x2')
  assert meshes(next(search.list_candidates(elmo, 8))[0])[0] == (8, 1, 1)


@pytest.fixture
def pod(monkeypatch):
  """Sixteen devices: return a function that compiles runs with made-up costs. Its arguments map a
  mesh to the seconds of traffic in both phases (or a run to its seconds), and a run to GiB."""
  monkeypatch.setattr(compiling, 'topology_devices',
                      lambda name: [types.SimpleNamespace(device_kind=KIND)] * 16)
  monkeypatch.setattr(search.sharding, 'make_mesh', lambda mesh, devices: mesh)
  def searched(config, seconds, gib=lambda config: 4.0, of_run=None):
    def analyse(config, phase, mesh):
      short, long = [of_run(config)] * 2 if of_run else seconds((mesh.data, mesh.fsdp, mesh.tensor))
      took = short if phase.length == 128 else long
      traffic = int(took * compiling.CHIPS[KIND].hbm_bandwidth)
      return CompileReport(KIND, {'all': int(gib(config) * 2 ** 30)}, 1e12, 1e12, traffic, {}, 0, 1)
    return search.search_mesh(config, analyse)
  return searched


def test_the_best_over_the_run_is_named(pod, capsys):
  """Nine of ten steps are short, so the best mesh for the long phase is not the best for the
  run."""
  table = {(16, 1, 1): (.020, .040), (8, 2, 1): (.0101, .05), (4, 4, 1): (.0100, .05),
           (2, 8, 1): (.03, .01)}
  best = pod(config(), lambda mesh: table.get(mesh, (.03, .03)))
  assert meshes([best]) == [(8, 2, 1)]  # within a hundredth of the best, and simpler
  printed = capsys.readouterr().out
  assert 'steps of 32 x 128, 32 x 512, one line each' in printed and printed.count(
      'memory') == 2 + 8 + 2
  assert ('best: 8 x 2 x 1, bound by memory: a step takes 14.09 ms or longer, on average over the '
          'run; the others take '
          '0.99 to 1.99 times as long. Give mesh.fsdp=2.') in printed
  assert '50%' in printed  # 1e12 FLOPs at 197e12 a second are 5.08 ms of 10.1


def test_no_more_is_compiled_than_it_takes(pod, capsys):
  """The search begins with as many devices to a copy as the run has, or eight, and turns back where
  more, or fewer, are worse. The best, bound by memory, is compiled once more, with two steps of
  accumulation."""
  def compiled(run, best: int) -> list[int]:
    pod(run, lambda mesh: (.01 * (1 + abs(mesh[1] - best)),) * 2)
    return [int(line.split()[2]) for line in capsys.readouterr().out.splitlines()
            if line[:1].isdigit()]
  copies = dataclasses.replace(config(), mesh=MeshConfig())
  assert compiled(copies, best=8) == [8, 16, 4, 8]
  assert compiled(copies, best=16) == [8, 16, 16]
  assert compiled(copies, best=2) == [8, 16, 4, 2, 1, 2]
  assert config().mesh.fsdp == 4 and compiled(config(), best=2) == [4, 8, 2, 1, 2]
  # A report's products take 5 us: traffic of less leaves them to bind, and nothing to gain.
  pod(copies, lambda mesh: (1e-6, 1e-6))
  assert [line[:9] for line in capsys.readouterr().out.splitlines()
          if line[:1].isdigit()] == ['2 x 8 x 1']


def test_only_options_that_differ_from_the_recipe_are_suggested(pod, capsys):
  recipe = dataclasses.replace(config(), mesh=MeshConfig(fsdp=8, adapts=True))
  for best, typed in (((16, 1, 1), 'Give mesh.fsdp=1.'), ((4, 4, 1), 'Give mesh.fsdp=4.'),
                      ((2, 8, 1), 'No option is needed: the run takes this mesh by itself.')):
    assert meshes([pod(recipe, lambda mesh, best=best: (.01, .01) if mesh == best
                       else (.02, .02))]) == [best]
    assert typed in capsys.readouterr().out


def test_candidates_that_do_not_fit_are_reported_and_others_tried(pod, capsys):
  best = pod(config(), lambda mesh: (.01, .01),
             lambda config: 20.0 if config.model.stack.remat == 'none' else 9.0)
  assert best.model.stack.remat == 'dots' and best.train.accumulate == 1
  printed = capsys.readouterr().out
  assert printed.count(
      'does not fit: 20.0 GiB of 16') == 3 + 2 + 1 and 'model.stack.remat=dots' in printed
  with pytest.raises(ConfigError, match=r'nothing fits v5e:4x4: 20\.0 GiB of 16'):
    pod(config(), lambda mesh: (.01, .01), lambda config: 20.0)


def test_fewer_micro_steps_and_less_recomputation_where_they_fit(pod, capsys):
  """Each micro-step costs traffic, recomputation too; two micro-steps fit, one does not."""
  run = validation.with_paths(config(rows=128),
                              {'train.accumulate': 8, 'model.stack.remat': 'full'})
  def took(run):
    return .01 * run.train.accumulate + .01 * ('none', 'dots', 'full').index(run.model.stack.remat)
  def gib(run):
    return 8.0 / run.train.accumulate + 6.0 * (run.model.stack.remat == 'none')
  best = pod(run, None, lambda run: 10 * (run.train.accumulate == 1) + gib(run), took)
  assert (best.train.accumulate, best.model.stack.remat) == (2, 'none')
  printed = capsys.readouterr().out
  assert 'train.accumulate=2 model.stack.remat=none' in printed
  assert 'does not fit: 18.0 GiB of 16' in printed


@pytest.mark.parametrize(('rows', 'seconds', 'expected'), [
    (1024, {1: .04, 2: .03, 4: .024, 8: .023, 16: .025, 32: .03}, 8),
    (1024, {1: .04, 2: .04, 4: .04, 8: .01}, 1),  # two doublings without a gain are enough
    (1024, {1: .04, 2: .041, 4: .02, 8: .02, 16: .02}, 4),  # one is not
    (128, {1: .04, 2: .03, 4: .02, 8: .01, 16: .005}, 8)])  # a device has eight rows
def test_more_micro_steps_where_memory_bounds_a_step(pod, rows, seconds, expected, capsys):
  run = validation.with_paths(config(rows=rows), {'mesh': MeshConfig(data=16)})
  best = pod(run, lambda mesh: (1.0, 1.0), of_run=lambda run: seconds[run.train.accumulate] + .1
             * (run.mesh.fsdp > 1))
  assert (best.train.accumulate, best.mesh.fsdp) == (expected, 1)
  assert ('train.accumulate' in capsys.readouterr().out) == (expected > 1)


def test_no_more_micro_steps_without_memory_on_the_chip(pod, monkeypatch):
  monkeypatch.setattr(search, 'WITHOUT_CHIP_MEMORY', (KIND,))
  assert pod(config(rows=1024), None, of_run=lambda run: .04
             / run.train.accumulate).train.accumulate == 1


def test_it_is_for_the_compile_mode():
  with pytest.raises(ConfigError, match='search goes with mode=compile and topology=NAME'):
    run(parse(recipes.find_recipe('bert_base'), ['--search']))
