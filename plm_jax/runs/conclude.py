"""Report a finished run: sample from the model, write report.html, print the results."""
from collections.abc import Callable, Mapping, Sequence
import shlex
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from etils import epath
import jax

from plm_jax import environment, truncation
from plm_jax.config import serialization
from plm_jax.config.run import PretrainRun, RunConfig
from plm_jax.data.records import read_meta
from plm_jax.data.windows import Windows
from plm_jax.distributed import hosts
from plm_jax.errors import Caller, print_line
from plm_jax.finetuning.setup import ResolvedRun
from plm_jax.inference import fill_mask, generate, glm_infill
from plm_jax.inference.samples import FillMaskSample, GenerationSample
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.models.families import own_pooling
from plm_jax.objectives import metric_names
from plm_jax.objectives.seq2seq import SequenceToSequence
from plm_jax.optim.trainable import count_trained
from plm_jax.report import hints, html
from plm_jax.report.baselines import compare_with_baselines
from plm_jax.report.environment import run_environment
from plm_jax.report.html import el
from plm_jax.report.model_card import describe_size
from plm_jax.runs.development import analyze_development
from plm_jax.sources import builtin_corpus
from plm_jax.tokenizers import Tokenizer
from plm_jax.training import run_metrics
from plm_jax.training.compile_ahead import CompileAhead
from plm_jax.training.feed import Feed
from plm_jax.training.learner import make_selection
from plm_jax.training.train import TrainingResult


class PreparedRun(NamedTuple):
  """A run whose text or examples have been read: what the driver trains and reports."""

  config: RunConfig
  tokenizer: Tokenizer
  open_feed: Callable[[Any], Feed]
  """as `training.train.train` takes it"""
  report: Callable[[TrainingResult], None]
  """writes the report and prints the results; all processes call it"""
  notes: Sequence[str] = ()
  """printed before training"""
  ahead: CompileAhead | None = None
  """compiles the programs of the run; None: training compiles them"""


class ModelSamples(NamedTuple):
  """Outputs of a model for the report; empty where the model was not sampled from."""

  prompts: Sequence[str] = ()
  """prompts of the user"""
  blanks: Sequence[FillMaskSample] = ()
  samples: Sequence[GenerationSample] = ()
  prompt_kind: hints.PromptKind = 'beginning'
  """kind of prompt for the model: the beginning of a text, or a text"""


def sample_outputs(
    config: PretrainRun, folders: Sequence[epath.Path], trained: LoadedModel) -> ModelSamples:
  """Fill masks and generate text for the report, from the user's prompts and held-out text."""
  objective = config.objective
  blanks: list[FillMaskSample] = []
  samples: list[GenerationSample] = []
  filler = None
  if 'mlm' in trained.heads:
    filler = fill_mask
  elif 'lm' in trained.heads and trained.model.kind == 'infilling':
    filler = glm_infill
  prompts = config.prompts
  if filler:
    if not prompts and 'embedded' in config.data.path:
      prompts = builtin_corpus.PROMPTS
    blanks = filler.make_samples(trained, prompts, folders[0], config.seed)
  if 'generate' in trained.capabilities:
    beginnings = () if filler else prompts  # a prompt with a mask is not a beginning
    samples = generate.make_samples(trained, beginnings, folders[0], config.seed)
  if isinstance(objective, SequenceToSequence):
    length = objective.text_length(config.train.phases[-1].length)
    split = read_meta(folders[0]).evaluation_split
    windows = Windows(
        folders[0], split, length, config.data.assembly, objective.layout.target_tokens)
    samples += generate.make_objective_samples(trained, objective, windows)
  kind = 'beginning' if generate.continues_prompts(trained) else 'text'
  return ModelSamples(prompts, blanks, samples, kind)


def report_pretraining(
    config: PretrainRun, result: TrainingResult, parameters: int, shown: ModelSamples,
    text: hints.TextFacts, heldout_text: str, caller: Caller = Caller()) -> None:
  """Write the report of a pre-training run, and print its results.

  Args:
    config: the run.
    result: the result of training.
    parameters: number of exported parameters.
    shown: outputs of the model.
    text: facts about the training text, for hints and their language.
    heldout_text: name and size of the held-out text.
    caller: see `runs.run.run`.
  """
  heldout = result.heldout
  headline = html.heldout_headline(config.objective.terms, heldout)
  if 'bits_per_byte' in heldout:
    headline['Held-out bits per byte'] = f'{heldout["bits_per_byte"]:.3f}'
  tokens = run_metrics.count_tokens_read(config.train.steps_and_tokens, result.step)
  digits = 1 if result.epochs >= 1 else 3
  headline |= {'Held-out text': heldout_text, 'Epochs': f'{result.epochs:.{digits}f}'}
  headline |= result.wall_times | {
      'Parameters': f'{parameters:,}', 'Steps': f'{result.step:,}', 'Tokens read': f'{tokens:,}'}
  notes = hints.run_hints(config, text, result.epochs, heldout)
  steps = next_commands(config, shown, text)
  path = write_run_report(
      config, f'{config.title}: {describe_size(config.model)}', headline,
      notes=[caller.spell(note) for note in notes], blanks=shown.blanks, samples=shown.samples,
      next_steps=steps,
      sections=corpus_section(heldout, config.objective.reporting.format_metric))
  for blank in shown.blanks[:max(3, len(shown.prompts))]:
    line = f'\n{blank.prompt}'
    if blank.truth:
      line += f'   [{blank.truth}]'
    print(line)
    print('   ' + '  '.join(f'{token} {share:.0%}' for token, share in blank.candidates))
  for sample in shown.samples[:max(2, len(shown.prompts))]:
    print(f'\n{sample.prompt} ⟶ {sample.text}')
  print_line(''.join(f'\n{text.words["hint"]}{note}' for note in notes))
  print(f'report: {path}')
  for purpose in ('Evaluate the task', 'Fill masks', 'Generate text'):
    if purpose in steps:
      print(f'more:   {steps[purpose]}')


