"""From a recipe and a command line to a run: what `python -m plm_jax train` does, and every file of `experiments/`."""
from collections.abc import Mapping, Sequence
import dataclasses
import os
import shlex
import sys
from typing import Any, NamedTuple, get_args

from etils import epath
import jax
from jax.experimental import multihost_utils
import tyro

from plm_jax import checked, config_file, environment, errors, recipes, storage
from plm_jax import config as config_lib
from plm_jax.cli import hints, options, preflight, report, vectors
from plm_jax.cli.concluding import by_corpus, say, surroundings
from plm_jax.cli.fine_tuned import fine_tuned, measured
from plm_jax.config import ConfigError, Experiment, FineTuning, HostsConfig, Run, Scale
from plm_jax.data import embedded
from plm_jax.data.prepare import PrepareConfig, prepare, records_folder
from plm_jax.data.records import RecordsError
from plm_jax.data.windows import Windows
from plm_jax.inference import blanks, fill_mask, generate
from plm_jax.inference.loading import Trained, read_config, tokenizer_of
from plm_jax.inference.samples import Blank, Sample
from plm_jax.layers.dense import count
from plm_jax.objectives import figures
from plm_jax.objectives.seq2seq import SequenceToSequence
from plm_jax.pods import hosts, machine
from plm_jax.pods.compile import compile_run
from plm_jax.pods.search import search_run
from plm_jax.recipes import Recipe, word_vectors
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.storage import reachable
from plm_jax.storage.lock import Lock
from plm_jax.tokenizers import Tokenizer, load
from plm_jax.training.scales import duration
from plm_jax.training.train import Result, evaluate_run, train
from plm_jax.training.warm_start import with_teacher
from plm_jax.training.writers import check_wandb

# Of parameters: as much as a host fetches, at the end, of what others hold, to show what the model says.
FETCHED = 8 << 30  # bytes
EVERY = 1 << 20  # batches: more than any text for evaluation has


class Shown(NamedTuple):
  """What a model says, for people to see. Empty: it was not asked."""

  prompts: Sequence[str] = ()
  cards: Sequence[Blank] = ()
  samples: Sequence[Sample] = ()
  usual: hints.Usual = 'beginning'  # what one gives it to write on


def start(name: str, args: Sequence[str] | None = None) -> None:
  """Runs the recipe of a name, or of a family with the --size among the arguments; exits with 1 and a message on bad
  input."""
  args = sys.argv[1:] if args is None else args
  if name in word_vectors.PAPER:
    vectors.start(name, args)
    return
  with errors.shown():
    size, rest = options.taken('--size', args)
    if {'-h', '--help'} & {*rest} and recipes.needs_size(name, size):
      print(recipes.about(name))
    else:
      main(recipes.find(name, size), rest)


def main(recipe: Recipe, args: Sequence[str]) -> None:
  """Runs a recipe with the command line's changes; exits with 1 and a message on bad input, with 75 where a signal has
  stopped it."""
  with errors.shown(), errors.options_under('--data.prepare.'):
    result = run(parse(recipe, args))
    errors.ended(result is None or result.finished)


def parse(recipe: Recipe, args: Sequence[str]) -> Experiment:
  """Returns the recipe at the scale that the arguments name, with the fields that they change."""
  # The scale has to be known before the defaults of everything else are.
  scale: Any = options.value_of('--scale', list(args)) or 'paper'
  if scale not in get_args(Scale):
    raise ConfigError(f'--scale is paper, laptop or test, got {checked.shortened(scale)}')
  options.check_moved(args)
  default = recipe(scale)
  with checked.later():  # by `check`, which knows the names of options
    config = tyro.cli(
        Experiment, default=default, args=options.normalise_booleans(args, options.booleans_of(default)),
        prog=options.program(recipe), description=recipe.about,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff))
    # A mesh that is asked for is that mesh or none; in what was left out of it the recipe's has no part.
    asked = {name: getattr(config.mesh, name) for name in ('data', 'fsdp', 'tensor')
             if options.value_of(f'--mesh.{name}', list(args))}
    return dataclasses.replace(config, mesh=MeshConfig(**asked)) if asked and config.mesh.adapts else config


def run(config: Run) -> Result | None:
  """Does one run in this process; in a job of several, every process calls it alike."""
  config_lib.check(config)
  if config.mode == 'compile':
    (search_run if config.search else compile_run)(config)
    return None
  environment.keep_memory()
  written: dict[str, reachable.Use] = {config.folder: 'run'} if config.mode == 'train' else {}
  reachable.check_reachable({**dict.fromkeys(reachable.paths_in(config_file.to_json(config)), 'read'), **written})
  computes, own = config.mode != 'prepare', machine.Machine()
  if computes:
    machine.check_usable(own)
  hosts.join(config.hosts)
  use_cache()
  if computes:
    machine.check_platform(own, machine.platform())
    config = with_teacher(config)
  if config.mode == 'train':
    preflight.check_disk(config, preflight.check_size(config).state)
    check_wandb(config.train.wandb)
    hosts.check_shared(config.folder)
    with hosts.owned(config.folder) as lock:
      return fine_tuned(config, lock) if isinstance(config, FineTuning) else trained(of_text(config), lock)
  if isinstance(config, FineTuning):
    if config.mode == 'prepare':
      raise ConfigError('labelled examples need no records: they are read when a run begins')
    tell(config, measured(config))
    return None
  config = of_text(config)
  folders, tokenizer = corpora(config)
  if config.mode == 'prepare':
    say('\n'.join(map(str, folders)))
    return None
  tell(config, evaluate_run(config, folders, tokenizer))
  return None


