"""Tables with rows that are none: each is named or left out by itself."""
import csv
import io

import pytest

from plm_jax.sources import labeled_files
from plm_jax.sources.lines import ReadStats, SourceError
from plm_jax.sources.table_rows import looks_quoted, read_cells


def read(path, content, stats):
  path.write_bytes(content)
  return [tuple(row.columns.values())
          for row in labeled_files.iterate_rows(str(path), 'skip', stats)]


ODD = [
    # Kept: a stray carriage return and a byte order mark of files that were joined.
    ('a.tsv', b'a\tb\nx\r y\t1\nz\t2\n', [('x\r y', '1'), ('z', '2')], ()),
    ('a.csv', b'a,b\nx\r y,1\nz,2\n', [('x\r y', '1'), ('z', '2')], ()),
    ('a.tsv', '\ufeffa\tb\nx\t1\n\ufeffz\t2\n'.encode(), [('x', '1'), ('z', '2')], ()),
    ('a.csv', b'a,b\n"x\r y",1\nz,2\n', [('x\r y', '1'), ('z', '2')], ()),
    # Left out.
    ('a.csv', b'a,b\n"x,1\ny,2\nz,3\n', [('y', '2'), ('z', '3')],
     ['2: not a row of a table: a quote that is not closed']),
    ('a.csv', b'a,b\n"x,1\ny,2\n"z, w",3\n', [('y', '2'), ('z, w', '3')],
     ['2: not a row of a table: a quote inside']),
    ('a.csv', b'a,b\n"x" y,1\nz,2\n', [('z', '2')],
     ['2: not a row of a table: a quote inside a cell']),
    ('a.csv', b'a,b,c\nx,"y,1\nv,w,2\nu,v,3\n"z",y,4\n',
     [('v', 'w', '2'), ('u', 'v', '3'), ('z', 'y', '4')],
     ['2: not a row of a table: a quote inside']),
    ('a.csv', b'a,b,c\n"x,y,1\nv,w,2\nu,v,3\nz,y,4"\n',
     [('v', 'w', '2'), ('u', 'v', '3'), ('z', 'y', '4"')],
     ['2: not a row of a table: a quote that is closed in another row']),
    ('a.csv', b'a,b\n"x\ry" z,"1\nz,2\n', [('z', '2')], ['2: not a row']),
    ('a.tsv', b'a\tb\nx\t1\t2\ny\nz\t2\n', [('z', '2')], ['2: 3 fields, but', '3: 1 fields, but']),
    ('a.csv', b'a,b\nx\0,1\nz,2\n', [('z', '2')], ['2: not a row of a table: it has a zero byte']),
    ('a.tsv', b'a\tb\n\xff\t1\nz\t2\n', [('z', '2')], ['2: not UTF-8']),
    ('a.tsv', b'a\tb\nx\t1\na\tb\nz\t2\n', [('x', '1'), ('z', '2')],
     ['3: the line repeats the names of the columns']),
    ('a.tsv', b'a\tb\n' + b'x' * (17 << 20) + b'\t1\nz\t2\n', [('z', '2')],
     ['2: a line of more than 16 MiB']),
    ('a.csv', b'a,b\n"x\n\xff\ny",1\nz,2\n', [('z', '2')],
     ['3: not UTF-8', '2: not a row of a table: a line inside its quotes']),
    # Rows of several lines, as they should be.
    ('a.csv', b'a,b\n"x\n\ny, ""z""",1\n"p",2\n', [('x\n\ny, "z"', '1'), ('p', '2')], ()),
    ('a.csv', b'a,b\nx "y" z,1\n5" disk,2\n', [('x "y" z', '1'), ('5" disk', '2')], ()),
]


@pytest.mark.parametrize(('name', 'content', 'found', 'problems'), ODD)
def test_one_odd_row_is_left_out_alone(tmp_path, name, content, found, problems):
  stats = ReadStats()
  assert read(tmp_path / name, content, stats) == found
  assert stats.skipped == len(problems)
  for example, problem in zip(stats.examples, problems, strict=True):
    assert example.startswith(f'{tmp_path / name}:{problem}')
  if problems:
    first = problems[0].partition(':')[0]
    with pytest.raises(SourceError, match=rf'{name}:{first}: '):
      list(labeled_files.iterate_rows(str(tmp_path / name)))


