"""What somebody may type, or a file may hold, by mistake: each option with what it does not take."""
import dataclasses
import json
import random
import types

import pytest

from plm_jax import checked, config_file, recipes
from plm_jax import config as config_lib
from plm_jax.cli import commands as cli
from plm_jax.cli import options
from plm_jax.cli.run import main, parse
from plm_jax.config import ConfigError
from plm_jax.corpora import clean as cleaning
from plm_jax.corpora import parallel as parallel_cleaning
from plm_jax.corpora.examine import CleanConfig
from plm_jax.data import beam, parallel
from plm_jax.data import prepare as preparation
from plm_jax.data.settings import PrepareConfig
from plm_jax.errors import Expected
from plm_jax.inference.search import GenerationConfig
from plm_jax.sharding import MeshConfig
from plm_jax.training.optim import OptimConfig

RECIPES = [recipes.find(name) for name in (
    'bert_base', 'deberta_base', 'glm_base', 'gpt2_small', 't5_base', 'xlnet_base')]
NUMBERS = (
    -1, 0, 1, 2**31, 2**63, 10**40, -10**40, float('nan'), float('inf'), -float('inf'), 1e308, -1e-300, 0.5, True)
TEXTS = ('', '\0', '~nobody', '\ud800', 'x' * (1 + checked.LONGEST), '../..', '中文', 'nan', '-1')
OTHERS = (None, (), ((),), (1, 'a'), ('',), 7, 'a', 1.5, OptimConfig(), {}, b'a')


def leaves(config, path=''):
  """(path, value) of everything in a configuration that is no configuration itself."""
  for field in dataclasses.fields(config):
    value, name = getattr(config, field.name), f'{path}.{field.name}'.lstrip('.')
    yield from leaves(value, name) if dataclasses.is_dataclass(value) else [(name, value)]


def changed(config, path, value):
  head, _, rest = path.partition('.')
  return dataclasses.replace(config, **{head: changed(getattr(config, head), rest, value) if rest else value})


def refusal(work) -> str:
  """The line with which it was refused; empty where it was not. Other errors are ours."""
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
def test_whatever_an_option_is_given_is_taken_or_refused_with_a_line_that_names_it(recipe):
  draw, config, refused = random.Random(0), recipe('test'), 0
  for path, value in leaves(config):
    pool = TEXTS if isinstance(value, str) else NUMBERS
    for wrong in (*draw.sample(pool, 5), *draw.sample(OTHERS, 2)):
      with checked.later():
        mistaken = changed(config, path, wrong)
      said = refusal(lambda mistaken=mistaken: config_lib.check(mistaken))
      refused += bool(said)
      assert not said or isinstance(wrong, type(value)) or checked.flag(path) in said
  assert refused > 200


