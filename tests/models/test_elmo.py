"""ELMo: sizes, spelling of words, and which words reach which; AllenNLP's own outputs are among the
cases of test_parity. Tasks on an ELMo: the likelihood of tags next to all rows of tags written
down, words that nobody has listed, unsupported settings, and a run from its words to its
predictions."""
import dataclasses
import functools
import itertools
import json
import pathlib
from typing import Any

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import plm_jax
from plm_jax import conversion, validation
from plm_jax.architectures.elmo import Elmo, ElmoConfig, add_sentence_marks
from plm_jax.cli.finetune import parse
from plm_jax.config import run as config
from plm_jax.config.run import FinetuneRun, Phase
from plm_jax.errors import ConfigError
from plm_jax.finetuning.predict import predict
from plm_jax.finetuning.word_vectors import build_word_list, set_word_vectors
from plm_jax.layers import char_ids
from plm_jax.layers.char_cnn import CharacterConfig
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.lstm import reverse_sequences
from plm_jax.layers.recurrent_heads import ReaderConfig
from plm_jax.loading.loaded_model import LoadedModel, read_model_config
from plm_jax.models import elmo
from plm_jax.models.elmo import WeightsError
from plm_jax.optim.adapters import AdapterConfig
from plm_jax.optim.tuning import TuningConfig
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import InitialModel
from plm_jax.runs.run import run
from plm_jax.sources.row_readers import Example
from plm_jax.tasks.contract import Task
from plm_jax.tasks.elmo import RecurrentSequence, RecurrentTagging
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.regularizers import REGULARIZERS
from plm_jax.tokenizers import train_wordpiece
from plm_jax.tokenizers.whole_words import WordTokenizer

TINY = dataclasses.replace(
    elmo.small(), characters=CharacterConfig(size=3, filters=((1, 4), (3, 6)), highways=1,
                                             longest=9), width=5, cells=7,
    words=20)


def shapes(config):
  batch = {'characters': jnp.zeros((1, 2, config.characters.longest), jnp.int32)}
  return unbox(jax.eval_shape(lambda: Elmo(config).init(jax.random.key(0), batch)['params']))


@pytest.fixture(scope='module')
def params():
  keys = iter(jax.random.split(jax.random.key(1), 40))
  return jax.tree.map(lambda x: 0.4 * jax.random.normal(next(keys), x.shape), shapes(TINY))


@pytest.mark.parametrize(('config', 'published'), [
    (elmo.small(), 13.6), (elmo.medium(), 28.0), (elmo.original(), 93.6)],
    ids=['small', 'medium', 'original'])
def test_parameters_as_published(config, published):
  """allennlp.org/elmo, in millions with one decimal; without the softmax, which was not
  released."""
  number = count_parameters(shapes(config))
  assert number == sum(np.prod(shape) for shape in elmo.array_shapes(config).values())
  assert round(number / 1e6, 1) == published


def test_a_word_is_spelled_by_its_bytes():
  """Of bilm-tf: ids of bytes, begin 258, end 259, padding 260; here one more each."""
  ids = char_ids.encode_words(['cab', 'é', 'abcdefgh', ''], 6)
  assert ids.tolist() == [
      [259, 100, 98, 99, 260, 261], [259, 0xC3 + 1, 0xA9 + 1, 260, 261, 261],
      [259, 98, 99, 100, 101, 260],
      [259, 260, 261, 261, 261, 261]]
  assert char_ids.encode_boundary(char_ids.SENTENCE_BEGIN, 5).tolist() == [259, 257, 260, 261, 261]


def test_sentences_get_marks_and_are_reversed_for_the_backward_model():
  ids = np.zeros((2, 3, 4), np.int32)
  ids[0, :1], ids[1, :3] = char_ids.encode_words(['a'], 4), char_ids.encode_words(
      ['a', 'b', 'c'], 4)
  begin, end = (char_ids.encode_boundary(sign, 4)
                for sign in (char_ids.SENTENCE_BEGIN, char_ids.SENTENCE_END))
  marked = np.asarray(add_sentence_marks(ids))
  assert (marked[0] == [begin, ids[0, 0], end, [0] * 4, [0] * 4]).all()
  assert (marked[1] == [begin, *ids[1], end]).all()
  assert reverse_sequences(jnp.arange(8).reshape(2, 4),
                           jnp.array([3, 4])).tolist() == [[2, 1, 0, 3], [7, 6, 5, 4]]


