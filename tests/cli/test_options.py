"""Mistakes in options and files: each option with values that it does not accept."""
import dataclasses
import json
import random
import sys
import types

import pytest

from experiments.babylm import entry
import plm_jax
from plm_jax import recipes, validation
from plm_jax.cli import commands as cli
from plm_jax.cli import finetune, options, run, vectors
from plm_jax.cli.flags import flag_name, name_flags, normalize
from plm_jax.cli.run import main, parse
from plm_jax.config import run as config_lib
from plm_jax.config import serialization
from plm_jax.config.run import ConfigError
from plm_jax.corpora import clean as cleaning
from plm_jax.corpora.filter_documents import CleanConfig
from plm_jax.errors import UserError
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.objectives.masking import Adaptive, Distinct, Windowed
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation import parallel_stages
from plm_jax.preparation import prepare as preparation
from plm_jax.preparation.prepare_config import PrepareConfig, TextConfig
from plm_jax.runs import preflight
from plm_jax.sharding import MeshConfig

RECIPES = [recipes.find_recipe(name) for name in (
    'bert_base', 'deberta_base', 'glm_base', 'gpt2_small', 't5_base', 'xlnet_base')]
NUMBERS = (
    -1, 0, 1, 2**31, 2**63, 10**40, -10**40, float('nan'), float('inf'), -float('inf'), 1e308,
    -1e-300, 0.5, True)
TEXTS = ('', '\0', '~nobody', '\ud800', 'x' * (1 + validation.MAX_TEXT_LENGTH), '../..', '中文',
         'nan', '-1')
OTHERS = (None, (), ((),), (1, 'a'), ('',), 7, 'a', 1.5, AdamW(), {}, b'a')


def leaves(config, path=''):
  """(path, value) of everything in a configuration that is no configuration itself."""
  for field in dataclasses.fields(config):
    value, name = getattr(config, field.name), f'{path}.{field.name}'.lstrip('.')
    yield from leaves(value, name) if dataclasses.is_dataclass(value) else [(name, value)]


def changed(config, path, value):
  head, _, rest = path.partition('.')
  return dataclasses.replace(config, **{head: changed(getattr(config, head), rest, value) if rest
                                        else value})


def refusal(work) -> str:
  """Return the error message, or '' without an error. Other exceptions are bugs."""
  try:
    work()
  except ConfigError as error:
    return str(error) if one_line(error) else f'several lines: {error}'
  return ''


def one_line(error: BaseException) -> bool:
  said = str(error)
  said.encode()
  return 0 < len(said) < 2000 and '\n' not in said.strip()


@pytest.mark.parametrize('recipe', RECIPES, ids=lambda recipe: recipe.name)
def test_any_value_is_accepted_or_refused_with_the_name_of_the_option(recipe):
  draw, config, refused = random.Random(0), recipe('test'), 0
  for path, value in leaves(config):
    pool = TEXTS if isinstance(value, str) else NUMBERS
    for wrong in (*draw.sample(pool, 5), *draw.sample(OTHERS, 2)):
      with validation.defer_checks():
        mistaken = changed(config, path, wrong)
      said = refusal(lambda mistaken=mistaken: config_lib.check(mistaken))
      refused += bool(said)
      assert not said or isinstance(wrong, type(value)) or path in said
  assert refused > 200


@pytest.mark.parametrize('recipe', RECIPES, ids=lambda recipe: recipe.name)
def test_any_config_json_is_read_or_refused_with_the_name_of_the_file(recipe):
  draw, whole = random.Random(1), json.loads(serialization.dump(recipe('test')))
  def places(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list) else ()
    for key, inner in list(items):
      yield value, key
      yield from places(inner)
  refused = 0
  junk = [*NUMBERS, *TEXTS, None, [], {}, [[]], {'is': 3},
          {'is': 'plm_jax.loading.loaded_model:Trained'},
          {'is': 'plm_jax.x:\0'}, {'is': 'plm_jax.objectives:Objective'},
          {'is': 'plm_jax.config.run:Phase', 'steps': 1, 'length': 8, 'batch': 8}]
  for _ in range(200):
    value = json.loads(json.dumps(whole))
    holder, key = draw.choice(list(places(value)))
    if isinstance(key, str) and draw.random() < 0.2:
      del holder[key]
    else:
      holder[key] = draw.choice(junk)
    said = refusal(lambda value=value: serialization.from_json(value, 'runs/x/config.json'))
    refused += bool(said)
    assert not said or said.startswith('runs/x/config.json: ')
  assert refused > 100


