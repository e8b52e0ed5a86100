"""`inspect` shows the batches of a run before it starts."""
import json
import pathlib
import types

import labelled
import numpy as np
import pytest
import tiny

from plm_jax import recipes
from plm_jax.cli import commands, inspect
from plm_jax.layers import char_ids
from plm_jax.objectives.batch_view import BatchReader, Column, Lane, spell_word
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.condenser import CoCondenser
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.report import batch_drawing
from plm_jax.runs.inspect import inspect_run
from plm_jax.runs.pretrain import prepare_corpora
from plm_jax.sharding import make_mesh
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.feed import TextFeed

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the', 'cat', 'sat', '##s', '数']


def reader(objective, kind: str = 'encoder', packed: bool = False) -> BatchReader:
  tokenizer = types.SimpleNamespace(pieces=PIECES,
                                    vocab=Vocab(len(PIECES), pad=0, unk=1, cls=2, sep=3, mask=4))
  model = tiny.config()
  return BatchReader(tokenizer, types.SimpleNamespace(  # pyright: ignore
      kind=kind, block=model.block, head=model.head, tied=True, vocab=10, logit_factor=1.0,
      logit_cap=None, lm_head=None, causal=True), objective, packed)


def arrays(**values) -> dict:
  return {name: np.array([value]) for name, value in values.items()}


WINDOWS = arrays(tokens=[5, 6, 8, 7, 5, 0], segments=[1, 1, 1, 1, 1, 0],
                 sentences=[1, 1, 1, 2, 2, 0],
                 words=[1, 2, 2, 3, 4, 0], document=4, corpus=0, index=1234, epoch=2)


def test_a_masked_row_shows_inputs_and_labels():
  batch = arrays(
      tokens=[2, 5, 4, 8, 9, 5, 3, 0], segments=[1, 1, 1, 1, 1, 1, 1, 0],
      types=[0, 0, 0, 0, 1, 1, 1, 0],
      positions=[2, 4, 5, 0], labels=[6, 7, 5, 2], weights=np.array([1, 1, 1, 0], np.float32),
      nsp=1)
  row, = reader(MaskedLM()).rows(WINDOWS, batch)
  text, reads = row.lanes
  assert row.title == 'row 0: window 1,234, document 4, epoch 2'
  assert row.facts == {'nsp': '1'}
  assert text == Lane('text', [Column('the', '', '', ('1', '1')), Column('cat', '', '', ('2', '1')),
                               Column(
      '##s', '', '', ('2', '1')), Column('sat', '', '', ('3', '2')),
      Column('the', '', '', ('4', '2'))],
      ('words', 'sentences'), 1)
  assert reads.names == ('types',) and reads.padding == 1
  assert [column[:3] for column in reads.columns] == [
      ('[CLS]', 'special', ''), ('the', '', ''), ('[MASK]', 'mask', 'cat'), ('##s', '', ''),
      ('数', 'other', 'sat'),
      ('the', 'same', 'the'), ('[SEP]', 'special', '')]
  assert row.attention_mask is not None and row.attention_mask.shape == (
      7, 7) and row.attention_mask.all()


def test_rows_of_one_window_show_its_text():
  """coCondenser makes two rows of each window."""
  windows = {name: np.concatenate([x, x[:, ::-1] if x.ndim > 1 else x + 1])
             for name, x in WINDOWS.items()}
  windows['segments'][:] = 1
  tokens = np.full((4, 3), 5)
  batch = dict(tokens=tokens, segments=np.ones_like(tokens), window=np.array([0, 0, 1, 1]),
               paired=np.ones(4, np.float32))
  rows = reader(CoCondenser()).rows(windows, batch)
  assert [row.title.partition(':')[2] for row in rows] == 2 * [
      ' window 1,234, document 4, epoch 2'] + 2 * [
          ' window 1,235, document 5, corpus 1, epoch 3']
  texts = [''.join(column.piece for column in row.lanes[0].columns) for row in rows]
  assert texts[0] == texts[1] != texts[2] == texts[3]
  assert rows[0].facts == {'paired': '1'}


