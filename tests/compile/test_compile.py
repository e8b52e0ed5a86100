"""Counts from the text of a compiled program; the compile mode, if the TPU compiler is
installed."""
import dataclasses
import functools
import importlib.util

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
import tiny

from plm_jax import recipes, sharding
from plm_jax.cli.run import main, parse
from plm_jax.compile import report as compile_lib
from plm_jax.compile.hlo import Program, group_size
from plm_jax.compile.hlo_parser import parse_buffers
from plm_jax.compile.report import CompileReport
from plm_jax.config.run import ConfigError, Phase, check
from plm_jax.errors import write_plain
from plm_jax.runs.run import run
from plm_jax.training import run_metrics
from plm_jax.training.step import compute_gradient, init_state

BERT_BASE = recipes.find_recipe('bert_base')
# A loop of (10 - 4) / 2 = 3 rounds. Each multiplies bf16[4, 8] by [8, 16] inside a kernel that
# reads one of ten slices, writes its result in place, sums it over two devices, and sends a piece
# on while it computes.
LOOP = '''HloModule loop, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%kernel (p0: bf16[10,4,8], p1: bf16[8,16], p2: f32[10,4,16], p3: s32[]) -> f32[10,4,16] {
  %p0 = bf16[10,4,8]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(1)
  %p2 = f32[10,4,16]{2,1,0:T(8,128)} parameter(2)
  %p3 = s32[]{:T(128)} parameter(3)
  %zero = s32[]{:T(128)} constant(0)
  %slice = bf16[1,4,8]{2,1,0:T(8,128)(2,1)} dynamic-slice(%p0, %p3, %zero, %zero), \
dynamic_slice_sizes={1,4,8}
  %left = bf16[4,8]{1,0:T(8,128)(2,1)} bitcast(%slice)
  %dot = f32[4,16]{1,0:T(8,128)} dot(%left, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %piece = f32[1,4,16]{2,1,0:T(8,128)} bitcast(%dot)
  ROOT %update = f32[10,4,16]{2,1,0:T(8,128)} dynamic-update-slice(%p2, %piece, %p3, %zero, %zero)
}

%body (state: (s32[], bf16[10,4,8], bf16[8,16], f32[10,4,16], /*index=4*/f32[16])) -> (s32[], \
f32[16]) {
  %state = (s32[]{:T(128)}, bf16[10,4,8]{2,1,0}, bf16[8,16]{1,0}, f32[10,4,16], \
/*index=4*/f32[16]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %rows = bf16[10,4,8]{2,1,0:T(8,128)(2,1)} get-tuple-element(%state), index=1
  %weights = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%state), index=2
  %out = f32[10,4,16]{2,1,0:T(8,128)} get-tuple-element(%state), index=3
  %vector = f32[16]{0} get-tuple-element(%state), index=4
  %two = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)} add(%i, %two)
  %fusion = f32[10,4,16]{2,1,0:T(8,128)} fusion(%rows, %weights, %out, %i), kind=kOutput, \
calls=%kernel
  %reduced = f32[16]{0} all-reduce(%vector), channel_id=1, replica_groups={{0,1},{2,3}}, \
to_apply=%sum
  %send = (f32[16]{0}, f32[16]{0}, u32[]{:S(2)}, u32[]{:S(2)}) \
collective-permute-start(%reduced), channel_id=2
  %sent = f32[16]{0} collective-permute-done(%send)
  ROOT %result = (s32[], bf16[10,4,8], bf16[8,16], f32[10,4,16], f32[16]) tuple(%next, %rows, \
%weights, %fusion, %sent)
}

%condition (state.1: (s32[], bf16[10,4,8], bf16[8,16], f32[10,4,16], f32[16])) -> pred[] {
  %ten = s32[]{:T(128)} constant(10)
  %state.1 = (s32[]{:T(128)}, bf16[10,4,8]{2,1,0}, bf16[8,16]{1,0}, f32[10,4,16]{2,1,0}, \
f32[16]{0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %ten), direction=LT
}

ENTRY %main (x: bf16[10,4,8], w: bf16[8,16], o: f32[10,4,16], v: f32[16]) -> f32[16] {
  %x = bf16[10,4,8]{2,1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="x (the rows)"}
  %w = bf16[8,16]{1,0} parameter(1)
  %o = f32[10,4,16]{2,1,0} parameter(2)
  %v = f32[16]{0} parameter(3)
  %four = s32[]{:T(128)} constant(4)
  %start = s32[]{:T(128)} copy(%four)
  %near = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} copy(%w)
  %tuple = (s32[], bf16[10,4,8], bf16[8,16], f32[10,4,16], f32[16]) tuple(%start, %x, %near, %o, %v)
  %while = (s32[], bf16[10,4,8], bf16[8,16], f32[10,4,16], f32[16]) while(%tuple), \
condition=%condition, body=%body
  ROOT %last = f32[16]{0} get-tuple-element(%while), index=4
}
'''


