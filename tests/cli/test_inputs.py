"""Commands that apply a model: their output files, printed lines and errors."""
import io
import json
import os
import re
import shutil
import signal
import sys
import zipfile

import numpy as np
import pytest
import tuned

import plm_jax
from plm_jax import progress
from plm_jax.cli import commands, encode, inputs, predict


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  """A folder with a checkpoint of each kind of task."""
  folder = tmp_path_factory.mktemp('tuned')
  for kind in ('classification', 'tagging', 'answers', 'choice', 'rerank'):
    plm_jax.export(tuned.trained(kind), folder / kind)
  return folder


@pytest.fixture
def typed(models, tmp_path, monkeypatch, capsys):
  """Run a command in a new folder; return its printed output, or its error message."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(inputs, 'CHUNK_ROWS', 2)
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
  (tmp_path / 'x.tsv').write_text(
      'id\ttext\tlabel\n7\ta fine film\tgood\n8\ta dull film\tgood\n9\tdull\tbad\n')
  said = typed('predict', 'classification', 'x.tsv', '--output=y.jsonl', '--pack')
  assert said.split('\n')[:3] == ['accuracy             66.67', 'of 3 rows with labels',
                                  '3 predictions in y.jsonl']
  first, *_, last = rows(tmp_path / 'y.jsonl')
  assert {name: first[name] for name in ('id', 'text', 'label', 'truth')} == {
      'id': '7', 'text': 'a fine film', 'label': 'good', 'truth': 'good'}
  assert first['probability'] == first['probabilities']['good'] > 0.9
  assert last['label'] == 'bad'
  (tmp_path / 'z.csv').write_text('review\n"a fine\nfilm"\n')
  assert typed('predict', 'classification', 'z.csv', '--output=z.tsv') == '1 predictions in z.tsv\n'
  head, row = (tmp_path / 'z.tsv').read_text().splitlines()
  assert head == 'label\tprobability\ttruth\ttext'
  assert row.startswith('good\t0.') and row.endswith('\t\ta fine film')


def test_documents_are_reranked(typed, tmp_path):
  (tmp_path / 'd.txt').write_text('a dull film\na film\na fine film\n')
  found = json.loads(typed('rerank', 'rerank', 'film', 'd.txt', '--top=2'))
  assert found['query'] == 'film' and [hit['number'] for hit in found['hits']] == [2, 1]
  assert found['hits'][0]['text'] == 'a fine film' and found['hits'][0]['score'] > 0.9
  (tmp_path / 'q.txt').write_text('a film\ndull\n')
  typed('rerank', 'rerank', 'q.txt', 'd.txt', '--first=1', '--output=h.jsonl')
  assert [[hit['number'] for hit in row['hits']]
          for row in rows(tmp_path / 'h.jsonl')] == [[1], [0]]
  (tmp_path / 'e.txt').write_text('')
  assert typed('rerank', 'rerank', 'film', 'e.txt') == 'error: e.txt has no documents'
  assert 'has learned classification and cannot rerank' in typed('rerank', 'classification', 'film',
                                                                 'd.txt')
  (tmp_path / 'p.tsv').write_text(
      'query\tdocument\trelevance\nfilm\tdull\t0\nfilm\ta fine film\t1\n')
  said = typed('predict', 'rerank', 'p.tsv', '--output=p.jsonl')
  assert said.startswith('ndcg_10             100.00') and rows(tmp_path / 'p.jsonl')[1][
      'truth'] == 1


def table(path):
  head, *found = [line.split('\t') for line in path.read_text().splitlines()]
  return [dict(zip(head, row, strict=True)) for row in found]


def test_tables_of_predictions_have_a_header_for_every_column_and_the_label(typed, tmp_path):
  (tmp_path / 'x.tsv').write_text(
      'id\ttext\tlabel\n7\ta fine film\tgood\n8\tdull\tbad\n9\ta film\t\n')
  typed('predict', 'classification', 'x.tsv', '--output=y.tsv')
  found = table(tmp_path / 'y.tsv')
  assert [(row['id'], row['truth'], row['text']) for row in found] == [
      ('7', 'good', 'a fine film'), ('8', 'bad', 'dull'), ('9', '', 'a film')]
  assert [row['label'] for row in found[:2]] == ['good', 'bad'] and list(found[0]) == [
      'id', 'label', 'probability', 'truth', 'text']
  (tmp_path / 'x.jsonl').write_text(json.dumps({'sentence1': 'a', 'sentence2': 'b\tc',
                                                'label': 'bad'}) + '\n')
  typed('predict', 'classification', 'x.jsonl', '--output=y.tsv')
  assert [(row['text'], row['text_b'], row['truth'])
          for row in table(tmp_path / 'y.tsv')] == [('a', 'b c', 'bad')]
  (tmp_path / 'x.jsonl').write_text(json.dumps({'context': 'a film', 'choices': ['dull', 'fine'],
                                                'label': 1}) + '\n')
  typed('predict', 'choice', 'x.jsonl', '--output=y.tsv')
  row, = table(tmp_path / 'y.tsv')
  assert (row['truth'], row['context'], row['question']) == ('1', 'a film', '')
  (tmp_path / 'x.jsonl').write_text(json.dumps({
      'id': 'q', 'question': 'who?', 'context': 'it came to Angela Merkel',
      'answers': ['Angela', 'Merkel']}) + '\n')
  typed('predict', 'answers', 'x.jsonl', '--output=y.tsv')
  row, = table(tmp_path / 'y.tsv')
  assert (row['id'], row['truth']) == ('q', '["Angela", "Merkel"]')
  (tmp_path / 'x.txt').write_text('a film\nfine\tdull\n')
  assert 'x.txt:2: a column text_b is needed' in typed('predict', 'classification', 'x.txt',
                                                       '--output=z.tsv')
  assert not (tmp_path / 'z.tsv').exists()


def test_lines_of_another_encoding_and_odd_ones_are_read_or_left_out(typed, tmp_path):
  (tmp_path / 'x.txt').write_bytes(b'fine\n\xff\n\ndull\n')
  assert 'leave such lines out with --on-error=skip' in typed('predict', 'classification', 'x.txt')
  said = typed('predict', 'classification', 'x.txt', '--on-error=skip', '--output=y.jsonl')
  assert '2 rows were left out: 2 unreadable lines' in said and '2 predictions in y.jsonl' in said
  (tmp_path / 'x.txt').write_bytes('fine\ndull\n'.encode('utf-16'))
  assert 'give --encoding=utf-16' in typed('predict', 'classification', 'x.txt')
  assert [json.loads(line)['label'] for line in typed(
      'predict', 'classification', 'x.txt', '--encoding=utf-16').splitlines()] == ['good', 'bad']


@pytest.mark.parametrize('args', [
    ('tag', 'tagging', './queris.txt'), ('tag', 'tagging', 'Angela came.', 'nams.conll'),
    ('tag', 'tagging', 'a/b'),
    ('answer', 'answers', 'context.md', 'who?'),
    ('attention', 'classification', 'My Drive/texts, 2.txt'),
    ('neighbors', 'classification', 'a *film*', 'texts.txt.gz'),
    ('losses', 'classification', '~/none'),
    ('losses', 'classification', 'x.txt,missing.txt'),
    ('neighbors', 'classification', 'a *film*', '*.tsv'),
    ('similar', 'classification', 'a film', '/missing/file'),
    ('similar', 'classification', 'pairs.tsv'),
    ('search', 'classification', 'x.txt', 'queries.jsonl'),
    ('search', 'classification', 'x.txt', 'gs:/bucket/x')])
def test_a_missing_file_is_not_treated_as_text(typed, tmp_path, args):
  (tmp_path / 'x.txt').write_text('a fine film\n')
  missing = next(arg for arg in args[2:] if inputs.looks_like_path(arg) and arg != 'x.txt')
  assert f'there is no file {missing!r}' in typed(*args)


@pytest.mark.parametrize('text', [
    ' TCP/IP', 'and/or is a word', 'Angela came.', 'I read a.txt today', 'film', '.', '3.5', 'e.g.',
    'U.S.', 'a\nb.txt',
    'https://example.com is down', '', 'node.js', '...'])
def test_texts_that_are_no_paths(text, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert not inputs.is_source(text)


def test_several_texts_and_files_are_tagged_in_their_order(typed, tmp_path):
  (tmp_path / 'x.txt').write_text('Berlin\nfine\n')
  assert typed('tag', 'tagging', 'Angela Merkel came.', 'x.txt', 'Berlin.') == (
      '[Angela Merkel PER] came.\n[Berlin LOC]\nfine\n[Berlin LOC].\n')
  assert typed('tag', 'tagging', 'Angela.', '-', '--output=y.jsonl',
               said='Berlin\n') == '2 texts in y.jsonl\n'
  assert [row['text'] for row in rows(tmp_path / 'y.jsonl')] == ['Angela.', 'Berlin']
  assert 'there is no text' in typed('tag', 'tagging')


def test_standard_input_has_one_text_per_line(typed):
  found = [json.loads(line) for line in typed('predict', 'classification', '-',
                                              said='fine\ndull\ta film\nfine\n'
                                              ).splitlines()]
  assert [(one['label'], one.get('text_b'))
          for one in found] == [('good', None), ('bad', 'a film'), ('good', None)]
  found = json.loads(typed('predict', 'choice', '-', said='a film\tdull\tfine\n'))
  assert (found['choice'], found['number']) == ('fine', 1)
  found = json.loads(typed('predict', 'answers', '-', said='who?\tit came to Angela Merkel.\n'))
  assert (found['answer'], found['start'], found['end']) == ('Angela Merkel', 11, 24)


def test_rows_with_unknown_labels_are_predicted_and_counted(typed, tmp_path):
  (tmp_path / 'x.tsv').write_text('text\tlabel\nfine\tgood\ndull\t?\nfine\tugly\na film\t\n')
  said = typed('predict', 'classification', 'x.tsv', '--output=y.jsonl').split('\n')
  assert said[0].startswith(
      "2 rows have labels that cannot be compared. They are predicted") and "x.tsv:3: " in said[0]
  assert said[2:4] == ['of 1 rows with labels; 3 rows have no known label',
                       '4 predictions in y.jsonl']
  rows = [json.loads(line) for line in (tmp_path / 'y.jsonl').read_text().splitlines()]
  assert ['truth' in row for row in rows] == [True, False, False, False]


def test_wrong_input_is_a_one_line_error_without_output(typed, tmp_path):
  (tmp_path / 'x.tsv').write_text('text\tlabel\nfine\tgood\ndull\tbad\n \tgood\n')
  (tmp_path / 'empty.txt').write_text('fine\n\n')
  for args, line in (
      (('predict', 'classification', 'x.tsv', '--output=y.jsonl'),
       "x.tsv:4: the column 'text' is empty"),
      (('predict', 'classification', 'empty.txt', '--output=y.jsonl'),
       'empty.txt:2: expected a text, or a pair'),
      (('predict', 'classification', 'x.tsv', '--output=y.csv'),
       '--output is .jsonl or .tsv, got y.csv'),
      (('predict', 'classification', 'x.tsv', '--columns.first=film'),
       "x.tsv:2: no column 'film', only ['label', "),
      (('predict', 'classification', 'none.tsv', '--output=y.jsonl'), "no files match 'none.tsv'"),
      (('tag', 'classification', 'fine'), 'has learned classification and cannot tag'),
      (('encode', 'classification', 'empty.txt', '--output=y.npy'),
       'empty.txt:2: the line is empty'),
      (('encode', 'classification', 'x.tsv', '--output=y.npy', '--column=stars'),
       "x.tsv:2: no column 'stars'"),
      (('encode', 'classification', 'x.tsv', '--output=y.npy', '--pooling=none'),
       'write .npz or .parquet'),
      (('encode', 'classification', 'x.tsv', '--output=y.txt'),
       '--output is .npy, .npz or .parquet, got y.txt')):
    said = typed(*args)
    assert said.startswith('error: ') and line in said and '\n' not in said
    names = {path.name for path in tmp_path.iterdir()}
    assert names - {'y.jsonl.part', 'y.jsonl.part.jsonl'} == {'empty.txt', 'x.tsv'}
  (tmp_path / 'long.txt').write_text('fine\n' + 'a film ' * 40 + '\n')
  assert 'long.txt:2: a text has 82 tokens, the model takes 32' in typed(
      'encode', 'classification', 'long.txt', '--output=y.npy')
  said = typed('predict', 'classification', 'x.tsv', '--output=y.jsonl', '--on-error=skip')
  assert '1 rows were left out: 1 empty text' in said and '2 predictions in y.jsonl' in said


def test_answers_are_printed_with_their_places(typed, tmp_path):
  (tmp_path / 'x.txt').write_text('A film.\nAngela Merkel came.\n')
  expected = [(('x.txt', 'who came?'), '8:21'), (('it came to Angela Merkel', 'who?'), '11:24')]
  for args, place in expected:
    question, found = typed('answer', 'answers', *args).splitlines()
    assert question == args[1]
    assert found.split()[1:] == [place, 'Angela', 'Merkel']
  assert len(typed('answer', 'answers', 'x.txt', 'who?', 'who came?', '--top=3').splitlines()) == 8


def test_tagged_text_is_printed_with_marks_or_written_in_columns(typed, tmp_path):
  assert typed('tag', 'tagging',
               'Angela Merkel came to Berlin.') == '[Angela Merkel PER] came to [Berlin LOC].\n'
  (tmp_path / 'x.txt').write_text('Angela came.\nBerlin\nfine\n')
  assert typed('tag', 'tagging', 'x.txt') == '[Angela PER] came.\n[Berlin LOC]\nfine\n'
  assert typed('tag', 'tagging', 'x.txt', '--output=x.conll') == '3 texts in x.conll\n'
  assert (tmp_path / 'x.conll').read_text(
      ) == 'Angela\tB-PER\ncame\tO\n.\tO\n\nBerlin\tB-LOC\n\nfine\tO\n\n'
  # The written file is a valid input: its tags become labels, and all of them are predicted again.
  said = typed('predict', 'tagging', 'x.conll', '--output=y.conll')
  assert said.startswith(
      'f1                  100.00\nprecision           100.00\nrecall              100.00\n')
  assert (tmp_path / 'y.conll').read_text().startswith('Angela\tB-PER\tB-PER\ncame\tO\tO\n')


def test_vectors_of_files(typed, tmp_path):
  texts = ['a fine film', 'dull', 'a film came to berlin', 'a', 'fine']
  (tmp_path / 'x.txt').write_text('\n'.join(texts) + '\n')
  (tmp_path / 'x.jsonl').write_text(''.join(json.dumps({'says': text}) + '\n' for text in texts))
  model = tuned.trained('classification')
  assert typed('encode', 'classification', 'x.txt',
               '--output=x.npy') == 'vectors of 5 texts in x.npy\n'
  np.testing.assert_allclose(np.load(tmp_path / 'x.npy', mmap_mode='r'),
                             plm_jax.encode(model, texts), atol=1e-6)
  typed('encode', 'classification', 'x.jsonl', '--column=says', '--output=x.npz', '--pooling=none',
        '--layer=0')
  found = np.load(tmp_path / 'x.npz')
  expected = plm_jax.encode(model, texts, layer=0, pooling='none')
  assert found['lengths'].tolist() == [5, 3, 7, 3, 3] == [*map(len, expected)]
  np.testing.assert_allclose(found['vectors'], np.concatenate(expected), atol=1e-6)
  assert zipfile.ZipFile(tmp_path / 'x.npz').testzip() is None
  typed('encode', 'classification', '-', '--output=y.npz', '--pooling=first', said='fine\n')
  np.testing.assert_allclose(np.load(tmp_path / 'y.npz')['vectors'],
                             plm_jax.encode(model, 'fine', pooling='first'),
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
  np.testing.assert_allclose(vectors, plm_jax.encode(model, ['a fine film', 'dull', 'a']),
                             atol=1e-6)
  typed('encode', 'classification', 'x.txt', '--output=y.parquet', '--pooling=none')
  table = parquet.read_table(tmp_path / 'y.parquet')
  assert table['length'].to_pylist() == [5, 3, 3]
  assert [len(one) for one in table['vectors'].to_pylist()] == [5, 3, 3]


@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize('name', ['predict', 'encode', 'tag'])
def test_a_signal_leaves_no_unfinished_output(name, number, code, typed, tmp_path, monkeypatch):
  """It comes in the second chunk of vectors, or in the first chunk of predictions."""
  (tmp_path / 'x.txt').write_text('a fine film\n' * 6)
  module, function = (encode, 'encode_chunk') if name == 'encode' else (predict, 'name_labels')
  real, calls = getattr(module, function), []
  def interrupted(*args):
    calls.append(args)
    if len(calls) == 2:
      os.kill(os.getpid(), number)
    return real(*args)
  monkeypatch.setattr(module, function, interrupted)
  kind, output = {'tag': ('tagging', 'y.jsonl'), 'encode': ('classification', 'y.npy')}.get(
      name, ('classification', 'y.jsonl'))
  # The first chunk of vectors is kept, so the command can be started again.
  assert typed(name, kind, 'x.txt', f'--output={output}') == str(75 if name == 'encode' else code)
  kept = {'y.npy.part', 'y.npy.part.jsonl'} if name == 'encode' else set()
  assert {path.name for path in tmp_path.iterdir()} == {'x.txt', *kept}


@pytest.mark.parametrize('name', ['predict', 'encode', 'tag', 'search'])
def test_long_files_show_their_progress(name, typed, tmp_path, monkeypatch):
  monkeypatch.setattr(progress, 'INTERVAL', 0.0)
  monkeypatch.setattr(sys, 'stderr', stderr := io.StringIO())
  (tmp_path / 'x.txt').write_text('a fine film\n' * 6)
  kind = 'tagging' if name == 'tag' else 'classification'
  more = {'encode': ['--output=y.npy'], 'search': ['a film']}.get(name, [])
  typed(name, kind, 'x.txt', *more)
  said = stderr.getvalue().splitlines()
  assert said
  assert all(line.startswith(f'{name}: ') for line in said)
  assert re.match(rf'{name}: 6 (of 6 )?(rows|texts)', said[-2 if name == 'search' else -1])


def test_an_unwritable_output_is_an_error_before_the_work(typed, tmp_path, monkeypatch):
  for module in (predict, encode):
    monkeypatch.setattr(module, 'load_on_mesh', None)  # no model is loaded
  monkeypatch.setattr(inputs.models, 'load', None)
  (tmp_path / 'x.txt').write_text('a fine film\n')
  for name, option in (('predict', '--output=x.txt/y.jsonl'), ('encode', '--output=x.txt/y.npy'),
                       ('minimal-pairs', '--page=x.txt/y.html'),
                       ('minimal-pairs', '--output=x.txt/y.jsonl')):
    assert f'{tmp_path / "x.txt"} is a file, expected a folder' in typed(name, 'classification',
                                                                         'x.txt', option)
  (tmp_path / 'folder.jsonl').mkdir()
  assert 'it is a folder, expected the name of a file' in typed(
      'predict', 'classification', 'x.txt', '--output=folder.jsonl')


def test_a_checkpoint_of_several_labels_predicts_them(models, tmp_path):
  shutil.copytree(models / 'classification', tmp_path / 'several')
  config = json.loads((tmp_path / 'several/config.json').read_text())
  (tmp_path / 'several/config.json').write_text(
      json.dumps(config | {'problem_type': 'multi_label_classification'}))
  assert plm_jax.predict(tmp_path / 'several', 'fine')[0].labels == ['good']
  assert plm_jax.predict(models / 'classification', 'fine')[0].label == 'good'


@pytest.mark.parametrize('args', [
    ('predict', 'classification', 'x.txt', '--output=-'),
    ('tag', 'tagging', 'x.txt', '--output', '-'),
    ('similar', 'classification', 'a fine film', 'a', '--output=-')])
def test_a_dash_is_standard_output(args, typed, tmp_path, capsys):
  (tmp_path / 'x.txt').write_text('a fine film\n')
  assert 'fine' in typed(*args)
  assert [path.name for path in tmp_path.iterdir()] == ['x.txt']


@pytest.mark.parametrize('args', [
    ('encode', 'classification', 'x.txt', '--output=-'), ('export', 'classification', '-'),
    ('minimal-pairs', 'classification', 'x.txt', '--page=-'), ('clean', 'x.txt', '-'),
    ('prepare', 'x.txt', '-'),
    ('mine-negatives', 'bm25', 'x.jsonl', '--output=-')])
def test_a_dash_is_refused_for_results_that_are_no_lines(args, typed, tmp_path):
  (tmp_path / 'x.txt').write_text('a fine film\n')
  assert 'the output is -, but this command does not write its results to standard output' in typed(
      *args)
  assert [path.name for path in tmp_path.iterdir()] == ['x.txt']