COMMAND_LINES = (
    ['--train.keep=-1'], ['--train.log-every=0'], ['--optim.peak=nan'], ['--optim.b2=2'],
    ['--seed=-1'],
    ['--seed=99999999999'], ['--model.block.dropout=1'], ['--train.phases.0.batch=0'],
    ['--data.block=0'],
    ['--mesh.data=0'], ['--objective.random-share=nan'], ['--objective.duplicates=-1'],
    ['--optim.warmup=9000'],
    ['--model.vocab=99999999999'], ['--train.phases.0.batch=100000000'], ['--prompts', 'no blank'],
    ['--scale=huge'],
    ['--data.prepare.sentences=none', '--data.prepare.segmenter=jieba'], ['--name=\0'],
    ['--optim.eps=0'])


@pytest.mark.parametrize('args', COMMAND_LINES, ids=' '.join)
def test_a_mistyped_command_ends_with_one_line(args):
  with pytest.raises(SystemExit) as stopped:
    main(recipes.find_recipe('bert_base'), ['--scale=test', *args] if args != ['--scale=huge']
         else args)
  assert str(stopped.value).startswith('error: ') and one_line(stopped.value)
  option = args[0].partition('=')[0]
  assert option in str(stopped.value)


@pytest.mark.parametrize(('args', 'line'), [
    (['prepare', 'TEXT', ''],
     'error: OUTPUT is missing, a path or a name: give it last, or as --output'),
    (['prepare', 'TEXT', 'out', '--vocab=99999999999'],
     'error: --vocab is a whole number from 1 to 16,777,216, got 99999999999'),
    (['prepare', 'TEXT', 'out', '--kind=wordpiece', '--layout=mbart'],
     'error: --layout is bert or glm with --kind=wordpiece, got mbart: it is the layout of other '
     'tokenizers'),
    (['prepare', 'TEXT', 'out', '--heldout=nan'],
     'error: --heldout is a number from 0 to below 1, got nan'),
    (['prepare', 'TEXT', 'out', '--for=gpt2smal'],
     "error: there is no recipe 'gpt2smal': did you mean gpt2_small or gpt3_small or gpt2_xl? "
     "`python -m plm_jax "
     'train` lists them'),
    (['prepare', 'TEXT', 'out', '--scale=small'],
     "error: --scale is paper, laptop or test, got 'small'"),
    (['prepare', 'TEXT', 'out', '--beam'],
     'error: --beam is followed by options of Beam, expected --runner=DirectRunner, FlinkRunner or '
     'another, got none'),
    (['prepare', 'TEXT', 'out', '--beam', '--runner=FlinkRunner', '--no-lowercase'],
     'error: --no-lowercase is after --beam, with the options of Beam: put it in front'),
    (['clean', 'TEXT', 'out', '--beam', '--runner=FlinkRunner', '--rules=c4'],
     'error: --rules is after --beam, with the options of Beam: put it in front'),
    (['fill-mask', 'RUN'],
     'error: there is no prompt: give a sentence with a [MASK] in place of the word to predict'),
    (['fill-mask', 'RUN', 'a [MASK]', '--top=-1'],
     'error: --top is a whole number from 1 to 16,777,216, got -1'),
    (['generate', 'RUN', 'a', '--temperature=nan'],
     'error: --temperature is a number of 0 or more, got nan'),
    (['generate', 'RUN', 'a', '--top-p=0'],
     'error: --top-p is a number above 0 and at most 1, got 0.0'),
    (['generate', 'RUN', 'a', '--top-k=3'],
     'error: --top-k is for sampling: give --temperature too'),
    (['generate', 'RUN', 'a', '--mesh.data=0'],
     'error: --mesh.data is 1 or more, or -1 for as many as the devices give, got 0'),
    (['generate', 'RUN', 'a', '--seed=-1'],
     'error: --seed is a whole number from 0 to 4,294,967,295, got -1'),
    (['perplexity', 'RUN', 'TEXT', '--stride=-1'],
     'error: --stride is a whole number of 0 or more, got -1'),
    (['few-shot', 'RUN', 'piqa', '--shots=-1'],
     'error: --shots is a whole number of 0 or more, got -1'),
    (['text-to-text', 'RUN', 'task:sst2:x', '--batch=0'],
     'error: --batch is a whole number from 1 to 65,536, got 0'),
    (['packing', 'RECORDS', '--length=2'],
     'error: --length is a whole number from 3 to 16,777,216, got 2'),
    (['evaluate', ''], 'error: RUN is empty, expected a path or a name')])