def test_a_loop_counts_as_often_as_it_runs():
  program = Program(LOOP, devices=4)
  assert program.flops == 3 * 2 * 4 * 16 * 8
  assert not program.unknown_loops
  found = {c.kind: dataclasses.astuple(c)[1:] for c in program.collectives}
  assert found == {'all-reduce': (64, 2, 3, False), 'collective-permute': (64, 4, 3, True)}
  assert [c.sent_bytes for c in program.collectives] == [64.0, 64.0]  # each half twice; the whole


def test_traffic_counts_slices_and_updates_but_not_on_chip_buffers():
  # a slice read, a piece written, the counter; the weights are near
  kernel = 4 * 8 * 2 + 4 * 16 * 4 + 4
  # the counter plus two; the sum and the sending of f32[16]
  others = 3 * 4 + 2 * 16 * 4 + 2 * 16 * 4
  before = 2 * 4 + 8 * 16 * 2  # the counter copied; the weights read
  assert Program(LOOP).hbm_bytes == before + 3 * (kernel + others)


def test_an_in_place_update_in_a_loop_writes_only_the_slice():
  """A piece is made and set into what the kernel gave: by itself, not as the root of a kernel."""
  more = ('  %part = f32[1,4,16]{2,1,0} broadcast(%i), dimensions={}\n'
          '  %more = f32[10,4,16]{2,1,0} dynamic-update-slice(%fusion, %part, %i, %i, %i)\n')
  text = LOOP.replace('  ROOT %result',
                      f'{more}  ROOT %result').replace('%fusion, %sent)', '%more, %sent)')
  # read and written: the counter, the piece; the piece, where it goes
  made, updated = 4 + 256, 256 + 3 * 4 + 256
  assert Program(text).hbm_bytes - Program(LOOP).hbm_bytes == 3 * (made + updated)


def test_cost_estimates_of_kernels_count():
  """Its cost estimate counts like a product in its place: 1,000 more in each of three rounds."""
  call = ('  %sent = f32[16]{0} custom-call(%reduced), custom_call_target="tpu_custom_call", '
          'backend_config={"custom_call_config":{"body":"TUzv","cost_estimate":'
          '{"flops":"1000","transcendentals":"3"}}}')
  text = LOOP.replace('  %sent = f32[16]{0} collective-permute-done(%send)', call)
  assert text != LOOP and Program(text).flops == Program(LOOP).flops + 3 * 1000


def test_vector_operations_are_arithmetic_on_numbers():
  """The counter's sum and comparison, and the kernel's own number; copies, slices and products do
  not count."""
  assert Program(LOOP).vector_operations == 3
  kernel = ('  %sent = f32[16]{0} custom-call(%reduced), custom_call_target="tpu_custom_call", '
            'frontend_attributes={kernel_metadata={\n"vector_operations": "700"\n}}, '
            'backend_config={"custom_call_config":{"body":"TUzv","cost_estimate":'
            '{"flops":"1000"}}}')
  program = Program(LOOP.replace('  %sent = f32[16]{0} collective-permute-done(%send)', kernel))
  assert program.vector_operations == 3 * 701 and program.kernel_flops == 3 * 1000
  text = ('ENTRY %main (x: f32[4,8]) -> f32[4] {\n  %x = f32[4,8] parameter(0)\n  %e = f32[4,8] '
          'exponential(%x)\n'
          '  %zero = f32[] constant(0)\n  ROOT %s = f32[4] reduce(%e, %zero), dimensions={1}, '
          'to_apply=%sum\n}\n')
  assert Program(text).vector_operations == 32 + 32


