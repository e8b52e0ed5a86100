import collections
import json

import pytest

from plm_jax.sources.lines import SourceError
from plm_jax.sources.row_readers import Answer, Columns, Example
from plm_jax.tasks.sources import ReadReport, SourceConfig, read_chunks, read_sources


@pytest.fixture
def write(tmp_path):
  """Writes a file: a text as it is, rows as lines of JSON."""
  def written(content, name='a.jsonl'):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str)
                    else ''.join(json.dumps(row) + '\n' for row in content))
    return str(path)
  return written


def test_classes_are_named_in_order_and_examples_know_where_they_stand(write):
  path = write('idx\tlabel\tsentence\n7\tpos\t Fine.\n8\tneg\t"Bad.\n9\tpos\tGood.\n', 'a.tsv')
  found = read_sources('classification', [path])
  assert found.labels == ('neg', 'pos')
  assert found.examples == [
      Example(('Fine.',), 1, where=f'{path}:2', key='7', document=0),
      Example(('"Bad.',), 0, where=f'{path}:3', key='8', document=1),
      Example(('Good.',), 1, where=f'{path}:4', key='9', document=2)]
  assert found.report == ReadReport(examples=3)
  assert found.report.lines() == []


@pytest.mark.parametrize(('values', 'labels'), [
    (['10', '9', '-1'], ('-1', '9', '10')), ([True, False], ('False', 'True')),
    ([2, 1, 10], ('1', '2', '10')),
    (['b', '10', 'a'], ('10', 'a', 'b')), (['3.5', '3'], ('3', '3.5'))])
def test_labels_of_the_training_examples(write, values, labels):
  found = read_sources('classification',
                       [write([{'text': 'x', 'label': value} for value in values])])
  assert found.labels == labels
  assert [labels[example.label] for example in found.examples] == [str(value) for value in values]


@pytest.mark.parametrize('columns', [
    {'sentence1': 'a', 'sentence2': 'b'}, {'premise': 'a', 'hypothesis': 'b', 'text': 'c'},
    {'question': 'a', 'passage': 'b'}, {'question1': 'a', 'question2': 'b'}])
def test_pairs_are_known_by_the_names_of_their_columns(write, columns):
  assert read_sources('classification',
                      [write([{**columns, 'label': 1}])]).examples[0].texts == ('a', 'b')


def test_columns_by_name_by_way_of_others_joined_and_by_number(write):
  path = write([{'title': 'A', 'body': {'text': 'b'}, 'stars': 5},
                {'title': 'C', 'text': 'd', 'stars': 1}])
  found = read_sources('classification', [path], Columns('title+body.text|text', label='stars'))
  assert [example.texts for example in found.examples] == [('A b',), ('C d',)]
  assert found.labels == ('1', '5')
  path = write('gj04\t1\t\tOurs.\ngj04\t0\t*\tTheirs.\n', 'cola.tsv')
  found = read_sources('classification', [path], Columns('3', label='1'),
                       ('unacceptable', 'acceptable'))
  assert [(example.texts, example.label)
          for example in found.examples] == [(('Ours.',), 1), (('Theirs.',), 0)]
  assert found.report.notes == ["labels are numbers: 0 is 'unacceptable', 1 is 'acceptable'"]


def test_columns_of_a_user_stand_before_those_of_a_task():
  task = Columns('premise', 'hypothesis', 'label')
  assert Columns(label='gold').fill_from(task) == Columns('premise', 'hypothesis', 'gold')
  assert Columns('text').fill_from(task) == Columns('text', '', 'label')


def test_numbers_are_classes_only_where_names_are_none(write):
  path = write([{'text': 'x', 'label': 3}])
  assert read_sources('classification', [path], labels=('a', 'b', 'c', 'd'),
                      use='dev').examples[0].label == 3
  with pytest.raises(SourceError,
                     match=r"a\.jsonl:1: the label '3' is none of those that are learned: 100, "
                           r"101"):
    read_sources('classification', [path], labels=('100', '101', '102', '103'), use='dev')


