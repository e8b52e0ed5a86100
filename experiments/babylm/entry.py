"""Implement `python -m experiments.babylm run`: train and evaluate a model of a BabyLM track.

    python -m experiments.babylm run --data=train_10M --output=runs/babylm \\
        --pairs='blimp/*.jsonl' --glue=glue
    python -m experiments.babylm run --data=train_10M --output=runs/babylm --scale=laptop
    python -m experiments.babylm run --model=FOLDER --output=runs/babylm --pairs='blimp/*.jsonl'

The text is deduplicated and prepared with a tokenizer of its own, and a model is trained on it by a
recipe. Then the model judges minimal pairs and is fine-tuned on tasks. Finished parts are kept in
--output, and are repeated only if the content of their files has changed. The same command resumes
after an interruption, and a command with more --pairs or tasks adds these.

    --data     text, as for `prepare`; of a folder with files .train these, and its .dev are held
               out
    --model    a run or a checkpoint that is only evaluated, for instance one from a pod
    --output   output folder: cleaned/, model/, tasks/NAME/, pairs-HOW.jsonl, babylm.json,
               babylm.html, and the predictions of zero-shot tasks in results/, as the challenge's
               own scripts write them
    --recipe   gpt_bert_strict_small (10 million words; the default), gpt_bert_strict (100 million),
               ltg_bert_strict_small, ltg_bert_strict, or any other
    --pairs    files of minimal pairs in the format of BLiMP, globs, folders; a model that also
               generates text is evaluated in both ways
    --limit    largest number of pairs per paradigm, and of items per part of a zero-shot task;
               0: all
    --zero-shot  folder evaluation_data/full_eval of the challenge: BLiMP and its supplement, EWoK,
               COMPS, entity tracking and the wug tasks (`experiments/babylm/zero_shot.py`)
    --fast     folder evaluation_data/fast_eval, on which the checkpoints of a run with --track.name
               are evaluated
    --glue     folder of tables: TASK_train.* and TASK_dev.*, or TASK/train.* and TASK/dev.* (tsv,
               csv, jsonl, .gz, .xz)
    --tasks    names of tasks in the folder; none: all of them

It also takes the options of `python -m plm_jax train gpt_bert_strict_small` and of the track
(`python -m experiments.babylm train --help`).
"""
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import re
from typing import Any

from experiments.babylm import zero_shot
from experiments.babylm.tracks import BYTE_PREMIUMS, TrackConfig, check_track
from experiments.babylm.word_checkpoints import name_steps
from plm_jax import errors, recipes, storage, streams, validation
from plm_jax.api import corpus, knowledge
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.checkpoints.restore import list_named_checkpoints
from plm_jax.cli import minimal_pairs as judging
from plm_jax.cli import options, work_identity
from plm_jax.cli import run as run_command
from plm_jax.cli.flags import name_flags, write_flags
from plm_jax.config import run as config_lib
from plm_jax.config.run import ConfigError, PretrainRun
from plm_jax.evaluation import minimal_pairs
from plm_jax.loading import loaded_model
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives import metric_names
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import InitialModel
from plm_jax.report import html
from plm_jax.report.environment import print_on_leader
from plm_jax.report.html import el
from plm_jax.runs import run
from plm_jax.runs.pretrain import prepare_corpora
from plm_jax.sources import source_files, text_sources
from plm_jax.storage import bucket_check
from plm_jax.storage.lock import Lock
from plm_jax.tasks.registry import TASKS
from plm_jax.training.train import TrainingResult, evaluate_run

OPTION_NAMES = (
    'data', 'model', 'output', 'recipe', 'pairs', 'limit', 'glue', 'tasks', 'zero-shot', 'fast')
RECIPE = 'gpt_bert_strict_small'
FILE, PAGE = 'babylm.json', 'babylm.html'
ZERO_SHOT = 'zero-shot'
"""beginning of the names of parts that evaluate zero-shot tasks"""
KINDS = 'classification', 'regression', 'choice'
SPLIT_NAMES = {'train': 'train', 'dev': 'dev', 'valid': 'dev', 'validation': 'dev'}
Done = dict[str, dict[str, Any]]
"""name of a finished part -> its results; under 'asked' what it was asked to do, and under
'content' a digest of the files that it read"""