@pytest.mark.slow
def test_one_direction_reads_earlier_words_and_the_other_later_words(params):
  """Each direction has half of the vector: another second word changes the forward half from it
  on, and the backward half up to it."""
  def read(*words) -> np.ndarray:
    batch = {'characters': jnp.asarray(char_ids.encode_words(words, 9))[None]}
    output: Any = Elmo(TINY).apply({'params': params}, batch)
    return output.layers[1:, 0, 1:-1]
  same = read('one', 'of', 'three') == read('one', 'or', 'three')
  forward, backward = np.split(same, 2, -1)
  assert forward[:, 0].all() and not forward[:, 1:].any()
  assert backward[:, 2].all() and not backward[:, :2].any()


@pytest.mark.slow
def test_padding_changes_nothing(params):
  words = char_ids.encode_words(['some', 'words'], 9)
  alone: Any = Elmo(TINY).apply({'params': params}, {'characters': jnp.asarray(words)[None]})
  padded = np.zeros((2, 5, 9), np.int32)
  padded[0, :2], padded[1] = words, char_ids.encode_words('abcde', 9)
  output: Any = Elmo(TINY).apply({'params': params}, {'characters': jnp.asarray(padded)})
  np.testing.assert_allclose(output.layers[:, 0, :4], alone.layers[:, 0], atol=1e-6)
  assert not output.layers[:, 0, 4:].any() and output.mask.sum(1).tolist() == [4, 7]
  np.testing.assert_allclose(output.state.cell[0], alone.state.cell[0], atol=1e-6)


@pytest.mark.release
@pytest.mark.slow
def test_state_carries_over_between_parts_of_a_text(params):
  """The state that is carried is all that the second part needs of the first."""
  streams = jnp.asarray(char_ids.encode_words([*'abcdefgh'], 9)).reshape(1, 1, 8, 9).repeat(2, 1)
  def call(part, **state) -> Any:
    batch = {'streams': part, 'valid': jnp.ones(part.shape[:3], bool), **state}
    return Elmo(TINY).apply({'params': params}, batch)
  whole, first = call(streams), call(streams[:, :, :5])
  second = call(streams[:, :, 5:], state=first.state)
  np.testing.assert_allclose(np.concatenate([first.hidden, second.hidden], 2), whole.hidden,
                             atol=1e-6)


def test_released_arrays_go_round(params):
  arrays = elmo.export_arrays(TINY, params)
  assert {name: x.shape for name, x in arrays.items()} == elmo.array_shapes(TINY)
  back = elmo.import_arrays(TINY, arrays)  # to the digits that adding 1 costs, as everywhere
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), back,
               jax.device_get(params))
  assert elmo.parse_options(elmo.make_options(TINY)) == dataclasses.replace(TINY, words=793_471)


@pytest.mark.parametrize(('change', 'message'), [
    ({'CNN/W_cnn_1': np.zeros((1, 3, 3, 5))},
     r'CNN/W_cnn_1 of the weights is \[1, 3, 3, 5\], and options.json makes it \[1, 3, 3, 6\]: the '
     r'two files '
     'are not of one model'),
    ({'CNN_proj/b_proj': None},
     r'the weights have no CNN_proj/b_proj, which options.json requires: \[5\]'),
    ({'CNN/W_cnn_2': np.zeros(1)},
     'the weights have CNN/W_cnn_2, which options.json does not have')])
def test_arrays_of_another_model_are_refused(params, change, message):
  arrays = {name: x for name, x in {**elmo.export_arrays(TINY, params), **change}.items() if x
            is not None}
  with pytest.raises(WeightsError, match=message):
    elmo.import_arrays(TINY, arrays)


@pytest.mark.parametrize(('options', 'message'), [
    ({}, "not the options.json of an ELMo of characters: KeyError 'char_cnn'"),
    ({'lstm': {}, 'char_cnn': {'n_characters': 300}},
     r'n_characters is 262 \(261 in training\), got 300'),
    ([], 'not the options.json of an ELMo of characters: TypeError')])
def test_options_of_something_else_are_refused(options, message):
  with pytest.raises(WeightsError, match=message):
    elmo.parse_options(options)


ELMO = ElmoConfig(
    vocab=6, words=4, characters=CharacterConfig(size=4, filters=((1, 4), (3, 8)), highways=1),
    layers=1, width=6,
    cells=8)