def use_cache() -> None:
  """Keeps compiled programs in the cache, unless the environment says where."""
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    jax.config.update('jax_compilation_cache_dir', str(storage.cache_folder() / 'xla'))


def of_text(config: Run) -> Experiment:
  """Returns the run, which learns from text. Raises ConfigError for one that does not."""
  if not isinstance(config, Experiment):
    raise ConfigError(f'{config.name} is no run that learns from text')
  return config


def trained(config: Experiment, lock: Lock) -> Result:
  """Does the run, from its text to its report. lock: of its folder."""
  folders, tokenizer = corpora(config)
  preflight.check_prompts(config, tokenizer)
  mesh = make_mesh(config.mesh)
  say(f'{config.name}: {config.train.steps:,} steps on {mesh.size} x {mesh.devices.flat[0].device_kind}, '
      f'output in {config.folder}')
  if jax.default_backend() == 'cpu' and (told := duration(config)):
    say(told)
  if config.mesh.adapts and (mesh.shape['fsdp'], mesh.shape['tensor']) != (config.mesh.fsdp, config.mesh.tensor):
    say(f'the recipe has a mesh of {config.mesh.fsdp} fsdp x {config.mesh.tensor} tensor, for its pod; here it is '
        + ' x '.join(f'{size} {axis}' for axis, size in mesh.shape.items()))
  result = train(config, folders, tokenizer, lock)
  if not result.finished:
    say(f'stopped by a signal at step {result.step:,} and saved: the same command goes on from there')
    return result
  objective, params = config.objective, result.params
  parameters = count(jax.eval_shape(objective.exported_params, params))
  if jax.process_count() > 1:
    # What lies on other hosts has to be fetched by all of them together; only then can one go on alone.
    small = sum(x.nbytes for x in jax.tree.leaves(params)) <= FETCHED
    params = multihost_utils.process_allgather(params, tiled=True) if small else None
  with hosts.together('report'):  # whoever is done first would end the job
    if jax.process_index() == 0:
      shown = Shown() if params is None else ask(config, folders, Trained(
          config.family, config.model, objective.heads(config.model), objective.exported_params(params), tokenizer))
      conclude(config, result, parameters, shown, hints.text_of(folders[0], tokenizer))
  return result


def corpora(config: Experiment) -> tuple[list[epath.Path], Tokenizer]:
  """Returns the token records of every corpus, prepared if need be, and their tokenizer.

  Process 0 goes first; where the others do not see its disk, they prepare the same bytes on their own.
  """
  own = preflight.run_tokenizer(config) if config.mode == 'evaluate' else None
  folders = hosts.in_turn('records', lambda: prepared(config, own))
  tokenizer = own or load(folders[0] / 'tokenizer')
  if not own:
    preflight.check_kind(config, folders[0], tokenizer)
  return folders, tokenizer


def prepared(config: Experiment, own: Tokenizer | None) -> list[epath.Path]:
  """Prepares the records of every corpus. own: the tokenizer of the run that is evaluated, with which all records have
  to be made."""
  text, folders = dataclasses.asdict(config.data.prepare), []
  if config.warm_start and not text['tokenizer'] and (found := tokenizer_of(config.warm_start)):
    # In our own form, whatever form a checkpoint has it in.
    place = epath.Path(storage.cache_folder()) / 'tokenizers' / found.hash[:16]
    found.save(place)
    text['tokenizer'] = str(place)
  for source in config.data.path:
    folder = preflight.finished(source)
    if folder is None:
      source = source if '://' in source else os.path.expanduser(source)
      settings = PrepareConfig(**text, source=source, vocab=config.model.vocab)
      folder = records_folder(settings)
      if own and not preflight.made_with(own, folder):  # as the run itself would have
        settings = dataclasses.replace(settings, tokenizer=str(storage.path_of(config.folder) / 'tokenizer'))
        folder = records_folder(settings)
      prepare(settings, folder, () if own else config.rules())
    elif own and not preflight.made_with(own, folder):
      raise RecordsError(f'the records in {folder} were made with another tokenizer than that of the run in '
                         f'{config.folder}, whose losses would mean nothing: give the text itself')
    folders.append(folder)
    # Corpora that are mixed share the tokenizer of the first.
    text['tokenizer'] = text['tokenizer'] or str(folder / 'tokenizer')
  return folders