def test_what_goes_from_slice_to_slice():
  """Half of what three rounds add up goes around twice, in a ring of two; two thirds of it in one
  of three."""
  across = ('frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
            '_xla_megascale_transfer_type="ALL_REDUCE"}')
  send = ('  %away = (f32[16]{0}, u32[], token[]) send(%reduced, %token), channel_id=9, '
          'is_host_transfer=true, '
          + across)
  text = LOOP.replace('  %reduced =', '  %token = token[] after-all()\n  %reduced =', 1)
  line = next(line for line in text.splitlines() if line.startswith('  %reduced ='))
  program = Program(text.replace(line, f'{line}\n{send}'), devices=4)
  assert program.cross_slice_bytes(2) == 3 * 64
  assert program.cross_slice_bytes(3) == pytest.approx(3 * 64 * 4 / 3)
  assert Program(LOOP).cross_slice_bytes(2) == 0


def test_a_loop_of_unknown_length_is_named():
  program = Program(LOOP.replace('constant(4)', 'parameter(4)'))
  assert program.unknown_loops == {'while'} and program.flops == 2 * 4 * 16 * 8
  known = LOOP.replace('body=%body', 'body=%body, backend_config={"known_trip_count":{"n":"7"}}')
  assert Program(known).flops == 7 * 2 * 4 * 16 * 8


@pytest.mark.parametrize(('line', 'flops'), [
    # bqha,bkha->bhqk with b=8, h=12, q=k=128, a=64, as the TPU compiler writes it: a convolution of
    # dilated rows.
    ('f32[8,12,128,128] convolution(%a, %b), window={size=8x12 stride=7x11 lhs_dilate=8x12}, '
     'dim_labels=0b1f_0o1i->01bf'
     ' # bf16[8,128,12,64] bf16[8,128,12,64]', 2 * 8 * 12 * 128 * 128 * 64),
    # [1024, 768] x [768, 12, 64]: heads are a spatial axis; all of its positions but one are
    # padding.
    ('bf16[8,128,12,64] convolution(%a, %b), window={size=1x12 pad=0_0x11_11 rhs_reversal=0x1}, '
     'dim_labels=0bf1_i1o0->0b1f # bf16[8,128,768,1] bf16[768,12,64,1]', 2 * 1024 * 768 * 768),
    # The gradient of a kernel contracts the rows as a spatial axis.
    ('f32[3072,768,1] convolution(%a, %b), window={size=8}, dim_labels=0fb_0io->bf0'
     ' # bf16[8,128,3072] bf16[8,128,768]', 2 * 1024 * 3072 * 768),
    ('bf16[8,2] convolution(%a, %b), dim_labels=bf_io->bf # bf16[8,768] bf16[768,2]',
     2 * 8 * 768 * 2),
])
def test_matrix_products_written_as_convolutions(line, flops):
  line, _, shapes = line.partition(' # ')
  a, b = shapes.split()
  operands = f'  %a = {a} parameter(0)\n  %b = {b} parameter(1)\n'
  text = f'ENTRY %main (a: {a}, b: {b}) -> f32[] {{\n{operands}  ROOT %c = {line}\n}}\n'
  assert Program(text).flops == flops


def test_groups_and_shapes():
  assert group_size("replica_groups=mesh['axis_0'=4,'axis_1'=8] {'axis_1'}, x", 32) == 8
  assert group_size("replica_groups=mesh['a'=32] {'a':(1)4}", 32) == 4
  assert group_size(
      "replica_groups=mesh['a'=16,'b'=8], device_ids=([8,16]T(1,0)) {'a'}, dimensions={1}",
      128) == 16
  assert group_size('replica_groups=[2,16]<=[32]', 32) == 16
  assert group_size('replica_groups={{0,1,2},{3,4,5}}', 6) == 3
  assert group_size('source_target_pairs={{0,1}}', 6) == 6
  both = parse_buffers(
      '(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/pred[5]{0}, s4[3]{0}, token[])')
  assert [(b.bytes, b.on_chip) for b in both] == [(12, True), (5, False), (2, False), (0, False)]
  # common memory of v4, HBM, the host's
  spaces = parse_buffers('(f32[2]{0:S(3)}, f32[2]{0}, f32[2]{0:S(5)})')
  assert [b.on_chip for b in spaces] == [True, False, False]