def next_commands(
    config: PretrainRun, shown: ModelSamples, text: hints.TextFacts) -> dict[str, str]:
  """Return commands that use the model, with a prompt of the user or in the language of the text.

  Returns:
    {purpose: command}.
  """
  folder, program = shlex.quote(config.folder), environment.program()
  found, has_targets = {}, config.objective.layout.target_tokens
  if has_targets:
    source = shlex.quote(next(filter(None, (*config.data.heldout_path, *config.data.path))))
    found['Evaluate the task'] = f'{program} text-to-text {folder} {source}'
  elif shown.blanks:
    prompt = shown.prompts[0] if shown.prompts else shown.blanks[0].prompt
    found['Fill masks'] = f'{program} fill-mask {folder} {shlex.quote(prompt)}'
  if shown.samples and not has_targets:
    own = shown.prompts and not shown.blanks
    prompt = shown.prompts[0] if own else text.words[shown.prompt_kind]
    found['Generate text'] = f'{program} generate {folder} {shlex.quote(prompt)}'
  options = {'init': folder, 'task': 'TASK', 'train': 'FILE', 'dev': 'FILE'}
  given = ' '.join(environment.option(name, value) for name, value in options.items())
  found['Fine-tune on a task'] = f'{program} finetune {given}'
  found['Export to transformers'] = f'{program} export {folder} FOLDER'
  return found


def report_finetuning(ready: ResolvedRun, caller: Caller, result: TrainingResult) -> None:
  """Write the report of a fine-tuning run, and print its results."""
  config = ready.config
  with hosts.barrier('report'), truncation.count():
    if jax.process_index() != 0:
      return
    write = config.training_objective.reporting.format_metric
    headline = {f'Development {name.replace("_", " ")}': write(name, value)
                for name, value in result.heldout.items()}
    analysis = analyze_development(ready, caller.given)
    headline |= analysis.rows
    rows, notes = compare_with_baselines(ready, result, caller.given)
    notes = [*analysis.hints, *notes]
    steps_done = f'{result.step:,}'
    if result.best is not None:
      steps_done += f', the best of them {result.best:,}'
    parameters = sum(x.size for x in jax.tree.leaves(result.params))
    trained = count_trained(make_selection(config), result.params)
    headline |= rows | {'Epochs': f'{result.epochs:.1f}'} | result.wall_times | {
        'Parameters': f'{parameters:,}, of which {trained:,} are trained',
        'Training examples': f'{len(ready.train.examples):,}', 'Steps': steps_done}
    folder, program = shlex.quote(config.folder), environment.program()
    commands = {'Predict labels': f'{program} predict {folder} FILE'}
    model: Any = config.model
    if model.kind == 'recurrent' or model.head.pooling == own_pooling(model):
      commands['Export to transformers'] = f'{program} export {folder} FOLDER'
    path = write_run_report(
        config, config.title, headline,
        notes=[caller.spell(note) for note in (*ready.train.report.lines(), *notes)],
        next_steps=commands, sections=analysis.sections)
    print_line(''.join(f'\nhint:   {note}' for note in notes))
    print(f'report: {path}')
    print(f'more:   {commands["Predict labels"]}')


def write_run_report(
    config: Any, title: str, headline: Mapping[str, str], **parts: Any) -> epath.Path:
  """Write report.html of a run, print its main results, one per line, and return its path.

  Args:
    config: the run: a RunConfig or VectorRun.
    title: title of the page.
    headline: main results by name.
    **parts: further fields of `html.Summary`.
  """
  path = html.write_report(config.folder, html.Summary(
      title=title, headline=headline, config=serialization.to_json(config),
      environment=run_environment(), **parts))
  print()
  for name, value in headline.items():
    print(f'{name + ":":33} {value}')
  return path


def corpus_section(
    heldout: Mapping[str, float], format_metric: Callable[[str, float], str]) -> list[Element]:
  """Return the section of held-out metrics by corpus; no section for a single corpus.

  Args:
    heldout: metrics by name, those of a corpus as NAME/CORPUS.
    format_metric: (metric, value) -> text.
  """
  whole, corpora = metric_names.split_by_corpus(heldout)
  if not corpora:
    return []
  names = dict.fromkeys(name for some in corpora.values() for name in some)
  rows = {}
  for corpus, some in corpora.items():
    rows[corpus] = [format_metric(name, some[name]) if name in some else '' for name in names]
  titles = [metric_names.display_name(name, whole) for name in names]
  table = html.value_table(titles, rows)
  return [el('section', el('h2', 'Held-out metrics by corpus'), table)]
