"""Measure an entry: train it, check that it reaches the target, and time its steps next to the first entry's."""
from collections.abc import Mapping
import dataclasses
import datetime
import hashlib
import json
import lzma
import pathlib
import subprocess
import time
from typing import Any

from benchmarks import comparison, equal_time, kept, side_by_side
from benchmarks.real_tasks import FINETUNED, TASKS, tuning
from benchmarks.speedrun.entries import TRACKS, Entry, Track, make_entries, make_run
from plm_jax import validation
from plm_jax.config.run import Phase, PretrainRun, TrainConfig, phase_objective
from plm_jax.layers.dense import count_parameters
from plm_jax.runs import run as runs

RECORDS = pathlib.Path(__file__).parent / 'records'
FINETUNED_TASKS = 'cola', 'sst2'
PAIRS = 'blimp_each5th.jsonl.gz'


def record_file(track: str, name: str) -> pathlib.Path:
  """Return the file with the record of an entry."""
  return RECORDS / track / f'{name}.json'


def read_record(track: str, name: str) -> dict[str, Any]:
  """Read the record of an entry; {} if there is none."""
  file = record_file(track, name)
  return json.loads(file.read_text()) if file.exists() else {}


def update_record(track: str, name: str, values: Mapping[str, Any]) -> None:
  """Add values to the record of an entry."""
  file = record_file(track, name)
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(json.dumps(read_record(track, name) | dict(values), indent=1) + '\n')


def check_text(track: Track, text: str) -> None:
  """Exit with a message unless the text has the checksum of the track."""
  if not track.text_sha256:
    return
  open_text = lzma.open if text.endswith('.xz') else open
  with open_text(text, 'rb') as file:
    found = hashlib.file_digest(file, 'sha256').hexdigest()
  if found != track.text_sha256:
    raise SystemExit(f'{text}: the SHA-256 of its content is {found[:12]}..., and the text of this track has '
                     f'{track.text_sha256[:12]}...: see README.md for where to get it')


def train_entry(track_name: str, name: str, text: str, output: str, seed: int) -> dict[str, Any]:
  """Train an entry in a new process, and add the result of this seed to its record.

  Returns:
    The record of the entry.

  Raises:
    SystemExit: the text is another one.
  """
  track = TRACKS[track_name]
  check_text(track, text)
  given = {'track': track_name, 'name': name, 'text': text, 'output': f'{output}/{name}-{seed}', 'seed': seed}
  found = kept.run('benchmarks.speedrun.record:train_here', given)
  losses = {**read_record(track_name, name).get('losses', {}), str(seed): found.pop('loss')}
  update_record(track_name, name, {**found, 'losses': losses})
  return read_record(track_name, name)


def train_here(given: Mapping[str, Any]) -> dict[str, Any]:
  """Train an entry in this process -> its record."""
  track, entry = TRACKS[given['track']], make_entries(TRACKS[given['track']])[given['name']]
  config = make_run(track, given['name'], given['text'], given['output'], given['seed'])
  runs.prepare_corpora(config)  # the text is prepared before the clock starts
  began, energy = time.perf_counter(), read_joules()
  result = runs.run(config)
  if result is None or not result.finished:
    kept.interrupted(config.folder)
  seconds, after = time.perf_counter() - began, read_joules()
  held_out = equal_time.judged(judging_run(config, track), result.params, {})
  return {
      'title': entry.title, 'options': options(config, track, given), 'commit': commit(),
      'date': datetime.date.today().isoformat(), 'device': side_by_side.machine('jax'),
      'parameters': count_parameters(result.params), 'steps': entry.steps, 'tokens': tokens(entry),
      'flops': flops(config), 'wall_seconds': round(seconds, 1),
      'joules': None if energy is None or after is None else round(after - energy), 'loss': round(held_out['mlm'], 4)}


def judging_run(config: PretrainRun, track: Track) -> PretrainRun:
  """Return the run whose held-out windows all entries are judged on: of the track's length."""
  phases = Phase(1, track.length, track.rows),
  return dataclasses.replace(config, train=TrainConfig(phases=phases))