def test_a_step_of_a_scale_without_a_training_example_needs_all_names(write):
  train = write([{'text': 'x', 'label': step} for step in (1, 2, 4)], 'train.jsonl')
  dev = write([{'text': 'x', 'label': 3}], 'dev.jsonl')
  names = read_sources('classification', [train]).labels
  assert names == ('1', '2', '4')
  with pytest.raises(SourceError, match=r'learned: 1, 2, 4; objective\.labels names all steps of a '
                                        r'scale, also those without a training example'):
    read_sources('classification', [dev], labels=names, use='dev')
  steps = '1', '2', '3', '4'
  assert read_sources('classification', [dev], labels=steps, use='dev').examples[0].label == 2


BAD = [
    ('classification', {'label': 'a'}, r":2: no column 'sentence' or 'text'", 'no such column'),
    ('classification', {'text': ' ', 'label': 'a'}, r":2: the column 'text' is empty",
     'empty text'),
    ('classification', {'text': 7, 'label': 'a'},
     r':2: the column .* must be a text, got a number, 7', 'no text'),
    ('classification', {'text': 'x', 'label': 'c'},
     r":2: the label 'c' is none of those that are learned: a, b",
     'unknown label'),
    ('classification', {'text': 'x'}, r':2: no label to measure by', 'no label'),
    ('classification', {'text': 'x', 'label': -1}, r':2: no label to measure by', 'no label'),
    ('regression', {'text': 'x', 'label': 'nan'},
     r":2: the label must be a number in decimal notation, .* got 'nan'",
     'no number'),
    ('regression', {'text': 'x', 'label': True}, r':2: the label must be a number .* got True',
     'no number'),
    ('tagging', {'words': ['x', ''], 'tags': ['a', 'b']}, r':2: word 2 is empty', 'empty word'),
    ('tagging', {'words': 'x', 'tags': ['a']}, r':2: .* a list of words', 'no words'),
    ('tagging', {'words': ['x', 'y'], 'tags': ['a']}, r':2: 2 words need a tag each',
     'tags that do not fit'),
    ('tagging', {'words': ['x'], 'tags': ['B-X']}, r":2: the label 'B-X' is none of",
     'unknown label'),
    ('answers', {'question': 'Who?', 'context': 'I did.',
                 'answers': [{'text': 'You', 'answer_start': 0}]},
     r":2: the answer 'You' is not in its context", 'answer not in its context'),
    ('answers', {'question': 'Who?', 'context': 'I did.', 'answers': [{'answer_start': 0}]},
     r':2: answers are texts with', 'no answers'),
    ('answers', {'question': 'Who?', 'context': '', 'answers': []},
     r":2: the column 'context' must be a text",
     'empty text'),
    ('choice', {'context': 'x', 'choices': ['a', 'b'], 'label': 2},
     r':2: the label is a number below 2',
     'unknown label'),
    ('choice', {'context': 'x', 'choices': ['a', ' '], 'label': 0}, r':2: an empty choice',
     'empty text'),
    ('choice', {'context': 'x', 'choices': ['a'], 'label': 0}, r':2: expected two or more choices',
     'unreadable rows'),
    ('choice', {'context': 'x', 'label': 0}, r":2: no column 'choices' or", 'no such column'),
    ('choice', {'choices': ['a', 'b'], 'label': 0}, r":2: no column 'context' or",
     'no such column'),
]
GOOD = {
    'classification': {'text': 'x', 'label': 'a'}, 'regression': {'text': 'x', 'label': '1.5'},
    'tagging': {'words': ['x'], 'tags': ['a']},
    'choice': {'context': 'x', 'choices': ['a', 'b'], 'label': 0},
    'answers': {'question': 'Who?', 'context': 'I did.',
                'answers': [{'text': 'I', 'answer_start': 0}]}}