def tell(config: Run, values: Mapping[str, float]) -> None:
  """Prints held-out figures by name, a line each, and those of each corpus in a line, on process 0."""
  def shown(name, value):
    return config.objective.shown(name, value, digits=4)
  whole, corpora = figures.by_corpus(values)
  for name, value in whole.items():
    say(f'{figures.called(name, whole)}: {shown(name, value)}')
  for corpus, some in corpora.items():
    say(f'{corpus}: {figures.line(some, shown)}')


def evaluate(folder: str, texts: Sequence[str] = (), batches: int = 0, mesh: MeshConfig = MeshConfig()) -> None:
  """Prints the held-out losses of the run in `folder`, on its own text or, all of them, on `texts`."""
  config = read_config(folder)
  if isinstance(config, FineTuning):
    if texts:
      config = dataclasses.replace(config, data=dataclasses.replace(config.data, dev=tuple(texts)))
    run(dataclasses.replace(config, mode='evaluate', topology='', output=folder, mesh=mesh, hosts=HostsConfig()))
    return
  config = of_text(config)
  data, train_config = config.data, config.train
  if getattr(config.objective, 'says_language', False) and texts and len(texts) != len(data.path):
    raise ConfigError(f'tokens of this run say their language: give a text for each of its corpora, in the order of '
                      f'{", ".join(data.path)}; got {len(texts)}')
  if texts:
    data = dataclasses.replace(data, path=tuple(texts), weights=(),
                               prepare=dataclasses.replace(data.prepare, heldout=0.0))
  if texts or batches:
    train_config = dataclasses.replace(train_config, eval_batches=(batches or EVERY) * len(data.path))
  run(dataclasses.replace(
      config, mode='evaluate', topology='', output=folder, data=data, train=train_config, mesh=mesh,
      hosts=HostsConfig(), prompts=()))


def ask(config: Experiment, folders: Sequence[epath.Path], trained: Trained) -> Shown:
  """Shows what the model makes of the run's prompts, and of held-out text."""
  objective = config.objective
  writes_blanks = 'lm' in trained.heads and trained.model.kind == 'infilling'
  filled = fill_mask if 'mlm' in trained.heads else blanks if writes_blanks else None
  prompts = config.prompts or (embedded.PROMPTS if 'embedded' in config.data.path and filled else ())
  cards = filled.examples(trained, prompts, folders[0], config.seed) if filled else []
  # What has a blank is no beginning.
  begun = () if filled else prompts
  samples = generate.examples(trained, begun, folders[0], config.seed) if trained.writer else []
  if isinstance(objective, SequenceToSequence):
    phase = config.train.phases[-1]
    windows = Windows(
        folders[0], 'heldout', objective.window(phase.length), config.data.assembly, objective.target_budget)
    samples += generate.answered(trained, objective, windows)
  usual = 'beginning' if generate.continues(trained) else 'text'
  return Shown(prompts, cards, samples, usual)


def conclude(config: Experiment, result: Result, parameters: int, shown: Shown, text: hints.Text) -> None:
  """Writes the report, and what the terminal shows at the end. parameters: how many there are."""
  prompts, cards, samples, usual = shown
  heldout = result.heldout
  headline = report.figures(config.objective.terms, heldout)
  if 'bits_per_byte' in heldout:
    headline['Held-out bits per byte'] = f'{heldout["bits_per_byte"]:.3f}'
  headline |= {
      'Steps': f'{result.step:,}',
      'Tokens seen': f'{sum(p.steps * p.length * p.batch for p in config.train.phases):,}',
      'Times the text was read': f'{result.epochs:.{1 if result.epochs >= 1 else 3}f}',
      'Parameters': f'{parameters:,}',
      'Duration of this process': f'{result.seconds / 60:.1f} min',
  }
  environment, notes = surroundings(), hints.hints(config, text, result.epochs, heldout)
  path = report.write_report(config.folder, report.Summary(
      title=config.name, headline=headline, blanks=cards, samples=samples, config=config_file.to_json(config),
      environment=environment, notes=notes, sections=by_corpus(heldout, config.objective.shown)))
  print()
  for name, value in headline.items():
    print(f'{name + ":":34}{value}')
  for blank in cards[:max(3, len(prompts))]:
    print(f'\n{blank.prompt}' + (f'   [{blank.truth}]' if blank.truth else ''))
    print('   ' + '  '.join(f'{piece} {probability:.0%}' for piece, probability in blank.candidates))
  for sample in samples[:max(2, len(prompts))]:
    print(f'\n{sample.prompt} ⟶ {sample.text}')
  print(''.join(f'\n{text.words["hint"]}{note}' for note in notes))
  print(f'report: {path}')
  for command, of, kind in (('fill-mask', cards, 'blank'), ('generate', samples, usual)):
    if of:
      # What was asked, or text of the reader's language.
      own = prompts[:1] if command == 'fill-mask' or not cards else ()
      asked = own[0] if own else of[0].prompt if command == 'fill-mask' else text.words[kind]
      print(f'more:   python -m plm_jax {command} {shlex.quote(config.folder)} {shlex.quote(asked)}')
