import gzip
import json
import lzma

import pytest

from plm_jax.sources.conll import FileLayout
from plm_jax.sources.labeled_files import iterate_rows, to_json_value
from plm_jax.sources.lines import ReadStats, SourceError

CONLL = '''-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
-DOCSTART- -X- -X- O

BRUSSELS NNP B-NP B-LOC
'''
UNIVERSAL = '''# newdoc id = a
# text = They buy books.
1-2\tThey'd\t_\t_\t_\t_\t_\t_\t_\t_
1\tThey\tthey\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2\tbuy\tbuy\tVERB\tVBP\t_\t0\troot\t_\t_
2.1\tbuy\tbuy\tVERB\tVBP\t_\t_\t_\t_\t_

# newdoc id = b
1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
'''


def read(path, layout=FileLayout(), **keywords):
  rows = iterate_rows(f'{path}', layout=layout, **keywords)
  return [(row.columns, row.where.removeprefix(f'{path}')) for row in rows]


@pytest.mark.parametrize(('name', 'pack'), [
    ('a.conll', bytes), ('a.CONLL', bytes), ('a.conll.gz', gzip.compress),
    ('a.conll.xz', lzma.compress)])
def test_sentences_are_rows_with_the_line_of_their_first_word(tmp_path, name, pack):
  path = tmp_path / name
  path.write_bytes(pack(CONLL.encode()))
  assert read(path) == [
      ({'words': ['EU', 'rejects'], 'tags': ['B-ORG', 'O'], 'document': 1}, ':3'),
      ({'words': ['Peter'], 'tags': ['B-PER'], 'document': 1}, ':6'),
      ({'words': ['BRUSSELS'], 'tags': ['B-LOC'], 'document': 2}, ':9')]


def test_columns_are_chosen_and_other_names_are_read_when_asked_for(tmp_path):
  path = tmp_path / 'eng.testa'
  path.write_text(CONLL)
  assert read(path, FileLayout(words=True, tag=1))[0][0]['tags'] == ['NNP', 'VBZ']
  assert read(path, FileLayout(words=True, word=-1, tag=0))[0][0] == {
      'words': ['B-ORG', 'O'], 'tags': ['EU', 'rejects'], 'document': 1}
  with pytest.raises(SourceError, match=r'testa:3: no column 4, there are 4'):
    read(path, FileLayout(words=True, tag=4))
  with pytest.raises(SourceError, match=r'eng.testa: rows are read from \.jsonl'):
    read(path)


def test_tabs_keep_words_with_spaces_and_each_sentence_is_a_document_where_none_begins(tmp_path):
  path = tmp_path / 'a.conll'
  path.write_text('New York\tB-LOC\n\u3002\tO\n\n\n \n-\tO', encoding='utf-8')
  assert read(path) == [({'words': ['New York', '\u3002'], 'tags': ['B-LOC', 'O'], 'document': 0},
                         ':1'),
                        ({'words': ['-'], 'tags': ['O'], 'document': 1}, ':6')]
  path.write_text('Hello\nyou\n')
  assert read(path) == [({'words': ['Hello', 'you'], 'document': 0}, ':1')]


def test_conllu_has_words_and_parts_of_speech(tmp_path):
  path = tmp_path / 'a.conllu'
  path.write_text(UNIVERSAL)
  assert read(path) == [({'words': ['They', 'buy'], 'tags': ['PRON', 'VERB'], 'document': 1}, ':4'),
                        ({'words': ['#'], 'tags': ['SYM'], 'document': 2}, ':9')]
  assert read(path, FileLayout(tag=4))[0][0]['tags'] == ['PRP', 'VBP']


@pytest.mark.parametrize(('line', 'message'), [
    ('b', r'a\.conll:2: 1 columns, but most lines have 2'),
    ('b O O', r'a\.conll:2: 3 columns, but'),
    ('\tO', r'a\.conll:2: a word must not be empty')])
def test_a_bad_line_is_named_or_its_sentence_left_out(tmp_path, line, message):
  path = tmp_path / 'a.conll'
  path.write_text(f'a O\n{line}\nc O\n\nd O\n')
  with pytest.raises(SourceError, match=message + r'.*on_error=skip'):
    read(path)
  stats = ReadStats()
  assert read(path, on_error='skip',
              stats=stats) == [({'words': ['d'], 'tags': ['O'], 'document': 0}, ':5')]
  assert stats.skipped == 1


