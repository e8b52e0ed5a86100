"""Checks of a run before text is prepared, and before the first step."""
import dataclasses
import types

import pytest

import plm_jax
from plm_jax import recipes, validation
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.cli.flags import write_flags
from plm_jax.cli.run import parse
from plm_jax.config.run import ConfigError, Phase, PretrainRun, TrainConfig
from plm_jax.errors import write_plain
from plm_jax.preparation.prepare import PrepareConfig, prepare
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.report import hints
from plm_jax.runs import conclude, preflight
from plm_jax.tokenizers import load, train_wordpiece
from plm_jax.training import feed
from plm_jax.training.train import TrainingResult


def tokenizer(kind):
  return types.SimpleNamespace(kind=kind)


@pytest.mark.parametrize(('name', 'kind', 'wanted'), [
    ('gpt2_small', 'wordpiece', 'byte-bpe'), ('roberta_base', 'wordpiece', 'byte-bpe'),
    ('t5_base', 'byte_bpe', 'sentencepiece-unigram'), ('bert_base', 'sentencepiece', 'wordpiece')])
def test_records_of_another_kind_of_tokenizer_are_refused(name, kind, wanted):
  config = recipes.find_recipe(name)('test')
  given = 'sentencepiece-unigram' if kind == 'sentencepiece' else kind.replace('_', '-')
  with pytest.raises(ConfigError) as wrong:
    preflight.check_tokenizer_kind(config, 'RECORDS', tokenizer(kind))
  assert str(wrong.value) == (
      f'RECORDS contains records of a {kind.replace("_", "-")} tokenizer, but {name} needs '
      f'{wanted}: make them with '
      f'`python -m plm_jax prepare TEXT RECORDS --for={name}`. To train on these records anyway, '
      f'give '
      f'data.prepare.kind={given} data.prepare.layout=bert')
  insisted = dataclasses.replace(config, data=dataclasses.replace(config.data,
                                                                  prepare=TextConfig(kind=given)))
  preflight.check_tokenizer_kind(insisted, 'RECORDS', tokenizer(kind))
  preflight.check_tokenizer_kind(dataclasses.replace(config, warm_start='elsewhere'), 'RECORDS',
                                 tokenizer(kind))


def test_records_of_the_recipes_kind_are_taken():
  preflight.check_tokenizer_kind(recipes.find_recipe('gpt2_small')('test'), 'RECORDS',
                                 tokenizer('byte_bpe'))
  preflight.check_tokenizer_kind(recipes.find_recipe('t5_base')('test'), 'RECORDS',
                                 tokenizer('sentencepiece'))
  preflight.check_tokenizer_kind(recipes.find_recipe('bert_base')('test'), 'RECORDS',
                                 tokenizer('wordpiece'))


@pytest.fixture(scope='module')
def records(tmp_path_factory):
  folder = tmp_path_factory.mktemp('text') / 'records'
  text = folder.parent / 'text.txt'
  text.write_text('The cat sat on the mat. It was a fine day.\n\n' * 40)
  prepare(PrepareConfig(source=str(text), vocab=60, workers=1), folder)
  return folder


def parse_with(*options):
  return parse(recipes.find_recipe('bert_base'), ['--scale=test', *map(str, options)])


@pytest.mark.parametrize('option', ['--data.prepare.heldout=0.5', '--data.prepare.no-lowercase',
                                    '--data.prepare.segmenter=spaces',
                                    '--data.prepare.on-error=skip'])
def test_ignored_text_options_of_finished_records_are_named(records, option, caplog):
  name = option.replace('no-', '').partition('=')[0]
  parse_with(f'--data.path={records}', option)
  assert caplog.messages == [
      f'{name[2:].replace("-", "_")} would change nothing: {records} holds finished token '
                             'records, and no text is prepared']
  caplog.clear()
  parse_with('--data.path', records, records.parent / 'text.txt', option)
  parse_with(f'--data.path={records}', '--data.prepare.workers=1', '--data.prepare.kind=byte-bpe')
  assert not caplog.messages


@pytest.fixture(scope='module')
def split_records(tmp_path_factory):
  """Records with held-out documents."""
  folder = tmp_path_factory.mktemp('split') / 'records'
  (folder.parent / 'text.txt').write_text('\n\n'.join(f'The cat sat on the mat {number}.'
                                                      for number in range(40)))
  prepare(PrepareConfig(source=f'{folder.parent}/text.txt', kind='bytes', workers=1), folder)
  return folder