@pytest.mark.parametrize(('kind', 'row', 'message', 'reason'), BAD)
def test_a_row_that_is_no_example_is_named_or_counted_under_its_reason(write, kind, row, message,
                                                                       reason):
  path = write([GOOD[kind], row])
  labels = ('a', 'b') if kind in ('classification', 'tagging') else ()
  with pytest.raises(SourceError, match=r'a\.jsonl' + message):
    read_sources(kind, [path], labels=labels, use='dev')
  found = read_sources(kind, [path], labels=labels, use='dev', on_error='skip')
  assert len(found.examples) == found.report.examples == 1
  assert found.report.skipped == {reason: 1}
  assert found.report.lines()[0] == f'1 rows were left out: 1 {reason}'
  assert 'a.jsonl:2: ' in found.report.lines()[1]


def test_lines_that_are_no_rows_are_counted_too(write):
  source = write('{"text": "x", "label": 1}\nnonsense\n{"text": ""}\n')
  found = read_sources('classification', [source], on_error='skip')
  assert found.report.skipped == {'unreadable lines': 1, 'empty text': 1}


def test_sources_that_cannot_be_used_are_refused_even_when_rows_are_skipped(write):
  unlabelled = write([{'text': 'x'}, {'text': 'y', 'label': 'a'}], 'test.jsonl')
  with pytest.raises(SourceError,
                     match=r"test\.jsonl has no labels to measure by: no row has one in 'stars'"):
    read_sources('classification', [unlabelled], Columns(label='stars'), ('a', 'b'), 'dev', 'skip')
  # as GLUE's test sets
  hidden = write([{'text': 'x', 'label': -1}, {'text': 'y', 'label': -1}], 'hidden.jsonl')
  with pytest.raises(SourceError, match=r"hidden\.jsonl has no labels to measure by"):
    read_sources('classification', [hidden], labels=('a', 'b'), use='dev')
  with pytest.raises(SourceError, match=r'empty\.jsonl has no examples'):
    read_sources('classification', [write('', 'empty.jsonl')])
  with pytest.raises(SourceError, match=r'no examples are left: .*none of those'):
    read_sources('classification', [write([GOOD['classification']])], labels=('b', 'c'),
                 on_error='skip')
  with pytest.raises(SourceError, match='no examples to learn from: name a file'):
    read_sources('classification', [])


def test_what_is_to_be_predicted_needs_no_labels(write):
  found = read_sources('classification', [write([{'text': 'x'}, {'text': 'y', 'label': 'b'}])],
                       labels=('a', 'b'),
                   use='predict')
  assert [example.label for example in found.examples] == [None, 1]
  source = write([{'question': 'q', 'context': 'c'}])
  assert read_sources('answers', [source], use='predict').examples[0].answers is None
  assert read_sources('tagging', [write('One\nword\n', 'a.txt')], labels=('O',),
                      use='predict').examples[0] == Example(
      ('One', 'word'), None, where=write('One\nword\n', 'a.txt') + ':1')


def test_iob1_becomes_bio(write):
  path = write('A I-PER\nB B-PER\nC I-PER\nD I-LOC\ne O\n\nF I-LOC\n', 'a.conll')
  found = read_sources('tagging', [path])
  assert found.labels == ('B-LOC', 'B-PER', 'I-LOC', 'I-PER', 'O')
  assert [[found.labels[tag] for tag in example.label] for example in found.examples] == [
      ['B-PER', 'B-PER', 'I-PER', 'B-LOC', 'O'], ['B-LOC']]
  assert found.report.notes == [
      f'{path}: tags are IOB1 and are made BIO: 3 chunks that began with I-']


@pytest.mark.parametrize(('tags', 'note'), [
    (['B-PER', 'I-PER', 'O', 'B-LOC'], []), (['NN', 'VB', 'I-X', 'B-Y'], []),
    (['S-PER', 'B-LOC', 'E-LOC', 'O'], []),
    (['S-PER', 'I-LOC', 'E-LOC', 'O'],
     ['1 tags of BIOES do not fit those before them; they are left as they are']),
    (['B-PER', 'O', 'I-LOC', 'O'],
     ['1 chunks begin with I- and 1 with B-; tags are left as they are. In BIO every chunk begins '
      'with B-: check the file'])])