READER = ReaderConfig(width=3, layers=1, cells=5)
TAGGING = RecurrentTagging('elmo', ('O', 'B-PER', 'I-PER'), reader=READER)
CLASSES = RecurrentSequence('elmo', ('bad', 'good'), reader=READER)
WORDS = WordTokenizer(['<S>', '</S>', '<UNK>', 'ana', 'came', 'home'])
LORA = TuningConfig(adapter=AdapterConfig('lora'))
SENTENCES = [Example(('ana', 'came', 'zz')), Example(('qq', 'home')), Example(()),
             Example(('a', 'b', 'c', 'd', 'e'))]


def trained(task: Task) -> LoadedModel:
  shapes = jax.eval_shape(lambda: TaskObjective(task).build(ELMO, packed=False).init(
      jax.random.key(0), {
      name: np.zeros(x.shape, x.dtype) for name, x in TaskObjective(task).shapes(1, 8).items()})[
          'params'])
  params = tiny.random_params(shapes, std=0.5)
  return LoadedModel('elmo', ELMO, TaskObjective(task).heads(ELMO), params, WORDS, task=task,
                     length=8)


@pytest.fixture(scope='module')
def tagger():
  return trained(TAGGING)


def test_loss_and_answers_are_those_of_all_rows_of_tags(tagger):
  """Of three words and of two; what a word says of its tags is read off the layer beneath the
  CRF."""
  examples = [dataclasses.replace(SENTENCES[0], label=(1, 2, 0)),
              dataclasses.replace(SENTENCES[1], label=(0, 1))]
  features = TAGGING.features(examples, WORDS, 8)
  batch = {name: np.zeros((2, 4, *of.flat.shape[1:]), of.flat.dtype)
           for name, of in {'tokens': features.tokens, **features.aligned}.items()}
  for row in range(2):
    for name, of in {'tokens': features.tokens, **features.aligned}.items():
      batch[name][row, :len(of[row])] = of[row]
  batch['segments'] = np.arange(4) < np.array([[3], [2]])
  outputs, seen = jax.jit(lambda params, batch: TaskObjective(TAGGING).build(ELMO, False).apply(
      {'params': params}, batch, capture_intermediates=lambda module, _: module.name == 'dense',
      mutable='intermediates'
  ))(tagger.params, batch)
  scores = np.asarray(jax.tree.leaves(seen)[0])
  crf = jax.device_get(tagger.params['heads_tags']['crf'])
  wanted, said = 0.0, predict(tagger, examples)
  for row, example in enumerate(examples):
    paths = list(itertools.product(range(3), repeat=len(example.texts)))
    weights = [np.exp(float(
        crf['first'][path[0]] + crf['last'][path[-1]]
        + sum(scores[row, n, tag] for n, tag in enumerate(path))
        + sum(crf['follow'][a, b] for a, b in itertools.pairwise(path)))) for path in paths]
    wanted -= np.log(weights[paths.index(example.label)] / sum(weights))
    best = paths[int(np.argmax(weights))]
    assert tuple(said[row].tags) == best
    for place, share in enumerate(said[row].probabilities):
      of_tag = sum(weight for weight, path in zip(weights, paths, strict=True) if path[place]
                   == best[place])
      assert share == pytest.approx(of_tag / sum(weights), rel=1e-4)
  total, weight = TAGGING.loss(outputs, batch)['tags']
  assert (float(total), float(weight)) == (pytest.approx(wanted, rel=1e-4), 5.0)


def test_a_word_that_is_not_listed_keeps_its_characters(tagger):
  """259 begins a word and 260 ends it; a letter's id is its byte and 1. Upper case falls back to
  what is listed."""
  features = TAGGING.features([Example(('zz', 'qq', 'Ana'))], WORDS, 8)
  assert features.tokens.flat.tolist() == [2, 2, 3]
  assert features.aligned['characters'][0][:, :5].tolist() == [
      [259, 123, 123, 260, 261], [259, 114, 114, 260, 261], [259, 66, 111, 98, 260]]
  shares = [predict(tagger, [Example((word,))])[0].probabilities[0] for word in ('zz', 'qq')]
  assert abs(shares[0] - shares[1]) > 1e-3


@pytest.mark.parametrize('kind', ['tags', pytest.param('classes', marks=pytest.mark.slow)])
def test_what_is_said_does_not_depend_on_the_batch(kind):
  """Nor on padding; a sentence that is longer than a row is parted, and a text without words is
  answered too."""
  task = validation.with_paths(TAGGING if kind == 'tags' else CLASSES, {'reader.norm': True})
  examples = SENTENCES if kind == 'tags' else [Example((' '.join(example.texts),))
                                               for example in SENTENCES]
  model = trained(task)
  alone = [predict(model, [example], batch=1)[0] for example in examples]
  together = predict(model, examples, batch=4)
  for one, other in zip(alone, together, strict=True):
    assert one[0] == other[0]
    np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-5)
  if kind == 'tags':
    assert [len(said.tags) for said in alone] == [3, 2, 0, 5]
    parted = TAGGING.features(SENTENCES, WORDS, 3)
    assert (parted.tokens.lengths.tolist(), parted.example.tolist()) == ([3, 2, 3, 2], [0, 1, 3, 3])