def test_a_held_out_text_next_to_finished_records_is_refused(split_records, tmp_path):
  records = split_records
  valid = tmp_path / 'valid.txt'
  valid.write_text('The mat sat.')
  config = parse_with('--data.path', records, 'other.txt', '--data.heldout-path', valid, 'b.txt')
  with pytest.raises(ConfigError,
                     match=f'their held-out text is 1% of the documents, not {valid}: make others '
                           f'with'):
    preflight.check_heldout_paths(config)
  with pytest.raises(ConfigError,
                     match=f'data.heldout_path={records} holds token records: give the text '
                           f'itself'):
    preflight.check_heldout_paths(parse_with('--data.path=a.txt', f'--data.heldout-path={records}'))
  preflight.check_heldout_paths(parse_with('--data.path', records, 'b.txt', '--data.heldout-path',
                                           '', 'c.txt'))
  own = PrepareConfig(source=f'{records.parent}/text.txt', kind='bytes', workers=1,
                      heldout_path=str(valid))
  prepare(own, tmp_path / 'own')
  config = parse_with(f'--data.path={tmp_path / "own"}', f'--data.heldout-path={valid}')
  preflight.check_heldout_paths(config)
  assert preflight.describe_heldout(config, [tmp_path / 'own']) == f'{valid} (12 tokens)'
  moved = parse_with('--data.path=text.txt', '--data.heldout-path=moved.txt')  # records of a cache
  assert preflight.describe_heldout(moved, [tmp_path / 'own']) == 'moved.txt (12 tokens)'


def test_a_run_without_held_out_text_is_not_evaluated_and_cannot_select_a_checkpoint(
    split_records, tmp_path):
  records = split_records
  config = parse_with(f'--data.path={records}')
  assert preflight.check_heldout(config, [records]) == ''
  prepare(PrepareConfig(source=f'{records.parent}/text.txt', kind='bytes', workers=1, heldout=0),
          tmp_path / 'all')
  assert preflight.check_heldout(config, [tmp_path / 'all']).startswith(
      'no text is held out, so the run is not evalu')
  assert preflight.describe_heldout(config, [tmp_path / 'all']) == 'none'
  with pytest.raises(ConfigError, match='is a metric of held-out text, and there is none'):
    preflight.check_heldout(parse_with(f'--data.path={records}', '--train.best=mlm'),
                            [tmp_path / 'all'])
  phase = config.train.phases[0]
  assert feed.open_heldout(config, [tmp_path / 'all'], phase) == {}
  both = parse_with('--data.path', records, records)
  assert list(feed.open_heldout(both, [tmp_path / 'all', records], phase)) == [1]
  # Of one document nothing is held out, although it should be.
  (tmp_path / 'one.txt').write_text('The cat sat on the mat.')
  prepare(PrepareConfig(source=f'{tmp_path}/one.txt', kind='bytes', workers=1), tmp_path / 'one')
  assert feed.open_heldout(config, [tmp_path / 'one'], phase) == {}
  assert preflight.check_heldout(config, [tmp_path / 'one']).startswith(
      'no text is held out, as there is but one document, or copies of one, so the run is not '
      'evaluated')


def test_the_summary_names_the_held_out_text_and_counts_finished_steps(monkeypatch):
  headlines = []
  monkeypatch.setattr(conclude, 'write_run_report', lambda *args, **_: headlines.append(args[2]))
  config = dataclasses.replace(recipes.find_recipe('bert_base')('test'), train=TrainConfig(
      (Phase(10, 32, 8), Phase(10, 64, 2))))
  result = TrainingResult(12, {}, True, 1.0, {'mlm': 2.0}, 0.5)  # stopped early
  facts = hints.TextFacts(False, 0.0, 20_000)
  conclude.report_pretraining(config, result, 1, conclude.ModelSamples(), facts,
                              'valid.txt (12 tokens)')
  assert headlines[0]['Held-out text'] == 'valid.txt (12 tokens)'
  assert headlines[0]['Tokens read'] == f'{10 * 32 * 8 + 2 * 64 * 2:,}'


def test_options_of_a_new_tokenizer_next_to_a_warm_start_are_refused(records, tmp_path):
  text = f'--data.path={records.parent / "text.txt"}'
  start, option = f'--warm-start={records}', '--data.prepare.lowercase=False'
  with pytest.raises(ConfigError,
                     match=f'would change nothing: the tokenizer is that of warm_start={records}, '
                           f'and is not trained'):
    parse_with(text, start, option)
  parse_with(text, f'--warm-start={tmp_path}', option)  # which has no tokenizer
  parse_with(text, start, '--data.prepare.heldout=0.5')


