"""From a recipe and a command line to a run: what every file of `experiments/` calls."""
from collections.abc import Callable, Sequence
import dataclasses
import importlib.metadata
import os
import platform
import shlex
import sys
import time
from typing import NamedTuple

from etils import epath
import jax
from jax.experimental import multihost_utils
import tyro

from plm_jax import blanks, errors, fill_mask, generate, hosts, reachable, report, storage
from plm_jax import config as config_lib
from plm_jax.compile import compile_run
from plm_jax.config import Experiment, Scale
from plm_jax.data import embedded
from plm_jax.data.prepare import PrepareConfig, prepare, records_folder
from plm_jax.data.windows import Windows
from plm_jax.layers.dense import count
from plm_jax.learner import Trained, meet, tokenizer_of
from plm_jax.lock import Lock
from plm_jax.objectives.seq2seq import SequenceToSequence
from plm_jax.report import Blank, Sample
from plm_jax.sharding import make_mesh
from plm_jax.tokenizers import Tokenizer, load
from plm_jax.train import Result, evaluate_run, train

# Of parameters: as much as a host fetches, at the end, of what others hold, to show what the model says.
FETCHED = 8 << 30  # bytes


class Shown(NamedTuple):
  """What a model says, for people to see. Empty: it was not asked."""

  prompts: Sequence[str] = ()
  cards: Sequence[Blank] = ()
  samples: Sequence[Sample] = ()
  usual: str = ''  # what one gives it to write on


def main(recipe: Callable[[Scale], Experiment], args: Sequence[str] | None = None) -> None:
  """Runs `recipe` with the command line's changes; exits with 1 and a message on bad input."""
  args = sys.argv[1:] if args is None else list(args)
  with errors.shown(), errors.options_under('--data.prepare.'):
    run(parse(recipe, args))


def parse(recipe: Callable[[Scale], Experiment], args: Sequence[str]) -> Experiment:
  """The recipe at the scale that the arguments name, with the fields that they change."""
  scale = next((value for value in map(scale_of, args, [*args[1:], '']) if value), 'paper')
  if scale not in ('paper', 'laptop', 'test'):
    sys.exit(f'error: --scale is paper, laptop or test, not {scale!r}')
  return tyro.cli(Experiment, default=recipe(scale), args=args, description=recipe.__doc__ or '',
                  config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff))


def scale_of(arg: str, following: str) -> str:
  """The scale has to be known before the defaults of everything else are."""
  return arg.removeprefix('--scale=') if arg.startswith('--scale=') else following if arg == '--scale' else ''


def run(config: Experiment) -> Result | None:
  """One run in this process; in a job of several, every process calls it alike."""
  config_lib.check(config)
  if config.mode == 'compile':
    compile_run(config)
    return None
  written: dict[str, reachable.Use] = {config.folder: 'run'} if config.mode == 'train' else {}
  reachable.check_reachable({**dict.fromkeys(reachable.paths_in(config_lib.to_json(config)), 'read'), **written})
  hosts.join(config.hosts)
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    jax.config.update('jax_compilation_cache_dir', str(storage.cache_folder() / 'xla'))
  if config.mode != 'prepare':
    config = meet(config)
  if config.mode == 'train':
    hosts.check_shared(config.folder)
    with hosts.owned(config.folder) as lock:
      return trained(config, lock)
  folders, tokenizer = corpora(config)
  if config.mode == 'prepare':
    say('\n'.join(map(str, folders)))
    return None
  for name, value in evaluate_run(config, folders, tokenizer).items():
    say(f'{name}: {value:.4f}')
  return None


def trained(config: Experiment, lock: Lock) -> Result:
  """The run, from its text to its report. lock: of its folder."""
  folders, tokenizer = corpora(config)
  mesh = make_mesh(config.mesh)
  say(f'{config.name}: {config.train.steps:,} steps on {mesh.size} x {mesh.devices.flat[0].device_kind}, '
      f'output in {config.folder}')
  result = train(config, folders, tokenizer, lock)
  if not result.finished:
    say(f'stopped by a signal at step {result.step:,} and saved: the same command goes on from there')
    return result
  objective, params = config.objective, result.params
  parameters = count(jax.eval_shape(objective.finished, params))
  if jax.process_count() > 1:
    # What lies on other hosts has to be fetched by all of them together; only then can one go on alone.
    small = sum(x.nbytes for x in jax.tree.leaves(params)) <= FETCHED
    params = multihost_utils.process_allgather(params, tiled=True) if small else None
  with hosts.together('report'):  # whoever is done first would end the job
    if jax.process_index() == 0:
      shown = Shown() if params is None else ask(config, folders, Trained(
          config.family, config.model, objective.heads(config.model), objective.finished(params), tokenizer))
      conclude(config, result, parameters, shown)
  return result