def test_other_tags_stay_as_they_are(write, tags, note):
  path = write([{'tokens': ['a', 'b', 'c', 'd'], 'ner_tags': tags}])
  found = read_sources('tagging', [path])
  assert [found.labels[tag] for tag in found.examples[0].label] == tags
  assert found.report.notes == [f'{path}: {text}' for text in note]


def test_sentences_know_their_document(write):
  first = write('a O\n\nb O\n\n-DOCSTART- O\n\nc O\n', 'a.conll')
  second = write('d\tO\n\ne\tO\n', 'b.tsv')
  found = read_sources('tagging', [first, second])
  assert [example.document for example in found.examples] == [0, 0, 1, 2, 3]
  found = read_sources('tagging', [f'{first},{second}'])
  assert [example.document for example in found.examples] == [0, 0, 1, 2, 3]
  assert [example.document for example in read_sources('tagging', [write([
      {'tokens': ['a'], 'tags': ['O'], 'document': name} for name in 'xyx'])]).examples] == [
          0, 1, 0]


def test_tags_by_number_of_another_column(write):
  found = read_sources('tagging', [write([{'tokens': ['a', 'b'], 'ner': [0, 2]}])],
                       labels=('O', 'B-PER', 'I-PER'))
  assert found.examples[0].label == (0, 1)  # IOB1 in numbers
  found = read_sources('tagging', [write('EU NNP I-NP I-ORG\n', 'eng.train')], Columns(label='1'))
  assert found.labels == ('NNP',)


CONTEXT = 'Rome, old Rome, is in Italy.'


@pytest.mark.parametrize(('answers', 'found', 'moved'), [
    ([{'text': 'Rome', 'answer_start': 10}], (Answer('Rome', 10),), 0),
    ([{'text': 'Rome', 'answer_start': 8}], (Answer('Rome', 10),), 1),
    ([{'text': 'Rome', 'answer_start': 999}], (Answer('Rome', 10),), 1),
    ([{'text': ' Italy ', 'answer_start': 21}], (Answer('Italy', 22),), 1),
    ({'text': ['Rome', 'Italy'], 'answer_start': [0, 22]}, (Answer('Rome', 0), Answer('Italy', 22)),
     0),
    ({'text': [], 'answer_start': []}, (), 0), ([], (), 0), ('Rome', (Answer('Rome', 0),), 0),
    ([{'text': 'Paris', 'answer_start': 0}, {'text': 'Rome', 'answer_start': 0}],
     (Answer('Rome', 0), Answer('Paris', -1)), 0)])
def test_answers_stand_in_their_context(write, answers, found, moved):
  path = write([{'id': 5, 'question': ' Where? ', 'context': CONTEXT, 'answers': answers}])
  read = read_sources('answers', [path])
  assert read.examples == [Example(('Where?', CONTEXT), answers=found, where=f'{path}:1', key='5')]
  assert read.report.moved_answers == moved


def test_squad_json(write):
  questions = [{'id': 'a', 'question': 'Who?', 'answers': [{'text': 'I', 'answer_start': 0}],
                'is_impossible': False},
               {'id': 'b', 'question': 'Why?', 'is_impossible': True, 'answers': [],
                'plausible_answers': [{'text': 'I', 'answer_start': 0}]}]
  path = write(json.dumps({'version': 'v2.0', 'data': [
      {'title': 'T', 'paragraphs': [{'context': 'I did.', 'qas': questions}]}]}), 'dev.json')
  found = read_sources('answers', [path], use='dev').examples
  assert [(example.key, example.answers) for example in found] == [('a', (Answer('I', 0),)),
                                                                   ('b', ())]


