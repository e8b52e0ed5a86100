"""The report of a run: its inputs, its charts, and robustness of the page against any input."""
import json
import pathlib
import re

from html_page import Page
import pytest

from plm_jax import storage
from plm_jax.inference.samples import FillMaskSample, GenerationSample
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.report import html, metric_display
from plm_jax.report.html import Summary, write_report
from plm_jax.runs.conclude import corpus_section


def page(folder, *lines, **summary):
  """Writes metrics.jsonl of the lines (text, or dicts) and a report -> the report."""
  text = ''.join(line if isinstance(line, str) else json.dumps(line) + '\n' for line in lines)
  (folder / 'metrics.jsonl').write_text(text)
  return Page(write_report(folder, Summary(**{'title': 'a run', 'headline': {}} | summary)))


def train(step, **values):
  return {'step': step, 'split': 'train', **values}


def heldout(step, **values):
  return {'step': step, 'split': 'heldout', **values}


def values(svg):
  """The labels at the right end of the curves."""
  return [text.text for text in svg.iter('text') if text.get('class').startswith('value')]


def test_nothing_to_draw(tmp_path):
  path = write_report(tmp_path, Summary('new', {}))
  assert path.name == 'report.html' and 'nothing to draw' in Page(path).words
  assert 'nothing to draw' in page(tmp_path).words
  assert 'nothing to draw' in page(tmp_path, '{"step": 1, "split": "tra').words


def test_escapes_everything(tmp_path):
  evil = '<script>alert("&amp;")</script>\'"北京\ud800'
  found = page(
    tmp_path,
    train(1, **{evil: 1.0}),
    {'step': 1, 'split': evil, 'loss': 2.0},
    title=evil,
    headline={evil: evil},
    blanks=[FillMaskSample(f'{evil} [MASK] {evil}', [(evil, 0.5)], evil),
            FillMaskSample('[MASK]', [('a', 0.5)], evil)],
    config={evil: {evil: [evil, {evil: evil}]}},
    environment={evil: evil},
    notes=[evil],
  )
  assert found.count('script') == 0
  # HTML allows < in quoted attributes.
  assert '<script' not in re.sub('="[^"]*"', '', found.source)
  assert found.words.count('alert("&amp;")') >= 12
  assert '北京' in found.source


def test_the_page_loads_no_external_resources(tmp_path):
  found = page(tmp_path, train(1, loss=1.0), blanks=[FillMaskSample('a [MASK]', [('b', 1.0)])])
  assert not re.search(r'https?:|src=|href=|url\(|@import', found.source)
  assert "default-src 'none'" in found.source


