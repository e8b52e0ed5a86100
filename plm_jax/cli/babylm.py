"""python -m plm_jax babylm: from the text of a BabyLM track to a table of what the model that read it can do.

    python -m plm_jax babylm --data=train_10M --output=runs/babylm --pairs='blimp/*.jsonl' --glue=glue
    python -m plm_jax babylm --data=train_10M --output=runs/babylm --scale=laptop      # 2 CPU cores
    python -m plm_jax babylm --model=FOLDER --output=runs/babylm --pairs='blimp/*.jsonl'

The text is cleaned of what it says twice and prepared with a tokenizer of its own; a model learns it by a recipe; then
it judges minimal pairs and learns tasks. What is done is kept in --output, and not done again: the same command goes on
where one was interrupted, and one with more --pairs or tasks does these besides.

    --data     text, as `prepare` takes it; of a folder with files .train these, and its .dev are held out
    --model    a run or a checkpoint instead, which is only evaluated: one that was trained on a pod, say
    --output   folder for all that is made: cleaned/, model/, tasks/NAME/, pairs-HOW.jsonl, babylm.json, babylm.html
    --recipe   gpt_bert_strict_small (10 million words; the default), gpt_bert_strict (100 million),
               ltg_bert_strict_small, ltg_bert_strict, or any other
    --pairs    files of minimal pairs in BLiMP's form, globs, folders; a model that writes is asked in both ways
    --limit    pairs of a paradigm at most; 0: all
    --glue     folder of tables: TASK_train.* and TASK_dev.*, or TASK/train.* and TASK/dev.* (tsv, csv, jsonl, .gz, .xz)
    --tasks    names of tasks by commas, of those in the folder; none: all of them

All other options are those of the run: `python -m plm_jax train gpt_bert_strict_small --help`.
"""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import re
from typing import Any

from plm_jax import checked, corpus, errors, knowledge, recipes, storage
from plm_jax import config as config_lib
from plm_jax.cli import options, report
from plm_jax.cli import pairs as judging
from plm_jax.cli import run as runs
from plm_jax.cli.concluding import say
from plm_jax.cli.report import el
from plm_jax.config import ConfigError, Experiment
from plm_jax.data import files, sources
from plm_jax.evaluation import minimal_pairs
from plm_jax.inference import loading
from plm_jax.inference.loading import Trained
from plm_jax.objectives import figures
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import Start
from plm_jax.storage import reachable
from plm_jax.storage.lock import Lock
from plm_jax.tasks.table import TASKS
from plm_jax.training.train import evaluate_run