def test_an_odd_first_line_is_named_itself(tmp_path):
  """The columns are those of most lines, so that no good line is reported."""
  path = tmp_path / 'a.conll'
  path.write_text('My corpus, version 2\n\na O\nb O\n\nc O\n')
  with pytest.raises(SourceError, match=r'a\.conll:1: 4 columns, but most lines have 2'):
    read(path)


@pytest.mark.parametrize(('name', 'comment'), [
    ('a.conll', '#begin document (bc/x); part 000'),
    ('a.tsv', '# http://example.org/x [2009-10-17]'),
    ('a.conll', '# sent_id = 3'), ('a.conll', '#\thttp://example.org\t[2009-10-17]')])
def test_comments_are_not_words(tmp_path, name, comment):
  path, stats = tmp_path / name, ReadStats()
  path.write_text(f'{comment}\n#\tO\nb\tB-PER\n\n{comment}\nc\tO\n#end document\n')
  rows = read(path, FileLayout(words=True), stats=stats)
  assert [row['words'] for row, _ in rows] == [['#', 'b'], ['c']]
  assert [where for _, where in rows] == [':2', ':6']
  count = 1 if comment.startswith('#begin') else 3
  assert stats.notes == [f"{path}: {count} lines that begin with '#' are comments and are not read"]


def test_documents_of_ontonotes_begin_with_a_comment(tmp_path):
  path = tmp_path / 'a.conll'
  path.write_text(
      '#begin document (a); part 000\na O\n\nb O\n\n#end document\n#begin document (b)\nc O\n')
  assert [row['document'] for row, _ in read(path)] == [1, 1, 2]


def test_a_first_line_of_names_is_no_word(tmp_path):
  path, stats = tmp_path / 'a.conll', ReadStats()
  path.write_text('Token\tPOS\tTag\nEU\tNNP\tB-ORG\n')
  assert read(path, stats=stats)[0][0]['words'] == ['EU']
  assert stats.notes == [f'{path}:1: the line names the columns and is not read as a word']


@pytest.mark.parametrize(('name', 'line'), [
    ('a.tsv', '{}\t{}\tB-PER\tO'), ('a.conll', '{}\t{}\tx\tNE\tNE\t_\t2\tsubj\t_\t_'),
    ('a.conll', '{} {} _ O')])
def test_numbers_of_words_are_not_read_as_words(tmp_path, name, line):
  """GermEval, CoNLL-X and CoNLL-2009 begin each line with the number of the word."""
  path, layout = tmp_path / name, FileLayout(words=True)
  words = [('1', 'Angela'), ('2', 'kam'), ('2-3', 'zum'), ('3', 'Fest')]
  path.write_text(''.join(line.format(*word) + '\n' for word in words))
  with pytest.raises(SourceError,
                     match=rf'{name}:1: the first column has numbers, 1, 2, 2-3, and no '
                           rf'words.*first.*1'):
    read(path, layout)
  found = read(path, layout._replace(word=1, tag=2))
  assert found[0][0]['words'] == ['Angela', 'kam', 'zum', 'Fest']


def test_the_second_of_three_columns_has_the_words_next_to_their_numbers(tmp_path):
  path, stats = tmp_path / 'a.conll', ReadStats()
  path.write_text('1 Angela B-PER\n2 kam O\n\n1 Sie O\n')
  assert [row for row, _ in read(path, stats=stats)] == [
      {'words': ['Angela', 'kam'], 'tags': ['B-PER', 'O'], 'document': 0},
      {'words': ['Sie'], 'tags': ['O'], 'document': 1}]
  assert stats.notes == [
      f'{path}:1: the first column has numbers, 1, 2, 1, and no words: words are read from the '
      f'second column']


def test_a_file_without_words_is_refused(tmp_path):
  (tmp_path / 'a.conll').write_text('\n-DOCSTART- O\n')
  with pytest.raises(SourceError, match=r'a\.conll has no sentences'):
    read(tmp_path / 'a.conll')