def options(config: PretrainRun, track: Track, given: Mapping[str, Any]) -> list[str]:
  """List the options that differ from BERT's at the size of the track, as 'option: old -> new'."""
  setting = equal_time.Setting(
      given['text'], given['output'], track.layers, track.width, track.vocab, track.rows, track.length)
  return validation.differences(equal_time.encoder(setting), config, {'name', 'output', 'seed'})


def tokens(entry: Entry) -> int:
  """Count the tokens of all steps, with repetitions and special tokens."""
  return sum(phase.steps * phase.batch * phase.length for phase in entry.phases)


def flops(config: PretrainRun) -> float:
  """Count the FLOPs of the matrix products of all steps."""
  total = 0.0
  for phase in config.train.phases:
    objective = phase_objective(config, phase)
    total += phase.steps * phase.batch * objective.step_flops(config.model, phase.length)
  return total


def commit() -> str:
  """Return the commit of the checkout, with + if files have changed since."""
  def git(*arguments: str) -> str:
    done = subprocess.run(
        ['git', *arguments], cwd=RECORDS.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()
  return git('rev-parse', '--short', 'HEAD') + ('+' if git('status', '--porcelain', '-uno') else '')


def read_joules() -> float | None:
  """Read the energy counters of the processors' packages, in joules; None if the machine shows none."""
  counters = list(pathlib.Path('/sys/class/powercap').glob('intel-rapl:?/energy_uj'))
  try:
    return sum(int(counter.read_text()) for counter in counters) / 1e6 if counters else None
  except OSError:  # only the administrator may read them
    return None


# Time: steps of the entry next to steps of the first entry.


def measure_pace(track_name: str, name: str, text: str, output: str, rounds: int) -> dict[str, Any]:
  """Time steps of an entry, alternating with steps of the first entry, and add the times to its record.

  Each phase is timed separately. The time of a run is the sum over all its steps.

  Returns:
    The record of the entry.
  """
  entries = make_entries(TRACKS[track_name])
  first = next(iter(entries))
  contestants = {}
  for entry in dict.fromkeys((first, name)):
    for number, phase in enumerate(entries[entry].phases):
      contestants[f'{entry}.{number}'] = phase.steps
  arguments = [f'--track={track_name}', f'--text={text}', f'--output={output}']
  found = side_by_side.compare('benchmarks.speedrun', list(contestants), arguments, rounds)
  seconds = dict.fromkeys((first, name), 0.0)
  for contestant, steps in contestants.items():
    seconds[contestant.partition('.')[0]] += steps * found[contestant]['median']
  update_record(track_name, name, {
      'seconds': round(seconds[name], 1), 'seconds_of_first': round(seconds[first], 1),
      'speed': round(seconds[first] / seconds[name], 3), 'paced_on': side_by_side.machine('jax')})
  return read_record(track_name, name)


def contestant(track: Track, contestant: str, text: str, output: str) -> None:
  """Train for some steps of one phase whenever the parent process asks for it."""
  name, _, number = contestant.partition('.')
  config = make_run(track, name, text, output)
  phase = config.train.phases[int(number)]
  equal_time.timed(dataclasses.replace(config, train=dataclasses.replace(config.train, phases=(phase,))))


# The second target: what the model is good for.


def score_tasks(track_name: str, name: str, output: str, data: str, seeds: int) -> dict[str, Any]:
  """Fine-tune a trained entry on CoLA and SST-2, judge minimal pairs, and add the scores to its record.

  Args:
    track_name: name of the track.
    name: name of the entry, which has been trained with seed 0.
    output: folder of the runs.
    data: folder of the tasks' files, at any depth.
    seeds: number of fine-tuning seeds.

  Returns:
    The record of the entry.
  """
  run, scores = f'{output}/{name}-0', {}
  for task in FINETUNED_TASKS:
    real = TASKS[task]
    command = [*tuning(real, data, run, '5e-4'), f'--seeds={seeds}', f'--output={run}-{task}']
    scores[task] = kept.run(FINETUNED, (command, real.measure), f'{run}-{task}.json')['scores']
  scores['minimal_pairs'] = [comparison.judge_pairs([run, data, PAIRS])['accuracy']]
  update_record(track_name, name, {'scores': scores})
  return read_record(track_name, name)