@dataclasses.dataclass(frozen=True)
class BabylmPlan:
  """The options of the command."""

  output: str
  data: str = ''
  model: str = ''
  recipe: str = RECIPE
  pairs: str = ''
  limit: int = 0
  glue: str = ''
  tasks: tuple[str, ...] = ()
  zero_shot: str = ''
  fast: str = ''
  scale: str = 'paper'
  options: tuple[str, ...] = ()
  """options of the run and of its track"""

  @property
  def text(self) -> str:
    """Folder of the cleaned text."""
    return f'{self.output}/cleaned'

  @property
  def run(self) -> str:
    """Folder of the model."""
    return self.model or f'{self.output}/model'

  @property
  def fixed_options(self) -> dict[str, Any]:
    """Options that must stay the same in a folder with finished parts."""
    if self.model:
      return {'model': self.model, 'scale': self.scale}
    return {'data': self.data, 'model': self.model, 'recipe': self.recipe, 'scale': self.scale,
            'options': list(self.options)}


class RunStopped(Exception):
  """A signal has stopped a run, which has saved itself."""


def take_track(args: Sequence[str]) -> tuple[TrackConfig, list[str]]:
  """Split the options of the track off a command line. Raises ConfigError."""
  rest = options.join_values('--track.languages', args, BYTE_PREMIUMS)
  name, rest = options.pop_option('--track.name', rest)
  languages, rest = options.pop_option('--track.languages', rest)
  chosen: Any = name or 'none'
  with validation.defer_checks():
    track = TrackConfig(chosen, tuple(filter(None, languages.split(','))))
  validation.check(track, path='track')
  return track, rest


def run_on_track(config: PretrainRun, track: TrackConfig) -> TrainingResult | None:
  """Do a run by the rules of its track, if it has one; see `runs.run.run`."""
  caller = errors.Caller(spell=write_flags)
  if track.name == 'none' or config.mode != 'train':  # other text may be evaluated
    return run.run(config, caller=caller)
  check_track(track, len(config.data.path))
  return run.run(config, functools.partial(name_steps, track), caller)


def require_named_checkpoints(folder: str) -> list[str]:
  """List the named checkpoints of a run. Raises CheckpointError where it has none."""
  found = list_named_checkpoints(folder)
  if not found:
    raise CheckpointError(f'{folder} has no named checkpoints: a run with --track.name keeps them')
  return found


def start(args: Sequence[str]) -> None:
  """Do all that the arguments ask for.

  Exits with status 1 and one line on bad input, and with status 75 where a signal has stopped it.
  """
  with streams.protect(tolerant=True), errors.exit_on_error():
    if {'-h', '--help'} & {*args} or not args:
      print((__doc__ or '').strip())
      return
    plan = parse(args)
    uses: dict[str, bucket_check.BucketUse] = dict.fromkeys(
        bucket_check.find_bucket_paths(list(args)), 'read')
    uses[plan.output] = 'run'
    bucket_check.check_reachable(uses)
    finished = True
    with Lock(plan.output, 'a babylm'), name_flags(()):
      try:
        run_plan(plan)
      except RunStopped:
        finished = False
    errors.exit_unless_finished(finished)


def parse(args: Sequence[str]) -> BabylmPlan:
  """Parse the arguments. Raises ConfigError."""
  given, rest = {}, options.join_values('--tasks', args)
  for name in OPTION_NAMES:
    given[name], rest = options.pop_option(f'--{name}', rest)
  if not given['output']:
    raise ConfigError('--output is missing: a folder for all results')
  if bool(given['data']) == bool(given['model']):
    raise ConfigError('give --data, the text of a track, or --model, a run that has learned from '
                      'it')
  limit = given['limit'] or '0'
  if not re.fullmatch('[0-9]{1,9}', limit):
    raise ConfigError(f'--limit is a number of pairs, got {validation.short_repr(limit)}')
  if given['tasks'] and not given['glue']:
    raise ConfigError('--tasks are those of a folder of tables: give --glue')
  scale = options.option_value('--scale', rest) or 'paper'
  if given['model']:
    _, rest = options.pop_option('--scale', rest)
    if scale not in ('paper', 'laptop', 'test'):
      raise ConfigError(f'--scale is paper, laptop or test, got {validation.short_repr(scale)}')
    if rest or given['recipe']:
      raise ConfigError('--model is evaluated as it is: leave out '
                        f'{" ".join(rest) or "--recipe"}')
  tasks = tuple(filter(None, given['tasks'].split(',')))
  return BabylmPlan(
      output=given['output'].rstrip('/'), data=given['data'], model=given['model'].rstrip('/'),
      recipe=given['recipe'] or RECIPE, pairs=given['pairs'], limit=int(limit),
      glue=given['glue'], tasks=tasks, zero_shot=given['zero-shot'], fast=given['fast'],
      scale=scale, options=tuple(rest))


