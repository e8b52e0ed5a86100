"""Check every family on an NVIDIA GPU: training in bfloat16, agreement with the CPU, speed of the fused kernel.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --recipe albert_base llama_7b --layers 8 --rows 32

Prints a table with one row per recipe; each takes a minute or two. Uses random text, so nothing has to be prepared or
downloaded. The columns:

- run: the first and the last loss of the steps of `--scale=test` in bfloat16
- loss, gradient: difference from the CPU for the same model in float32 and full precision. The loss difference is
  relative. For the gradient it is the largest difference as a share of the largest entry of its array, or of a
  hundredth of the largest entry of all arrays if that is greater: key biases have zero gradient. Dropout and
  corruption are the same on both devices
- step: milliseconds of a step at the paper's sizes with only a few layers, in bfloat16 without attention dropout, and
  the memory that it needs in addition to the state. Attention is computed by matrix products, and by cuDNN where
  `plm_jax/layers/kernels/cudnn.py` supports it

Exits with status 1 if a loss is not finite or the gradient differs by more than 1e-3. Prints a message if there is no
GPU.
"""
import argparse
import contextlib
import dataclasses
import sys
import time
from typing import Any

from flax.linen import unbox
import jax
import numpy as np

from plm_jax import recipes, validation
from plm_jax.layers.kernels import cudnn
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.learner import make_learner
from plm_jax.training.step import Learner, compute_gradient, init_state, jit_train_step, total_loss

RECIPES = ('bert_base', 'roberta_base', 'albert_base', 'spanbert_base', 'distilbert_base', 'deberta_base',
           'deberta_v3_small', 'electra_base', 'xlnet_base', 'gpt_base', 'gpt2_small', 'gpt3_small', 'llama_7b',
           'palm_8b', 'glm_base', 't5_base', 't5_v1_1_base', 'mt5_small', 'bart_base', 'mbart_large',
           'transformer_base')
HEAD = ('recipe', 'run, loss', 'loss beside the CPU', 'gradient beside the CPU', 'step written out', 'fused', 'ratio')
TOLERANCE = 1e-3


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--recipe', nargs='*', default=list(RECIPES))
  parser.add_argument('--layers', type=int, default=4, help='layers of the timed model')
  parser.add_argument('--rows', type=int, default=8, help='batch size of the timed model')
  parser.add_argument('--rehearse', action='store_true', help='run on a CPU, without the steps of paper scale')
  args = parser.parse_args()
  gpu = jax.devices()[0]
  if gpu.platform != 'gpu' and not args.rehearse:
    print(f'There is no GPU here: JAX {jax.__version__} runs on {gpu.device_kind} ({gpu.platform}).')
    return
  print(f'{gpu.device_kind}, compute capability {getattr(gpu, "compute_capability", "?")}, JAX {jax.__version__}\n')
  print('| ' + ' | '.join(HEAD) + ' |\n' + '|---' * len(HEAD) + '|')
  good = [row(name, gpu, args.layers, args.rows, not args.rehearse) for name in args.recipe]
  sys.exit(not all(good))


def row(name: str, device: Any, layers: int, rows: int, full: bool = True) -> bool:
  """Print a recipe's row, with steps at the paper's sizes if `full`.

  Returns:
    Whether all losses are finite and the gradient agrees with the CPU's.
  """
  losses = trained(name, device)
  loss, difference = beside_the_cpu(name, device)
  cells = [name, f'{losses[0]:.3f} to {losses[-1]:.3f}', f'{loss:.1e}', f'{difference:.1e}']
  try:
    if full:
      plain = timed(name, device, layers, rows, fused=False)
      cells.append(f'{plain[0]:.1f} ms, {plain[1]:.2f} GiB')
    if full and cudnn_called(name, layers, rows):
      kernel = timed(name, device, layers, rows, fused=True)
      cells += [f'{kernel[0]:.1f} ms, {kernel[1]:.2f} GiB', f'{plain[0] / kernel[0]:.2f}']
  except jax.errors.JaxRuntimeError as error:  # usually out of memory
    cells.append(f'failed: {str(error).splitlines()[0][:80]}')
  print('| ' + ' | '.join([*cells, *[''] * (len(HEAD) - len(cells))]) + ' |', flush=True)
  return bool(np.isfinite(losses).all() and difference <= TOLERANCE)


def trained(name: str, device: Any) -> list[float]:
  """Return the losses of the steps of `--scale=test`, in bfloat16."""
  recipe = recipes.find_recipe(name)('test')
  learner = learner_of(in_bfloat16(recipe))
  with jax.default_device(device):
    state, losses = jax.jit(lambda w: unbox(init_state(learner, w)))(text(recipe, recipe.train.phases[0])), []
    step = jit_train_step(learner, None)
    for phase in recipe.train.phases:
      for _ in range(phase.steps):
        state, metrics = step(state, text(recipe, phase, seed=len(losses)))
        losses.append(float(metrics['loss']))
  return losses