def test_words_that_have_a_vector(tmp_path):
  """Those of the examples by how often they come, once where a vector is given; then the others of
  the file."""
  (tmp_path / 'v.txt').write_text('4 3\nfar 1 2 3\nonce 4 5 6\n<S> 7 8 9\nana 1 1 1\n')
  task = validation.with_paths(TAGGING, {'reader.vectors': str(tmp_path / 'v.txt')})
  examples = [Example(('b', 'a', 'Once', 'Ana', 'Ana')),
              Example(('a', 'b', 'rare', 'a b', '<UNK>'))]
  assert build_word_list(TAGGING, examples).pieces == ['<S>', '</S>', '<UNK>', 'Ana', 'a', 'b']
  words = build_word_list(task, examples)
  assert words.pieces == ['<S>', '</S>', '<UNK>', 'Ana', 'a', 'b', 'Once', 'far', 'once', 'ana']
  params = {'backbone': 1, 'heads_tags': {'dense': 2,
                                          'reader': {'words': jax.numpy.zeros((10, 3))}}}
  table = set_word_vectors(task, words, params)['heads_tags']['reader']['words']
  assert table[3:].tolist() == [[1, 1, 1], [0] * 3, [0] * 3, [4, 5, 6], [1, 2, 3], [4, 5, 6],
                                [1, 1, 1]]
  assert set_word_vectors(TAGGING, words, params) is params
  with pytest.raises(ConfigError, match='have 3 numbers: give objective'):
    build_word_list(validation.with_paths(task, {'reader.width': 4}), examples)


@pytest.mark.parametrize(('changes', 'message'), [
    ({'data.pack': True}, 'data.pack: LSTMs and a CRF'), ({'tuning.top': 1}, 'tuning.top above 0'),
    ({'optim.layer_decay': 0.9}, 'is trained whole'), ({'tuning': LORA}, 'an ELMo has no adapters'),
    ({'data.augment.share': 0.5}, 'data.augment changes ids'),
    ({'objective.context': 'document'}, 'reads a row as one'),
    ({'objective.regularizer': REGULARIZERS['rdrop']}, 'predicts whole rows of tags'),
    ({'objective.regularizer': REGULARIZERS['fgm']}, 'whole rows of tags'),
    ({'objective': dataclasses.replace(CLASSES, reader=ReaderConfig(longest=9))},
     'reads 50 characters of a word'),
    ({'objective.auxiliary': 0.5}, 'is for decoders'),
    ({'objective': AnswerTask('elmo')}, 'an ELMo learns tagging'),
    ({'model': FinetuneRun('bert').model}, 'reads the layers of an ELMo')])
def test_what_does_not_go_with_an_elmo_is_refused(changes, message):
  given = finetune.recipe('wikigold', InitialModel('', 'elmo', ELMO), train=('x',))
  config.check(given)
  with pytest.raises(ConfigError, match=message):
    config.check(validation.with_paths(given, changes))


def test_pairs_and_other_tokenizers_are_refused():
  with pytest.raises(ConfigError, match='x:1: the classifier on an ELMo reads one text, got 2'):
    CLASSES.features([Example(('a', 'b'), where='x:1')], WORDS, 8)
  with pytest.raises(ConfigError, match='has a list of words for its tokenizer, got wordpiece'):
    TAGGING.features(SENTENCES, train_wordpiece(['a b'], 30), 8)


def test_recipes_of_an_elmo():
  """Frozen, by Adam at 1e-3; characters as the model has them; a kind that it cannot serve is
  refused by name."""
  start = InitialModel('runs/elmo', 'elmo',
                       dataclasses.replace(ELMO, characters=CharacterConfig(longest=20)))
  found = finetune.recipe('wikigold', start, train=('a',), dev=('b',))
  assert isinstance(found.objective, RecurrentTagging) and found.objective.reader.longest == 20
  assert (found.tuning.top, found.data.tokenizer, found.objective.metric_names[0]) == (0, '', 'f1')
  assert (found.optim.peak, found.optim.clip, found.optim.schedule) == (1e-3, 5, 'constant')
  assert isinstance(finetune.recipe('stsb', start, train=('a',)).objective, RecurrentSequence)
  with pytest.raises(ConfigError,
                     match='an ELMo learns tagging, classification and regression, not answers'):
    finetune.recipe('squad', start)