def test_commands_check_their_arguments_before_they_begin(args, line, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('sys.argv', ['plm_jax', *args])
  with pytest.raises(SystemExit) as stopped:
    cli.main()
  assert str(stopped.value) == line
  assert not list(tmp_path.iterdir())


def test_prepare_takes_the_settings_of_a_recipe(monkeypatch):
  asked = []
  monkeypatch.setattr(preparation, 'prepare',
                      lambda config, out, rules, writing: asked.append(config))
  for args in [], ['--vocab=300', '--sentences=split'], ['--scale=laptop'], ['--sentences', 'split',
                                                                             '--for', 't5_base']:
    monkeypatch.setattr('sys.argv', ['plm_jax', 'prepare', 'TEXT', 'OUT', '--for=gpt2_small',
                                     *args])
    cli.main()
  paper = PrepareConfig(source='TEXT', kind='byte-bpe', layout='gpt2', sentences='none',
                        vocab=50257)
  assert asked[:2] == [paper, dataclasses.replace(paper, vocab=300, sentences='split')]
  laptop = recipes.find_recipe('gpt2_small')('laptop')
  assert asked[2].vocab == laptop.model.vocab < paper.vocab and asked[2].kind == 'byte-bpe'


@pytest.mark.parametrize('option', [
    '--lowercase=False', '--no-lowercase', '--kind=byte-bpe', '--vocab=77', '--sample=100',
    '--layout=glm',
    '--sentinels=20', '--coverage=0.9', '--no-strip-accents', '--strip_accents=False'])
def test_options_of_tokenizer_training_are_refused_with_an_existing_tokenizer(
    option, tmp_path, monkeypatch):
  name = option.removeprefix('--').removeprefix('no-').partition('=')[0].replace('_', '-')
  args = ['prepare', 'embedded', str(tmp_path / 'out'), '--tokenizer=vocab', option]
  monkeypatch.setattr(sys, 'argv', ['plm_jax', *args])
  with pytest.raises(SystemExit, match=f'--{name} would change nothing: --tokenizer is vocab'):
    cli.main()
  if name != 'vocab':
    typed = option.replace(
        '--no-', '--data.prepare.no-') if '--no-' in option else f'--data.prepare.{option[2:]}'
    with pytest.raises(ConfigError, match=f'{name} would change nothing'), name_flags():
      parse(recipes.find_recipe('bert_base'),
            ['--scale=test', '--data.prepare.tokenizer=vocab', typed])
  field = name.replace('-', '_')
  with pytest.raises(ConfigError, match=f'^{field} would change nothing: tokenizer is vocab'):
    validation.with_overrides(PrepareConfig(),
                              {'tokenizer': 'vocab', field: getattr(PrepareConfig(), field)})


def test_options_after_beam_are_passed_to_beam(monkeypatch):
  asked = []
  monkeypatch.setattr(
      parallel_stages, 'make_runner', lambda flags: (asked.append(flags), 'beam')[1])
  monkeypatch.setattr(preparation, 'prepare',
                      lambda config, out, rules, run: asked.append((config, run)))
  flags = ['--runner=DataflowRunner', '--region', 'us-central1', '--labels=a=b', '--labels=c d']
  monkeypatch.setattr('sys.argv', ['plm_jax', 'prepare', 'TEXT', 'OUT', '--vocab=300', '--beam',
                                   *flags])
  cli.main()
  assert asked == [flags, (PrepareConfig(source='TEXT', vocab=300), 'beam')]


def test_options_after_beam_are_passed_to_beam_by_clean(monkeypatch):
  asked = []
  monkeypatch.setattr(
      parallel_stages, 'make_runner', lambda flags: (asked.append(flags), 'beam')[1])
  monkeypatch.setattr(cleaning, 'clean',
                      lambda config, source, out, run: asked.append((config, run)))
  flags = ['--runner=SparkRunner', '--job_endpoint', 'embed']
  monkeypatch.setattr('sys.argv', ['plm_jax', 'clean', 'TEXT', 'OUT', '--rules=gopher', '--beam',
                                   *flags])
  cli.main()
  assert asked == [flags, (CleanConfig(quality=True, repetition=True), 'beam')]


@pytest.mark.parametrize(('recipe', 'rules'), [
    ('', ['document-141', 'document-525']), ('bert_base', ['document-141', 'document-525']),
    ('gpt2_small', ['packed-1024-1'])])
def test_prepare_counts_the_windows_of_a_recipe(monkeypatch, recipe, rules):
  asked = []
  monkeypatch.setattr(preparation, 'prepare',
                      lambda config, out, rules, run: asked.extend(map(str, rules)))
  monkeypatch.setattr(preflight, 'check_sentence_pairs', lambda run, folders: '')
  monkeypatch.setattr('sys.argv', ['plm_jax', 'prepare', 'TEXT', 'OUT',
                                   *([f'--for={recipe}'] if recipe else [])])
  cli.main()
  assert asked == rules


@pytest.mark.parametrize('args', [
    ['--hosts.distributed'], ['--hosts.distributed=True'], ['--hosts.distributed', 'true'],
    ['--hosts.distributed=true']])
def test_booleans_are_understood_in_every_form(args):
  assert parse(recipes.find_recipe('bert_base'),
               ['--scale=test', *args, '--seed=3']).hosts.distributed
  assert normalize(['--hosts.no-distributed', 'x', '--a_b'],
                   {'hosts.distributed': 'BOOL', 'a-b': 'BOOL'}) == [
      '--hosts.distributed=False', 'x', '--a-b=True']


def test_messages_name_the_expected_values():
  for limits, value, said in [
      ('[1, inf)', 0, 'a whole number of 1 or more'),
      ('[1, inf)', 2**31, 'a whole number from 1 to 2,147,483,647'),
      ('(0, 1)', 1.0, 'a number between 0 and 1'), ('(0, inf]', 0.0, 'a number above 0'),
      ('[0, inf)', 1e300, 'a number from 0 to 3e+38')]:
    with pytest.raises(UserError) as wrong:
      validation.check_value(value, type(value), limits, flag_name, 'a.b_c')
    assert str(wrong.value) == f'--a.b-c is {said}, got {value}'
  validation.check_value(float('inf'), float, '(0, inf]', flag_name, 'x')
  with pytest.raises(ConfigError,
                     match=r'GenerationConfig\.temperature is a number of 0 or more, got nan'):
    GenerationConfig(temperature=float('nan'))
  with pytest.raises(ConfigError,
                     match=r'MeshConfig\.fsdp is a whole number of 1 or more, got 2\.5'):
    MeshConfig(fsdp=2.5)  # pyright: ignore


def test_limits_are_of_fields_that_there_are():
  def every(cls):
    return [cls, *(inner for some in cls.__subclasses__() for inner in every(some))]
  for cls in every(validation.ValidatedConfig):
    if dataclasses.is_dataclass(cls):
      names = {field.name for field in dataclasses.fields(cls)}
      assert set(validation.inherited_table(cls, 'limits')) <= names, cls
      assert isinstance(cls.limits, types.MappingProxyType)


def test_fields_that_count_with_others_are_fields():
  def every(cls):
    return [cls, *(inner for some in cls.__subclasses__() for inner in every(some))]
  def exists(cls, path):
    return path.replace('.0', '') in {name.replace('.0', '')
                                      for name in validation.field_paths(cls)} | fields_of_items
  fields_of_items = {'train.phases.steps'}
  for cls in every(validation.ValidatedConfig):
    if dataclasses.is_dataclass(cls):
      for name, (other, _) in validation.inherited_table(cls, 'counts_with').items():
        own = cls is TextConfig and name == 'vocab'  # of PrepareConfig
        assert own or exists(cls, name), (cls, name)
        assert exists(cls, other), (cls, other)


@pytest.mark.parametrize('value', ['=none', ' none', '=', ''])
def test_a_list_may_be_empty(value):
  """Each list option of a run, as the last option and before another one."""
  recipe = recipes.find_recipe('bert_base')
  for name in ('model.block.attention.bias', 'optim.exempt', 'prompts', 'tuning.adapter.targets'):
    more = ['--tuning.adapter.kind=lora'] if name.startswith('tuning') else []
    typed = f'--{name}{value}'.split()
    for args in ([*more, *typed], [*typed, '--seed=3', *more]):
      assert validation.get_field(parse(recipe, ['--scale=test', *args]),
                                  name.replace('-', '_')) == ()
  config = parse(recipe, ['--scale=test', '--optim.exempt', 'none', 'bias',
                          '--model.block.attention.bias', 'key'])
  assert config.optim.exempt == ('none', 'bias') and config.model.block.attention.bias == ('key',)


def test_recipes_of_sentence_pairs_without_their_task():
  for name in ('bert_base', 'albert_base'):
    config = parse(recipes.find_recipe(name), ['--scale=test', '--pair=none'])
    assert isinstance(config.objective.pair, FullSentences) and config.data.assembly == 'sentences'
    assert list(config.objective.heads(config.model)) == ['mlm'] and not config.model.pooler
    config_lib.check(config)
  for name, value in (('bert_base', 'nsp'), ('roberta_base', 'none'), ('gpt2_small', 'none')):
    with pytest.raises(ConfigError, match='--pair=none leaves out the sentence-pair task'):
      parse(recipes.find_recipe(name), ['--scale=test', f'--pair={value}'])


def test_masking_strategies_have_options_of_their_own():
  def masking(*args):
    return parse(recipes.find_recipe('bert_base'), ['--scale=test', *args]).objective.masking
  assert masking('--objective.masking.unit=word') == Distinct('word')
  windowed = masking('--objective.masking.lengths', '0.5', '0.5',
                     '--objective.masking.kind=windows')
  assert windowed == Windowed(lengths=(0.5, 0.5))
  adaptive = {'kind': 'adaptive', 'difficulty': 'loss'}
  config = plm_jax.recipe('bert_base', 'test', objective={'masking': adaptive})
  assert config.objective.masking == Adaptive('loss') == masking(
      '--objective.masking.kind=adaptive', '--objective.masking.difficulty=loss')
  inside = parse(recipes.find_recipe('electra_small'), [
      '--scale=test', '--objective.mlm.masking.kind=distinct'])
  assert inside.objective.mlm.masking == Distinct()


@pytest.mark.parametrize(('typed', 'options', 'message'), [
    ('--train.early=2', {'train': {'early': 2}},
     'train.early would change nothing: train.best is empty'),
    ('--tuning.adapter.rank=8', {'tuning': {'adapter': {'rank': 8}}},
     'tuning.adapter.rank would change nothing: tuning.adapter.kind is none, not lora or rslora or '
     'dora'),
    ('--optim.momentum=0.9', {'optim': {'momentum': 0.9}},
     'optim.momentum would change nothing: optim.kind is adamw, not adafactor'),
    ('--optim.schedule=t5 --optim.floor=0.1', {'optim': {'schedule': 't5', 'floor': 0.1}},
     'optim.floor would change nothing: optim.schedule is t5, not bert or'),
    ('--optim.clip=0 --optim.clip-by=parameter', {'optim': {'clip': 0, 'clip_by': 'parameter'}},
     'optim.clip_by would change nothing: optim.clip is 0'),
    ('--objective.masking.kind=adaptive --objective.masking.unit=word',
     {'objective': {'masking': {'kind': 'adaptive', 'unit': 'word'}}},
     'objective.masking.unit would change nothing: objective.masking.kind is adaptive, not '
     'distinct or windows'),
    ('--tuning.expand=tile', {'tuning': {'expand': 'tile'}},
     'tuning.expand would change nothing: warm_start is empty')])
def test_options_that_would_change_nothing_are_refused(typed, options, message):
  """Also where the value is the default: somebody expects something of it."""
  recipe = recipes.find_recipe('bert_base')
  with pytest.raises(ConfigError) as found:
    parse(recipe, ['--scale=test', *typed.split()])
  assert str(found.value).replace('--', '').replace('-', '_').startswith(message)
  with pytest.raises(ConfigError, match='would change nothing'):
    validation.with_overrides(recipe('test'), options)


@pytest.mark.parametrize(('typed', 'message'), [
    ('--train.phases.0.steps=200',
     r'train.phases.0.steps would change nothing: data.epochs is .*, not 0'),
    ('--train.eval-every=10', 'train.eval_every would change nothing: data.epochs is'),
    ('--data.epochs=0 --data.evaluations=2',
     'data.evaluations would change nothing: data.epochs is 0'),
    ('--data.augment.swap=0.5', 'data.augment.swap would change nothing: data.augment.share is 0'),
    ('--objective.stride=8',
     'objective.stride would change nothing: objective.windows is off, not mean or max')])
def test_fine_tuning_options_without_effect_are_refused(typed, message):
  with pytest.raises(ConfigError, match=f'^{message}'):
    finetune.parse('classification', ['--scale=test', *typed.split()], '')
  finetune.parse('classification', ['--scale=test', '--data.epochs=0',
                                    '--train.phases.0.steps=200'], '')
  finetune.parse('classification', ['--scale=test', '--objective.windows=max',
                                    '--objective.stride=8'], '')


@pytest.mark.parametrize(('typed', 'meant'), [
    ('--objective.rate=0.2', '--objective.mask-rate'),
    ('--model.block.no-gated', '--model.block.mlp.gated'),
    ('--model.types=1', '--model.embeddings.types'),
    ('--model.block.norm_eps=1', '--model.block.norm.eps')])
def test_an_unknown_option_is_refused_with_suggestions(typed, meant):
  with pytest.raises(ConfigError, match=f'^there is no option .*: did you mean .*{meant}'):
    parse(RECIPES[0], ['--scale=test', typed])


def test_options_of_the_parts_of_a_block():
  args = ['--scale=test', '--model.block.norm.eps=1e-5', '--model.block.mlp.no-gated',
          '--model.block.kv-heads=1']
  block = parse(RECIPES[0], args).model.block
  assert (block.norm.eps, block.mlp.gated, block.kv_heads) == (1e-5, False, 1)


@pytest.mark.parametrize(('args', 'value', 'others'), [
    (['--scale=laptop', '--seed=1', '--scale=test'], 'test', ['--seed=1']),
    (['--scale', 'laptop', '--scale=test'], 'test', []),
    (['--scale=laptop', '--scale', 'test', '--seed=1'], 'test', ['--seed=1']),
    (['--scale=test', '--scale='], '', []),
    (['--scale=', '--seed=1'], '', ['--seed=1']),
    (['--seed=1', '--scale'], '', ['--seed=1']),
    (['--scaled=test'], '', ['--scaled=test']),
])
def test_the_last_of_repeated_options_counts(args, value, others):
  assert options.option_value('--scale', args) == value
  assert options.pop_option('--scale', args) == (value, others)


def test_every_command_uses_the_last_scale_and_size(tmp_path):
  twice = ['--scale=laptop', '--scale=test']
  config = run.parse(recipes.find_recipe('bert_base'), twice)
  assert config == run.parse(recipes.find_recipe('bert_base'),
                             ['--scale=test']) and config.scale == 'test'
  assert vectors.parse('word2vec', twice) == vectors.parse('word2vec', ['--scale=test'])
  labelled = ['--task=sst2', '--task=cola', '--train=a.tsv', '--train=b.tsv']
  found, _ = finetune.parse('', [*labelled, *twice], '')
  assert found == finetune.parse('', ['--task=cola', '--train=b.tsv', '--scale=test'], '')[0]
  plan = entry.parse([f'--output={tmp_path / "a"}', f'--output={tmp_path / "b"}', '--data=text',
                      *twice])
  assert plan.scale == 'test' and plan.output == str(tmp_path / 'b')
  mesh = run.parse(recipes.find_recipe('bert_base'), ['--mesh.data=2', '--mesh.data=4']).mesh
  assert mesh.data == 4
