"""The commands that put a model to use: what they write, what they print, what they refuse."""
import io
import json
import sys
import zipfile

import numpy as np
import pytest
import tuned

import plm_jax
from plm_jax.cli import applied, commands


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  """A folder with a checkpoint of each kind of task."""
  folder = tmp_path_factory.mktemp('tuned')
  for kind in ('classification', 'tagging', 'answers', 'choice'):
    plm_jax.export(tuned.trained(kind), folder / kind)
  return folder


@pytest.fixture
def typed(models, tmp_path, monkeypatch, capsys):
  """Runs a command in a folder of its own -> what it prints; or, where it ends with an error, that."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(applied, 'CHUNK', 2)
  def run(name, kind, *args, said=''):
    monkeypatch.setattr('sys.argv', ['plm_jax', name, str(models / kind), *args])
    monkeypatch.setattr('sys.stdin', io.TextIOWrapper(io.BytesIO(said.encode())))
    try:
      commands.main()
    except SystemExit as error:
      return str(error.code)
    return capsys.readouterr().out
  return run


def rows(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_is_predicted_in_chunks_and_measured(typed, tmp_path):
  (tmp_path / 'x.tsv').write_text('id\ttext\tlabel\n7\ta fine film\tgood\n8\ta dull film\tgood\n9\tdull\tbad\n')
  said = typed('predict', 'classification', 'x.tsv', '--output=y.jsonl', '--pack')
  assert said.split('\n')[:3] == ['accuracy             66.67', 'of 3 rows with labels', '3 predictions in y.jsonl']
  first, *_, last = rows(tmp_path / 'y.jsonl')
  assert {name: first[name] for name in ('id', 'text', 'label', 'truth')} == {
      'id': '7', 'text': 'a fine film', 'label': 'good', 'truth': 'good'}
  assert first['probability'] == first['probabilities']['good'] > 0.9
  assert last['label'] == 'bad'
  (tmp_path / 'z.csv').write_text('review\n"a fine\nfilm"\n')
  assert typed('predict', 'classification', 'z.csv', '--output=z.tsv') == '1 predictions in z.tsv\n'
  head, row = (tmp_path / 'z.tsv').read_text().splitlines()
  assert head == 'label\tprobability\ttext\ttext_b'
  assert row.startswith('good\t0.') and row.endswith('\ta fine film')


def test_standard_input_is_a_text_a_line(typed):
  found = [json.loads(line) for line in typed('predict', 'classification', '-', said='fine\ndull\ta film\nfine\n'
                                              ).splitlines()]
  assert [(one['label'], one.get('text_b')) for one in found] == [('good', None), ('bad', 'a film'), ('good', None)]
  found = json.loads(typed('predict', 'choice', '-', said='a film\tdull\tfine\n'))
  assert (found['choice'], found['number']) == ('fine', 1)
  found = json.loads(typed('predict', 'answers', '-', said='who?\tit came to Angela Merkel.\n'))
  assert (found['answer'], found['start'], found['end']) == ('Angela Merkel', 11, 24)


def test_what_is_wrong_is_a_line_and_nothing_is_written(typed, tmp_path):
  (tmp_path / 'x.tsv').write_text('text\tlabel\nfine\tgood\ndull\tbad\nfine\tugly\n')
  (tmp_path / 'empty.txt').write_text('fine\n\n')
  for args, line in (
      (('predict', 'classification', 'x.tsv', '--output=y.jsonl'), "x.tsv:4: the label 'ugly' is none of those"),
      (('predict', 'classification', 'empty.txt', '--output=y.jsonl'), 'empty.txt:2: expected a text, or a pair'),
      (('predict', 'classification', 'x.tsv', '--output=y.csv'), '--output is .jsonl or .tsv, got y.csv'),
      (('predict', 'classification', 'x.tsv', '--columns.first=film'), "x.tsv:2: no column 'film', only ['label', "),
      (('predict', 'classification', 'none.tsv', '--output=y.jsonl'), "no files match 'none.tsv'"),
      (('tag', 'classification', 'fine'), 'has learned classification and cannot tag'),
      (('encode', 'classification', 'empty.txt', '--output=y.npy'), 'empty.txt:2: the line is empty'),
      (('encode', 'classification', 'x.tsv', '--output=y.npy', '--column=stars'), "x.tsv:2: no column 'stars'"),
      (('encode', 'classification', 'x.tsv', '--output=y.npy', '--pooling=none'), 'write .npz or .parquet'),
      (('encode', 'classification', 'x.tsv', '--output=y.txt'), '--output is .npy, .npz or .parquet, got y.txt')):
    said = typed(*args)
    assert said.startswith('error: ') and line in said and '\n' not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ['empty.txt', 'x.tsv']
  (tmp_path / 'long.txt').write_text('fine\n' + 'a film ' * 40 + '\n')
  assert 'long.txt:2: a text has 82 tokens, the model takes 32' in typed(
      'encode', 'classification', 'long.txt', '--output=y.npy')
  said = typed('predict', 'classification', 'x.tsv', '--output=y.jsonl', '--on-error=skip')
  assert '1 rows were left out: 1 unknown label' in said and '2 predictions in y.jsonl' in said


def test_answers_are_printed_with_their_places(typed, tmp_path):
  (tmp_path / 'x.txt').write_text('A film.\nAngela Merkel came.\n')
  expected = [(('x.txt', 'who came?'), '8:21'), (('it came to Angela Merkel', 'who?'), '11:24')]
  for args, place in expected:
    question, found = typed('answer', 'answers', *args).splitlines()
    assert question == args[1]
    assert found.split()[1:] == [place, 'Angela', 'Merkel']
  assert len(typed('answer', 'answers', 'x.txt', 'who?', 'who came?', '--top=3').splitlines()) == 8


def test_a_text_is_marked_up_and_words_stand_in_columns(typed, tmp_path):
  assert typed('tag', 'tagging', 'Angela Merkel came to Berlin.') == '[Angela Merkel PER] came to [Berlin LOC].\n'
  (tmp_path / 'x.txt').write_text('Angela came.\nBerlin\nfine\n')
  assert typed('tag', 'tagging', 'x.txt') == '[Angela PER] came.\n[Berlin LOC]\nfine\n'
  assert typed('tag', 'tagging', 'x.txt', '--output=x.conll') == '3 texts in x.conll\n'
  assert (tmp_path / 'x.conll').read_text() == 'Angela\tB-PER\ncame\tO\n.\tO\n\nBerlin\tB-LOC\n\nfine\tO\n\n'
  # What was written is a source: here its tags are the truth, all of which are found again.
  said = typed('predict', 'tagging', 'x.conll', '--output=y.conll')
  assert said.startswith('f1                  100.00\nprecision           100.00\nrecall              100.00\n')
  assert (tmp_path / 'y.conll').read_text().startswith('Angela\tB-PER\tB-PER\ncame\tO\tO\n')


def test_vectors_of_files(typed, tmp_path):
  texts = ['a fine film', 'dull', 'a film came to berlin', 'a', 'fine']
  (tmp_path / 'x.txt').write_text('\n'.join(texts) + '\n')
  (tmp_path / 'x.jsonl').write_text(''.join(json.dumps({'says': text}) + '\n' for text in texts))
  model = tuned.trained('classification')
  assert typed('encode', 'classification', 'x.txt', '--output=x.npy') == 'vectors of 5 texts in x.npy\n'
  np.testing.assert_allclose(np.load(tmp_path / 'x.npy', mmap_mode='r'), plm_jax.encode(model, texts), atol=1e-6)
  typed('encode', 'classification', 'x.jsonl', '--column=says', '--output=x.npz', '--pooling=none', '--layer=0')
  found = np.load(tmp_path / 'x.npz')
  expected = plm_jax.encode(model, texts, layer=0, pooling='none')
  assert found['lengths'].tolist() == [5, 3, 7, 3, 3] == [*map(len, expected)]
  np.testing.assert_allclose(found['vectors'], np.concatenate(expected), atol=1e-6)
  assert zipfile.ZipFile(tmp_path / 'x.npz').testzip() is None
  typed('encode', 'classification', '-', '--output=y.npz', '--pooling=first', said='fine\n')
  np.testing.assert_allclose(np.load(tmp_path / 'y.npz')['vectors'], plm_jax.encode(model, 'fine', pooling='first'),
                             atol=1e-6)


def test_vectors_as_parquet(typed, tmp_path, monkeypatch):
  (tmp_path / 'x.txt').write_text('a fine film\ndull\na\n')
  with monkeypatch.context() as without:
    without.setitem(sys.modules, 'pyarrow', None)
    assert 'pip install pyarrow' in typed('encode', 'classification', 'x.txt', '--output=x.parquet')
  parquet = pytest.importorskip('pyarrow.parquet')
  typed('encode', 'classification', 'x.txt', '--output=x.parquet')
  vectors = parquet.read_table(tmp_path / 'x.parquet')['vector'].to_pylist()
  model = tuned.trained('classification')
  np.testing.assert_allclose(vectors, plm_jax.encode(model, ['a fine film', 'dull', 'a']), atol=1e-6)
  typed('encode', 'classification', 'x.txt', '--output=y.parquet', '--pooling=none')
  table = parquet.read_table(tmp_path / 'y.parquet')
  assert table['length'].to_pylist() == [5, 3, 3]
  assert [len(one) for one in table['vectors'].to_pylist()] == [5, 3, 3]
