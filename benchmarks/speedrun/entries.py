"""Tracks and entries of the speedrun.

An entry is a run of plm_jax: BERT's recipe at the size of the track, with some options changed. Add an entry at the end
of ENTRIES; it may build on the options of an earlier one.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from benchmarks import equal_time, modern
from plm_jax import validation
from plm_jax.config.run import Phase, PretrainRun, TrainConfig


@dataclasses.dataclass(frozen=True)
class Track:
  """A kind of machine, with the model size to start from, the text and the target."""

  title: str
  layers: int
  width: int
  rows: int
  length: int
  text_sha256: str
  """checksum of the decompressed text; empty: any text"""
  target: float | None
  """largest held-out MLM loss, in nats per masked token; None: not set yet"""
  vocab: int = 8192


@dataclasses.dataclass(frozen=True)
class Entry:
  """A contestant: options that differ from BERT's, and the course of the run."""

  title: str
  changes: Mapping[str, Any]
  """field paths of the run, such as 'optim.kind', and their values"""
  phases: tuple[Phase, ...]
  peak: float
  warmup: int = 200
  cooldown: float = 0.2
  """share of the steps over which a WSD schedule falls"""

  @property
  def steps(self) -> int:
    """Number of updates."""
    return sum(phase.steps for phase in self.phases)


WIKIPEDIA = '16c0c4a3de68f7951f9a42d958d9f9a8e1c65f7c4186860c6a93f421cc5dddd8'
TRACKS = {
    'cpu': Track('two CPU cores, 30 minutes', 4, 256, 16, 128, WIKIPEDIA, 4.08),
    'chip': Track('one GPU (H100 or H200) or one TPU chip, 30 minutes', 12, 768, 256, 128, WIKIPEDIA, None),
    'test': Track('a rehearsal of seconds', 2, 32, 8, 32, '', 100.0, 512)}


def modern_changes(width: int) -> dict[str, Any]:
  """Return the options of `benchmarks.modern` that won: pre-norm, gated MLP, RoPE, packing, 30% masks, WSD."""
  setting = equal_time.Setting('', '', width=width)
  return dict(modern.arms(setting)['all'].changes)


def make_entries(track: Track) -> dict[str, Entry]:
  """Return the entries of a track by name, in the order in which they were added."""
  rows, length, width = track.rows, track.length, track.width
  base = modern_changes(width)
  muon = {
      **base, 'model.block.dropout': 0.0, 'model.block.attention.dropout': 0.0, 'optim.kind': 'muon'}
  shallow = {**muon, 'model.stack.layers': 2}
  one_layer = {**muon, 'model.stack.layers': 1, 'model.stack.first_norm': True}

  def course(steps: int, **changes: Any) -> tuple[Phase, ...]:
    return Phase(steps, length, rows, **changes),

  return {
      'modern': Entry('all modern changes: pre-norm, GLU, RoPE, packing, 30% masks, WSD', base, course(4884), 1e-3),
      'muon': Entry('+ Muon, no dropout', muon, course(2800), 2e-3),
      'shallow': Entry('+ half of the layers', shallow, course(4400), 2e-3),
      'one_layer': Entry('one layer', one_layer, course(3900), 2e-3),
      'masks_40': Entry('+ 40% masks', {**one_layer, 'objective.mask_rate': 0.4}, course(3500), 2e-3),
      'masks_50': Entry('+ 50% masks', {**one_layer, 'objective.mask_rate': 0.5}, course(3400), 2e-3)}


def make_run(track: Track, name: str, text: str, output: str, seed: int = 0) -> PretrainRun:
  """Make the run of an entry.

  Args:
    track: the track.
    name: name of the entry.
    text: file of the text.
    output: folder of the run.
    seed: of initialization, data order and masks.
  """
  entry = make_entries(track)[name]
  setting = equal_time.Setting(
      text, output, track.layers, track.width, track.vocab, track.rows, track.length)
  steps = entry.steps
  config = validation.with_paths(equal_time.encoder(setting), {'name': f'speedrun-{name}', **entry.changes})
  optim = dataclasses.replace(
      config.optim, peak=entry.peak, warmup=min(entry.warmup, steps // 2), cooldown=round(steps * entry.cooldown))
  train = TrainConfig(
      phases=entry.phases, log_every=50, eval_every=steps, eval_batches=8, save_every=steps, keep=1)
  return dataclasses.replace(config, optim=optim, train=train, seed=seed, output=output)
