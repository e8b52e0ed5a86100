"""Labels that are written in several ways, and values that are no label."""
import json
import re

import pytest

from plm_jax.config.run import ConfigError
from plm_jax.sources.class_names import Classes, name_classes
from plm_jax.sources.lines import SourceError
from plm_jax.sources.row_readers import Columns
from plm_jax.tasks import labeled_data
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.sources import LabeledExamples, read_sources


@pytest.fixture
def write(tmp_path):
  """Writes labels as rows of .jsonl."""
  def written(labels, name='a.jsonl'):
    path = tmp_path / name
    path.write_text(''.join(json.dumps({'text': 'x', 'label': label}) + '\n' for label in labels))
    return str(path)
  return written


@pytest.mark.parametrize(('values', 'names', 'numbers', 'note'), [
    ([1, 1.0, '1', '1.0', ' 1 ', 2], ('1', '2'), [0, 0, 0, 0, 0, 1],
     "the class '1' is also written '1.0'"),
    ([0.0, 1.0], ('0.0', '1.0'), [0, 1], ''),
    ([10, '9', 2.5, '2.50'], ('2.5', '9', '10'), [2, 1, 0, 0], "'2.50'"),
    ([True, 'true', 'True', False, 'FALSE'], ('False', 'True'), [1, 1, 1, 0, 0],
     "'True' is also written 'true'"),
    (['true', 'false', 'mixed'], ('false', 'mixed', 'true'), [2, 0, 1], ''),
    (['pos', 'pos ', '\tpos', '\ufeffpos', 'neg\xa0'], ('neg', 'pos'), [1, 1, 1, 1, 0], ''),
    (['caf\u00e9', 'cafe\u0301', 'b'], ('b', 'caf\u00e9'), [1, 1, 0], 'is also written'),
    (['Pos', 'pos', 'neg'], ('Pos', 'neg', 'pos'), [0, 2, 1],
     "the classes 'Pos' and 'pos' differ in case"),
    (['007', '7', '07'], ('007', '07', '7'), [0, 2, 1], ''),
    (['\uff11', '1'], ('1', '\uff11'), [1, 0], "differ in case or in the form"),
    (['\u0661', '1'], ('1', '\u0661'), [1, 0], "differ in case or in the form"),
    (['joy,love', 'love', 'joy'], ('joy', 'joy,love', 'love'), [1, 2, 0],
     "'joy,love' is made of the names of others"),
    (['joy,love', 'anger', 'joy'], ('anger', 'joy', 'joy,love'), [2, 0, 1],
     "'joy,love' is made of the names"),
    (['2 7', '7', '12'], ('12', '2 7', '7'), [1, 2, 0], "'2 7' is made of the names of others"),
    (['a|b', 'b|a'], ('a|b', 'b|a'), [0, 1], "'a|b' is made of the names of others"),
    (['Paris, France', 'Rome, Italy'], ('Paris, France', 'Rome, Italy'), [0, 1], ''),
    (['1 2', 'x'], ('1 2', 'x'), [0, 1], ''), (['+1', '-1'], ('-1', '+1'), [1, 0], ''),
    (['+1', '1', '-1'], ('-1', '1'), [1, 1, 0], "the class '1' is also written '+1'"),
    ([-1, 0, 1, 2], ('-1', '0', '1', '2'), [0, 1, 2, 3], "the label '-1' is read as a class"),
    (['-', 'a', 'b'], ('-', 'a', 'b'), [0, 1, 2], "the label '-' is read as a class"),
    (['[UNK]', '{x}', '(a)'], ('(a)', '[UNK]', '{x}'), [1, 2, 0], ''),
    (['1_5', '15', '1e1', '10'], ('10', '15', '1_5', '1e1'), [2, 1, 3, 0], ''),
    (['None', 'nan', 'x'], ('None', 'nan', 'x'), [0, 1, 2], "the label 'nan' is read as a class"),
    ([-1, 0, 1], ('-1', '0', '1'), [0, 1, 2], ''),
    ([10 ** 30, 1], ('1', str(10 ** 30)), [1, 0], '')])
def test_values_that_are_one_class(write, values, names, numbers, note):
  found = read_sources('classification', [write(values)])
  assert found.labels == names
  assert [example.label for example in found.examples] == numbers
  assert note in '; '.join(found.report.notes) and bool(found.report.notes) == bool(note)
  again = read_sources('classification', [write(values)], labels=names, use='dev')
  assert [example.label for example in again.examples] == numbers


@pytest.mark.parametrize(('label', 'message'), [
    (['joy', 'love'],
     r"one class: a text, a number or a boolean, got a list, \['joy', 'love'\]: several labels"),
    ([1, 0], 'got a list'), ([], 'got a list'), ({'joy': .9}, 'got an object'),
    (float('inf'), 'got a number, inf'),
    ("['joy', 'love']", 'a list or an object as text'), ('["joy"]', 'as text'),
    ('[0 1 0]', 'as text'),
    ('[]', 'as text'), ('array([0, 1])', 'as text'), ('tensor([0., 1.])', 'as text'),
    ('np.array(["a"], dtype=str)', 'as text'),
    ("{'joy': 0.5}", 'as text'), ('{"joy": 1}', 'as text'), ("('a', 'b')", 'as text'),
    ('[0.1, 0.9]', 'as text'),
    (float('nan'), 'no label to learn from'), (None, 'no label to learn from'), ('', 'no label'),
    (' \t', 'no label')])
