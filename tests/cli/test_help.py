"""Help, version, suggestions and completion: answers without JAX."""
import json
import re
import shutil
import subprocess
import sys

import pytest
import tyro

import plm_jax
from plm_jax import environment, errors, recipes, validation
from plm_jax.cli import (
  catalog,
  commands,
  completion,
  help,
  main,
  options,
  signatures,
  suggestions,
  write_help,
)
from plm_jax.cli.run import parse
from plm_jax.errors import ConfigError
from plm_jax.word_vectors.train import VectorRun

NAMES = [name for name in catalog.COMMANDS if name not in ('completion', 'vectors')]
FUNCTIONS = {name: commands.find_function(name) for name in NAMES}
FUNCTIONS |= {f'vectors {name}': commands.find_function(f'vectors {name}')
              for name in catalog.VECTORS}
ENTRIES = {**catalog.COMMANDS, **{f'vectors {name}': one for name, one in catalog.VECTORS.items()}}


def run(*args):
  """Runs a command line in another process: (status, output, errors, modules of JAX that were
  imported)."""
  code = (f'import sys; sys.argv = {["plm-jax", *args]!r}\n'
          'from plm_jax.cli.main import main\ntry:\n  main()\nfinally:\n'
          '  print(sorted({"jax", "flax", "tensorflow", "numpy"} & set(sys.modules)), '
          'file=sys.stderr)')
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=300)
  return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize('args', [
    (), ('--help',), ('--version',), ('train', '--help'), ('predict', '--help'),
    ('vectors', 'nearest', '--help'),
    ('train', 'bert_base', '--help'), ('train', '--help', 'optim'), ('generate', '--help', 'all'),
    ('completion', 'bash')])
def test_help_imports_no_jax(args):
  status, said, errors = run(*args)
  assert status == 0 and said and errors == '[]\n'


def test_a_misspelled_command_or_option_is_named_without_jax():
  said = 'there is no command trian: did you mean train? `plm-jax --help` lists them'
  assert run('trian') == (2, '', f'error: {said}\n[]\n')
  status, _, said = run('generate', 'RUN', 'a', '--max_new_tokens=5')
  assert status == 2 and 'there is no option --max-new-tokens: did you mean --max-new? ' in said
  assert '[]' in said


def test_too_many_arguments_are_an_error_without_jax():
  status, _, said = run('prepare', 'a.txt', '--vocab', '300', 'b.txt', 'out', '--lowercase',
                        'False')
  assert status == 2 and said == (
      'error: prepare takes TEXT OUTPUT, got 3 arguments: a.txt b.txt out; '
                                  'separate several sources by commas\n[]\n')
  for path, args in ((['prepare'], 'a.txt out --vocab 300 --heldout=0.1 --no-lowercase'),
                     (['clean'], '--rules c4 gopher a.txt out'),
                     (['fill-mask'], 'RUN a b c d --top 3'),
                     (['vectors', 'analogy'], 'RUN a b c'), (['generate'], 'RUN - --stream')):
    entry = help.find_command(path)
    suggestions.check_argument_count(path[-1], entry.usage, args.split(),
                                     help.command_options(entry))
  entry = help.find_command(['export'])
  with pytest.raises(ConfigError, match=r'export takes RUN OUTPUT, got 3 arguments: a b c$'):
    suggestions.check_argument_count('export', entry.usage, ['a', 'b', 'c'],
                                     help.command_options(entry))


@pytest.mark.parametrize(('args', 'got'), [('', 'no arguments'), ('runs/a', 'runs/a'),
                                           ('--top=3 runs/a', 'runs/a')])
def test_missing_arguments_are_an_error_with_the_usage(args, got):
  entry = help.find_command(['predict'])
  with pytest.raises(ConfigError, match=f'^predict takes RUN FILE, got {got}$'):
    suggestions.check_argument_count('predict', entry.usage, args.split(),
                                     help.command_options(entry))


def test_a_command_of_word_vectors_has_its_whole_name_in_errors():
  status, _, said = run('vectors', 'test', 'a.bin')
  assert status == 2 and said == 'error: vectors test takes MODEL TEXT, got a.bin\n[]\n'


def test_every_command_is_in_the_catalog_and_names_its_function():
  assert {*commands.STARTS} < {*catalog.COMMANDS}
  assert {*catalog.FOREIGN_COMMANDS.values()} <= {*catalog.COMMANDS}
  for name, entry in ENTRIES.items():
    if entry.function:
      assert entry.function.rpartition('.')[2] == FUNCTIONS[name].__name__