def beside_the_cpu(name: str, device: Any) -> tuple[float, float]:
  """Return the relative differences of loss and gradient from the CPU's in float32, as defined above."""
  recipe = recipes.find_recipe(name)('test')
  learner, windows = learner_of(recipe), text(recipe, recipe.train.phases[0])

  def loss_and_gradient(params, windows):
    batch = learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)
    grads, metrics = compute_gradient(learner, params, batch, learner.key('dropout'))
    return total_loss(learner.objective.terms, metrics), grads

  cpu, found = jax.devices('cpu')[0], []
  with jax.default_matmul_precision('highest'):
    with jax.default_device(cpu):
      params = jax.jit(lambda w: unbox(init_state(learner, w)).params)(windows)
    for where in (cpu, device):
      with jax.default_device(where):
        found.append(jax.device_get(jax.jit(loss_and_gradient)(*jax.device_put((params, windows), where))))
  (loss, grads), (other, others) = found
  floor = max(np.abs(x).max() for x in jax.tree.leaves(grads)) / 100
  differences = jax.tree.map(lambda x, y: np.abs(x - y).max() / max(np.abs(x).max(), floor), grads, others)
  return float(abs(loss - other) / abs(loss)), float(max(jax.tree.leaves(differences)))


def timed(name: str, device: Any, layers: int, rows: int, fused: bool, steps: int = 10) -> tuple[float, float]:
  """Return the milliseconds per step, and the GiB of temporary memory that it needs in addition to the state."""
  learner, windows = full_size(name, layers, rows)
  with jax.default_device(device), contextlib.nullcontext() if fused else written_out():
    state = jax.jit(lambda w: unbox(init_state(learner, w)))(windows)
    step = jit_train_step(learner, None).lower(state, windows).compile()
  memory: Any = step.memory_analysis()
  windows = jax.device_put(windows, device)
  for _ in range(2):
    state, metrics = step(state, windows)
  jax.block_until_ready(metrics)
  start = time.perf_counter()
  for _ in range(steps):
    state, metrics = step(state, windows)
  jax.block_until_ready(metrics)
  return 1000 * (time.perf_counter() - start) / steps, memory.temp_size_in_bytes / 2**30


def cudnn_called(name: str, layers: int, rows: int) -> bool:
  """Return whether the step calls cuDNN's fused kernel."""
  learner, windows = full_size(name, layers, rows)
  state = unbox(jax.eval_shape(lambda w: init_state(learner, w), windows))
  return '__cudnn$fmha' in jit_train_step(learner, None).lower(state, windows).as_text()


def full_size(name: str, layers: int, rows: int) -> tuple[Learner, dict[str, np.ndarray]]:
  recipe = recipes.find_recipe(name)('paper')
  model = recipe.model
  shallow = {stack: dataclasses.replace(getattr(model, stack), layers=min(layers, getattr(model, stack).layers))
             for stack in ('stack', 'decoder', 'source') if dataclasses.is_dataclass(getattr(model, stack, None))}
  model = dataclasses.replace(
      model, **shallow, block=validation.with_paths(model.block, {'attention.dropout': 0.0}))
  recipe = dataclasses.replace(recipe, model=model)
  phase = dataclasses.replace(recipe.train.phases[-1], batch=rows)
  return dataclasses.replace(learner_of(recipe), accumulate=1), text(recipe, phase)


@contextlib.contextmanager
def written_out():
  """Compute attention by matrix products on every GPU, without the fused kernel."""
  takes, cudnn.supports = cudnn.supports, lambda *args, **kwargs: False
  try:
    yield
  finally:
    cudnn.supports = takes


def in_bfloat16(recipe: Any) -> Any:
  block = dataclasses.replace(recipe.model.block, dtype='bfloat16')
  return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, block=block))


def learner_of(recipe: Any) -> Learner:
  """Return a learner whose vocabulary has every special token that an objective needs."""
  size = recipe.model.vocab
  return make_learner(recipe, Vocab(
      size, max(recipe.model.padding, 0), unk=1, cls=2, sep=3, mask=4, bos=5, eos=6, sop=7, eop=8, gmask=9, smask=10,
      sentinel=size - 1, sentinels=min(1000, size // 4), language=11))


def text(recipe: Any, phase: Any, seed: int = 0) -> dict[str, np.ndarray]:
  """Return windows of random words, two tokens per word and sixteen words per sentence."""
  rows, length = phase.batch, recipe.objective.text_length(phase.length)
  place = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
  tokens = np.random.default_rng(seed).integers(12, recipe.model.vocab // 2, (rows, length), np.int32)
  number = np.arange(rows, dtype=np.int32)
  return {'tokens': tokens, 'segments': np.ones_like(tokens), 'sentences': place // 32 + 1, 'words': place // 2 + 1,
          'document': number, 'corpus': 0 * number, 'index': number + rows * seed, 'epoch': 0 * number}


if __name__ == '__main__':
  main()