@pytest.mark.parametrize('recipe', RECIPES, ids=lambda recipe: recipe.name)
def test_whatever_a_config_json_holds_is_read_or_refused_with_a_line_that_names_the_file(recipe):
  draw, whole = random.Random(1), json.loads(config_file.dump(recipe('test')))
  def places(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
      yield value, key
      yield from places(inner)
  refused = 0
  junk = [*NUMBERS, *TEXTS, None, [], {}, [[]], {'is': 3}, {'is': 'plm_jax.inference.loading:Trained'},
          {'is': 'plm_jax.x:\0'}, {'is': 'plm_jax.objectives:Objective'},
          {'is': 'plm_jax.config:Phase', 'steps': 1, 'length': 8, 'batch': 8}]
  for _ in range(200):
    value = json.loads(json.dumps(whole))
    holder, key = draw.choice(list(places(value)))
    if isinstance(key, str) and draw.random() < 0.2:
      del holder[key]
    else:
      holder[key] = draw.choice(junk)
    said = refusal(lambda value=value: config_file.from_json(value, 'runs/x/config.json'))
    refused += bool(said)
    assert not said or said.startswith('runs/x/config.json: ')
  assert refused > 100


COMMAND_LINES = (
    ['--train.keep=-1'], ['--train.log-every=0'], ['--optim.peak=nan'], ['--optim.b2=2'], ['--seed=-1'],
    ['--seed=99999999999'], ['--model.block.dropout=1'], ['--train.phases.0.batch=0'], ['--data.block=0'],
    ['--mesh.data=0'], ['--objective.random-share=nan'], ['--objective.duplicates=-1'], ['--optim.warmup=9000'],
    ['--model.vocab=99999999999'], ['--train.phases.0.batch=100000000'], ['--prompts', 'no blank'], ['--scale=huge'],
    ['--data.prepare.newlines', '--data.prepare.segmenter=jieba'], ['--name=\0'], ['--optim.eps=0'])


@pytest.mark.parametrize('args', COMMAND_LINES, ids=' '.join)
def test_a_mistyped_command_ends_with_one_line(args):
  with pytest.raises(SystemExit) as stopped:
    main(recipes.find('bert_base'), ['--scale=test', *args] if args != ['--scale=huge'] else args)
  assert str(stopped.value).startswith('error: ') and one_line(stopped.value)
  option = args[0].partition('=')[0]
  assert option in str(stopped.value)


@pytest.mark.parametrize(('args', 'line'), [
    (['prepare', 'TEXT', ''], 'error: OUT is empty, expected a path or a name'),
    (['prepare', 'TEXT', 'out', '--vocab=99999999999'],
     'error: --vocab is a whole number from 1 to 16,777,216, got 99999999999'),
    (['prepare', 'TEXT', 'out', '--kind=wordpiece', '--layout=mbart'],
     'error: --layout is bert or glm with --kind=wordpiece, got mbart: it is the layout of other tokenizers'),
    (['prepare', 'TEXT', 'out', '--heldout=nan'], 'error: --heldout is a number from 0 to below 1, got nan'),
    (['prepare', 'TEXT', 'out', '--for=gpt2smal'],
     "error: there is no recipe 'gpt2smal': did you mean gpt2_small or gpt3_small or gpt2_xl? `python -m plm_jax "
     'train` lists them'),
    (['prepare', 'TEXT', 'out', '--beam'],
     'error: --beam is followed by options of Beam, expected --runner=DirectRunner, FlinkRunner or another, got none'),
    (['prepare', 'TEXT', 'out', '--beam', '--runner=FlinkRunner', '--no-newlines'],
     'error: --no-newlines stands behind --beam, where the options of Beam are: put it in front'),
    (['clean', 'TEXT', 'out', '--beam', '--runner=FlinkRunner', '--rules=c4'],
     'error: --rules stands behind --beam, where the options of Beam are: put it in front'),
    (['fill-mask', 'RUN'], 'error: there is no prompt: give a sentence with a [MASK] where a word is to be guessed'),
    (['fill-mask', 'RUN', 'a [MASK]', '--top=-1'], 'error: --top is a whole number from 1 to 16,777,216, got -1'),
    (['generate', 'RUN', 'a', '--temperature=nan'], 'error: --temperature is a number of 0 or more, got nan'),
    (['generate', 'RUN', 'a', '--top-p=0'], 'error: --top-p is a number above 0 and at most 1, got 0.0'),
    (['generate', 'RUN', 'a', '--top-k=3'], 'error: --top-k is for drawing by lot: give --temperature too'),
    (['generate', 'RUN', 'a', '--mesh.data=0'],
     'error: --mesh.data is 1 or more, or -1 for as many as the devices give, got 0'),
    (['generate', 'RUN', 'a', '--seed=-1'], 'error: --seed is a whole number from 0 to 4,294,967,295, got -1'),
    (['perplexity', 'RUN', 'TEXT', '--stride=-1'], 'error: --stride is a whole number of 0 or more, got -1'),
    (['few-shot', 'RUN', 'piqa', '--shots=-1'], 'error: --shots is a whole number of 0 or more, got -1'),
    (['text-to-text', 'RUN', 'task:sst2:x', '--batch=0'],
     'error: --batch is a whole number from 1 to 65,536, got 0'),
    (['rows', 'RECORDS', '--length=2'], 'error: --length is a whole number from 3 to 16,777,216, got 2'),
    (['evaluate', ''], 'error: RUN is empty, expected a path or a name')])
def test_commands_check_what_they_are_given_before_they_begin(args, line, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('sys.argv', ['plm_jax', *args])
  with pytest.raises(SystemExit) as stopped:
    cli.main()
  assert str(stopped.value) == line
  assert not list(tmp_path.iterdir())


def test_prepare_takes_the_settings_of_a_recipe(monkeypatch):
  asked = []
  monkeypatch.setattr(preparation, 'prepare', lambda config, out, rules, writing: asked.append(config))
  for args in [], ['--vocab=300', '--no-newlines'], ['--newlines', 'False', '--for', 't5_base']:
    monkeypatch.setattr('sys.argv', ['plm_jax', 'prepare', 'TEXT', 'OUT', '--for=gpt2_small', *args])
    cli.main()
  paper = PrepareConfig(source='TEXT', kind='byte-bpe', layout='gpt2', newlines=True, vocab=50257)
  assert asked[:2] == [paper, dataclasses.replace(paper, vocab=300, newlines=False)]


def test_what_is_behind_beam_is_for_beam(monkeypatch):
  asked = []
  monkeypatch.setattr(beam, 'running', asked.append)
  monkeypatch.setattr(preparation, 'prepare', lambda config, out, rules, writing: asked.append((config, writing.func)))
  flags = ['--runner=DataflowRunner', '--region', 'us-central1', '--labels=a=b', '--labels=c d']
  monkeypatch.setattr('sys.argv', ['plm_jax', 'prepare', 'TEXT', 'OUT', '--vocab=300', '--beam', *flags])
  cli.main()
  assert asked == [flags, (PrepareConfig(source='TEXT', vocab=300), parallel.write)]


def test_what_is_behind_beam_is_for_beam_when_a_corpus_is_cleaned(monkeypatch):
  asked = []
  monkeypatch.setattr(beam, 'running', asked.append)
  monkeypatch.setattr(cleaning, 'clean', lambda config, source, out, working: asked.append((config, working.func)))
  flags = ['--runner=SparkRunner', '--job_endpoint', 'embed']
  monkeypatch.setattr('sys.argv', ['plm_jax', 'clean', 'TEXT', 'OUT', '--rules=gopher', '--beam', *flags])
  cli.main()
  assert asked == [flags, (CleanConfig(quality=True, repetition=True), parallel_cleaning.work_with)]


@pytest.mark.parametrize(('recipe', 'rules'), [
    ('', ['document-141', 'document-525']), ('bert_base', ['document-141', 'document-525']),
    ('gpt2_small', ['packed-1020'])])
def test_prepare_counts_the_windows_of_a_recipe(monkeypatch, recipe, rules):
  asked = []
  monkeypatch.setattr(preparation, 'prepare', lambda config, out, rules, writing: asked.extend(map(str, rules)))
  monkeypatch.setattr('sys.argv', ['plm_jax', 'prepare', 'TEXT', 'OUT', *([f'--for={recipe}'] if recipe else [])])
  cli.main()
  assert asked == rules


@pytest.mark.parametrize('args', [
    ['--hosts.distributed'], ['--hosts.distributed=True'], ['--hosts.distributed', 'true'],
    ['--hosts.distributed=true']])
def test_booleans_are_understood_in_every_form(args):
  assert parse(recipes.find('bert_base'), ['--scale=test', *args, '--seed=3']).hosts.distributed
  assert options.normalise_booleans(['--hosts.no-distributed', 'x', '--a_b'], {'hosts.distributed', 'a-b'}) == [
      '--hosts.distributed=False', 'x', '--a-b=True']


def test_messages_say_what_was_expected():
  for limits, value, said in [
      ('[1, inf)', 0, 'a whole number of 1 or more'), ('[1, inf)', 2**31, 'a whole number from 1 to 2,147,483,647'),
      ('(0, 1)', 1.0, 'a number between 0 and 1'), ('(0, inf]', 0.0, 'a number above 0'),
      ('[0, inf)', 1e300, 'a number from 0 to 3e+38')]:
    with pytest.raises(Expected) as wrong:
      checked.check_value(value, type(value), limits, checked.flag, 'a.b_c')
    assert str(wrong.value) == f'--a.b-c is {said}, got {value}'
  checked.check_value(float('inf'), float, '(0, inf]', checked.flag, 'x')
  with pytest.raises(ConfigError, match=r'GenerationConfig\.temperature is a number of 0 or more, got nan'):
    GenerationConfig(temperature=float('nan'))
  with pytest.raises(ConfigError, match=r'MeshConfig\.fsdp is a whole number of 1 or more, got 2\.5'):
    MeshConfig(fsdp=2.5)  # pyright: ignore


def test_limits_are_of_fields_that_there_are():
  def every(cls):
    return [cls, *(inner for some in cls.__subclasses__() for inner in every(some))]
  for cls in every(checked.Checked):
    if dataclasses.is_dataclass(cls):
      assert set(checked.limits_of(cls)) <= {field.name for field in dataclasses.fields(cls)}, cls
      assert isinstance(cls.limits, types.MappingProxyType)


@pytest.mark.parametrize(('typed', 'option', 'now'), [
    ('--model.block.attention-dropout=0.2', '--model.block.attention-dropout', '--model.block.attention.dropout'),
    ('--model.block.no-gated', '--model.block.no-gated', '--model.block.mlp.gated'),
    ('--objective.model.block.norm_eps=1', '--objective.model.block.norm-eps', '--objective.model.block.norm.eps'),
    ('--model.block.position.clamp=8', '--model.block.position.clamp', '--model.block.attention.position.clamp')])
def test_an_option_of_before_is_told_its_name(typed, option, now):
  with pytest.raises(ConfigError) as wrong:
    parse(RECIPES[0], ['--scale=test', typed])
  assert str(wrong.value) == f'{option} is {now} now'


def test_options_of_the_parts_of_a_block():
  args = ['--scale=test', '--model.block.norm.eps=1e-5', '--model.block.mlp.no-gated', '--model.block.kv-heads=1']
  block = parse(RECIPES[0], args).model.block
  assert (block.norm.eps, block.mlp.gated, block.kv_heads) == (1e-5, False, 1)