@pytest.mark.filterwarnings('ignore:get_parser')
@pytest.mark.parametrize('name', [name for name, entry in ENTRIES.items() if entry.function])
def test_the_file_has_the_arguments_and_texts_of_the_parser(name):
  parser = tyro.extras.get_parser(FUNCTIONS[name], config=(tyro.conf.FlagConversionOff,))
  parsed = {}
  for action in parser._actions[1:]:
    called = (action.option_strings or [action.dest])[-1].removeprefix('--')
    text = ' '.join(action.help.split())
    parsed[called] = re.sub(r' \((default: .*|required)\)$', '', text)
  found = {one.name: one.text for one in signatures.read_options(ENTRIES[name].function)}
  assert found == parsed and all(found.values())


@pytest.mark.parametrize('name', ENTRIES)
def test_a_help_has_usage_arguments_and_examples_and_fits_80_columns(name):
  entry, said = ENTRIES[name], help.command_help(name.split())
  assert said.startswith(f'usage: {environment.program()} {name} ')
  assert 'STR' not in said and 'examples:' in said
  known = {option.name for option in help.command_options(entry)}
  assert {*entry.main} <= known, {*entry.main} - known
  lines = [line for line in said.splitlines() if not line.startswith(f'  {environment.program()}')]
  assert max(map(len, lines)) <= 80
  assert len(help.short_options(entry, help.command_options(entry))) <= 30


def test_run_options_match_the_recipe():
  actual = {one.name: one for one in signatures.config_options(recipes.find_recipe('bert_base')())}
  read = [one.name for one in signatures.read_options('plm_jax.config.run.PretrainRun')]
  assert read == [*actual] and actual['optim.peak'].default == '0.0001'
  assert actual['train.phases.1.steps'].default == '100000' and all(one.text
                                                                    for one in actual.values())


def test_the_listed_no_options_turn_options_off():
  recipe = recipes.find_recipe('bert_base')
  said = ' '.join(help.run_help('train', '', recipe('test')).split())
  spellings = re.findall(r'\[on by default; (--\S+) turns it off\]', said)
  assert '--model.no-tied' in spellings
  # which has all of them
  config = parse(recipe, ['--scale=test', '--optim.kind=adafactor', *spellings])
  assert not config.model.tied and not config.data.prepare.lowercase


def test_options_of_other_libraries_map_to_existing_options():
  known = {option.name for entry in ENTRIES.values() for option in help.command_options(entry)}
  known |= validation.field_paths(VectorRun)
  assert not {meant for all_meant in catalog.FOREIGN_OPTIONS.values()
              for meant in all_meant} - known


def test_recipe_titles_cover_all_recipes():
  names = {*recipes.all_recipes(), *recipes.word_vectors.PUBLISHED}
  assert {*signatures.recipe_titles()} == names


def test_the_file_of_options_is_current():
  """`python -m plm_jax.cli.write_help` rewrites it."""
  assert json.loads(json.dumps(write_help.collect())) == signatures.read_file()


@pytest.mark.parametrize(('typed', 'meant'), [
    ('optim.lr', 'optim.peak'), ('lr', 'optim.peak'), ('learning_rate', 'optim.peak'),
    ('batch_size', 'train.phases.0.batch'), ('epochs', 'train.phases.0.steps'),
    ('optim.peek', 'optim.peak'),
    ('weight_decay', 'optim.weight-decay'), ('peak', 'optim.peak'), ('outptu', 'output'),
    ('fp16', 'model.block.dtype')])
def test_options_of_others_and_typos_have_a_suggestion(typed, meant):
  known = help.option_kinds(['train'])
  assert suggestions.suggest_option(typed, known)[0] == meant
  with pytest.raises(ConfigError,
                     match=f'there is no option --{typed.replace("_", "-")}: did you mean '
                           f'--{meant}'):
    suggestions.check_options([f'--{typed}=1'], known, 'help')
  suggestions.check_options(['--optim.peak', '-1', 'a--b', '--', '--x'], known, 'help')


@pytest.mark.parametrize(('args', 'message'), [
    (['--train.phases.0.steps=abc'], "--train.phases.0.steps is a whole number, got 'abc'"),
    (['--train.phases.0.steps=1.5'], "--train.phases.0.steps is a whole number, got '1.5'"),
    (['--train.phases.0.steps', '', '--seed=1'],
     "--train.phases.0.steps is a whole number, got ''"),
    (['--optim.peak=fast'], "--optim.peak is a number, got 'fast'"),
    (['--optim.peak', '--seed=1'], '--optim.peak needs a number: --optim.peak=...'),
    (['--output'], '--output needs a value: --output=...'),
    (['--data.weights', '0.5', 'x', '--seed=1'], "--data.weights is a number, got 'x'"),
    (['--data.assembly=rows'],
     "--data.assembly is document, sentences, packed or examples, got 'rows'")])
