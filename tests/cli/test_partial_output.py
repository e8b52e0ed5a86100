"""Commands that are interrupted, and resume: the file is the same as without an interruption."""
import fcntl
import io
import json
import os
import pathlib

import numpy as np
import pytest
from sentence_model import trained_of
import tuned

import plm_jax
from plm_jax.api import similarity
from plm_jax.cli import commands, encode, inputs, partial_output, predict
from plm_jax.layers.splade import SpladeConfig
from plm_jax.storage import checksums, journal
from plm_jax.storage.lock import LockError
from plm_jax.tasks.extractive_qa import AnswerPrediction, Candidate
from plm_jax.tasks.multilabel import MultiLabelPrediction
from plm_jax.tasks.sequence_classification import label_prediction
from plm_jax.tasks.token_classification import TagPrediction

TEXTS = ['a fine film', 'dull', 'a film came to berlin', 'a', 'angela merkel came .', 'fine',
         'dull film']
# Name -> command, model, input, output, more arguments.
COMMANDS = {
    'jsonl': ('predict', 'classification', 'x.txt', 'y.jsonl'),
    'tsv': ('predict', 'classification', 'x.tsv', 'y.tsv'),
    'conll': ('tag', 'tagging', 'x.txt', 'y.conll'),
    'labeled conll': ('predict', 'tagging', 'x.conll', 'y.conll'),
    'npy': ('encode', 'classification', 'x.txt', 'y.npy'),
    'npz': ('encode', 'classification', 'x.txt', 'y.npz', '--pooling=none'),
    'parquet': ('encode', 'classification', 'x.txt', 'y.parquet'),
    'ragged parquet': ('encode', 'classification', 'x.txt', 'y.parquet', '--pooling=none'),
    'sparse npz': ('encode', 'sparse', 'x.txt', 'y.npz'),
    'rerank': ('rerank', 'rerank', 'x.txt', 'y.jsonl')}
QUICK = 'tsv', 'conll', 'npz', 'sparse npz', 'rerank'
CHUNKS = 4  # of seven rows, with two rows each


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tuned')
  for kind in ('classification', 'tagging', 'rerank'):
    plm_jax.export(tuned.trained(kind), folder / kind)
  plm_jax.export(trained_of(SpladeConfig()), folder / 'sparse')
  return folder