NAMES = 'data', 'model', 'output', 'recipe', 'pairs', 'limit', 'glue', 'tasks'
RECIPE = 'gpt_bert_strict_small'
FILE, PAGE = 'babylm.json', 'babylm.html'
KINDS = 'classification', 'regression', 'choice'
PARTS = {'train': 'train', 'dev': 'dev', 'valid': 'dev', 'validation': 'dev'}
LAPTOP = 3e-4
"""rate at least with which a model of the smaller scales learns a task"""
ROOM = 64
"""tokens that a model of the smaller scales reads at least: rows of 32 are too short for some pairs"""
Done = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is asked for."""

  output: str
  data: str = ''
  model: str = ''
  recipe: str = RECIPE
  pairs: str = ''
  limit: int = 0
  glue: str = ''
  tasks: tuple[str, ...] = ()
  scale: str = 'paper'
  options: tuple[str, ...] = ()
  """of the run"""

  @property
  def text(self) -> str:
    """Folder of the cleaned text."""
    return f'{self.output}/cleaned'

  @property
  def run(self) -> str:
    """Folder of the model."""
    return self.model or f'{self.output}/model'

  @property
  def asked(self) -> dict[str, Any]:
    """What may not change in a folder that something was done in."""
    return {name: getattr(self, name) for name in ('data', 'model', 'recipe', 'scale')} | {
        'options': [*self.options]} if not self.model else {'model': self.model, 'scale': self.scale}


class Stopped(Exception):
  """A signal has stopped a run, which saved itself."""


def start(args: Sequence[str]) -> None:
  """Does all that the arguments ask for; exits with 1 and a message on bad input, with 75 where a signal has stopped
  it."""
  with errors.shown():
    if {'-h', '--help'} & {*args} or not args:
      print((__doc__ or '').strip())
      return
    plan = parse(args)
    reachable.check_reachable({**dict.fromkeys(reachable.paths_in([*args]), 'read'), plan.output: 'run'})
    finished = True
    with Lock(plan.output, 'a babylm'), errors.options_under('--data.prepare.'):
      try:
        work(plan)
      except Stopped:
        finished = False
    errors.ended(finished)


def parse(args: Sequence[str]) -> Plan:
  """Reads the arguments. Raises ConfigError."""
  given, rest = {}, [*args]
  for name in NAMES:
    given[name], rest = options.taken(f'--{name}', rest)
  if not given['output']:
    raise ConfigError('--output is missing: a folder for all that is made')
  if bool(given['data']) == bool(given['model']):
    raise ConfigError('give --data, the text of a track, or --model, a run that has learned from it')
  if not re.fullmatch(r'\d{1,9}', given['limit'] or '0'):
    raise ConfigError(f'--limit is a number of pairs, got {checked.shortened(given["limit"])}')
  if given['tasks'] and not given['glue']:
    raise ConfigError('--tasks are those of a folder of tables: give --glue')
  scale = options.value_of('--scale', rest) or 'paper'
  if given['model']:
    _, rest = options.taken('--scale', rest)
    if rest or given['recipe'] or scale not in ('paper', 'laptop', 'test'):
      raise ConfigError(f'--model is evaluated as it is: leave out {" ".join(rest) or "--recipe"}')
  return Plan(
      given['output'].rstrip('/'), given['data'], given['model'], given['recipe'] or RECIPE, given['pairs'],
      int(given['limit'] or 0), given['glue'], tuple(filter(None, given['tasks'].split(','))), scale, tuple(rest))


def work(plan: Plan) -> None:
  """Does what is not done yet, then prints and writes the table. Raises Stopped."""
  place = storage.path_of(plan.output) / FILE
  done = begun(plan, place)
  config = None if plan.model else configured(plan)
  tables = found_tables(plan)
  if plan.pairs:
    files.files(plan.pairs)  # before hours of training

  def step(name: str, asked: Any, do: Callable[[], dict[str, Any]]) -> None:
    if done.get(name, {}).get('asked') == asked:
      say(f'{name}: done before')
      return
    say(f'{name}: {asked}')
    done[name] = {'asked': asked, **do()}
    storage.write_json(place, {'asked': plan.asked, 'done': done})

  if config:
    text, rest = splits(plan.data)
    step('text', text, lambda: cleaned(text, plan.text))
    step('model', plan.recipe, lambda: learned(config))
    if rest:
      step('dev', rest, lambda: held_out(plan.run, rest))
  if plan.pairs:
    trained = loading.load(plan.run)
    for how in ways(trained):
      step(f'pairs {how}', f'{plan.pairs} {plan.limit or "all"}', lambda how=how: judged(plan, trained, how))
    del trained
  for task, (train, dev) in tables.items():
    step(f'task {task}', ' '.join((*train, *dev)), lambda task=task, some=(train, dev): taught(plan, task, *some))
  rows = table(plan, config, done)
  print('\n'.join(['', *(f'{name:44}{value}' for name, value in rows.items())]))
  page = f'{plan.output}/{PAGE}'
  storage.write(page, report.document(f'BabyLM: {plan.model or plan.recipe}', 'plm_jax · BabyLM', [
      el('section', el('h2', 'Results'), report.table(rows)),
      el('section', el('h2', 'Everything that was counted'), report.table({'asked': plan.asked, **done}))]))
  print(f'\n{place} has all figures; page: {page}')


def begun(plan: Plan, place: Any) -> Done:
  """Reads what is done in the folder. Raises ConfigError where something else was asked for."""
  if not place.exists():
    return {}
  found = storage.read_json(place)
  asked, done = found.get('asked'), found.get('done')
  if not isinstance(asked, dict) or not isinstance(done, dict):
    raise ConfigError(f'{place} is not of `babylm`: give another --output')
  for name, value in plan.asked.items():
    if asked.get(name) != value:
      raise ConfigError(f'{plan.output} was begun with {name} {asked.get(name)!r}, not {value!r}: give the same, or '
                        'another --output')
  return done


def configured(plan: Plan) -> Experiment:
  """Makes the run. Raises ConfigError for options that it does not have."""
  room = [] if plan.scale == 'paper' else [f'--model.max-length={ROOM}']
  config = runs.parse(recipes.find(plan.recipe), [
      *room, *plan.options, f'--output={plan.run}', f'--data.path={plan.text}'])
  if config.mode != 'train' or config.output != plan.run or config.data.path != (plan.text,):
    raise ConfigError('--mode, --data.path are those of `train`: babylm trains, on the text of --data')
  config_lib.check(config)
  return config


def splits(data: str) -> tuple[str, str]:
  """Returns the sources to learn from, and of held-out text, which may be none."""
  parts = [','.join(map(str, files.expand(f'{data.rstrip("/")}/**/*.{kind}'))) for kind in ('train', 'dev')]
  return (parts[0], parts[1]) if parts[0] else (data, '')


def cleaned(source: str, out: str) -> dict[str, Any]:
  """Takes out documents that came before, and counts what is left."""
  found = corpus.clean(source, out, duplicates='exact')
  print(found)
  words = sum(len(paragraph.split()) for document in sources.documents(out) for paragraph in document.paragraphs)
  say(f'{words:,} words')
  return {'documents': found.kept_documents, 'duplicates': sum(found.dropped.values()), 'words': words}


def learned(config: Experiment) -> dict[str, Any]:
  """Trains the model, or goes on with it."""
  result = runs.run(config)
  if not result or not result.finished:
    raise Stopped
  return {'steps': result.step, 'epochs': result.epochs, 'heldout': result.heldout}


def held_out(folder: str, texts: str) -> dict[str, Any]:
  """Measures the losses of a run on all of these texts."""
  config = runs.of_text(loading.read_config(folder))
  data = dataclasses.replace(config.data, path=(texts,), weights=(),
                             prepare=dataclasses.replace(config.data.prepare, heldout=0.0))
  config = dataclasses.replace(
      config, mode='evaluate', output=folder, data=data, prompts=(),
      train=dataclasses.replace(config.train, eval_batches=runs.EVERY))
  return {'heldout': evaluate_run(config, *runs.corpora(config))}


def ways(trained: Trained) -> tuple[str, ...]:
  """Returns how a model judges pairs: with masks, from left to right, or GPT-BERT both."""
  masked = ('pll',) if 'mlm' in trained.heads else ()
  return masked + (('causal',) if trained.writer else ())


def judged(plan: Plan, trained: Trained, how: Any) -> dict[str, Any]:
  """Has the model judge all pairs, and writes what each got."""
  every = knowledge.minimal_pairs(trained, plan.pairs, how, limit=plan.limit)
  storage.write(f'{plan.output}/pairs-{how}.jsonl', ''.join(f'{judging.record(one)}\n' for one in every))
  whole = minimal_pairs.whole(every)
  return {'accuracy': whole.accuracy, 'interval': [*whole.interval], 'pairs': whole.pairs, 'phenomena': {
      share.name: share.accuracy for share in minimal_pairs.by_term(every)}}


def found_tables(plan: Plan) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
  """Finds the tables of tasks -> for each the files to learn from and those to be measured on. Raises ConfigError."""
  if not plan.glue:
    return {}
  found: dict[str, dict[str, list[str]]] = {}
  folder = storage.path_of(plan.glue)
  if not folder.is_dir():
    raise ConfigError(f'--glue is a folder of tables, and there is none at {plan.glue}')
  for file in sorted(map(str, files.walk(folder))):
    name, part, *_ = [*re.split(r'[/_.]', file[len(str(folder)):].strip('/').lower().replace('-', '')), '']
    if name in TASKS and TASKS[name].kind in KINDS and part in PARTS:
      found.setdefault(name, {'train': [], 'dev': []})[PARTS[part]].append(file)
  whole = {name: (tuple(some['train']), tuple(some['dev'])) for name, some in found.items() if all(some.values())}
  expected = (f'{plan.glue} has tables of {", ".join(whole) or "no task"}; of a task they are called TASK_train.tsv '
              'and TASK_dev.tsv, say')
  if lacking := [name for name in plan.tasks if name not in whole]:
    raise ConfigError(f'there are no tables of {", ".join(lacking)}: {expected}')
  if not whole:
    raise ConfigError(expected)
  return {name: whole[name] for name in plan.tasks or whole}


def taught(plan: Plan, task: str, train: tuple[str, ...], dev: tuple[str, ...]) -> dict[str, Any]:
  """Teaches the model a task, with the settings that are published for it. Raises Stopped."""
  scale: Any = plan.scale
  config = finetune.recipe(task, Start(plan.run, *loading.described(plan.run)), scale, train, dev)
  rate = config.optim.peak if scale == 'paper' else max(config.optim.peak, LAPTOP)
  config = checked.changed(config, {'output': f'{plan.output}/tasks/{task}', 'optim': {'peak': rate}})
  result = runs.run(config)
  if not result or not result.finished:
    raise Stopped
  return {'measure': config.train.best, 'heldout': result.heldout, 'steps': result.step}


def table(plan: Plan, config: Experiment | None, done: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
  """Returns the rows of the table, name -> value for people."""
  rows = {'model': plan.model or f'{plan.recipe}, scale {plan.scale}'}
  if 'text' in done and config:
    rows |= {'words': f'{done["text"]["words"]:,}', 'steps': f'{done["model"]["steps"]:,}'}
    for part, called in (('model', 'held out'), ('dev', '.dev')):
      values = done.get(part, {}).get('heldout', {})
      rows |= {f'{called}: {figures.called(name, values)}': config.objective.shown(name, value)
               for name, value in values.items() if not name.endswith(('_baseline', '_z'))}
  for name, found in done.items():
    if name.startswith('pairs '):
      low, high = found['interval']
      rows[f'minimal {name}'] = f'{found["accuracy"]:.1%}  ({low:.1%} to {high:.1%} of {found["pairs"]:,})'
      how = name.removeprefix('pairs ')
      rows |= {f'  {how}: {term}': f'{value:.1%}' for term, value in found['phenomena'].items()}
  scores = {name: found['heldout'][found['measure']] for name, found in done.items() if name.startswith('task ')}
  rows |= {f'{name}: {done[name]["measure"]}': f'{value:.2f}' for name, value in scores.items()}
  if len(scores) > 1:
    rows['mean of tasks'] = f'{sum(scores.values()) / len(scores):.2f}'
  return rows