def run_plan(plan: BabylmPlan) -> None:
  """Do the parts that are not finished yet, then print and write the table. Raises RunStopped."""
  place = storage.resolve_path(plan.output) / FILE
  done = read_done(plan, place)
  config, track = None, TrackConfig()
  if not plan.model:
    config, track = make_config(plan)
  tables = find_tables(plan)
  if plan.pairs:
    source_files.find_files(plan.pairs)  # fail before hours of training
  for folder in filter(None, (plan.zero_shot, plan.fast)):
    zero_shot.find_datasets(folder)
  if plan.fast and config and track.name == 'none':
    raise ConfigError('--fast evaluates the checkpoints that a run with --track.name keeps: give '
                      '--track.name=strict-small, strict or multilingual')
  if plan.fast and plan.model:
    require_named_checkpoints(plan.model)

  # Of a model that this folder has trained, the text decides.
  model = ''
  if plan.model and storage.resolve_path(plan.model).is_dir():
    model = work_identity.digest_content([plan.model])

  def run_part(
      name: str, asked: Any, data: Sequence[str], work: Callable[[], dict[str, Any]]) -> None:
    content = work_identity.digest_content(data) + model
    before = done.get(name, {})
    if before.get('asked') == asked and before.get('content') == content:
      print_on_leader(f'{name}: done before')
      return
    changed = ' (its files have changed)' if before.get('asked') == asked else ''
    print_on_leader(f'{name}: {asked}{changed}')
    done[name] = {'asked': asked, 'content': content, **work()}
    storage.write_json(place, {'asked': plan.fixed_options, 'done': done})

  if config:
    text, rest = find_splits(plan.data)
    run_part('text', text, [text], lambda: clean_text(text, plan.text))
    run_part('model', plan.recipe, [plan.text], lambda: train_model(config, track))
    if rest:
      run_part('dev', rest, [rest], lambda: evaluate_heldout(plan.run, rest))
  if plan.pairs:
    trained = loaded_model.load_model(plan.run)
    asked = f'{plan.pairs} {plan.limit or "all"}'
    for how in scoring_ways(trained):
      run_part(
          f'pairs {how}', asked, [plan.pairs], lambda how=how: judge_pairs(plan, trained, how))
    del trained
  if plan.zero_shot:
    run_zero_shot(plan, plan.zero_shot, '', run_part)
  if plan.fast:
    for checkpoint in require_named_checkpoints(plan.run):
      run_zero_shot(plan, plan.fast, checkpoint, run_part)
  for task, (train, dev) in tables.items():
    work = functools.partial(finetune_task, plan, task, train, dev)
    run_part(f'task {task}', ' '.join((*train, *dev)), (*train, *dev), work)
  print_results(plan, result_rows(plan, config, done), done)


def print_results(plan: BabylmPlan, rows: Mapping[str, str], done: Done) -> None:
  """Print the table, and write the page with all results."""
  print()
  width = max(map(len, rows), default=0) + 2
  for name, value in rows.items():
    print(f'{name:{width}}{value}')
  page = f'{plan.output}/{PAGE}'
  everything = html.json_table({'asked': plan.fixed_options, **done})
  title = f'BabyLM: {plan.model or plan.recipe}'
  storage.write(page, html.render_document(title, 'plm_jax · BabyLM', [
      el('section', el('h2', 'Results'), html.json_table(rows)),
      el('section', el('h2', 'All metrics'), everything)]))
  print(f'\n{storage.resolve_path(plan.output) / FILE} has all metrics; page: {page}')


def read_done(plan: BabylmPlan, place: Any) -> Done:
  """Read the finished parts of the folder; raise ConfigError if it has other options."""
  if not place.exists():
    return {}
  found = storage.read_json(place)
  asked, done = found.get('asked'), found.get('done')
  if not isinstance(asked, dict) or not isinstance(done, dict):
    raise ConfigError(f'{place} is not of this command: give another --output')
  for name, value in plan.fixed_options.items():
    if asked.get(name) != value:
      raise ConfigError(f'{plan.output} was begun with {name} {asked.get(name)!r}, not {value!r}: '
                        'give the same, or another --output')
  return done