def test_a_collective_split_over_kernels_counts_once():
  kernel = ('%part{0} (p: f32[4]) -> f32[8] {{\n  %p = f32[4] parameter(0)\n'
            '  ROOT %g{0} = f32[8] all-gather(%p), channel_id=5, replica_groups={{{{0,1}}}}, '
            'dimensions={{0}}\n}}\n')
  text = kernel.format(1) + kernel.format(2) + (
      'ENTRY %main (x: f32[4]) -> f32[8] {\n  %x = f32[4] parameter(0)\n  %f1 = f32[8] fusion(%x), '
      'calls=%part1\n'
      '  ROOT %f2 = f32[8] fusion(%x), calls=%part2\n}\n')
  assert [(c.kind, c.bytes, c.times) for c in Program(text).collectives] == [('all-gather', 32, 1)]


def test_scanned_and_unrolled_products_count_the_same():
  def chain(x, w, unroll):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w, unroll=unroll)[0].sum()
  x, w = jnp.ones((8, 16)), jnp.ones((6, 16, 16))
  for times, function in ((1, chain), (3, jax.grad(chain, (0, 1)))):
    counts = {unroll: Program(jax.jit(functools.partial(function, unroll=unroll)).lower(
        x, w).compile().as_text()).flops
              for unroll in (1, 6)}
    assert counts[1] == counts[6] == times * 6 * 2 * 8 * 16 * 16


@pytest.mark.slow
@pytest.mark.parametrize('scan', [True, False])
def test_the_analytic_count_is_the_compiled_one(scan):
  """A gradient of the model: 3 times its forward pass, of the matrix products."""
  learner = tiny.learner(scan=scan, layers=4)
  windows = tiny.windows(8)
  params = jax.eval_shape(lambda: nn.unbox(init_state(learner, windows)).params)
  def step(params, windows):
    batch = learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)
    return compute_gradient(learner, params, batch, learner.key('dropout'))
  program = Program(jax.jit(step).lower(params, windows).compile().as_text())
  predicted = learner.objective.max_predictions(tiny.LENGTH)
  analytic = 3 * 8 * tiny.config(layers=4).forward_flops(tiny.LENGTH, predicted)
  assert program.flops == pytest.approx(analytic, rel=0.03)


def test_wrong_topologies_and_a_missing_compiler_are_refused(monkeypatch, capsys):
  config = parse(BERT_BASE, ['--scale=test'])
  with pytest.raises(ConfigError, match='go together'):
    check(dataclasses.replace(config, mode='compile'))
  with pytest.raises(ConfigError, match='go together'):
    check(dataclasses.replace(config, topology='v2:4x4'))
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(SystemExit, match=r"pip install 'plm_jax\[tpu\]'"):
    main(BERT_BASE, ['--scale=test', '--mode=compile', '--topology=v2:2x2'])
  assert not capsys.readouterr().out


def test_one_phase_of_a_kind_is_compiled():
  phases = [Phase(1, 128, 4), Phase(2, 128, 8), Phase(3, 128, 16), Phase(4, 512, 8),
            Phase(5, 512, 8), Phase(6, 128, 4)]
  found = compile_lib.extreme_phases(phases)
  assert [(phase.length, phase.batch) for phase in found] == [(128, 4), (128, 16), (512, 8)]


def test_every_chip_has_a_peak():
  from plm_jax.training.run_metrics import PEAK_FLOPS
  assert set(compile_lib.CHIPS) <= set(PEAK_FLOPS)


@pytest.fixture
def compiler():
  """The TPU compiler, if this machine can load it."""
  pytest.importorskip('libtpu')
  return compile_lib.topology_devices('v2:2x2')