def test_a_table_without_a_header_has_numbers_for_columns(tmp_path):
  path = tmp_path / 'cola.tsv'  # as it is published
  path.write_text('gj04\t1\t\tOur friends won\'t buy this.\ngj04\t0\t*\tThey drank "the pub.\n')
  assert read(path, FileLayout(header=False)) == [
      ({'0': 'gj04', '1': '1', '2': '', '3': "Our friends won't buy this."}, ':1'),
      ({'0': 'gj04', '1': '0', '2': '*', '3': 'They drank "the pub.'}, ':2')]
  path.write_text('a\tb\nc\n')
  with pytest.raises(SourceError, match=r'cola\.tsv:2: 1 fields, but the first line has 2 columns'):
    read(path, FileLayout(header=False))


@pytest.mark.parametrize(('name', 'content', 'separator'), [
    ('a.csv', 'text;label\nlong, good;pos\n', ';'),
    ('a.csv', 'text\tlabel\n"a, ""b"" c"\tpos\n', '\\t'),
    ('a.csv', '"text";"label"\n"a, b";pos\n', ';'), ('a.csv', 'text|label|id\r\na|b|c\r\n', '|'),
    ('a.tsv', 'id,text\n1,a\tb\n', ',')])
def test_another_separator_is_named_before_any_row(tmp_path, name, content, separator):
  (tmp_path / name).write_text(content)
  with pytest.raises(SourceError,
                     match=rf"{name}:1: the first line names one column, .* several separated by "
                           rf"'\{separator}'"):
    read(tmp_path / name, on_error='skip')
  (tmp_path / 'b.csv').write_text('# exported today\ntext,label\n')
  with pytest.raises(SourceError,
                     match=r"b\.csv:2: 2 fields, but the first line names 1 columns, '# exported "
                           r"today'"):
    read(tmp_path / 'b.csv')
  (tmp_path / 'b.csv').write_text('text\n1;2\n')
  assert read(tmp_path / 'b.csv') == [({'text': '1;2'}, ':2')]

def test_lists_of_lists_of_different_lengths_become_json():
  class Lists:
    def to_list(self):
      return [[b'a', b'b'], [b'c']]
  assert to_json_value({'options': Lists()}) == {'options': [['a', 'b'], ['c']]}


def test_json_of_every_layout(tmp_path):
  path = tmp_path / 'a.json'
  path.write_text('{"sentence": "x", "label": "100"}\n{"sentence": "y"}\n')  # CLUE: a line for each
  assert read(path) == [({'sentence': 'x', 'label': '100'}, ':1'), ({'sentence': 'y'}, ':2')]
  path.write_text(json.dumps([{'a': 1}, {'a': 2}], indent=2))
  assert read(path) == [({'a': 1}, ':[0]'), ({'a': 2}, ':[1]')]
  passages = [[['M: Hi.', 'W: Bye.'], [{'question': 'q', 'choice': ['x', 'y'], 'answer': 'y'},
                                       {'question': 'r', 'choice': ['z', 'w'], 'answer': 'z'}],
                                       '4-199']]
  path.write_text(json.dumps(passages))  # DREAM, C3
  assert read(path)[1] == ({'question': 'r', 'choice': ['z', 'w'], 'answer': 'z',
                            'context': ['M: Hi.', 'W: Bye.'],
                            'id': '4-199-1'}, ':4-199')
  for wrong in ('[1]', '[[1, 2]]', '"x"', '{"data": 1}', '{"a": 1}\nx'):
    path.write_text(wrong)
    with pytest.raises(SourceError, match=r'a\.json'):
      read(path)


@pytest.mark.parametrize('content', ['[{"a": 1}, {"a": 2}]', '[\n  {"a": 1}\n]'])
def test_a_list_under_the_name_of_lines_is_called_one(tmp_path, content):
  (tmp_path / 'a.jsonl').write_text(content)
  with pytest.raises(SourceError, match=r'a\.jsonl is one JSON list, .*: rename it to \.json'):
    read(tmp_path / 'a.jsonl', on_error='skip')


def test_parquet_has_rows(tmp_path):
  arrow, parquet = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
  rows = [{'text': 'a', 'label': 1, 'tags': ['x', 'y']}, {'text': 'b', 'label': None, 'tags': []}]
  parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / 'a.parquet')
  stats = ReadStats()
  assert read(tmp_path / 'a.parquet', stats=stats) == [(rows[0], '[0]'), (rows[1], '[1]')]
  assert stats.bytes == (tmp_path / 'a.parquet').stat().st_size
  (tmp_path / 'b.parquet').write_text('text\n')
  with pytest.raises(SourceError, match=r'b\.parquet'):
    read(tmp_path / 'b.parquet')