def corpora(config: Experiment) -> tuple[list[epath.Path], Tokenizer]:
  """The token records of every corpus, prepared if need be, and their tokenizer.

  Process 0 goes first; where the others do not see its disk, they prepare the same bytes on their own.
  """
  folders = hosts.in_turn('records', lambda: prepared(config))
  return folders, load(folders[0] / 'tokenizer')


def prepared(config: Experiment) -> list[epath.Path]:
  text, folders = dataclasses.asdict(config.data.prepare), []
  if config.warm_start and not text['tokenizer'] and (found := tokenizer_of(config.warm_start)):
    # In our own form, whatever form a checkpoint has it in.
    place = epath.Path(storage.cache_folder()) / 'tokenizers' / found.hash[:16]
    found.save(place)
    text['tokenizer'] = str(place)
  for source in config.data.path:
    if '://' not in source and source.startswith('~'):
      source = os.path.expanduser(source)
    folder = epath.Path(source)
    if not (folder / 'records.json').exists():
      settings = PrepareConfig(**text, source=source, vocab=config.model.vocab)
      folder = records_folder(settings)
      prepare(settings, folder)
    folders.append(folder)
    # Corpora that are mixed share the tokenizer of the first.
    text['tokenizer'] = text['tokenizer'] or str(folder / 'tokenizer')
  return folders


def ask(config: Experiment, folders: Sequence[epath.Path], trained: Trained) -> Shown:
  """What the model makes of the run's prompts, and of held-out text."""
  objective = config.objective
  writes_blanks = 'lm' in trained.heads and getattr(trained.model, 'types', 0)
  filled = fill_mask if 'mlm' in trained.heads else blanks if writes_blanks else None
  prompts = config.prompts or (embedded.PROMPTS if 'embedded' in config.data.path and filled else ())
  cards = filled.examples(trained, prompts, folders[0], config.seed) if filled else []
  samples = generate.examples(trained, prompts, folders[0], config.seed) if 'lm' in trained.heads else []
  if isinstance(objective, SequenceToSequence):
    phase = config.train.phases[-1]
    windows = Windows(folders[0], 'heldout', objective.window(phase.length), config.data.assembly, objective.room)
    samples += generate.answered(trained, objective, windows)
  usual = 'the beginning of a text' if generate.continues(trained) else 'a text'
  return Shown(prompts, cards, samples, usual)


def conclude(config: Experiment, result: Result, parameters: int, shown: Shown) -> None:
  """The report, and what the terminal shows at the end. parameters: how many there are."""
  prompts, cards, samples, usual = shown
  heldout = result.heldout
  headline = report.figures(config.objective.terms, heldout)
  if 'bits_per_byte' in heldout:
    headline['Held-out bits per byte'] = f'{heldout["bits_per_byte"]:.3f}'
  headline |= {
      'Steps': f'{result.step:,}',
      'Tokens seen': f'{sum(p.steps * p.length * p.batch for p in config.train.phases):,}',
      'Parameters': f'{parameters:,}',
      'Duration of this process': f'{result.seconds / 60:.1f} min',
  }
  environment = {
      'Command': shlex.join(['python', *sys.argv]), 'Finished': time.strftime('%F %T %Z'),
      'Devices': f'{jax.device_count()} x {jax.devices()[0].device_kind}', 'Python': platform.python_version(),
      **{name: importlib.metadata.version(name) for name in ('jax', 'flax', 'optax', 'orbax-checkpoint')}}
  path = report.write_report(config.folder, report.Summary(
      title=config.name, headline=headline, blanks=cards, samples=samples, config=config_lib.to_json(config),
      environment=environment, notes=[]))
  print()
  for name, value in headline.items():
    print(f'{name + ":":34}{value}')
  for blank in cards[:max(3, len(prompts))]:
    print(f'\n{blank.prompt}' + (f'   [{blank.truth}]' if blank.truth else ''))
    print('   ' + '  '.join(f'{piece} {probability:.0%}' for piece, probability in blank.candidates))
  for sample in samples[:max(2, len(prompts))]:
    print(f'\n{sample.prompt} ⟶ {sample.text}')
  print(f'\nreport: {path}')
  for command, of, kind in (('fill-mask', cards, 'a sentence with a [MASK] in it'), ('generate', samples, usual)):
    if of:
      prompt = shlex.quote(prompts[0] if prompts else kind)
      print(f'more:   python -m plm_jax {command} {shlex.quote(config.folder)} {prompt}')


def say(text: str) -> None:
  if jax.process_index() == 0:
    print(text, flush=True)
