"""Runs in the terminal: the curves of one run, and several runs next to each other."""
import json
import pathlib

from html_page import Page
import pytest

from plm_jax import recipes
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.cli import commands, compare, plots, watch
from plm_jax.cli.plots import Curve
from plm_jax.config import serialization
from plm_jax.config.run import ConfigError
from plm_jax.report.history import history
from plm_jax.report.metric_display import Metric

LOSS = Metric(0, 'Loss')


def written(folder: pathlib.Path, peak: float, losses: list[float], **changes) -> str:
  """Write the metrics of a smallest BERT run, one line every two steps, and return its folder."""
  folder.mkdir()
  config = recipes.find_recipe('bert_base')('test')
  config = serialization.from_json(serialization.to_json(config) | changes)
  optim = serialization.to_json(config)['optim'] | {'peak': peak}
  (folder / 'config.json').write_text(json.dumps(serialization.to_json(config) | {'optim': optim}))
  lines: list[dict] = [{'step': 2 * n + 2, 'split': 'train', 'loss': loss,
                        'tokens_per_second': 100.0, 'waiting': 0.25}
                       for n, loss in enumerate(losses)]
  lines.append({'step': 4, 'split': 'heldout', 'mlm': losses[-1] + 1, 'mlm_accuracy': 0.125,
                'mlm_baseline': 0.1})
  (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
  return str(folder)


def test_curves_are_drawn_where_their_points_are():
  falling = Curve('train', [(0, 4.0), (50, 2.0), (100, 0.0)])
  told = [
    *plots.plot('Loss', [falling, Curve('held-out', [(50, 4.0)], '●')], LOSS,
                (plots.LABEL_WIDTH + 1 + 11, 5), False)
  ]
  assert told[0] == 'Loss   ⠒ train 0   ● held-out 4'
  assert [line[:plots.LABEL_WIDTH + 1].strip()
          for line in told[1:6]] == ['4┤', '│', '2┤', '│', '0┤']
  rows = [line[plots.LABEL_WIDTH + 1:].ljust(11) for line in told[1:6]]
  assert rows[0][5] == '●' and rows[0][0] > '\u2800' and rows[4][10] > '\u2800' and rows[2][
      5] > '\u2800'
  assert {(row, column) for row, line in enumerate(rows)
          for column, c in enumerate(line) if c > '\u2800'} <= {
      (row, column) for row in range(5) for column in range(11) if abs(column / 10 - row / 4)
      <= 0.3}
  assert told[6:] == ['         └' + '─' * 11, '          0       100']
  assert not [*plots.plot('Loss', [Curve('train', [])], LOSS, (40, 5), False)]


def test_a_steep_curve_has_no_gaps_and_a_spike_does_not_flatten_it():
  steep = [*plots.plot('Loss', [Curve('train', [(0, 9.0), (1, 1.0), (2, 9.0)])], LOSS, (40, 6),
                       False)][1:7]
  assert all(set(line[plots.LABEL_WIDTH + 1:]) - {' '} for line in steep)
  spiked = [(step, 1.0 + step % 2) for step in range(100)] + [(100, 1e6)]
  assert '1M' not in ''.join(plots.plot('Loss', [Curve('train', spiked)], LOSS, (40, 6),
                                        False)).partition('┤')[2]


def test_a_run_is_watched_until_it_has_finished(tmp_path, monkeypatch, capsys):
  run = written(tmp_path / 'run', 1e-3, [3.0, 2.0])
  found = history(run)
  assert (found.step, found.last('loss', 'train'), found.last('mlm'),
          watch.is_finished(found)) == (4, 2.0, 3.0, False)
  # 6 x 32 x 8, then 2 x 64 x 8
  assert [found.tokens(step) for step in (0, 4, 6, 8, 9)] == [0, 1024, 1536, 2560, 2560]
  line = watch.progress_line(found)
  assert line.startswith(
      f'{run}: step 4 of 8 (50%), 100 tokens/s, 15 s to go, waiting for data 25.0%, written ')
  monkeypatch.setattr('sys.argv', ['plm_jax', 'watch', run])
  commands.main()  # without a terminal, the page is printed once
  said = capsys.readouterr().out
  assert 'Loss, nats' in said and 'MLM accuracy' in said and '● held-out 12.5%' in said
  with pytest.raises(ConfigError, match='has no los: it has loss, mlm, mlm_accuracy'):
    [*watch.render_screen(found, ('los',), 80, 40, False)]
  with pytest.raises(CheckpointError,
                     match=r'is not the folder of a run that has begun: it has no metrics\.jsonl'):
    history(tmp_path)


@pytest.mark.parametrize(('seconds', 'told'),
                         [(0.4, '0 s'), (59.2, '59 s'), (3723, '1 h 2 min'), (100_000, '1 d 3 h')])
def test_times_are_spelt_in_two_units(seconds, told):
  assert watch.format_duration(seconds) == told


def test_runs_are_compared_in_one_table(tmp_path, monkeypatch, capsys):
  runs = [written(tmp_path / 'one', 1e-3, [3.0, 2.0]),
          written(tmp_path / 'two', 2e-3, [3.5, 2.5, 2.25], seed=7)]
  monkeypatch.setattr('sys.argv', ['plm_jax', 'compare', *runs, '--by=tokens',
                                   f'--page={tmp_path / "both.html"}'])
  commands.main()
  said = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert ['steps', '4', '6'] in said and ['tokens', 'read', '1,024', '1,536'] in said
  assert ['held-out', 'MLM', 'loss', '3', '3.25'] in said
  at = said.index(['Options', 'that', 'differ', 'one', 'two'])
  assert said[at + 1:at + 3] == [['seed', '0', '7'],
                                 ['optim.peak', '0.001', '0.002']] and not said[at + 3]
  page = Page(tmp_path / 'both.html')
  charts = page.charts()
  assert {*charts} == {'MLM loss', 'MLM accuracy'}
  assert len(charts['MLM loss'].findall('circle')) == 2 and 'tokens 1,024' in page.source


def test_incomparable_runs_are_reported(tmp_path):
  run = written(tmp_path / 'one', 1e-3, [3.0])
  with pytest.raises(ConfigError, match='compare needs 2 to 8 runs, got 1'):
    compare.compare_command((run,))
  assert compare.run_names(['a/x', 'b/x', 'c/y/']) == ['a/x', 'b/x', 'y']
  # the answer names the missing checkpoint
  assert compare.answer_prompts([run], ['a [MASK]'])['a [MASK]'][0].startswith('(')