def test_last_line_of_a_step_and_split_wins(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  lines = [train(10, loss=3.0), train(20, loss=2.0), heldout(20, loss=2.5),
           train(30, loss=9.0, gone=1),
           train(20, loss=2.1), train(30, loss=1.5)]
  path.write_text('\n'.join(map(json.dumps, lines)))
  assert html.read_curves(path) == (
      {'loss': {'train': [(10, 3.0), (20, 2.1), (30, 1.5)], 'heldout': [(20, 2.5)]}}, [], 0)


def test_ignores_lines_that_are_not_whole(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  whole = json.dumps(train(1, loss=3.0, name='x', flag=True))
  path.write_bytes(f'{whole}\n[1]\n7\n\n{{"step": 2}}\n{{"step": "a", "split": "train"}}\n'.encode()
                   + b'{"step": 2, "split": "train", "loss": 2.\n\xff\xfe\n'
                     b'{"step": 3, "split": "train", "lo')
  assert html.read_curves(path) == ({'loss': {'train': [(1, 3.0)]}}, [], 7)
  said = '7 lines of metrics.jsonl, torn or of something else, left out of the curves'
  assert said in Page(write_report(tmp_path, Summary('a run', {}))).words


def test_phases_start_where_the_length_changes(tmp_path):
  lines = [train(10, loss=3.0, length=128), heldout(10, loss=1.0), train(20, loss=2.0, length=128),
           train(30, loss=2.0, length=512), train(40, loss=2.0, length=512)]
  found = page(tmp_path, *lines)
  assert html.read_curves(tmp_path / 'metrics.jsonl')[1] == [(20, 128, 512)]
  svg = found.charts()['Loss']
  assert [text.text for text in svg.iter('text') if 'tokens' in text.text] == ['128 → 512 tokens']
  assert sum(path.get('class') == 'phase' for path in svg.iter('path')) == 1
  assert list(found.charts()) == ['Loss']


def test_charts_in_order_with_last_values(tmp_path):
  found = page(
      tmp_path,
      *(train(step, zeta=1.0, tokens_per_second=1.2e6, learning_rate=2e-5, grad_norm=1.5, mfu=0.4,
              nsp_accuracy=0.5,
              nsp=0.7, mlm_accuracy=0.2, mlm=5.0, loss=5.7, skipped=0, streak=0)
              for step in range(10, 101, 10)),
      heldout(50, loss=6.0, mlm_accuracy=0.1, mlm_baseline=0.04),
      heldout(100, loss=5.5, mlm_accuracy=0.214, mlm_baseline=0.05))
  charts = found.charts()
  assert list(charts) == [
      'Loss', 'MLM loss', 'NSP loss', 'MLM accuracy', 'NSP accuracy',
      'Learning rate', 'Gradient norm', 'Tokens per second', 'Model FLOP utilization', 'Zeta']
  assert found.words.index('Other') < found.words.index('Zeta')
  assert sorted(values(charts['Loss'])) == ['5.5', '5.7']
  assert sorted(values(charts['MLM accuracy'])) == ['20%', '21.4%', '5%']
  assert values(charts['Learning rate']) == ['2×10⁻⁵'] and values(charts['Tokens per second']) == [
      '1.2M']
  # Held-out evaluations are dots; of the train curve only the last point is one.
  assert [circle.get('class') for circle in charts['Loss'].iter('circle')] == [
      'train', 'heldout', 'heldout']
  titles = [title.text for title in charts['Loss'].iter('title')]
  assert titles[-1] == 'step 100\ntrain: 5.7\nheld-out: 5.5' and len(titles) == 10


def test_metrics_have_labels_and_a_baseline_next_to_every_accuracy():
  assert html.heldout_headline(('mlm', 'nsp', 'z', 'new_one'), dict(
      mlm=2.0, mlm_accuracy=0.3, mlm_baseline=0.05, nsp=0.2, nsp_accuracy=0.93, nsp_baseline=0.91,
      z=4.0, new_one=1.5,
      new_one_accuracy=0.0)) == {
          'Held-out MLM accuracy': '30.0%', 'MLM majority-class baseline': '5.0%',
          'MLM accuracy / baseline': '6.0',
          'Held-out MLM loss': '2.000', 'Held-out NSP accuracy': '93.0%',
          'NSP majority-class baseline': '91.0%',
          'Held-out NSP loss': '0.200', 'Held-out new one accuracy': '0.0%',
          'Held-out new one loss': '1.500'}


def test_the_report_begins_with_results_and_has_next_steps_before_settings(tmp_path):
  found = page(tmp_path, train(1, loss=1.0), headline={'Held-out MLM accuracy': '30.0%'},
               notes=['a hint'],
               blanks=[FillMaskSample('a [MASK]', [('b', 1.0)])],
               next_steps={'Fill masks': 'plm-jax fill-mask RUN'},
               environment={'Devices': '1 x cpu', 'Finished': '2026-01-02'}, config={'seed': 0})
  order = ('30.0%', 'Trained on 1 x cpu, finished 2026-01-02', 'a hint', 'Curves',
           'Fill in the blank', 'Next steps', 'plm-jax fill-mask RUN', 'Environment',
           'Configuration', 'Written by plm_jax')
  places = [found.words.index(text) for text in order]
  assert places == sorted(places)


def test_skipped_steps_are_drawn_once_there_are_any(tmp_path):
  assert 'Skipped steps' in page(tmp_path, train(1, skipped=0), train(2, skipped=1)).charts()


def test_every_coordinate_is_on_the_chart(tmp_path):
  lines = [train(step, loss=11 - 2 * (step % 7), grad_norm=1e4 if step == 500 else 1 + step % 3,
                 constant=5.0, zero=0.0,
                 negative=-1.0 * step, small=1e-9 * step) for step in range(1, 1001)]
  charts = page(tmp_path, *lines, train(1001, loss=float('nan'))).charts()
  assert len(charts) == 6
  for svg in charts.values():
    for path in svg.iter('path'):
      for x, y in re.findall(r'(-?[\d.]+) (-?[\d.]+)', path.get('d')):
        assert html.LEFT <= float(x) <= html.WIDTH - html.RIGHT
        assert 0 <= float(y) <= html.HEIGHT - html.BOTTOM


def test_values_that_are_not_drawn_are_counted(tmp_path):
  spike = [train(step, grad_norm=500.0 if step == 50 else 1.0) for step in range(1, 101)]
  assert 'up to 500 beyond the axis' in page(tmp_path, *spike).words
  nan, inf = float('nan'), float('inf')
  found = page(tmp_path, train(1, loss=nan), train(2, loss=inf), train(3, loss=1.0),
               train(4, mlm=nan))
  assert '2 not finite, not drawn' in found.words and '1 not finite, not drawn' in found.words
  assert list(found.charts()) == ['Loss']


def test_numbers_of_any_kind_are_drawn_or_counted(tmp_path):
  """As in JSON: null for values that are not finite, too large values, none; and invalid
  steps."""
  odd = [None, float('nan'), 10 ** 400, -1e308, 1e308, True, 'x', [1], {'a': 1}, 1e29, -1e29, 0]
  lines = [train(step, loss=value) for step, value in enumerate(odd)]
  foreign = [train(step, loss=1.0) for step in (-1, 10 ** 30, True, '7', 1.5,
                                                None)] + [{'step': 1, 'split': 3}]
  deep = '[' * 100_000
  (tmp_path / 'metrics.jsonl').write_text(
      '\n'.join([*map(json.dumps, lines + foreign), deep, '9' * 5000, '']))
  found = Page(write_report(tmp_path, Summary('a run', {})))
  assert '5 not finite, not drawn' in found.words and list(found.charts()) == ['Loss']
  assert (
      '9 lines of metrics.jsonl, torn or of something else, left out of the curves') in found.words


def test_no_label_is_clipped(tmp_path):
  """A digit is some 6 of the chart's units wide, a bold one 7, a raised one 5."""
  def width(text):
    plain = 7 if text.get('class').startswith('value') else 6
    return sum(5 if letter in '⁻⁰¹²³⁴⁵⁶⁷⁸⁹' else plain for letter in text.text)
  for value in (-1.23456e-12, 9.8765e-5, 123456.0, 6.0e6, -0.00123456):
    charts = page(tmp_path, train(10, learning_rate=value),
                  train(20, learning_rate=1.01 * value)).charts()
    for text in charts['Learning rate'].iter('text'):
      left = float(text.get('x')) - width(text) * {'tick left': 1,
                                                   'tick': 0.5}.get(text.get('class'), 0)
      assert left >= -1 and left + width(text) <= html.WIDTH, (text.text, text.get('class'))


def test_labels_do_not_overlap(tmp_path):
  svg = page(tmp_path, train(10, loss=2.0), train(20, loss=1.0),
             heldout(20, loss=1.001)).charts()['Loss']
  places = sorted(float(text.get('y')) for text in svg.iter('text')
                  if text.get('class').startswith('value'))
  assert places[1] - places[0] >= 14


def test_one_point(tmp_path):
  assert values(page(tmp_path, train(1, loss=2.25)).charts()['Loss']) == ['2.25']


@pytest.mark.parametrize('number', [0, 1, 2, 399, 400, 401, 799, 10_000])
def test_downsampling_keeps_ends_and_extremes(number):
  points = [(step, float(step % 10)) for step in range(number)]
  if number > 1000:
    points[1234], points[7000] = (1234, 99.0), (7000, -99.0)
  kept = html.downsample(points)
  assert len(kept) == min(number, len(kept)) <= 400
  assert kept == sorted(set(kept)) and set(kept) <= set(points)
  if points:
    assert kept[0] == points[0] and kept[-1] == points[-1]
    assert max(v for _, v in kept) == max(v for _, v in points) and min(v for _, v in kept) == min(
        v for _, v in points)
  if number <= 400:
    assert kept == points


@pytest.mark.parametrize(('low', 'high', 'expected'), [
    (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    (0, 0.3, [0, 0.1, 0.2, 0.3]),
    (2.1, 10.9, [2, 4, 6, 8, 10, 12]),
    (0, 1e-4, [0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4]),
    (0, 100_000, [0, 20_000, 40_000, 60_000, 80_000, 100_000]),
    (-3, 4, [-4, -2, 0, 2, 4]),
    (0.61, 0.64, [0.61, 0.62, 0.63, 0.64]),
    (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    (5, 5, [4.4, 4.6, 4.8, 5, 5.2, 5.4, 5.6]),
])
def test_ticks(low, high, expected):
  assert metric_display.ticks(low, high) == expected


@pytest.mark.parametrize(('value', 'expected'), [
    (0, '0'), (0.25, '0.25'), (2.0651, '2.07'), (-3, '−3'), (999.7, '1k'), (12_345, '12.3k'),
    (1.5e6, '1.5M'),
    (2e9, '2G'), (2e-5, '2×10⁻⁵'), (-1.25e-7, '−1.25×10⁻⁷'), (1e20, '1×10²⁰')])
def test_number(value, expected):
  assert metric_display.format_number(value) == expected


def test_the_longest_label_has_room():
  assert metric_display.format_number(1.6674e-6, 4) == '1.67×10⁻⁶'


def test_blanks(tmp_path):
  found = page(tmp_path, blanks=[
      FillMaskSample('北京是中国的[MASK]都。', [('首', 0.931), ('古', 0.031)], '首'),
      FillMaskSample('the [MASK] flows', [('road', 0.2), ('', 0.1)], 'river'),
      FillMaskSample('a [MASK] and a [MASK]', [('b', 0.5)])])
  assert 'in 1 of 2 sentences of held-out text' in found.words
  assert found.count('mark') == 4 and found.count('li', 'truth') == 1 and found.words.count(
      '✓') == 1
  assert '93.1%' in found.words and 'width:93.10%' in found.source
  assert 'Hidden word: river, not among these' in found.words
  assert '[MASK]' not in found.words


def test_correct_blanks_are_shown_first_after_the_prompts_of_the_user(tmp_path):
  words = [f'word{n}' for n in range(20)]
  known = [FillMaskSample(f'{word} [MASK]', [('right', 0.5)], 'right' if n % 5 == 4 else 'other')
           for n, word in enumerate(words)]
  found = page(tmp_path, blanks=[FillMaskSample('mine [MASK]', [('b', 0.5)]), *known])
  assert 'in 4 of 20 sentences' in found.words
  shown = re.findall(r'mine|word\d+', found.words)
  assert shown == ['mine', 'word4', 'word9', 'word14', 'word19', 'word0', 'word1', 'word2', 'word3']


def test_the_axis_of_a_high_accuracy_does_not_begin_at_zero(tmp_path):
  high = page(tmp_path, heldout(1, nsp_accuracy=0.72), heldout(2, nsp_accuracy=0.78))
  assert '74%' in high.words and '20%' not in high.words
  low = page(tmp_path, heldout(1, mlm_accuracy=0.12), heldout(2, mlm_accuracy=0.28))
  assert '10%' in low.words and '20%' in low.words


def test_the_class_of_a_configuration_is_its_kind(tmp_path):
  found = page(tmp_path, config={'is': 'plm_jax.config.run:PretrainRun', 'seed': 0})
  assert 'kind' in found.words and 'PretrainRun' in found.words and 'config.run' not in found.words


def test_samples(tmp_path):
  found = page(
    tmp_path, samples=[GenerationSample('An array', ' of <b>numbers</b>\n', ' of values'),
                       GenerationSample('', 'a')]
  )
  assert found.count('mark') == 2 and found.words.count('As written') == 1
  for text in ('An array', ' of <b>numbers</b>', ' of values'):
    assert text in found.words


def test_config_and_environment(tmp_path):
  config = {'name': 'bert', 'model': {'width': 768, 'tied': True, 'none': None},
            'phases': [{'length': 128}, {'length': 512}], 'prompts': [], 'weights': [0.5, 0.5]}
  found = page(tmp_path, config=config, environment={'Python': '3.11'}, notes=['still rising'])
  assert found.count('details') == 1 and found.count('table') == 6
  for text in ('768', 'true', 'null', '512', '[0.5, 0.5]', '3.11', 'still rising'):
    assert text in found.words


def test_the_old_report_is_replaced_atomically(tmp_path):
  path = write_report(tmp_path, Summary('first', {}))
  with pytest.raises(TypeError):
    write_report(tmp_path, Summary('second', {}, config={'a': object()}))
  assert 'first' in path.read_text()
  write_report(str(tmp_path), Summary('third', {}))
  assert 'third' in path.read_text()
  assert [file.name for file in tmp_path.iterdir()] == ['report.html']


def test_a_failed_write_leaves_no_trace(tmp_path, monkeypatch):
  write_report(tmp_path, Summary('first', {}))
  def fail(self, target):
    raise OSError('disk full')
  monkeypatch.setattr(pathlib.Path, 'replace', fail)
  with pytest.raises(storage.StorageError, match=r'report\.html cannot be written: disk full'):
    write_report(tmp_path, Summary('second', {}))
  assert [file.name for file in tmp_path.iterdir()] == ['report.html']
  assert 'first' in (tmp_path / 'report.html').read_text()


def test_a_table_of_corpora(tmp_path):
  """Charts are of all text, however many corpora there are."""
  heldout = {'mlm': 2.5, 'mlm_accuracy': 0.5, 'mlm/de': 2.0, 'mlm_accuracy/de': 0.75, 'mlm/sw': 3.0}
  (section,) = corpus_section(heldout, MaskedLM().reporting.format_metric)
  rows = [[cell.text or '' for cell in row] for row in section.iter('tr')]
  assert rows == [['', 'MLM loss', 'MLM accuracy'], ['de', '2.000', '75.0%'], ['sw', '3.000', '']]
  assert corpus_section({'mlm': 2.5}, MaskedLM().reporting.format_metric) == []
  (tmp_path / 'metrics.jsonl').write_text(json.dumps({'step': 2, 'split': 'heldout', **heldout})
                                          + '\n')
  text = html.write_report(tmp_path, html.Summary('run', {}, sections=[section])).read_text()
  assert text.count('<figure>') == 2 and 'Held-out metrics by corpus' in text
