"""The same recipe, smaller: what --scale=laptop and --scale=test make of a paper's run."""
import dataclasses

from plm_jax.config import Experiment, Phase, Scale, TrainConfig


def scaled(paper: Experiment, scale: Scale) -> Experiment:
  """`paper` as it is, in minutes on two cores, or in seconds. Family, objective and data stay the same."""
  if scale == 'laptop':
    return laptop(paper)
  return test(paper) if scale == 'test' else paper


def laptop(paper: Experiment) -> Experiment:
  """A run of under 4 minutes on two cores, tokenizer and records included, that learns to fill blanks."""
  small = resized(paper, layers=2, width=256, heads=4, vocab=8192)
  return dataclasses.replace(
      small, scale='laptop',
      objective=dataclasses.replace(small.objective, duplicates=0),
      optim=dataclasses.replace(small.optim, peak=1e-3, warmup=100),
      train=TrainConfig(phases=(Phase(900, 64, 64), Phase(100, 128, 32)), log_every=20, eval_every=250, eval_batches=16,
                        save_every=250))


def test(paper: Experiment) -> Experiment:
  """A run of seconds, for tests: too short to learn anything."""
  tiny = resized(paper, layers=2, width=32, heads=2, vocab=2048)
  return dataclasses.replace(
      tiny, scale='test', optim=dataclasses.replace(tiny.optim, peak=1e-3, warmup=2),
      train=TrainConfig(phases=(Phase(6, 32, 8), Phase(2, 64, 8)), log_every=2, eval_every=4, eval_batches=2, save_every=4))


def resized(paper: Experiment, layers: int, width: int, heads: int, vocab: int) -> Experiment:
  """The model's sizes, and a tokenizer of as many pieces as the model has room for."""
  block = dataclasses.replace(paper.model.block, width=width, heads=heads, mlp_dim=4 * width, dtype='float32')
  model = dataclasses.replace(
      paper.model, vocab=vocab, block=block, stack=dataclasses.replace(paper.model.stack, layers=layers))
  prepare = dataclasses.replace(paper.data.prepare, vocab=vocab)
  return dataclasses.replace(paper, model=model, data=dataclasses.replace(paper.data, prepare=prepare))