@pytest.fixture
def typed(models, tmp_path, monkeypatch, capsys):
  """Runs a command with files in its folder -> (exit status or message, standard output, standard
  error)."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(inputs, 'CHUNK_ROWS', 2)
  (tmp_path / 'x.txt').write_text(''.join(f'{text}\n' for text in TEXTS))
  labels = ['good', 'bad', 'good', 'good', '', 'bad', 'bad']
  rows = [f'{text}\t{label}\n' for text, label in zip(TEXTS, labels, strict=True)]
  (tmp_path / 'x.tsv').write_text('text\tlabel\n' + ''.join(rows))
  (tmp_path / 'x.conll').write_text(''.join(f'angela B-PER\n{"fine" if n % 2 else "berlin"} O\n\n'
                                            for n in range(7)))
  def run(name, kind, *args, said=''):
    monkeypatch.setattr('sys.argv', ['plm_jax', name, str(models / kind), *args])
    monkeypatch.setattr('sys.stdin', io.TextIOWrapper(io.BytesIO(said.encode())))
    capsys.readouterr()
    status = 0
    try:
      commands.main()
    except SystemExit as error:
      status = error.code
    return status, *capsys.readouterr()
  return run


def command(name):
  """Returns the arguments of a command, and its output."""
  if name.endswith('parquet'):
    pytest.importorskip('pyarrow')
  function, kind, file, output, *more = COMMANDS[name]
  if function == 'rerank':
    (pathlib.Path('d.txt')).write_text('a dull film\na fine film\n')
    more = ['d.txt', *more]
  return (function, kind, file, *more, f'--output={output}'), pathlib.Path(output)


def interrupt_at(monkeypatch, number, name=''):
  """Makes a command end as by Ctrl-C, when it computes its results for the time `number` (from 0),
  for each number."""
  calls = []
  def interrupted(function):
    def call(*args, **options):
      calls.append(None)
      if len(calls) == number + 1:
        raise KeyboardInterrupt
      return function(*args, **options)
    return call
  for module, function in ((predict, 'name_labels'), (encode, 'encode_chunk'),
                           (similarity, 'rerank')):
    if name in ('', function):
      monkeypatch.setattr(module, function, interrupted(getattr(module, function)))
  return calls


@pytest.mark.parametrize('name', [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS])
def test_the_file_is_the_same_wherever_the_command_was_interrupted(name, typed, monkeypatch):
  args, output = command(name)
  status, expected, said = typed(*args)
  assert status == 0
  assert 'resuming' not in said
  content = output.read_bytes()
  output.unlink()
  for number in range(CHUNKS if args[0] == 'encode' else len(TEXTS)):
    with monkeypatch.context() as patch:
      interrupt_at(patch, number)
      status, _, said = typed(*args)
    assert status == 130
    assert not output.exists()
    done = number * 2 if args[0] == 'encode' else number // 2 * 2
    if args[0] == 'rerank':
      done = number
    assert ('the same command resumes after them' in said) == (done > 0)
    assert pathlib.Path(f'{output}.part').exists() == (done > 0)
    status, found, said = typed(*args)
    assert (status, found) == (0, expected)
    assert (f'resuming after {done} ' in said) == (done > 0)
    assert output.read_bytes() == content
    assert not [*pathlib.Path().glob('*.part*')]
    output.unlink()


@pytest.mark.parametrize('name', ['tsv', 'npz'])
def test_a_command_is_interrupted_again_and_again(name, typed, monkeypatch):
  args, output = command(name)
  _, expected, _ = typed(*args)
  content = output.read_bytes()
  output.write_bytes(b'of before')
  for _ in range(CHUNKS - 1):
    with monkeypatch.context() as patch:
      interrupt_at(patch, 2 if name == 'tsv' else 1)
      assert typed(*args)[0] == 130
    assert output.read_bytes() == b'of before'
  status, found, said = typed(*args)
  assert (status, found) == (0, expected)
  assert 'resuming after 6 ' in said
  assert output.read_bytes() == content


def interrupted(typed, monkeypatch):
  """Interrupts a command in its third chunk, after four rows -> its arguments, and its output."""
  args, output = command('tsv')
  output.unlink(missing_ok=True)
  with monkeypatch.context() as patch:
    interrupt_at(patch, 5)
    assert typed(*args)[0] == 130
  return args, output


def test_other_work_starts_again(typed, models, tmp_path, monkeypatch):
  for change, reason in (
      ('input', 'input'), ('batch', 'configuration'), ('model', 'model'), ('measures', 'task'),
      ('version', 'environment')):
    args, output = interrupted(typed, monkeypatch)
    with monkeypatch.context() as patch:
      if change == 'input':
        (tmp_path / 'x.tsv').write_text((tmp_path / 'x.tsv').read_text() + 'fine\tgood\n')
      elif change == 'batch':
        args = (*args, '--batch=1')
      elif change == 'version':
        patch.setattr(plm_jax, '__version__', '999')
      else:
        real = predict.load_on_mesh
        def load(*args, real=real, change=change):
          trained = real(*args)
          if change == 'model':
            trained.params['heads_label']['dense']['bias'] = np.ones(2, np.float32)
          else:
            object.__setattr__(trained.task, 'measures', ('accuracy', 'f1'))
          return trained
        patch.setattr(predict, 'load_on_mesh', load)
      status, expected, said = typed(*args)
      assert status == 0
      assert f'y.tsv.part was made with another {reason}: starting again' in said
      found = output.read_bytes()
      assert typed(*args)[1] == expected
      assert output.read_bytes() == found


def test_work_resumes_if_rows_with_errors_are_skipped(typed, tmp_path):
  (tmp_path / 'x.tsv').write_text('text\tlabel\n' + 'fine\tgood\n' * 5 + '\tgood\ndull\tbad\n')
  args = 'predict', 'classification', 'x.tsv', '--output=y.jsonl'
  status, _, said = typed(*args)
  assert 'x.tsv:7: ' in status
  assert '4 rows are complete in y.jsonl.part\n' in said
  status, found, said = typed(*args, '--on-error=skip')
  assert status == 0
  assert 'resuming after 4 rows' in said
  assert '1 rows were left out' in found
  assert '6 predictions' in found
  content = (tmp_path / 'y.jsonl').read_bytes()
  assert typed(*args, '--on-error=skip')[1] == found
  assert (tmp_path / 'y.jsonl').read_bytes() == content


def flip(path, place):
  """Flips a bit of the byte at a place of a file."""
  content = bytearray(path.read_bytes())
  content[place] ^= 1
  path.write_bytes(content)


def test_damaged_files_of_an_interrupted_command(typed, monkeypatch):
  def append(path, content):
    path.write_bytes(path.read_bytes() + content)
  def cut(path, count):
    path.write_bytes(path.read_bytes()[:-count])
  args, output = command('tsv')
  typed(*args)
  content = output.read_bytes()
  for damage, rows in (
      (lambda part, journal: flip(part, 40), None), (lambda part, journal: flip(part, -2), 2),
      (lambda part, journal: flip(journal, -30), 2),
      (lambda part, journal: append(part, b'of a chunk that was not finished\n'), 4),
      (lambda part, journal: append(journal, b'{"rows": 6, "byt'), 4),
      (lambda part, journal: cut(part, 1), 2),
      (lambda part, journal: journal.write_bytes(b'\xff' + journal.read_bytes()), 0),
      (lambda part, journal: journal.write_bytes(b''), 0),
      (lambda part, journal: part.unlink(), None),
      (lambda part, journal: journal.unlink(), 0)):
    interrupted(typed, monkeypatch)
    part, journal = pathlib.Path('y.tsv.part'), pathlib.Path('y.tsv.part.jsonl')
    # A chunk that was not finished has been written as far as the buffer was flushed.
    part.write_bytes(part.read_bytes()[:json.loads(journal.read_text().splitlines()[-1])['bytes']])
    damage(part, journal)
    status, _, said = typed(*args)
    assert status == 0
    assert (f'resuming after {rows} rows' in said) == bool(rows)
    assert ('y.tsv.part has no journal that can be read: starting again' in said) == (rows == 0)
    if rows == 2:
      assert ('y.tsv.part or its journal is damaged after 2 rows: what follows is computed '
              'again') in said
    assert output.read_bytes() == content


def test_a_journal_that_does_not_fit_is_an_error(typed, monkeypatch):
  for before, after in (('"rows": 4', '"rows": 3'), ('ClassPrediction', 'NoPrediction'),
                        ('plm_jax.tasks', 'os.tasks')):
    args, _ = interrupted(typed, monkeypatch)
    journal = pathlib.Path('y.tsv.part.jsonl')
    changed = [json.loads(line) for line in journal.read_text().replace(before, after).splitlines()]
    for line in changed:
      del line['crc32']
    journal.write_text(''.join(checksums.seal_json(line, one_line=True) for line in changed))
    assert typed(*args)[0].endswith('y.tsv.part.jsonl is damaged: delete it to start again')
    journal.unlink()


def test_two_commands_do_not_write_one_output(typed, monkeypatch):
  args, output = interrupted(typed, monkeypatch)
  with open('y.tsv.part.jsonl', 'rb') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    assert 'y.tsv is being written by another process' in typed(*args)[0]
  status, _, said = typed(*args)
  assert status == 0
  assert 'resuming after 4 rows' in said
  assert len(output.read_text().splitlines()) == 8


def test_a_journal_deleted_before_its_lock_is_created_again(tmp_path, monkeypatch):
  real, calls = journal.lock_file, []
  def lock(file):
    if not calls:
      os.unlink(tmp_path / 'y.part.jsonl')
    calls.append(file)
    return real(file)
  monkeypatch.setattr(journal, 'lock_file', lock)
  part = journal.PartialFile(str(tmp_path / 'y'), {})
  assert len(calls) == 2
  with pytest.raises(LockError, match='another process'):
    journal.PartialFile(str(tmp_path / 'y'), {})
  part.publish()
  part.close()
  assert [path.name for path in tmp_path.iterdir()] == ['y']


def test_standard_input_is_not_resumed(typed, monkeypatch):
  interrupt_at(monkeypatch, 3)
  status, _, said = typed('predict', 'classification', '-', '--output=y.jsonl', said='fine\n' * 6)
  assert (status, said) == (130, 'interrupted\n')
  assert not [*pathlib.Path().glob('y*')]


def test_links_and_private_outputs_keep_their_kind_and_mode(typed, tmp_path, monkeypatch):
  (tmp_path / 'real').mkdir()
  (tmp_path / 'real/z.jsonl').write_text('')
  (tmp_path / 'real/z.jsonl').chmod(0o600)
  (tmp_path / 'y.jsonl').symlink_to(tmp_path / 'real/z.jsonl')
  args = 'predict', 'classification', 'x.txt', '--output=y.jsonl'
  with monkeypatch.context() as patch:
    interrupt_at(patch, 3)
    assert f'{tmp_path}/real/z.jsonl.part; the same command' in typed(*args)[2]
  assert [path.stat().st_mode & 0o777 for path in (tmp_path / 'real').iterdir()] == [0o600] * 3
  assert typed(*args)[0] == 0
  assert (tmp_path / 'y.jsonl').is_symlink()
  assert len((tmp_path / 'real/z.jsonl').read_text().splitlines()) == 7
  assert (tmp_path / 'real/z.jsonl').stat().st_mode & 0o777 == 0o600
  assert [path.name for path in (tmp_path / 'real').iterdir()] == ['z.jsonl']


def test_predictions_are_restored_from_json():
  for value in (
      label_prediction(1), TagPrediction([0, 2], []), {'a': (1, [2.5, None, True]), 3: 'ü'},
      float('inf'),
      AnswerPrediction('a', 0, 1, 0.1, (Candidate('a', 0, 1, 1 / 3, np.float32(0.1)),),
                       np.float64(-2.0))):
    found = journal.decode_record(json.loads(json.dumps(journal.encode_record(value))))
    assert repr(found) == repr(value)
    assert type(found) is type(value)
  value = MultiLabelPrediction((0, 2), np.array([0.1, 0.2, 1 / 3], np.float32))
  found = journal.decode_record(journal.encode_record(value))
  assert found.label == (0, 2)
  assert found.probabilities.dtype == np.float32
  assert found.probabilities.tobytes() == value.probabilities.tobytes()
  with pytest.raises(TypeError, match='cannot be stored'):
    journal.encode_record([object()])
  for name in ('os:system', 'plm_jax.storage:write', 'plm_jax.errors:UserError'):
    with pytest.raises((ValueError, TypeError)):
      journal.decode_record({'is': name, 'values': ['true']})


def test_predictions_of_other_classes_are_not_resumed(tmp_path, capsys):
  def write(number):
    with partial_output.open_text(str(tmp_path / 'y'), {}) as out:
      for text in range(number):
        out.write(f'{text}\n')
        out.finish_chunk(1, object() if text else None)
      if number < 4:
        raise KeyboardInterrupt
  with pytest.raises(KeyboardInterrupt):
    write(3)
  assert '1 rows are complete' in capsys.readouterr().err
  assert len((tmp_path / 'y.part.jsonl').read_text().splitlines()) == 2


def test_a_full_disk_is_one_line(typed, tmp_path, monkeypatch):
  real = os.fsync
  def full(descriptor):
    real(descriptor)
    if (tmp_path / 'y.jsonl.part').stat().st_size > 400:
      raise OSError(28, 'No space left on device')
  with monkeypatch.context() as patch:
    patch.setattr(os, 'fsync', full)
    status, _, said = typed('predict', 'classification', 'x.txt', '--output=y.jsonl')
  assert 'no space left for' in status
  assert 'rows are complete in y.jsonl.part' in said
  assert 'resuming after' in typed('predict', 'classification', 'x.txt', '--output=y.jsonl')[2]