def test_records_of_another_tokenizer_are_refused(records, tmp_path):
  train_wordpiece(['a b c'] * 9, 40).save(tmp_path)
  other, same = (parse_with(f'--data.path={records}', f'--data.prepare.tokenizer={place}')
                 for place in (tmp_path, records))
  with pytest.raises(ConfigError,
                     match=f'RECORDS holds records of another tokenizer than .*{tmp_path}: leave'):
    preflight.check_tokenizer_kind(other, 'RECORDS', load(records / 'tokenizer'))
  preflight.check_tokenizer_kind(same, 'RECORDS', load(records / 'tokenizer'))


def test_a_missing_warm_start_is_refused_before_text_is_prepared(records, tmp_path):
  run = dataclasses.replace(recipes.find_recipe('bert_base')('test'), output=str(tmp_path / 'run'))
  missing = dataclasses.replace(run, warm_start=str(tmp_path / 'gone'))
  with pytest.raises(CheckpointError, match=r'there is no folder .*gone'):
    preflight.check_warm_start(missing)
  preflight.check_warm_start(run)
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').write_text('{}')
  preflight.check_warm_start(missing)  # it resumes, and needs no start


def test_missing_word_vectors_are_refused_before_text_is_prepared(tmp_path):
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')  # of transformers
  (tmp_path / 'en.vec').write_text('word 1 2')
  config = validation.with_paths(recipes.find_recipe('bert_base')('test'), {
      'warm_start': str(tmp_path), 'output': str(tmp_path / 'run'), 'tuning.vocabulary': 'wechsel',
      'tuning.source_vectors': str(tmp_path / 'en.vec'),
      'tuning.target_vectors': str(tmp_path / 'de.vec')})
  with pytest.raises(ConfigError, match=r'tuning.target_vectors.*de\.vec does not exist'):
    preflight.check_warm_start(config)
  (tmp_path / 'de.vec').write_text('Wort 1 2')
  preflight.check_warm_start(config)


def on_one_device(changes, **model):
  config = recipes.find_recipe('bert_base')('test')
  mesh, model = dataclasses.replace(config.mesh, data=1), dataclasses.replace(config.model, **model)
  return dataclasses.replace(config, mesh=mesh, model=model, **changes)


@pytest.mark.slow
def test_a_run_larger_than_memory_is_refused_with_its_size(monkeypatch):
  monkeypatch.setattr(preflight, 'device_memory', lambda mesh: 2**30)
  preflight.check_memory(on_one_device({}))
  with pytest.raises(ConfigError) as wrong:
    preflight.check_memory(on_one_device({}, vocab=16_000_000))
  # The embeddings and two moments of their gradient, at 32 numbers per token, and the bias of the
  # head.
  assert str(wrong.value).startswith(
      'a run with these options needs at least 5.9 GiB of memory: 5.9 GiB for param')
  assert str(wrong.value).endswith(
      'Available: 1.0 GiB. Use a smaller model or batch (train.phases), or more '
                                   'gradient accumulation (train.accumulate)')
  train = dataclasses.replace(recipes.find_recipe('bert_base')('test').train,
                              phases=(Phase(9, 64, 1 << 20),))
  with pytest.raises(ConfigError,
                     match=r'8\.0 GiB for one layer of 1,048,576 sequences of 64 tokens'):
    preflight.check_memory(on_one_device({'train': train}))


def test_invalid_models_are_refused_before_text_is_prepared():
  block = dataclasses.replace(recipes.find_recipe('bert_base')('test').model.block,
                              head_size=2**31 - 1, heads=2**20)
  with pytest.raises(ConfigError):
    preflight.check_memory(on_one_device({}, block=block))


def test_prompts_that_do_not_fit_are_refused_before_training():
  pieces = train_wordpiece(['the cat sat on the mat'] * 3, 60)
  config = dataclasses.replace(recipes.find_recipe('bert_base')('test'),
                               prompts=('the [MASK] ' * 40,))
  with pytest.raises(ConfigError, match='the model takes 64'):
    preflight.check_prompts(config, pieces)
  config = dataclasses.replace(recipes.find_recipe('gpt2_small')('test'),
                               prompts=('the cat ' * 40,))
  with pytest.raises(ConfigError,
                     match=r"prompts 'the cat the cat .* at most leave room for an answer in the "
                           r"64 of"):
    preflight.check_prompts(config, pieces)
  preflight.check_prompts(dataclasses.replace(config, prompts=('the cat',)), pieces)


