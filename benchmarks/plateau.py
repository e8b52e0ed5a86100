"""Compare short runs of a small BERT with different positions and options: which ones leave the plateau, and when.

    python -m benchmarks.plateau --text=wiki.txt.xz --output=runs/plateau
    python -m benchmarks.plateau --text=wiki.txt.xz --output=runs/plateau --arms learned rope
    python -m benchmarks.plateau --text=- --output=benchmarks/figures/plateau --only table figure  # of stored results

All arms are encoders of two layers. They have the modern changes of `benchmarks.modern` except for the positions, no
dropout, and a learning rate that stays constant after its warmup. Stored results are not computed again.
"""
import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import pathlib
import sys
from typing import Any, NamedTuple

from flax import traverse_util
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import equal_time, kept, modern
import plm_jax
from plm_jax import validation
from plm_jax.config.run import Phase, PretrainRun, TrainConfig
from plm_jax.layers.dense import with_logical_axes
from plm_jax.layers.positions import NoPosition
from plm_jax.layers.t5_relative_bias import Buckets
from plm_jax.runs import run as runs
from plm_jax.training.learner import state_shapes
from plm_jax.training.step import compute_gradient
from plm_jax.validation import intervals

STAGES = 'train', 'signal', 'table', 'figure'
EVALUATIONS = 8  # of a run
LEFT = 6.2  # held-out loss below which a model has left the plateau
DRAWN = 'none', 'learned', 'sinusoidal', 'pair_bias', 'shared_bias', 'rope', 'short'
DISTANCES = -4, -3, -2, -1, 1, 2, 3, 4  # of the keys from the query, in tokens


@dataclasses.dataclass(frozen=True)
class TableBias(NoPosition):
  """A learned bias of the attention logits for each head, in a table of distances or of pairs of positions."""

  limits = intervals(length='[1, inf)', factor='(0, inf)')

  shared: bool = False
  """One bias for all pairs of positions with the same distance; False: one for each pair."""
  length: int = 128
  """Number of positions."""
  factor: float = 30.0
  """Factor on the table. AdamW changes a number by about the learning rate per step, which is little for a logit."""

  def context(self, scope, cfg, q_positions, k_positions):
    """Look up the bias: [batch, heads, queries, keys]."""
    rows = k_positions[:, None, :] - q_positions[:, :, None] + self.length - 1
    size = 2 * self.length - 1
    if not self.shared:
      rows, size = q_positions[:, :, None] * self.length + k_positions[:, None, :], self.length ** 2
    table = scope.param('bias_table', with_logical_axes(nn.initializers.zeros, ('heads', None)), (cfg.heads, size))
    return {'bias': self.factor * jnp.moveaxis(table[:, rows], 0, 1)}

  def interact(self, scope, cfg, q, k, context, query, key):
    """Return q and k unchanged, and the bias."""
    del scope, cfg, query, key
    return q, k, context['bias']


class Arm(NamedTuple):
  """A run."""

  title: str
  changes: Mapping[str, Any]
  """fields of the run that differ from those of `learned`, by paths"""
  peak: float = 1e-3
  warmup: int = 100
  rows: int = 16
  length: int = 128
  width: int = 256


def without(scheme: NoPosition = NoPosition(), absolute: str = 'none') -> dict[str, Any]:
  """Return the fields of a model with other positions than learned ones."""
  return {'model.embeddings.absolute': absolute, 'model.block.attention.position': scheme}


MUON = {'optim.kind': 'muon'}
SHORT = {'rows': 64, 'length': 32}
ARMS = {
    'none': Arm('no positions', without()),
    'learned': Arm('learned', {}),
    'sinusoidal': Arm('sinusoidal, as large as the token vectors', without(absolute='scaled')),
    'rope': Arm('RoPE', modern.rotary()),
    't5': Arm("T5's bias (per bucket of distances)", without(Buckets())),
    'shared_bias': Arm('a bias per distance, rate x 30', without(TableBias(shared=True))),
    'pair_bias': Arm('a bias per pair of positions, rate x 30', without(TableBias())),
    'slow_shared_bias': Arm('a bias per distance', without(TableBias(shared=True, factor=1.0))),
    'muon': Arm('learned, Muon', MUON, peak=2e-3),
    'short_rope': Arm('RoPE, 64 x 32 tokens', modern.rotary(), **SHORT),
    'short': Arm('learned, 64 x 32 tokens', {}, **SHORT),
    'short_large_batch': Arm('learned, 256 x 32 tokens', {}, rows=256, length=32),
    'short_muon': Arm('learned, 64 x 32, Muon', MUON, peak=2e-3, **SHORT),
    'short_post_norm': Arm('learned, 64 x 32, post-norm', {
        'model.block.norm_at': 'post', 'model.embeddings.norm': False, 'model.stack.first_norm': True}, **SHORT),
    'short_init_0.02': Arm('learned, 64 x 32, initial weights of 0.02', {'model.block.init.std': 0.02}, **SHORT),
    'short_warmup': Arm('learned, 64 x 32, warmup of 500 steps', {}, warmup=500, **SHORT),
    'short_dropout': Arm('learned, 64 x 32, dropout 0.1', {
        'model.block.dropout': 0.1, 'model.block.attention.dropout': 0.1}, **SHORT),
    'short_512': Arm('learned, 64 x 32, width 512', {}, width=512, **SHORT),
    'short_512_init': Arm('learned, 64 x 32, width 512, initial weights of 0.057', {
        'model.block.init.std': 0.0566}, width=512, **SHORT)}