def make_config(plan: BabylmPlan) -> tuple[PretrainRun, TrackConfig]:
  """Return the configuration of the run; raise ConfigError for options that it does not have."""
  track, rest = take_track(plan.options)
  own = [f'--output={plan.run}', f'--data.path={plan.text}']
  config = run_command.parse(recipes.find_recipe(plan.recipe), [*rest, *own])
  if config.mode != 'train' or config.output != plan.run or config.data.path != (plan.text,):
    raise ConfigError('--mode and --data.path are options of `train`: `run` trains, on the text of '
                      '--data')
  config_lib.check(config)
  check_track(track, len(config.data.path))
  return config, track


def find_splits(data: str) -> tuple[str, str]:
  """Return the sources of training text and of held-out text, '' for none."""
  parts = []
  for kind in ('train', 'dev'):
    files = source_files.expand_glob(f'{data.rstrip("/")}/**/*.{kind}')
    parts.append(','.join(map(str, files)))
  return (parts[0], parts[1]) if parts[0] else (data, '')


def clean_text(source: str, out: str) -> dict[str, Any]:
  """Remove duplicate documents, and count what is left."""
  found = corpus.clean(source, out, duplicates='exact')
  print(found)
  words = 0
  for document in text_sources.read_documents(out):
    words += sum(len(paragraph.split()) for paragraph in document.paragraphs)
  print_on_leader(f'{words:,} words')
  duplicates = sum(found.dropped.values())
  return {'documents': found.kept_documents, 'duplicates': duplicates, 'words': words}


def train_model(config: PretrainRun, track: TrackConfig) -> dict[str, Any]:
  """Train the model, or resume training."""
  # Options of the run are also options of this command, so messages may name them.
  with name_flags(validation.field_paths(PretrainRun)):
    result = run_on_track(config, track)
  if not result or not result.finished:
    raise RunStopped
  return {'steps': result.step, 'epochs': result.epochs, 'heldout': result.heldout}


def evaluate_heldout(folder: str, texts: str) -> dict[str, Any]:
  """Compute the losses of a run on all of these texts."""
  config = run.as_pretrain_run(loaded_model.read_config(folder))
  config = run.replace_texts(config, (texts,))
  train = dataclasses.replace(config.train, eval_batches=run.ALL_BATCHES)
  config = dataclasses.replace(config, mode='evaluate', output=folder, prompts=(), train=train)
  return {'heldout': evaluate_run(config, *prepare_corpora(config))}


def scoring_ways(trained: LoadedModel) -> list[str]:
  """Return how a model judges pairs: by masks, from left to right, or both (GPT-BERT)."""
  ways = []
  if 'mlm' in trained.heads:
    ways.append('pll')
  if trained.lm_head_name:
    ways.append('causal')
  return ways


def judge_pairs(plan: BabylmPlan, trained: LoadedModel, how: Any) -> dict[str, Any]:
  """Judge all minimal pairs, and write the scores of each."""
  judged = knowledge.minimal_pairs(trained, plan.pairs, how, limit=plan.limit)
  lines = ''.join(f'{judging.format_record(one)}\n' for one in judged)
  storage.write(f'{plan.output}/pairs-{how}.jsonl', lines)
  whole = minimal_pairs.overall_accuracy(judged)
  phenomena = {}
  for share in minimal_pairs.accuracy_by_phenomenon(judged):
    phenomena[share.name] = share.accuracy
  return {'accuracy': whole.accuracy, 'interval': list(whole.interval), 'pairs': whole.pairs,
          'phenomena': phenomena}


def run_zero_shot(
    plan: BabylmPlan, folder: str, checkpoint: str,
    run_part: Callable[[str, Any, Sequence[str], Callable[[], dict[str, Any]]], None]) -> None:
  """Evaluate a model on the zero-shot tasks in a folder.

  Args:
    plan: the options.
    folder: folder full_eval or fast_eval of the challenge.
    checkpoint: name of a checkpoint; '': the final model.
    run_part: does a part of the work that is not finished yet.
  """
  trained = loaded_model.load_model(plan.run, checkpoint=checkpoint)
  for backend in zero_shot.find_backends(trained):
    score = zero_shot.make_scorer(trained, backend)
    for dataset, task in zero_shot.find_datasets(folder).items():
      def evaluate(
          dataset: str = dataset, task: zero_shot.TaskName = task,
          backend: zero_shot.Backend = backend, score: zero_shot.ScoreTexts = score
      ) -> dict[str, Any]:
        items = zero_shot.read_items(f'{folder}/{dataset}', task, plan.limit)
        results = zero_shot.rank_items(score, items)
        name = plan.run.rpartition('/')[2]
        home = f'{plan.output}/results/{name}/{checkpoint or "main"}/zero_shot/{backend}'
        zero_shot.write_predictions(home, dataset, results, task)
        return zero_shot.summarize(results, task)._asdict()
      asked = f'{folder}/{dataset} {plan.limit or "all"}'
      run_part(
          f'{ZERO_SHOT} {checkpoint or "final"} {backend}: {dataset}', asked,
          [f'{folder}/{dataset}'], evaluate)