def test_a_value_of_the_wrong_kind_is_an_error_of_one_line(monkeypatch, capsys, args, message):
  monkeypatch.setattr('sys.argv', ['plm_jax', 'train', 'bert_base', *args])
  with pytest.raises(SystemExit) as ended:
    commands.main()
  assert ended.value.code == errors.EXIT_USAGE
  assert capsys.readouterr().err == f'error: {message}\n'


def test_values_of_the_right_kind_are_accepted():
  kinds = {'rate': 'FLOAT', 'steps': 'INT', 'widths': 'INT...', 'name': 'TEXT', 'kind': 'a,b'}
  suggestions.check_options(
      ['--rate=1e-4', '--rate=None', '--steps', '3', '--widths', '1', '2', '--widths', '--kind=b',
       '--name='], kinds, 'help')


def test_an_unknown_option_of_a_run_is_an_error(monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['plm_jax', 'train', 'bert_base', '--scale=test', '--optim.lr=1'])
  with pytest.raises(SystemExit) as ended:
    commands.main()
  assert ended.value.code == 2
  assert capsys.readouterr().err == (
      'error: there is no option --optim.lr: did you mean --optim.peak? '
                                     '`python -m plm_jax train bert_base --help all` prints all '
                                     'options\n')


def test_help_of_a_section_has_the_values_of_the_recipe(monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['plm_jax', 'train', 'bert_base', '--scale=laptop', '--help',
                                   'train.phases'])
  with pytest.raises(SystemExit) as ended:
    main.main()
  said = capsys.readouterr().out
  assert not ended.value.code and re.search(
      r'--train.phases.0.steps INT\n +Number of updates. \[default: 2000\]', said)
  with pytest.raises(ConfigError,
                     match=r"no section 'optimm': --help takes one of all, .*did you mean --optim"):
    help.command_help(['train'], 'optimm')


def test_an_unknown_command_is_refused_with_a_suggestion():
  assert help.find_path(['fill_mask']) == ['fill-mask']
  for name, meant in ('convert', 'export'), ('distil', 'distill'), ('neighbours', 'neighbors'):
    with pytest.raises(ConfigError, match=f'there is no command {name}: did you mean {meant}'):
      help.find_path([name])


def test_version_and_console_command(capsys, monkeypatch):
  monkeypatch.setattr('sys.argv', ['/usr/bin/plm-jax', '--version'])
  main.main()
  assert capsys.readouterr().out == f'plm_jax {plm_jax.__version__}\n'
  assert environment.program() == 'plm-jax'
  monkeypatch.setattr('sys.argv', ['plm_jax/__main__.py'])
  assert environment.program() == 'python -m plm_jax'


def test_an_output_is_the_last_argument_or_an_option():
  assert options.choose_output('a', '') == options.choose_output('', 'a') == 'a'
  with pytest.raises(ConfigError, match='given twice'):
    options.choose_output('a', 'b')
  with pytest.raises(ConfigError, match='OUTPUT is missing'):
    options.choose_output('', '')


def test_values_of_a_list_are_separated_by_spaces_or_commas():
  assert options.join_values('--train',
                             ['--train', 'a', 'b', '--dev=c']) == ['--train=a,b', '--dev=c']
  assert options.join_values('--train', ['--train=a', 'b']) == ['--train=a,b']
  assert options.join_values('--rules', ['clean', '--rules', 'c4', 'TEXT', 'OUT'],
                             {'c4', 'gopher'}) == [
    'clean', '--rules=c4', 'TEXT', 'OUT']
  assert options.join_values('--rules', ['TEXT', 'OUT', '--rules', 'c4', 'gopher'],
                             {'c4', 'gopher'}) == [
    'TEXT', 'OUT', '--rules=c4,gopher']


@pytest.mark.skipif(not shutil.which('bash'), reason='needs bash')
@pytest.mark.parametrize(('words', 'completed'), [
    (['expand'], 'expand-vocab'), (['train', 'bert_bas'], 'bert_base'),
    (['train', 'x', '--optim.pea'], '--optim.peak'),
    (['vectors', 'near'], 'nearest'), (['search', '--to'], '--top --tokens')])
def test_completion_of_bash(words, completed):
  script = completion.completion_script('bash')
  line = ' '.join(f'"{word}"' for word in ['plm-jax', *words])
  code = (f'{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _plm_jax; '
          'echo "${COMPREPLY[@]}"')
  assert subprocess.run(['bash', '-c', code], capture_output=True, text=True,
                        check=True).stdout.strip() == completed


def test_zsh_completion_loads_the_bash_completion():
  assert completion.completion_script('zsh').startswith('autoload -U +X bashcompinit')
  with pytest.raises(ConfigError, match='bash or zsh, got fish'):
    completion.completion_script('fish')