@pytest.mark.parametrize(('row', 'texts', 'choices', 'label'), [
    ({'startphrase': 'She', 'endings': ['a', 'b'], 'label': 1}, ('She', ''), ('a', 'b'), 1),
    ({'sent1': 'He sat.', 'sent2': 'He', 'startphrase': 'He sat. He', 'ending0': 'a',
      'ending1': 'b', 'ending2': 'c',
      'ending3': 'd', 'label': '2'}, ('He sat.', 'He'), ('a', 'b', 'c', 'd'), 2),
    ({'article': 'A.', 'question': 'q', 'options': ['x', 'y', 'z'], 'answer': 'C'}, ('A.', 'q'),
     ('x', 'y', 'z'), 2),
    ({'context': ['M: Hi.', 'W: Bye.'], 'question': 'q', 'choice': ['x', 'y'], 'answer': 'y'},
     ('M: Hi.\nW: Bye.', 'q'),
     ('x', 'y'), 1),
    ({'question': {'stem': 'q', 'choices': [{'label': 'A', 'text': 'x'},
                                            {'label': 'B', 'text': 'y'}]},
      'answerKey': 'B'}, ('q', ''), ('x', 'y'), 1),
    ({'context': 'c', 'question': 'q', 'choices': ['1', '2', '0'], 'answer': '2'}, ('c', 'q'),
     ('1', '2', '0'), 1),
    ({'context': 'c', 'question': 'q', 'choices': ['1', '2', '0'], 'label': 2}, ('c', 'q'),
     ('1', '2', '0'), 2),
    ({'goal': 'g', 'sol1': 'x', 'sol2': 'y', 'label': 0}, ('g', ''), ('x', 'y'), 0),
    ({'premise': 'p', 'question': 'effect', 'choice1': 'x', 'choice2': 'y', 'label': 1},
     ('p', 'What happened as a result?'), ('x', 'y'), 1)])
def test_choices_as_they_are_published(write, row, texts, choices, label):
  path = write([row])
  assert read_sources('choice',
                      [path]).examples == [Example(texts, label, choices, where=f'{path}:1')]


def test_a_passage_with_several_questions_is_an_example_for_each(write):
  path = write([{'article': 'A.', 'questions': ['q', 'r'], 'options': [['x', 'y'], ['z', 'w']],
                 'answers': ['B', 'A'],
                 'example_id': 'high1'}])
  assert read_sources('choice', [path]).examples == [
      Example(('A.', 'q'), 1, ('x', 'y'), where=f'{path}:1.0', key='high1'),
      Example(('A.', 'r'), 0, ('z', 'w'), where=f'{path}:1.1', key='high1', document=1)]


def test_a_configuration_names_sources_and_columns():
  config = SourceConfig(('a.tsv',), ('m.tsv', 'mm.tsv'), Columns(label='gold'))
  assert config.on_error == 'refuse'
  assert Columns('3', label='1').are_numbers
  assert not Columns('3', label='gold').are_numbers
  assert not Columns().are_numbers


@pytest.mark.slow
def test_what_is_embedded_has_no_text_in_both_parts():
  for kind in ('classification', 'tagging', 'answers', 'choice'):
    train = read_sources(kind, [f'embedded:{kind}'])
    dev = read_sources(kind, [f'embedded:{kind}:dev'], labels=train.labels, use='dev')
    assert len(train.examples) > 200
    assert len(dev.examples) > 50
    assert not {example.texts for example in train.examples} & {example.texts
                                                                for example in dev.examples}
    assert train.report.lines() == dev.report.lines() == []
    if kind == 'answers':
      assert all(example.texts[1][start:start + len(text)] == text
                 for example in train.examples for text, start in example.answers)
    else:
      classes = collections.Counter(
          label for example in train.examples
          for label in (example.label if kind == 'tagging' else [example.label]))
      assert len(classes) == (len(train.labels) or 4)
  with pytest.raises(SourceError, match='is none of embedded:KIND and embedded:KIND:dev'):
    read_sources('tagging', ['embedded:parsing'])