def test_vectors_on_the_command_line(tmp_path):
  """Their width is that of the reader; a model that is no ELMo has no place for them."""
  pytest.importorskip('h5py', reason='needs the extra: pip install "plm_jax[convert]"')
  elmo_of(trained(TAGGING), tmp_path / 'elmo')
  (tmp_path / 'v.txt').write_text('ana 1 2 3 4\n')
  options = ['--task=tagging', '--train=x.conll', f'--vectors={tmp_path}/v.txt']
  found, _ = parse('', [*options, f'--init={tmp_path}/elmo', '--objective.reader.cells=7'], '')
  assert found.model == dataclasses.replace(ELMO, vocab=4, words=793_471)
  assert isinstance(found.objective, RecurrentTagging)
  assert found.objective.reader == ReaderConfig(vectors=f'{tmp_path}/v.txt', width=4, cells=7)
  with pytest.raises(ConfigError, match='--vectors are read together with the features of an ELMo'):
    parse('', [*options, '--scale=test'], '')


def elmo_of(model: LoadedModel, folder: pathlib.Path) -> None:
  plm_jax.export(LoadedModel('elmo', ELMO, {}, {'backbone': model.params['backbone']}, None),
                 folder)


PLACES, PEOPLE = ('rome', 'oslo'), ('ana', 'bo')


def learned(init: pathlib.Path, source: pathlib.Path, output: pathlib.Path,
            **changes) -> LoadedModel:
  start = InitialModel(str(init), *read_model_config(init))
  run(validation.with_paths(finetune.recipe('tagging', start, 'paper', (str(source),),
                                            (str(source),)), {
      'objective.reader.width': 3, 'objective.reader.layers': 1, 'objective.reader.cells': 8,
      'objective.head_dropout': 0.0, 'optim.peak': 0.03, 'data.epochs': 20.0,
      'data.evaluations': 0.05, 'mesh.data': 1,
      'train.phases': (Phase(1, 8, 8),), 'output': str(output), **changes}))
  return plm_jax.load(output)


@pytest.mark.release
@pytest.mark.slow
def test_a_run_on_an_elmo_of_allennlp(tmp_path):
  """Eight sentences are learned by heart, the ELMo stays as it was to the bit, and what has learned
  learns on."""
  pytest.importorskip('h5py', reason='needs the extra: pip install "plm_jax[convert]"')
  elmo_of(trained(TAGGING), tmp_path / 'elmo')
  pairs = [*itertools.product(PEOPLE, PLACES)] * 2
  source = tmp_path / 'names.conll'
  source.write_text('\n\n'.join(f'{who} B-PER\n{("saw", "left")[n % 2]} O\n{where} B-LOC'
                                for n, (who, where) in
                                enumerate(pairs)) + '\n')
  found = learned(tmp_path / 'elmo', source, tmp_path / 'run')
  assert found.labels == ('B-LOC', 'B-PER', 'I-LOC', 'I-PER', 'O')
  assert set(found.capabilities) >= {'tag', 'predict', 'encode'}
  assert sorted(found.tokenizer.pieces[3:]) == ['ana', 'bo', 'left', 'oslo', 'rome', 'saw']
  tiny.assert_same(found.params['backbone'], conversion.load(tmp_path / 'elmo').params['backbone'])
  said, = plm_jax.tag(found, 'bo left oslo')
  assert said.tags == ['B-PER', 'O', 'B-LOC'] and [entity.type
                                                   for entity in said.entities] == ['PER', 'LOC']
  assert plm_jax.export(found, tmp_path / 'out').lost == ('tags',)
  again = learned(tmp_path / 'run', source, tmp_path / 'again', **{
      'data.epochs': 1.0, 'tuning.top': -1, 'train.best': ''})
  assert again.tokenizer.hash == found.tokenizer.hash
  start, first = map(json.loads,
                     (tmp_path / 'again' / 'metrics.jsonl').read_text().splitlines()[:2])
  assert start['step'] == 0  # evaluated before the first update
  assert first['tags'] < 0.3  # of words: it began with what had been learned
  changed = jax.tree.map(lambda x, y: bool((np.asarray(x) != np.asarray(y)).any()),
                         unbox(again.params['backbone']),
                         found.params['backbone'])
  assert all(jax.tree.leaves(changed['layer_0']))
