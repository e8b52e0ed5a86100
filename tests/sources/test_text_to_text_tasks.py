import gzip
import json

import pytest

from plm_jax.sources import text_to_text_tasks
from plm_jax.sources.document_formats import TextReadConfig
from plm_jax.sources.labeled_files import LabeledRow, read_rows
from plm_jax.sources.lines import ReadStats, SourceError
from plm_jax.sources.text_sources import read_documents


def read(name, **columns):
  return text_to_text_tasks.parse_task(f'task:{name}:x').make_example(LabeledRow(columns, 'here'))[
      :2]


def test_tasks_in_the_words_of_t5():
  """Raffel et al. 2020, appendix D."""
  assert read('cola', label='1', sentence='John made Bill master of himself.') == (
      'cola sentence: John made Bill master of himself.', ('acceptable',))
  assert read('stsb', score='3.25', sentence1='A.',
              sentence2='B.') == ('stsb sentence1: A. sentence2: B.', ('3.2',))
  assert read('rte', label=1, sentence1='A.', sentence2='B.')[1] == ('not_entailment',)
  assert read('mnli', label='contradiction', premise='P.', hypothesis='H.') == (
      'mnli hypothesis: H. premise: P.', ('contradiction',))
  assert read('boolq', answer=True, question='q', passage='p')[1] == ('True',)
  assert read('translate-en-de', en='Luigi often said.', de='Luigi sagte oft.') == (
      'translate English to German: Luigi often said.', ('Luigi sagte oft.',))
  assert read('columns-de-en', en='Yes.', de='Ja.') == ('Ja.', ('Yes.',))
  answers = [{'text': 'Rome', 'answer_start': 1}, {'text': 'Rome', 'answer_start': 1},
             {'text': 'in Rome'}]
  assert read('squad', question='Where?', context='In Rome.', answers=answers) == (
      'question: Where? context: In Rome.', ('Rome', 'in Rome'))
  assert read('summarize', source='Long.',
              summaries=['A.', 'B.']) == ('summarize: Long.', ('A.', 'B.'))


@pytest.mark.parametrize(('name', 'columns', 'message'), [
    ('cola', {'label': 2, 'sentence': 'x'}, 'label is a number below 2'),
    ('cola', {'label': 1}, "no column 'sentence'"),
    ('stsb', {'score': 'high', 'sentence1': 'x', 'sentence2': 'y'}, 'a number'),
    ('summarize', {'source': 'x', 'summary': ' '}, 'must not be empty'),
])
def test_what_a_row_lacks_is_said(name, columns, message):
  with pytest.raises(SourceError, match=message):
    read(name, **columns)


def test_an_unknown_task_is_refused_with_those_there_are():
  for source in ('task:gleu:x', 'task:translate-de-xx:x', 'task:cola'):
    with pytest.raises(SourceError, match='expected task:NAME:SOURCE'):
      list(read_documents(source))


def test_files_of_every_form_become_documents_of_target_and_inputs(tmp_path):
  (tmp_path / 'a.tsv').write_text('de\ten\n"Ja\tYes"\nNein\tNo\n')
  assert [d.paragraphs for d in read_documents(f'task:translate-de-en:{tmp_path}/a.tsv')] == [
      ['Yes"', 'translate German to English: "Ja'], ['No', 'translate German to English: Nein']]
  with gzip.open(tmp_path / 'b.jsonl.gz', 'wt') as f:
    f.write(json.dumps({'sentence': 'fine', 'label': 1}) + '\n{}\n')
  with pytest.raises(SourceError, match=r'b\.jsonl\.gz:2: no column'):
    list(read_documents(f'task:sst2:{tmp_path}/b.jsonl.gz'))
  stats = ReadStats()
  found = list(read_documents(f'task:sst2:{tmp_path}/b.jsonl.gz', TextReadConfig(on_error='skip'),
                              stats))
  assert [d.paragraphs for d in found] == [['positive', 'sst2 sentence: fine']]
  assert stats.skipped == 1 and stats.bytes == (tmp_path / 'b.jsonl.gz').stat().st_size
  question = {'id': '7', 'question': 'Who?', 'answers': [{'text': 'I', 'answer_start': 0}]}
  (tmp_path / 'c.json').write_text(
      json.dumps({'data': [{'paragraphs': [{'context': 'I did.', 'qas': [question]}]}]}))
  assert [d.paragraphs for d in read_documents(f'task:squad:{tmp_path}/c.json')] == [
      ['I', 'question: Who? context: I did.']]


def test_damaged_files_are_named(tmp_path):
  (tmp_path / 'a.tsv').write_text('de\ten\nJa\n')
  with pytest.raises(SourceError, match=r'a\.tsv:2: 1 fields, but the first line names 2'):
    read_rows(f'{tmp_path}/a.tsv')
  (tmp_path / 'b.json').write_text('7')
  with pytest.raises(SourceError, match='laid out as SQuAD'):
    read_rows(f'{tmp_path}/b.json')
  (tmp_path / 'c.txt').write_text('x')
  with pytest.raises(SourceError, match=r'rows are read from \.jsonl, \.tsv'):
    read_rows(f'{tmp_path}/c.txt')


def test_tables_with_commas_and_endings_in_capitals(tmp_path):
  (tmp_path / 'a.CSV').write_text('sentence,label\n"One, or\ntwo",1\n\nThree,0\n')
  assert [d.paragraphs for d in read_documents(f'task:sst2:{tmp_path}/a.CSV')] == [
      ['positive', 'sst2 sentence: One, or\ntwo'], ['negative', 'sst2 sentence: Three']]
  (tmp_path / 'b.JSONL').write_text('{"sentence": "x", "label": 0}\n')
  assert len(read_rows(f'{tmp_path}/b.JSONL')) == 1


@pytest.mark.parametrize(('content', 'message'), [
    ('{"sentence": "x", "label": ' + '7' * 5000 + '}', r'a\.jsonl:1: not JSON: Exceeds the limit'),
    ('[' * 200_000, r'a\.jsonl:1: .*not JSON'),
    ('{"sentence": "\\ud800", "label": 1}', r"a\.jsonl:1: the column 'sentence' must be a text"),
])
def test_rows_that_cannot_be_are_named_or_left_out(tmp_path, content, message):
  (tmp_path / 'a.jsonl').write_text(f'{content}\n{{"sentence": "x", "label": 1}}\n')
  with pytest.raises(SourceError, match=message):
    list(read_documents(f'task:sst2:{tmp_path}/a.jsonl'))
  stats = ReadStats()
  assert len(list(read_documents(f'task:sst2:{tmp_path}/a.jsonl', TextReadConfig(on_error='skip'),
                                 stats))) == 1
  assert stats.skipped == 1


def test_squad_that_cannot_be_is_one_line(tmp_path, monkeypatch):
  for content in (b'{"data": 7}', b'{"data": ' + b'[' * 5000 + b']' * 5000 + b'}',
                  gzip.compress(b'x')):
    (tmp_path / 'a.json').write_bytes(content)
    with pytest.raises(SourceError, match=r'a\.json'):
      read_rows(f'{tmp_path}/a.json')
  monkeypatch.setattr('plm_jax.storage.READ_LIMIT', 5)
  (tmp_path / 'a.json').write_text('{"data": []}')
  with pytest.raises(SourceError, match='which is read as a whole'):
    read_rows(f'{tmp_path}/a.json')
