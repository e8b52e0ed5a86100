"""A vocabulary, windows of text, a model and a learner so small that they compile in a second or
two."""
from collections.abc import Iterator
import contextlib
import functools
import random

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import validation
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.layers.block import BlockConfig
from plm_jax.layers.kernels import tpu_attention
from plm_jax.layers.stack import StackConfig
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.optim.optimizers import AdamW, OptimConfig
from plm_jax.optim.transformations import make_optimizer
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.step import Learner, train_step

VOCAB = Vocab(size=96, pad=0, unk=1, cls=2, sep=3, mask=4)
LENGTH = 32


def block(**changes) -> BlockConfig:
  """changes: fields of the block; for its parts, mappings of their fields."""
  flat = {key: value for key, value in changes.items() if not isinstance(value, dict)}
  inner = {f'{key}.{name}': value for key in changes.keys() - flat.keys()
           for name, value in changes[key].items()}
  return validation.with_paths(
      BlockConfig(), {'width': 32, 'heads': 4, 'mlp_dim': 64, 'init.std': 0.2, **flat, **inner})


def config(layers=2, groups=0, scan=True, remat='none', **changes) -> EncoderConfig:
  return EncoderConfig(
      vocab=VOCAB.size, block=block(**changes),
      stack=StackConfig(layers, groups, scan=scan, remat=remat),
      max_length=LENGTH)


@functools.cache
def learner(objective: MaskedLM = MaskedLM(), accumulate: int = 1, optim: OptimConfig | None = None,
            seed: int = 3,
            **changes) -> Learner:
  model = config(**changes)
  optim = optim or AdamW(peak=1e-2, warmup=1, schedule='constant')
  return Learner(objective.build(model, packed=False), objective, make_optimizer(optim, 10), VOCAB,
                 seed,
                 accumulate)


def traced_step(learner: Learner, layout):
  """Stands in for `training.step.jit_train_step` where a run is to do all but learn: the step is
  traced and not compiled, its state must keep its shapes, parameters stay as they are, and figures
  are ones."""
  del layout
  step = jax.jit(functools.partial(train_step, learner))
  def update(state, windows):
    after, numbers = step.eval_shape(state, windows)
    kinds = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (state, after)]
    assert kinds[0] == kinds[1]
    return state.replace(step=state.step + 1), jax.tree.map(
        lambda x: np.full(x.shape, jnp.issubdtype(x.dtype, jnp.inexact), x.dtype), numbers)
  return update


def windows(
    rows: int, length: int = MaskedLM().text_length(LENGTH), seed: int = 0,
    shortest: int = 1) -> dict[str, np.ndarray]:
  """Each row of another document, with a random number of whole sentences of random words; tokens 5
  .. 95."""
  draw = np.random.default_rng(seed)
  batch = {name: np.zeros((rows, length), np.int32)
           for name in ('tokens', 'segments', 'sentences', 'words')}
  for row in range(rows):
    size = draw.integers(shortest, length + 1)
    starts = np.zeros(size, bool)
    starts[np.minimum(np.cumsum(draw.integers(2, 9, size)), size - 1)] = True
    starts[0] = True
    word = starts | (draw.random(size) < 0.7)
    batch['tokens'][row, :size] = draw.integers(5, VOCAB.size, size)
    batch['segments'][row, :size] = 1
    batch['sentences'][row, :size] = np.cumsum(starts)
    batch['words'][row, :size] = np.cumsum(word)
  number = np.arange(rows, dtype=np.int32)
  return batch | dict(document=number, corpus=0 * number, index=number + 7, epoch=0 * number)


def windows_with_a_rare_token(rows: int, length: int) -> dict[str, np.ndarray]:
  """Each row has token 30 once, at a random position, and token 20 everywhere else."""
  tokens = np.full((rows, length), 20, np.int32)
  tokens[np.arange(rows), np.random.default_rng(0).integers(length, size=rows)] = 30
  ones = np.ones((rows, length), np.int32)
  return dict(tokens=tokens, segments=ones, words=np.cumsum(ones, 1), corpus=np.zeros(rows, int),
              index=np.arange(rows), epoch=np.zeros(rows, int))


def random_params(shapes, seed: int = 0, std: float = 0.15):
  """Every entry random, biases too, so that none can be left out unnoticed; gains around 1.
  Compiles nothing."""
  draw = np.random.default_rng(seed)
  def leaf(path, x):
    gain = getattr(path[-1], 'key', '') == 'scale'
    return jnp.asarray(gain + std * draw.normal(size=x.shape), x.dtype)
  return jax.tree_util.tree_map_with_path(leaf, unbox(shapes))


@contextlib.contextmanager
def interpreted_tpu_attention() -> Iterator[list[tpu_attention.Arrays]]:
  """Inside it, attention takes the kernel for TPUs, in Pallas' interpreter. Yields the arrays of
  its calls."""
  calls, attend = [], tpu_attention.attend
  def interpret(arrays, *args, **options):
    calls.append(arrays)
    return attend(arrays, *args, **options, on='TPU v4', interpret=True)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tpu_attention, 'supports', lambda *_, **__: True)
    patch.setattr(tpu_attention, 'attend', interpret)
    yield calls


def take(tree, rows):
  return jax.tree.map(lambda x: x[rows], tree)


def flat(tree) -> dict:
  """A tree of dicts -> {'layers/block/query': leaf}."""
  return {'/'.join(entry.key for entry in path): x
          for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]}


def assert_same(a, b):
  """Bit for bit."""
  a, b = jax.device_get((a, b))
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(got, want, rel=1e-5):
  """Compare every leaf with a tolerance of `rel` times its largest entry, or times a hundredth of
  the largest entry of all leaves.

  The second bound is for gradients that are zero except for rounding, such as those of key
  biases, which do not change the softmax.
  """
  got, want = flat(jax.device_get(got)), flat(jax.device_get(want))
  assert got.keys() == want.keys()
  floor = max(np.abs(x).max() for x in want.values()) / 100
  errors = {name: np.abs(got[name] - x).max() / max(np.abs(x).max(), floor)
            for name, x in want.items()}
  worst = max(errors, key=errors.get)
  assert errors[worst] <= rel, (worst, errors[worst])


def text() -> str:
  """Three hundred documents in a language of two thousand words: enough for tokenizers to find
  2,048 pieces in."""
  draw = random.Random(0)
  syllables = [a + b for a in 'bdfgklmnprstvz' for b in 'aeiou']
  words = [''.join(draw.choices(syllables, k=draw.randint(2, 4))) for _ in range(2000)]
  def sentence():
    return f'{" ".join(draw.choices(words, k=draw.randint(5, 10)))}.'.capitalize()
  return '\n\n'.join('\n'.join(' '.join(sentence() for _ in range(3)) for _ in range(3))
                     for _ in range(300))