def find_tables(plan: BabylmPlan) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
  """Return the training files and the development files of each task.

  Raises:
    ConfigError: there is no folder, no table, or no table of a requested task.
  """
  if not plan.glue:
    return {}
  found: dict[str, dict[str, list[str]]] = {}
  folder = storage.resolve_path(plan.glue)
  if not folder.is_dir():
    raise ConfigError(f'--glue is a folder of tables, and there is none at {plan.glue}')
  for file in sorted(map(str, source_files.walk_folder(folder))):
    inner = file[len(str(folder)):].strip('/').lower().replace('-', '')
    name, part = (re.split(r'[/_.]', inner) + [''])[:2]
    if name in TASKS and TASKS[name].kind in KINDS and part in SPLIT_NAMES:
      files = found.setdefault(name, {'train': [], 'dev': []})
      files[SPLIT_NAMES[part]].append(file)
  complete = {}
  for name, files in found.items():
    if files['train'] and files['dev']:
      complete[name] = tuple(files['train']), tuple(files['dev'])
  expected = (f'{plan.glue} has tables of {", ".join(complete) or "no task"}; of a task they are '
              'called TASK_train.tsv and TASK_dev.tsv, for example')
  if lacking := [name for name in plan.tasks if name not in complete]:
    raise ConfigError(f'there are no tables of {", ".join(lacking)}: {expected}')
  if not complete:
    raise ConfigError(expected)
  return {name: complete[name] for name in plan.tasks or complete}


def finetune_task(
    plan: BabylmPlan, task: str, train: tuple[str, ...], dev: tuple[str, ...]) -> dict[str, Any]:
  """Fine-tune the model on a task with published hyperparameters. Raises RunStopped."""
  scale: Any = plan.scale
  model = InitialModel(plan.run, *loaded_model.read_model_config(plan.run))
  config = finetune.recipe(task, model, scale, train, dev)
  config = validation.with_overrides(config, {'output': f'{plan.output}/tasks/{task}'})
  result = run.run(config)
  if not result or not result.finished:
    raise RunStopped
  metric = config.objective.metric_names[0]
  return {'measure': metric, 'heldout': result.heldout, 'steps': result.step}


def result_rows(
    plan: BabylmPlan, config: PretrainRun | None, done: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
  """Return the rows of the table, name -> text."""
  rows = {'model': plan.model or f'{plan.recipe}, scale {plan.scale}'}
  if 'text' in done and config:
    rows['words'] = f'{done["text"]["words"]:,}'
    rows['steps'] = f'{done["model"]["steps"]:,}'
    for part, called in (('model', 'held out'), ('dev', '.dev')):
      values = done.get(part, {}).get('heldout', {})
      for name, value in values.items():
        if not name.endswith(('_baseline', '_z')):
          title = metric_names.display_name(name, values)
          rows[f'{called}: {title}'] = config.objective.reporting.format_metric(name, value)
  for name, found in done.items():
    if name.startswith('pairs '):
      low, high = found['interval']
      interval = f'{low:.1%} to {high:.1%} of {found["pairs"]:,}'
      rows[f'minimal {name}'] = f'{found["accuracy"]:.1%}  ({interval})'
      how = name.removeprefix('pairs ')
      for term, value in found['phenomena'].items():
        rows[f'  {how}: {term}'] = f'{value:.1%}'
    if name.startswith(ZERO_SHOT):
      kind, shown = 'rho' if ': wug' in name else '%', 'not defined'
      if found['score'] is not None:
        shown = f'{found["score"]:.2f} {kind}'
      rows[name] = shown
  scores = []
  for name, found in done.items():
    if name.startswith('task '):
      scores.append(found['heldout'][found['measure']])
      rows[f'{name}: {found["measure"]}'] = f'{scores[-1]:.2f}'
  if len(scores) > 1:
    rows['mean of tasks'] = f'{sum(scores) / len(scores):.2f}'
  return rows