def test_documents_of_one_sentence_are_reported_for_sentence_pairs(tmp_path, caplog):
  """`prepare`, and runs with sentence pairs, report them with a fix and the effect on the
  pairs."""
  (tmp_path / 'lines.txt').write_text('\n'.join(f'This is line {n}.' for n in range(60)))
  (tmp_path / 'documents.txt').write_text('\n\n'.join(f'Here is {n}. It has more. And more.'
                                                      for n in range(60)))
  folders = {}
  for name in ('lines', 'documents'):
    folders[name] = tmp_path / f'{name}-bert_base'
    for recipe in 'bert_base', 'roberta_base':
      caplog.clear()
      plm_jax.prepare(str(tmp_path / f'{name}.txt'), tmp_path / f'{name}-{recipe}', recipe,
                      vocab=300, workers=1)
      warned = 'training documents have only one sentence' in caplog.text
      assert warned == (name == 'lines' and recipe == 'bert_base')
  for recipe, effect in (('bert_base', 'no second sentence of the same document'),
                         ('albert_base', 'sentences cut in two')):
    config = recipes.find_recipe(recipe)('test')
    warning = preflight.check_sentence_pairs(config, [folders['lines']])
    said = write_flags(warning, validation.field_paths(PretrainRun))
    assert effect in said and '59 of 59 training documents' in said
    assert '--data.prepare.documents=files' in said
    assert '--documents=files' in write_flags(warning, {'documents'})
    assert preflight.check_sentence_pairs(config, [folders['documents']]) == ''
  assert preflight.check_sentence_pairs(recipes.find_recipe('roberta_base')('test'),
                                        [folders['lines']]) == ''
  # The advice helps: a file is one document.
  config = PrepareConfig(source=f'{tmp_path}/*.txt', vocab=60, workers=1, documents='files',
                         heldout=0.5)
  prepare(config, tmp_path / 'files')
  assert preflight.check_sentence_pairs(recipes.find_recipe('bert_base')('test'),
                                        [tmp_path / 'files']) == ''


def test_records_without_the_white_space_of_their_text_are_refused_for_decoders(monkeypatch):
  monkeypatch.setattr(preflight, 'read_meta', lambda folder: types.SimpleNamespace(exact=False))
  config = recipes.find_recipe('gpt2_small')('test')
  with pytest.raises(ConfigError,
                     match=r'--for=gpt2_small`\. To train .* give data\.prepare\.sentences=split$'):
    preflight.check_exact_text(config, 'RECORDS')  # pyright: ignore
  preflight.check_exact_text(recipes.find_recipe('bert_base')('test'), 'RECORDS')  # pyright: ignore


@pytest.mark.parametrize(('name', 'scale', 'warned'), [
    ('bert_base', 'paper', 'roughly 5.4 years'), ('bert_base', 'laptop', ''),
    ('gpt2_small', 'laptop', ''), ('bert_base', 'test', '')])
def test_a_run_of_more_than_an_hour_on_a_cpu_warns(monkeypatch, name, scale, warned):
  """GPT-2 at the laptop scale takes 40 minutes on two cores."""
  monkeypatch.setattr('os.cpu_count', lambda: 2)
  said = preflight.check_duration(recipes.find_recipe(name)(scale))
  assert warned in said and bool(said) == bool(warned)
  assert ('scale=laptop' in write_plain(said)) == bool(warned)


def test_no_duration_is_estimated_on_accelerators(monkeypatch):
  monkeypatch.setattr('jax.default_backend', lambda: 'gpu')
  assert preflight.check_duration(recipes.find_recipe('bert_base')('paper')) == ''


def test_a_long_run_on_a_cpu_has_no_advice_that_it_follows(monkeypatch):
  monkeypatch.setattr('os.cpu_count', lambda: 2)
  config = parse(recipes.find_recipe('gpt2_small'), [
      '--scale=laptop', '--train.phases.0.steps=30000'])
  said = write_plain(preflight.check_duration(config))
  assert 'the 30,000 steps take very roughly 3.5 hours' in said
  assert 'scale=' not in said and 'train.phases.0.steps' in said