def test_what_is_no_label_is_refused_or_left_out(write, label, message):
  path = write(['a', 'b', label])
  with pytest.raises(SourceError, match=rf'a\.jsonl:3: .*{message}'):
    read_sources('classification', [path])
  found = read_sources('classification', [path], on_error='skip')
  assert found.labels == ('a', 'b') and len(found.examples) == 2
  assert sum(found.report.skipped.values()) == 1
  predicted = read_sources('classification', [write([label])], labels=('a', 'b'), use='predict',
                           on_error='skip') if (
      'no label' in message) else None
  assert predicted is None or predicted.examples[0].label is None


def test_booleans_and_numbers_in_one_column_are_refused(write):
  with pytest.raises(SourceError, match='both true or false and 0 or 1'):
    read_sources('classification', [write([True, 1, 0])])


def test_names_of_an_earlier_run_are_found_as_they_are_written():
  assert [Classes(['1', '1.0', 'x']).class_id(label)
          for label in ('1', '1.0', 1, 1.0)] == [0, 1, 0, 1]
  assert [Classes(['no', 'yes']).class_id(label)
          for label in (1, '0', True, 1.0, 'yes', 2, 0.5)] == [
      1, 0, 1, 1, 1, -1, -1]
  assert [Classes(["['a']", '[0 1]']).class_id(label) for label in ("['a']", '[0 1]')] == [0, 1]
  assert [Classes(['01', '02']).class_id(label) for label in (1, '01', '1')] == [-1, 0, -1]
  assert Classes(['False', 'True']).class_id('true') == Classes(['False', 'True']).class_id(1) == 1


def test_labels_are_named_in_the_same_order_whatever_the_rows_are():
  assert name_classes(['1.0', 1, 'b'])[0] == name_classes(['b', 1, '1.0'])[0] == ('1', 'b')


def test_a_text_column_as_the_label_is_refused_before_training(write):
  path = write([f'text {number}' for number in range(2000)])
  found = read_sources('classification', [path])
  with pytest.raises(ConfigError,
                     match=r"a\.jsonl: 2,000 examples have 2,000 different labels, such as 'text "
                           r"0': is "
                     r"this the column with the label\? columns\.label=NAME reads another"):
    labeled_data.add_class_names(SequenceTask(), found)
  several = LabeledExamples(found.examples * 3, found.labels, found.report)
  assert len(labeled_data.add_class_names(SequenceTask(), several).labels) == 2000


@pytest.mark.parametrize(('value', 'number'), [
    ('1.5', 1.5), (' 2 ', 2.0), ('1e-05', 1e-5), ('-.5', -.5), ('+3.', 3.0), (4, 4.0), (2.5, 2.5),
    ('1E5', 1e5)])
def test_numbers_of_a_regression(write, value, number):
  assert read_sources('regression', [write([value])]).examples[0].label == number


@pytest.mark.parametrize('value', [
    '1_5', '\uff11', '\u0661', '0x10', 'nan', 'inf', 'Infinity', '1,5', '1e', '', '1 5', True,
    [1.0], '1e400',
    float('inf'), 10 ** 400])
def test_what_is_no_number_of_a_regression(write, value):
  path = write([1, value])
  with pytest.raises(SourceError, match=r'a\.jsonl:2: (the label must be a number|no label)'):
    read_sources('regression', [path])
  assert [example.label for example in read_sources('regression', [path],
                                                    on_error='skip').examples] == [1.0]


@pytest.mark.parametrize('value', ['1e39', 1e39, '-3e38', 1e19])
def test_a_number_whose_square_float32_does_not_hold_is_refused(write, value):
  with pytest.raises(SourceError, match=r'a\.jsonl:2: the label is a number of 1e\+18 at most'):
    read_sources('regression', [write([1, value])])


def test_a_missing_column_names_the_option_for_another(write, tmp_path):
  (tmp_path / 'r.tsv').write_text('label\ttext_a\n1\tgood\n')
  with pytest.raises(SourceError,
                     match=r"r\.tsv:2: no column 'sentence' or .*: columns\.first=text_a reads"):
    read_sources('classification', [f'{tmp_path}/r.tsv'])
  (tmp_path / 'r.jsonl').write_text(
      '{"text": "x", "label": 1}\n{"label": 1}\n{"text": null, "label": 1}\n')
  with pytest.raises(SourceError,
                     match=r"r\.jsonl:2: no column .*leave such lines out with on_error=skip\.$"):
    read_sources('classification', [f'{tmp_path}/r.jsonl'])
  found = read_sources('classification', [f'{tmp_path}/r.jsonl'], on_error='skip')
  assert found.report.problems[1] == f"{tmp_path}/r.jsonl:3: the column 'text' is null"
  found = read_sources('classification', [f'{tmp_path}/r.tsv'], Columns('text_a'))
  assert found.examples[0].texts == ('good',)


def test_a_signed_class_is_no_index_of_a_class(write):
  """Names with a sign are numbers: a label 0 is unknown next to -1 and +1, not the first class."""
  with pytest.raises(SourceError, match=r"a\.jsonl:2: .*'0'"):
    read_sources('classification', [write(['1', '0'])], labels=('-1', '+1'), use='dev')


@pytest.mark.parametrize(('name', 'separator'),
                         [('r.csv', ';'), ('r.csv', '\t'), ('r.tsv', ','), ('r.tsv', '|')])
def test_a_table_with_another_separator_is_called_one(tmp_path, name, separator):
  (tmp_path / name).write_text(f'text{separator}label\ngood{separator}1\n')
  line = re.escape(
      f"{name}:1: the first line names one column, {f'text{separator}label'!r}, which looks like "
      f"several "
                   f'separated by {separator!r}: columns of .csv are separated by commas, those of '
                   f'.tsv by tabs')
  with pytest.raises(SourceError, match=line) as wrong:
    read_sources('classification', [f'{tmp_path}/{name}'])
  assert 'columns=' not in str(wrong.value)
