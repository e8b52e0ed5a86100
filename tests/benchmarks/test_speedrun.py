"""The encoder speedrun: entries, rules and the table."""
import dataclasses
import json
import pathlib

import numpy as np
import pytest

from benchmarks.speedrun import board, record
from benchmarks.speedrun.entries import TRACKS, make_entries, make_run
from plm_jax.config import run as config_lib

ENTRIES = [(track, name) for track in TRACKS for name in make_entries(TRACKS[track])]


@pytest.mark.parametrize(('track', 'name'), ENTRIES)
def test_every_entry_is_a_valid_run(track, name):
  config = make_run(TRACKS[track], name, 'text.txt', 'out')
  config_lib.check(config)
  # Rules 1 to 3: all entries have the same text and tokenizer.
  first = make_run(TRACKS[track], next(iter(make_entries(TRACKS[track]))), 'text.txt', 'out')
  assert config.data.prepare == first.data.prepare
  assert config.model.vocab == TRACKS[track].vocab
  assert config.train.steps == make_entries(TRACKS[track])[name].steps


def test_the_first_entry_is_the_winner_of_the_comparison_of_modern_changes():
  config = make_run(TRACKS['cpu'], 'modern', 'text.txt', 'out')
  assert (config.train.steps, config.optim.peak, config.optim.schedule,
          config.objective.mask_rate) == (
      4884, 1e-3, 'wsd', 0.3)
  assert record.tokens(make_entries(TRACKS['cpu'])['modern']) == 4884 * 16 * 128
  one = dataclasses.replace(config.train.phases[0], steps=1)
  step = record.flops(dataclasses.replace(
      config, train=dataclasses.replace(config.train, phases=(one,))))
  np.testing.assert_allclose(record.flops(config), 4884 * step)


@pytest.mark.parametrize('name', [path for folder in TRACKS
                                  for path in (record.RECORDS / folder).glob('*.json')])
def test_records_match_their_current_entries(name):
  found = json.loads(pathlib.Path(name).read_text())
  entry = make_entries(TRACKS[name.parent.name])[name.stem]
  assert (found['title'], found['steps'], found['tokens']) == (entry.title, entry.steps,
                                                               record.tokens(entry))


def test_the_board_shows_the_records():
  text = board.README.read_text()
  for name, track in TRACKS.items():
    if name != 'test':
      assert board.make_table(name, track) in text


def test_another_text_is_refused(tmp_path):
  text = tmp_path / 'text.txt'
  text.write_text('A text.\n')
  with pytest.raises(SystemExit, match='the SHA-256 of its content is'):
    record.check_text(TRACKS['cpu'], str(text))
  record.check_text(TRACKS['test'], str(text))


def test_a_row_of_the_table():
  found = {
      'title': 'title', 'date': '2026-11-28', 'commit': 'abc', 'steps': 4884, 'tokens': 10_002_432,
      'flops': 2.5e15,
      'seconds': 1201.4, 'speed': 1.5, 'losses': {'0': 3.9, '1': 4.3},
      'scores': {'cola': [10.0, 12.0]}}
  assert board.make_row('name', found, TRACKS['cpu']) == [
      'name', 'title', '2026-11-28', 'abc', '4,884', '10.0', '2.50', '1,201', '1.50',
      '4.100 ± 0.283 (misses the target)', '11.0 ± 1.4', '-', '-']
