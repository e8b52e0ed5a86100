"""`predict --probabilities`: all classes in tables, all tags in JSON Lines; refused where there are
none."""
import json

import pytest
import tuned

import plm_jax
from plm_jax.cli import commands


@pytest.fixture
def predicted(tmp_path, monkeypatch, capsys):
  """Predict a line with a trained model of a task; return the content of the output, or the
  error."""
  def run(kind, output, *args, line='a fine berlin'):
    if not (tmp_path / kind).exists():
      plm_jax.export(tuned.trained(kind), tmp_path / kind)
    (tmp_path / 'x.txt').write_text(line + '\n')
    monkeypatch.setattr('sys.argv', [
        'plm_jax', 'predict', str(tmp_path / kind), str(tmp_path / 'x.txt'),
        f'--output={tmp_path / output}', *args])
    try:
      commands.main()
    except SystemExit as error:
      if error.code:
        return f'{error.code} {capsys.readouterr().err}'
    return (tmp_path / output).read_text()
  return run


def test_tables_have_a_column_per_class(predicted):
  head, row = (line.split('\t') for line in predicted('classification', 'y.tsv',
                                                      '--probabilities').splitlines())
  assert head == ['label', 'probability', 'truth', 'text', 'p(bad)', 'p(good)']
  assert row[0] == 'good' and float(row[4]) + float(row[5]) == pytest.approx(1, abs=1e-5) and row[
      5] == row[1]
  head, row = (line.split('\t') for line in predicted('multilabel', 'y.tsv',
                                                      '--probabilities').splitlines())
  assert head[-3:] == ['p(bad)', 'p(good)', 'p(place)'] and float(row[-1]) > float(row[-3])
  assert 'p(bad)' not in predicted('classification', 'y.tsv')


def test_json_has_all_tags_on_request(predicted):
  plain = json.loads(predicted('tagging', 'y.jsonl', line='angela O\ncame O\nto O\nberlin B-LOC\n'))
  found = json.loads(predicted('tagging', 'y.jsonl', '--probabilities',
                               line='angela O\ncame O\nto O\nberlin B-LOC\n'))
  shares = found.pop('all_probabilities')
  assert found == plain and len(shares) == 4
  for word, tag, probability in zip(shares, found['tags'], found['probabilities'], strict=True):
    assert [*word] == ['O', 'B-PER', 'I-PER', 'B-LOC',
                       'I-LOC'] and sum(word.values()) == pytest.approx(1)
    assert max(word, key=word.__getitem__) == tag and word[tag] == probability


@pytest.mark.parametrize(('kind', 'output', 'message'), [
    ('regression', 'y.tsv', 'is for classes, labels and tags, and the model predicts regression'),
    ('tagging', 'y.conll', 'of tags are written to .jsonl, got --output=')])
def test_without_probabilities_or_a_place_for_them(predicted, kind, output, message):
  assert message in predicted(kind, output, '--probabilities')
