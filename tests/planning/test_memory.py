"""The memory of a training step, compared with that of XLA's TPU compiler, and by hand."""
import pytest

from benchmarks import budgets
from plm_jax import recipes, sharding, validation
from plm_jax.planning.devices import GIB, Device
from plm_jax.planning.memory import estimate_memory

# Recipe and index of the compiled phase. Encoders, decoders, encoder-decoders; with and without
# activation checkpointing (LLaMA), sliding windows (ModernBERT, Ettin) and relative positions.
COMPILED = [
    ('bert_base', 1), ('gpt2_small', 0), ('roberta_base', 0), ('albert_base', 0), ('t5_small', 0),
    ('bart_base', 0), ('neobert_base', 0), ('ltg_bert_strict_small', 0), ('llama_7b', 0),
    ('deberta_base', 0), ('glm_base', 0), ('modernbert_base', 1)]
MARKS = {'bert_base': (), 'gpt2_small': (), 't5_small': pytest.mark.slow,
         'modernbert_base': pytest.mark.slow}  # the others are for releases


def device(kind: str, platform='tpu') -> Device:
  return Device('', kind, 0, 0, platform)


@pytest.mark.parametrize(('name', 'number'), [
    pytest.param(*case, marks=MARKS.get(case[0], [pytest.mark.slow, pytest.mark.release]))
    for case in COMPILED])
def test_the_estimate_is_within_a_tenth_of_the_compiled_step(name, number):
  config, budget = recipes.find_recipe(name)('paper'), budgets.read(name)
  compiled, mesh = budget['phases'][number], budget['mesh']
  phase = next(phase for phase in config.train.phases
               if (phase.batch, phase.length) == (compiled['rows'], compiled['tokens']))
  parts = mesh['data'] * mesh['fsdp'] * budget['micro-steps']
  memory = estimate_memory(config, phase, device(budget['kind']))
  needed = memory.total(compiled['rows'] // parts, budget['micro-steps'], mesh['fsdp'])
  assert needed / GIB == pytest.approx(compiled['HBM, GiB']['total'], rel=0.1)


def test_the_parts_of_a_small_step_are_those_counted_by_hand():
  config = recipes.find_recipe('gpt2_small')('test')
  phase, model = config.train.phases[0], config.model
  memory = estimate_memory(config, phase, device('gpu', 'gpu'))
  width, layers = model.block.width, model.stack.layers
  block = 4 * width * width + 4 * width + 2 * 4 * width * width + 5 * width + 4 * width
  parameters = model.vocab * width + model.max_length * width + layers * block + 2 * width
  assert memory.gradients == 4 * parameters
  assert memory.state == pytest.approx(3 * memory.gradients, abs=100)  # two moments, and counters
  logits = 4 * phase.length * model.vocab
  assert 2 * logits < memory.row < 4 * logits
  assert memory.most_rows(memory.total(7)) == 7
  assert memory.total(7, 2) - memory.total(7) == memory.gradients


def test_checkpointing_needs_less_memory_per_sequence():
  config = recipes.find_recipe('bert_base')('test')
  full = validation.with_paths(config, {'model.stack.remat': 'full'})
  phase = config.train.phases[0]
  plain, less = (estimate_memory(run, phase, device('gpu', 'gpu')) for run in (config, full))
  assert less.row < plain.row
  assert less.state == plain.state


def test_a_fused_kernel_keeps_no_probabilities():
  config = validation.with_paths(
      recipes.find_recipe('bert_base')('test'),
      {'model.block.dtype': 'bfloat16', 'model.block.attention.dropout': 0.0})
  phase = config.train.phases[1]
  fused = estimate_memory(config, phase, device('gpu', 'gpu'))
  dropout = validation.with_paths(config, {'model.block.attention.dropout': 0.1})
  plain = estimate_memory(dropout, phase, device('gpu', 'gpu'))
  probabilities = 2 * config.model.block.heads * phase.length ** 2 * config.model.stack.layers
  assert plain.row - fused.row > probabilities
  assert sharding.target_platform() == 'cpu'