@pytest.mark.slow
@pytest.mark.compiler
def test_a_recipe_compiles_for_a_pod_without_its_hardware(compiler, capsys):
  assert len(compiler) == 8
  args = ['--scale=test', '--mode=compile', '--topology=v2:2x2', '--mesh.fsdp=2',
          '--model.block.width=128',
          '--model.block.mlp-dim=256']
  assert run(parse(BERT_BASE, args)) is None
  out = capsys.readouterr().out
  assert out.count('bound by') == 2 and '8 x TPU v2, mesh 4 data x 2 fsdp x 1 tensor' in out
  assert sharding.count_slices(compile_lib.topology_devices('2xv5e:2x2')) == 2
  with pytest.raises(SystemExit, match='v5e:4x4'):
    main(BERT_BASE, ['--scale=test', '--mode=compile', '--topology=v9:2x2'])
  with pytest.raises(SystemExit, match='a batch of 8 sequences cannot be divided evenly: 32'):
    main(BERT_BASE, ['--scale=test', '--mode=compile', '--topology=v2:4x4'])


@pytest.mark.slow
@pytest.mark.compiler
def test_a_step_that_does_not_fit_is_refused(compiler):
  config = parse(BERT_BASE, ['--mode=compile', '--topology=v2:2x2'])
  phases = (Phase(1, 512, 8 * 32),)
  config = dataclasses.replace(config, train=dataclasses.replace(config.train, phases=phases))
  with pytest.raises(ConfigError,
                     match=r'(?s)do not fit the memory of a device: .*\dG.*train.accumulate'):
    run(config)


def test_advice_depends_on_which_memory_is_too_small():
  hbm = ('RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.00G of 15.48G hbm. '
         'Exceeded by 4G.\n'
         '  1. Size: 8.00G\n     Shape: bf16[8,2048]{1,0}\n')
  text = write_plain(compile_lib.out_of_memory_message(hbm, Phase(1, 512, 256)))
  assert text.startswith(
      '256 rows of 512 tokens do not fit the memory of a device: Used 20.00G of 15.48G hbm.')
  assert '1. Size: 8.00G  Shape: bf16[8,2048]{1,0}' in text and 'train.accumulate' in text
  vmem = hbm.replace('20.00G of 15.48G hbm', '94.23M of 63.94M vmem')
  text = write_plain(compile_lib.out_of_memory_message(vmem, Phase(1, 512, 256)))
  assert 'a core (VMEM): Used 94.23M of 63.94M vmem.' in text
  assert 'mesh.fsdp (half of it, say)' in text and 'accumulate' not in text


def test_an_out_of_memory_error_is_one_line_with_advice():
  """The message comes from a CPU's allocator."""
  message = (r'^64 rows of 128 tokens do not fit the memory of a device: no room for a buffer of '
             r'2\.0 GiB\.\nTry train\.')
  with pytest.raises(ConfigError,
                     match=message), compile_lib.explain_out_of_memory(Phase(1, 128, 64)):
    raise jax.errors.JaxRuntimeError(
        f'RESOURCE_EXHAUSTED: Out of memory allocating {2 ** 31} bytes.')
  with pytest.raises(jax.errors.JaxRuntimeError,
                     match='another'), compile_lib.explain_out_of_memory(Phase(1, 128, 64)):
    raise jax.errors.JaxRuntimeError('INTERNAL: another error')


def test_a_step_that_compiles_must_also_fit_the_memory():
  """A v5p chip has 95 GiB."""
  GiB = 2 ** 30
  memory = {'parameters': GiB, 'temporaries': 94 * GiB}
  compile_lib.check_memory('TPU v5', memory, Phase(1, 2048, 1024))
  with pytest.raises(ConfigError, match=(
      r'^1024 rows of 2048 tokens do not fit the memory of a device: 101\.0 of 95 GiB, of which '
      r'100\.0 are temporaries'
      r'\.\nTry train\.accumulate 2')):
    compile_lib.check_memory('TPU v5', memory | {'temporaries': 100 * GiB}, Phase(1, 2048, 1024))


def test_gradients_that_nothing_needs_are_no_utilisation():
  peak = run_metrics.PEAK_FLOPS['TPU v3']
  for model, computed, share in ((peak, peak, 1.0), (peak / 2, peak, 0.5),
                                 (peak, peak * 2 / 3, 1.0)):
    assert CompileReport('TPU v3', {}, model, computed, 0, {}, 0, 1.0).mfu == pytest.approx(share)