def test_a_causal_row_shows_next_tokens_and_its_attention_mask():
  batch = arrays(tokens=[3, 5, 6, 3, 7, 0], labels=[5, 6, 3, 7, 5, 0],
                 weights=np.array([1, 1, 1, 1, 1, 0], np.float32),
                 segments=[1, 1, 1, 2, 2, 0], place=[0, 1, 2, 0, 1, 0])
  row, = reader(CausalLM(), 'decoder').rows(WINDOWS, batch)
  reads = row.lanes[1]
  assert [(column.piece, column.kind, column.target) for column in reads.columns] == [
      ('[SEP]', 'next', 'the'), ('the', 'next', 'cat'), ('cat', 'next', '[SEP]'),
      ('[SEP]', 'next', 'sat'),
      ('sat', 'next', 'the')]
  assert row.attention_mask is not None and row.attention_mask.astype(int).tolist() == [
      [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]


def test_packed_texts_show_separate_attention_masks():
  batch = arrays(tokens=[2, 5, 2, 6], segments=[1, 1, 2, 2])
  (apart,), (together,) = (reader(MaskedLM(), packed=packed).rows({}, batch)
                           for packed in (True, False))
  assert apart.attention_mask is not None and apart.attention_mask.astype(int).tolist() == [
      [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
  assert together.attention_mask is not None and together.attention_mask.all()


def test_words_are_read_as_they_are_spelled():
  assert [spell_word(word) for word in char_ids.encode_words(['naïve', '数组', ''])] == [
      'naïve', '数组', '']
  assert spell_word(char_ids.encode_boundary(char_ids.SENTENCE_END)) == '</S>'


def test_lanes_wrap_at_the_terminal_width_with_wide_characters():
  lane = Lane('reads', [
      Column('[MASK]', 'mask', '数', ('1',)), Column('数', '', '', ('2',)),
      Column('sat', '', 'x', ('3',))],
              ('types',), 2)
  assert [*batch_drawing.fold_lane(lane, batch_drawing.NAME_WIDTH + 20, False)] == [
      '  reads          [MASK] 数 sat', '  labels         数        x',
      '  types          1      2  3',
      '                 and 2 of padding']
  narrow = [*batch_drawing.fold_lane(lane._replace(columns=lane.columns * 3),
                                     batch_drawing.NAME_WIDTH + 20, False)]
  assert len(narrow) == 3 * 3 + 1 and narrow[3].split() == ['[MASK]', '数', 'sat']
  assert '\x1b[30;43m[MASK]\x1b[0m' in next(batch_drawing.fold_lane(lane, 80, True))


@pytest.fixture(scope='module')
def options(tmp_path_factory) -> list[str]:
  path = tmp_path_factory.mktemp('text') / 'corpus.txt'
  path.write_text(tiny.text())
  return ['--scale=test', f'--data.path={path}', '--data.prepare.heldout=0.1']


def test_inspect_shows_the_batches_of_the_run_and_leaves_it_unchanged(options, tmp_path,
                                                                      monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('sys.argv', ['plm_jax', 'inspect', 'bert_base', *options, '--rows=2',
                                   '--page=rows.html'])
  commands.main()
  said = capsys.readouterr().out
  assert 'bert_base: the first 2 of 8 rows of step 0\n' in said and '[CLS]' in said
  assert '[MASK]' in said
  page = pathlib.Path('rows.html').read_text()
  assert page.count('<h2>row ') == 2 and page.count('<svg') == 2 and '>labels<' in page
  assert not pathlib.Path('runs').exists()


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'lanes'), [
    ('roberta_base', 'text, reads'), ('spanbert_base', 'text, reads'),
    ('deberta_v3_base', 'text, reads, filled'),
    ('xlnet_base', 'text, memory, reads'), ('mpnet_base', 'text, reads'),
    ('gpt2_small', 'text, reads'), ('glm_base', 'text, reads'),
    ('t5_small', 'text, reads, decoder reads'), ('bart_base', 'text, reads, decoder reads'),
    ('elmo_small', 'text, forward, backward')])
def test_every_objective_is_shown(name, lanes, options):
  """Each by its own code, at the given step."""
  found = inspect_run(inspect.parse([name, *options]), 2, 1)
  for row in found.rows:
    assert ', '.join(lane.title for lane in row.lanes) == lanes
    assert any(column.target for lane in row.lanes[1:] for column in lane.columns)
    assert all(column.piece for lane in row.lanes for column in lane.columns)
  assert batch_drawing.render_page('a page', found.notes, found.rows).count('<h2>') == 2


def test_the_windows_of_a_step_are_those_that_the_run_reads(options):
  """Across the border of two phases, too."""
  config = inspect.parse(['bert_base', *options, '--mesh.data=1'])
  folders, tokenizer = prepare_corpora(config)  # pyright: ignore
  mesh = make_mesh(config.mesh)
  feed = TextFeed(config, folders, tokenizer, mesh)  # pyright: ignore
  for step, _, windows in feed.stream(5, mesh):
    tiny.assert_same(feed.read_batch(step), windows)


@pytest.mark.parametrize(('kind', 'shown'), [
    ('classification', {'kinds': {'special', ''}, 'targets': {''}}),
    ('tagging', {'kinds': {'special', 'next'}, 'targets': {'', 'O', 'B-PER'}})])
def test_labelled_rows_are_shown_with_their_answers(kind, shown, tmp_path):
  file = labelled.write(tmp_path, kind, 'train', 8)
  config = inspect.parse([f'--task={kind}', f'--train={file}', '--scale=test',
                          f'--output={tmp_path / "run"}'])
  found = inspect_run(config, 8, 0)
  columns = [column for row in found.rows for lane in row.lanes for column in lane.columns]
  assert {column.kind for column in columns} == shown['kinds']
  assert {column.target for column in columns} == shown['targets']
  for row in found.rows:
    read = ' '.join(column.piece for lane in row.lanes
                    for column in lane.columns if column.kind != 'special')
    read = read.replace(' ##', '')
    assert read == row.facts['text'].replace(' | ', ' ') and str(file) in row.title
    if kind == 'classification':
      assert row.facts['label'] == ('0 (bad)' if {*read.split()} & {*labelled.BAD} else '1 (good)')
  assert not (tmp_path / 'run').exists()


def test_rows_of_several_labels_are_shown_with_their_labels(tmp_path):
  file = tmp_path / 'tickets.jsonl'
  labels = ['new'], ['new', 'urgent'], [], ['urgent']
  file.write_text('\n'.join(json.dumps({'text': f'a film of {n}', 'labels': some})
                            for n, some in enumerate(labels)))
  config = inspect.parse(['--task=multilabel', f'--train={file}', '--scale=test',
                          f'--output={tmp_path / "run"}'])
  found = inspect_run(config, 8, 0)
  shown = {row.facts['text']: row.facts['labels'] for row in found.rows if 'text' in row.facts}
  wanted = {f'a film of {n}': ', '.join(some) or 'none' for n, some in enumerate(labels)}
  assert shown and shown.items() <= wanted.items()


@pytest.mark.parametrize(('args', 'message'), [
    (['bert_base', '--rows=0'], '--rows is a whole number, 1 or more, got'),
    (['bert_base', '--step=-1'], '--step is a whole number, 0 or more, got'),
    (['bert_base', '--scale=test', '--step=8'], '--step is 8, and the run has the steps 0 to 7'),
    (['bert_bas'], 'bert_bas')])
def test_impossible_requests_are_one_line_errors(args, message, options):
  with pytest.raises(SystemExit) as ended:
    inspect.start([*args, *(options if '--scale=test' in args else [])])
  assert message in str(ended.value) and '\n' not in str(ended.value)


def test_the_discriminator_lane_shows_generated_tokens():
  batch = arrays(tokens=[2, 4, 6, 3], segments=[1, 1, 1, 1], positions=[1], labels=[5],
                 weights=np.array([1], np.float32))
  filled = np.array([[2, 7, 6, 3]]), np.array([[0.0, 1.0, 0.0, 0.0]])
  row, = reader(recipes.find_recipe('electra_small')('test').objective).rows(
      {}, batch, filled)  # pyright: ignore
  assert [column[:3] for column in row.lanes[-1].columns] == [
      ('[CLS]', 'special', ''), ('sat', 'other', 'replaced'), ('cat', '', ''),
      ('[SEP]', 'special', '')]