def test_rows_that_two_odd_quotes_make_one_are_noted(tmp_path):
  stats = ReadStats()
  found = read(tmp_path / 'a.csv', b'a,b,c\nx,"y,1\nv,w,2\nu,v,3\nz,y",4\nk,l,5\n', stats)
  assert len(found) == 2 and stats.skipped == 0
  assert stats.notes == [
      f'{tmp_path}/a.csv:2: the lines up to 5 are one row in quotes, and look like rows: is a '
      f'quote '
                         'closed too late?']


def test_an_odd_row_in_the_middle_of_many_costs_no_other(tmp_path):
  rows_of = [f'text {number},1\n' for number in range(30_000)]
  rows_of[::3] = [f'"text, number {number}",0\n' for number in range(10_000)]
  rows_of[20_000:20_000] = ['an "odd\n', '"another, 1\n', 'x,y,z\n']
  stats = ReadStats()
  found = read(tmp_path / 'a.csv', ('text,label\n' + ''.join(rows_of)).encode(), stats)
  assert len(found) == 30_000 and stats.skipped == 3
  assert [example.split(':')[1] for example in stats.examples] == ['20002', '20003', '20004']


def test_quoted_tables_of_tabs_are_those_that_pandas_writes(tmp_path):
  texts = ['he said "no"', 'plain', '"quoted"', 'a\ttab', 'two\nlines "x"', '', '"', 'it\'s']
  written = io.StringIO()
  csv.writer(written, delimiter='\t', lineterminator='\n').writerows(
      [('text', 'label'), *((text, number) for number, text in enumerate(texts))])
  stats = ReadStats()
  found = read(tmp_path / 'a.tsv', written.getvalue().encode(), stats)
  assert found == [(text, str(number)) for number, text in enumerate(texts)]
  assert stats.notes == [
      f'{tmp_path}/a.tsv: cells are in quotes, quotes inside them doubled: the text is read '
      f'without '
                         'these']
  assert stats.skipped == 0


PLAIN = ['"Fine," he said.', '"A dogged film."', 'the "b" of "c"', '"', '""', "''so'' \"it",
         '"open', 'close"']


def test_quotes_of_other_tables_of_tabs_are_characters(tmp_path):
  stats = ReadStats()
  content = 'text\tlabel\n' + ''.join(f'{text}\t{number}\n' for number, text in enumerate(PLAIN))
  assert read(tmp_path / 'a.tsv', content.encode(),
              stats) == [(text, str(number)) for number, text in enumerate(PLAIN)]
  assert stats.notes == [] and stats.skipped == 0


@pytest.mark.parametrize(('content', 'quoted'), [
    ('"text"\t"label"\n"x"\t"1"\n', True), ('text\tlabel\n"x"\t1\n', False),
    ('text\tlabel\n"x ""y"""\t1\n', True),
    ('text\tlabel\n"x ""y"""\t1\n"p ""q"""\t2\n"odd\t3\n', True),
    ('text\tlabel\n"x ""y"" z\t1\n', False),
    ('text\tlabel\nx ""y""\t1\n', False), ('text\tlabel\r\n"x ""y"""\t1\r\n', True)])
def test_whether_cells_look_quoted(content, quoted):
  assert looks_quoted(content.encode(), whole=True) == quoted


def test_a_column_named_twice_is_refused(tmp_path):
  for name, content in (('a.tsv', b'text\ttext\tlabel\nx\ty\t1\n'),
                        ('a.csv', b'text,label,text\nx,1,y\n'),
                        ('a.jsonl', b'{"text": "x", "text": "y"}\n')):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=rf"{name}: there are two columns 'text': rename"):
      list(labeled_files.iterate_rows(str(tmp_path / name), 'skip'))
  (tmp_path / 'a.tsv').write_bytes(b'text\tlabel\t\t\nx\t1\t\t\n')  # columns without a name
  assert [row.columns['text'] for row in labeled_files.iterate_rows(f'{tmp_path}/a.tsv')] == ['x']


@pytest.mark.parametrize('content', [
    'a,b\nx,1\n', 'a,b\r\n"x, y",1\r\n', '"a","b"\n"x ""y""","1\n2"\n', 'a\n\nx\n',
    'a,b\n,\n,x\n"",""\n', '"a"'])
def test_rows_are_those_of_the_standard_library(content):
  lines = [(number, line.removesuffix('\r')) for number, line in enumerate(content.split('\n'), 1)]
  if content.endswith('\n'):
    lines.pop()
  found = [row for _, row in read_cells(iter(lines), ',', 'a.csv', 'refuse', ReadStats())]
  assert found == list(csv.reader(io.StringIO(content.replace('\r\n', '\n')), strict=True))