def make_run(name: str, text: str, output: str, tokens: int) -> PretrainRun:
  """Make the run of an arm.

  Args:
    name: name of the arm.
    text: file of the text.
    output: folder of the run.
    tokens: tokens to train on, with repetitions.
  """
  arm = ARMS[name]
  setting = equal_time.Setting(text, output, 2, arm.width, rows=arm.rows, length=arm.length)
  base = dict(modern.arms(setting)['all'].changes) | without(absolute='learned')
  config = validation.with_paths(equal_time.encoder(setting), {
      'name': name, **base, 'model.block.dropout': 0.0, 'model.block.attention.dropout': 0.0,
      'optim.schedule': 'constant', 'optim.peak': arm.peak, 'optim.warmup': arm.warmup, **arm.changes})
  steps = tokens // (arm.rows * arm.length)
  train = TrainConfig(
      phases=(Phase(steps, arm.length, arm.rows),), log_every=20, eval_every=max(1, steps // EVALUATIONS),
      eval_batches=512 // arm.rows, save_every=steps, keep=1)
  return dataclasses.replace(config, train=train, seed=0, output=output)


def train(given: Mapping[str, Any]) -> dict[str, Any]:
  """Train an arm in this process -> its held-out losses."""
  config = make_run(**given)
  result = runs.run(config)
  if result is None or not result.finished:
    kept.interrupted(config.folder)
  lines = [json.loads(line) for line in (pathlib.Path(config.folder) / 'metrics.jsonl').read_text().splitlines()]
  phase, = config.train.phases
  curves = {split: [(line['step'], round(line['mlm'], 4)) for line in lines if line['split'] == split]
            for split in ('train', 'heldout')}
  return {'title': ARMS[given['name']].title, 'tokens': given['tokens'],
          'tokens_per_step': phase.batch * phase.length, **curves}


def measure_signal(given: Mapping[str, Any]) -> dict[str, Any]:
  """Measure the gradient of attending to a neighbor, per pair of positions and per distance.

  The trained model gets a bias of zeros for each pair of positions. The gradient of this bias is computed for many
  batches. Its signal-to-noise ratio is the mean over batches by the standard deviation between them.

  Args:
    given: `batches` to average over, and the arguments of `make_run` for a run that is finished.

  Returns:
    Signal-to-noise ratios by distance, of the head in which they are largest: `pair` is the mean over the pairs of
    positions at this distance, `distance` the ratio of the sum of their gradients.
  """
  batches = given['batches']
  config = make_run(**{name: given[name] for name in ('name', 'text', 'output', 'tokens')})
  config = validation.with_paths(config, {'model.block.attention.position': TableBias(factor=1.0)})
  trained = traverse_util.flatten_dict(plm_jax.load(given['output']).params)

  def measure(feed, learner, mesh):
    del mesh
    shapes: dict[Any, Any] = traverse_util.flatten_dict(nn.unbox(state_shapes(config, learner).params))
    place, = shapes.keys() - trained.keys()  # of the bias
    params = {path: trained[path] if path in trained else jnp.zeros(x.shape) for path, x in shapes.items()}

    @jax.jit
    def gradient(key, windows):
      batch = learner.objective.corrupt(key, windows, learner.vocab)
      found, _ = compute_gradient(learner, traverse_util.unflatten_dict(params), batch, key)
      return traverse_util.flatten_dict(found)[place]

    keys = jax.random.split(jax.random.key(1), batches)
    found = [gradient(key, feed.read_batch(step)) for step, key in enumerate(keys)]
    length = config.train.phases[0].length
    return np.stack(found).reshape(batches, -1, length, length)

  return {'tokens': given['tokens'], 'batches': batches, **signal_to_noise(equal_time.with_feed(config, measure))}


def signal_to_noise(gradients: np.ndarray) -> dict[str, dict[int, float]]:
  """Compute the ratios of `measure_signal` from gradients [batches, heads, queries, keys].

  Without any signal the ratio is about the root of 1 / batches, because the sign of the mean is not known.
  """
  ratios: dict[str, dict[int, float]] = {'pair': {}, 'distance': {}}
  for distance in DISTANCES:
    pairs = np.diagonal(gradients, distance, 2, 3).astype(np.float64)  # [batches, heads, pairs]
    sign = np.sign(pairs.mean((0, 2)))
    for name, values in (('pair', pairs), ('distance', pairs.sum(-1, keepdims=True))):
      by_head = sign * (values.mean(0) / values.std(0, ddof=1)).mean(-1)
      ratios[name][distance] = round(float(by_head.max()), 3)
  return ratios


def left_after(curve: Sequence[tuple[float, float]], loss: float) -> float | None:
  """Interpolate the tokens after which a curve falls below a loss; None: it does not.

  >>> left_after([(1e6, 6.6), (2e6, 6.4), (3e6, 6.0)], 6.2)
  2500000.0
  """
  if curve[0][1] < loss:
    return curve[0][0]
  for (start, high), (end, low) in itertools.pairwise(curve):
    if high >= loss > low:
      return start + (end - start) * (high - loss) / (high - low)
  return None


def read_curves(folder: pathlib.Path) -> dict[str, list[tuple[float, float]]]:
  """Read the held-out losses of the stored runs: points (tokens, loss) by arm."""
  curves = {}
  for name in ARMS:
    file = folder / f'{name}.json'
    if file.exists():
      found = json.loads(file.read_text())
      curves[name] = [(step * found['tokens_per_step'], loss) for step, loss in found['heldout']]
  return curves


def make_table(folder: pathlib.Path) -> str:
  """Format the table of the stored runs."""
  rows = [['arm', 'steps', 'peak learning rate', 'final held-out loss', f'millions of tokens to {LEFT}'], ['---'] * 5]
  for name, curve in read_curves(folder).items():
    arm = ARMS[name]
    left = left_after(curve, LEFT)
    rows.append([arm.title, f'{curve[-1][0] // (arm.rows * arm.length):,}', f'{arm.peak:g}', f'{curve[-1][1]:.3f}',
                 '-' if left is None else f'{left / 1e6:.1f}'])
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def draw(folder: pathlib.Path, file: pathlib.Path) -> None:
  """Draw the held-out losses of the arms in DRAWN."""
  import matplotlib
  matplotlib.use('svg')
  import matplotlib.pyplot as plt
  plt.rcParams.update({'svg.hashsalt': 'plm_jax', 'font.size': 9})
  figure, axis = plt.subplots(figsize=(5, 3.6))
  for name, curve in read_curves(folder).items():
    if name in DRAWN:
      axis.plot([tokens / 1e6 for tokens, _ in curve], [loss for _, loss in curve], marker='.', label=ARMS[name].title)
  axis.set(xlabel='tokens, millions', ylabel='held-out loss, 15% masks')
  axis.legend(frameon=False, loc='center left', bbox_to_anchor=(1, 0.5))
  figure.savefig(file, metadata={'Date': None}, bbox_inches='tight')


def stored(function: str, given: Mapping[str, Any], file: pathlib.Path) -> dict[str, Any]:
  """Return a result from its file, or compute and store it; exit if the file has one for other numbers."""
  found = kept.run(f'benchmarks.plateau:{function}', given, file)
  if other := {name: found[name] for name in ('tokens', 'batches') if name in given and found[name] != given[name]}:
    sys.exit(f'{file} has the result for {other}: give another --output, or remove the file')
  return found


def parse(typed: Sequence[str] | None = None) -> argparse.Namespace:
  """Read the command line."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--text', required=True)
  parser.add_argument('--output', required=True, help='folder of the runs')
  parser.add_argument('--tokens', type=int, default=3_072_000, help='training tokens per arm')
  parser.add_argument('--arms', nargs='*', choices=[*ARMS], default=[*ARMS], metavar='ARM', help=', '.join(ARMS))
  parser.add_argument('--only', nargs='*', choices=STAGES, default=STAGES[:3])
  parser.add_argument('--batches', type=int, default=256, help='batches for the gradient signal')
  return parser.parse_args(typed)


def main() -> None:
  """Run the stages that the command line names."""
  args = parse()
  folder = pathlib.Path(args.output).expanduser()
  for name in args.arms if 'train' in args.only else ():
    given = {'name': name, 'text': args.text, 'output': str(folder / name), 'tokens': args.tokens}
    found = stored('train', given, folder / f'{name}.json')
    print(name, found['heldout'][-1], flush=True)
  if 'signal' in args.only and 'learned' in args.arms:
    given = {'name': 'learned', 'text': args.text, 'output': str(folder / 'learned'), 'tokens': args.tokens}
    print(json.dumps(stored('measure_signal', {**given, 'batches': args.batches}, folder / 'signal.json')))
  if 'table' in args.only:
    print(make_table(folder))
  if 'figure' in args.only:
    draw(folder, folder / 'plateau.svg')


if __name__ == '__main__':
  main()