def test_tfds_has_names_for_its_numbers(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  tf = pytest.importorskip('tensorflow')
  names = tfds.features.ClassLabel(names=['B-PER', 'O'])  # not in the order of ours
  features = tfds.features.FeaturesDict({
      'tokens': tfds.features.Sequence(tfds.features.Text()), 'tags': tfds.features.Sequence(names),
      'text': tfds.features.Text(), 'label': names,
      'questions': tfds.features.Sequence(tfds.features.Text()),
      'answers': tfds.features.Sequence(tfds.features.Text()),
      'options': tfds.features.Sequence(tfds.features.Sequence(tfds.features.Text()))})
  rows = [{'tokens': ['Ann', 'sat'], 'tags': [0, 1], 'text': 'Fine.', 'label': 1,
           'questions': ['q', 'r'],
           'answers': ['B', 'A'], 'options': [['x', 'y', 'z'], ['v', 'w']]},
          {'tokens': ['He'], 'tags': [1], 'text': 'Bad.', 'label': -1, 'questions': ['s'],
           'answers': ['C'],
           'options': [['x', 'y', 'z']]}]
  with tf.io.TFRecordWriter(f'{tmp_path}/small-test.tfrecord-00000-of-00001') as writer:
    for row in rows:
      writer.write(features.serialize_example(features.encode_example(row)))
  template = tfds.core.ShardedFileTemplate(tmp_path, dataset_name='small', split='test',
                                           filetype_suffix='tfrecord')
  tfds.folder_dataset.write_metadata(
      data_dir=tmp_path, features=features,
      split_infos=[tfds.core.SplitInfo('test', [2], 0, template)])
  source = f'tfds:{tmp_path}:test'
  found = read_sources('classification', [source], labels=('O', 'B-PER'), use='predict')
  assert found.examples == [Example(('Fine.',), 0, where=f'{source}[0]'),
                            Example(('Bad.',), None, where=f'{source}[1]', document=1)]
  with pytest.raises(SourceError, match=r'test\[1\]: no label to measure by'):
    read_sources('classification', [source], labels=('O', 'B-PER'), use='dev')
  tagged = read_sources('tagging', [source], labels=('O', 'B-PER')).examples
  assert [example.label for example in tagged] == [(1, 0), (0,)]
  race = read_sources('choice', [source], Columns('text', 'question', 'answer', 'options')).examples
  assert [(*example.texts, example.choices, example.label) for example in race] == [
      ('Fine.', 'q', ('x', 'y', 'z'), 1), ('Fine.', 'r', ('v', 'w'), 0),
      ('Bad.', 's', ('x', 'y', 'z'), 2)]


# Columns that are read, and those that are not.

def test_a_list_of_positives_is_an_example_of_each(write):
  """FlagEmbedding's layout, with a list of positives and a list of negatives, which may be
  empty."""
  path = write([{'query': 'q', 'pos': ['a', 'b'], 'neg': ['x', 'y']},
                {'query': 'r', 'pos': ['c'], 'neg': []}])
  found = read_sources('embedding', [path])
  assert [example.texts for example in found.examples] == [('q', 'a', 'x', 'y'),
                                                           ('q', 'b', 'x', 'y'), ('r', 'c')]
  assert found.report.notes == []
  ranked = read_sources('rerank', [path]).examples
  assert next((example.choices, example.label)
              for example in ranked) == (('a', 'b', 'x', 'y'), (1.0, 1.0, 0.0, 0.0))


@pytest.mark.parametrize('row', [
    {'query': 'q', 'positive_passages': [{'docid': '1', 'title': 'T', 'text': 'a'}],
     'negative_passages': [{'text': 'x'}]},
    {'question': 'q', 'positive_ctxs': [{'title': 'T', 'text': 'a'}],
     'hard_negative_ctxs': [{'title': '', 'text': 'x'}]},
    {'anchor': 'q', 'positive': 'T a', 'negative_1': 'x'},
    {'sent0': 'q', 'sent1': 'T a', 'hard_neg': 'x'}])
def test_related_texts_in_the_layouts_of_other_libraries(write, row):
  assert read_sources('embedding', [write([row])]).examples[0].texts == ('q', 'T a', 'x')


def test_columns_are_chosen_by_the_first_rows_together(write):
  path = write([{'query': 'q', 'pos': 'a'}, {'query': 'r', 'pos': 'b', 'neg': 'x'}])
  assert [example.texts for example in read_sources('embedding', [path]).examples] == [
      ('q', 'a'), ('r', 'b', 'x')]


def test_a_text_is_not_paired_with_itself_where_its_row_has_more(write):
  path = write([{'query': 'where is it', 'relevant': 'it is on the mat'}])
  with pytest.raises(SourceError,
                     match=r"no column with the positive of 'query', only \['relevant'\]: "
                           r"columns.*second.*"
                     'pairs each text with itself'):
    read_sources('embedding', [path])
  assert read_sources('embedding', [path], Columns('query')).examples[0].texts == ('where is it',)
  dated = write([{'text': 'where is it', 'date': '2020-01-01 10:00'}], 'b.jsonl')
  assert read_sources('embedding',
                      [dated]).report.notes == [f"{dated}: columns that are not read: 'date'"]
  found = read_sources('embedding', [path], Columns(second='relevant'))
  assert found.examples[0].texts == ('where is it', 'it is on the mat') and found.report.notes == []


RELATIONS = [
    ({'premise': 'a', 'hypothesis': 'b'}, 'label', ['entailment', 'contradiction']),
    ({'question1': 'a', 'question2': 'b'}, 'is_duplicate', ['0', '1']),
    ({'sentence1': 'a', 'sentence2': 'b'}, 'score', [0.5, 4.5])]


@pytest.mark.parametrize(('texts', 'label', 'values'), RELATIONS)
@pytest.mark.parametrize('ending', ['jsonl', 'tsv', 'csv', 'parquet'])
def test_pairs_with_labels_are_not_all_positive(tmp_path, texts, label, values, ending):
  rows = [{**texts, label: value} for value in values]
  path = tmp_path / f'a.{ending}'
  if ending == 'parquet':
    arrow, parquet = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
    parquet.write_table(arrow.Table.from_pylist(rows), path)
  elif ending == 'jsonl':
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  else:
    separator = '\t' if ending == 'tsv' else ','
    path.write_text(''.join(separator.join(map(str, row)) + '\n'
                            for row in ([*rows[0]], *(row.values() for row in rows))))
  with pytest.raises(SourceError,
                     match=f"labels in the column '{label}', such as .* are not read, and every "
                           f"pair would "
                     'be a positive one.*loss=softmax'):
    read_sources('embedding', [str(path)])
  first, second = texts
  found = read_sources('embedding', [str(path)], Columns(first, second))
  assert [example.texts for example in found.examples] == [('a', 'b')] * 2
  assert found.report.notes == [f"{path}: columns that are not read: '{label}'"]
  kind = 'regression' if label == 'score' else 'classification'
  assert read_sources(kind, [str(path)]).report.notes == []


def test_labels_that_are_all_equal_are_no_contradiction(write):
  found = read_sources('embedding', [write([{'sentence1': 'a', 'sentence2': 'b', 'label': 1}] * 2)])
  assert found.report.notes[0].endswith("a.jsonl: columns that are not read: 'label'")


def test_columns_without_content_are_not_named(write):
  path = write([{'text': 'x', 'label': 1, 'id': 3, 'pairID': '7e', 'note': '', 'Unnamed: 0': 1,
                 'title': 'A title'}])
  assert read_sources('classification',
                      [path]).report.notes == [f"{path}: columns that are not read: 'title'"]
  path = write([{'text': 'x', 'label': 1} | {f'c{number}': 'y' for number in range(11)}], 'b.jsonl')
  assert read_sources('classification', [path]).report.notes[0].endswith("'c6', 'c7' and 3 more")


# Labels of choices: one reading for all rows of a file.

LETTERS = [(['B', 'O', 'AB', 'A'], 'B'), (['3', '2', '1', '0'], 'B'), (['3', '2', '1', '0'], 'A')]
NUMBERS = [(['0', '1', '2', '3'], '2'), (['1', '3', '0', '2'], '1'), (['5', '6', '7', '0'], '3')]


@pytest.mark.parametrize(('rows', 'right', 'note'), [
    (LETTERS, ['O', '2', '3'], 'letters of choices in all rows; some could also be texts'),
    (NUMBERS, ['2', '3', '0'], 'numbers from 0 of choices in all rows; some could also be texts'),
    ([(['a', 'b'], '1'), (['c', 'd'], '2')], ['a', 'd'],
     'numbers from 1 of choices in all rows; some could also be numbers from 0'),
    ([(['1', '2', '0'], '2'), (['7', '8', '0'], '8')], ['2', '8'],
     'texts of choices in all rows; some could also be numbers from 0'),
    ([(['a', 'b'], 1), (['c', 'd'], 0)], ['b', 'c'], ''),
    ([(['a', 'b'], 'B'), (['c', 'd'], 'A')], ['b', 'c'], '')])
def test_all_rows_of_a_file_are_read_in_one_way(write, rows, right, note):
  path = write([{'question': 'q', 'choices': choices, 'answer': label} for choices, label in rows])
  found = read_sources('choice', [path])
  assert [example.choices[example.label] for example in found.examples] == right
  assert found.report.notes == ([f'{path}: labels are {note}'] if note else [])


def test_all_numbered_columns_of_choices_are_read(write):
  for names in ('option1,option2,option3', 'ending0,ending1,ending2', 'A,B,C,D,E',
                'answerA,answerB,answerC'):
    row = {name: f'choice {name}' for name in names.split(',')}
    found = read_sources('choice',
                         [write([{'question': 'q', **row, 'label': 0}], f'{names[0]}.jsonl')])
    assert found.examples[0].choices == tuple(row.values())


# Prediction needs no label.

UNKNOWN = [
    ('classification', [{'text': 'x', 'label': 'a'}, {'text': 'y', 'label': '?'},
                        {'text': 'z', 'label': '-1'}], 2),
    ('regression', [{'text': 'x', 'label': 1}, {'text': 'y', 'label': 'unknown'}], 1),
    ('multilabel', [{'text': 'x', 'labels': ['a']}, {'text': 'y', 'labels': ['new']}], 1),
    ('multilabel', [{'text': 'x', 'a': '1', 'b': '0'}, {'text': 'y', 'a': '?', 'b': '?'}], 1),
    ('tagging', [{'tokens': ['x'], 'tags': ['a']}, {'tokens': ['y'], 'tags': ['_']},
                 {'tokens': ['y'], 'tags': ['a', 'a']}], 2),
    ('answers', [{'question': 'q', 'context': 'c', 'answer': 'c'},
                 {'question': 'q', 'context': 'c', 'answer': 'x'}], 1),
    ('choice', [{'question': 'q', 'choices': ['x', 'y'], 'label': 'A'},
                {'question': 'q', 'choices': ['x', 'y'], 'label': '?'}], 1),
    ('rerank', [{'query': 'q', 'document': 'd', 'label': 1},
                {'query': 'q', 'document': 'd', 'label': 'hidden'}], 1)]


@pytest.mark.parametrize(('kind', 'rows', 'count'), UNKNOWN)
def test_rows_with_unknown_labels_are_predicted(write, kind, rows, count):
  path, names = write(rows), ('a', 'b') if kind in ('classification', 'multilabel',
                                                    'tagging') else ()
  columns = Columns(label='a,b') if 'a' in rows[0] else Columns()
  found = read_sources(kind, [path], columns, names, 'predict')
  known = [example.label is not None or example.answers is not None for example in found.examples]
  assert known == [True] * (len(rows) - count) + [False] * count
  assert found.report.lines() == [
      f'{count} rows have labels that cannot be compared. They are predicted, and do not count in '
      f'the scores. The '
      f'first: {found.report.unknown_label}']
  chunk, = read_chunks(kind, path, columns, names)
  assert chunk == found.examples
  with pytest.raises(SourceError, match=r'a\.jsonl'):
    read_sources(kind, [path], columns, names, 'dev')


def test_hidden_tags_of_a_test_file(write):
  """A file of words with an empty column of tags, as test sets without labels have it."""
  path = write('x\t\ny\t\n', 'a.conll')
  assert read_sources('tagging', [path], labels=('O',), use='predict').examples[0].label is None
  with pytest.raises(SourceError, match=r'a\.conll has no labels to measure by'):
    read_sources('tagging', [path], labels=('O',), use='dev')
