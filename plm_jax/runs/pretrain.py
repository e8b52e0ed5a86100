"""The text of a pre-training run, prepared as token records, and the samples of its report."""
import dataclasses
import os
import time

from etils import epath
import jax
from jax.experimental import multihost_utils

from plm_jax import storage
from plm_jax.config.run import PretrainRun
from plm_jax.data.records import RecordsError, read_meta
from plm_jax.distributed import hosts
from plm_jax.errors import Caller
from plm_jax.layers.dense import count_parameters
from plm_jax.loading.loaded_model import LoadedModel, find_tokenizer
from plm_jax.planning import fit
from plm_jax.preparation.prepare import PrepareConfig, prepare, records_folder
from plm_jax.recipes.scale_presets import describe_duration
from plm_jax.report import hints
from plm_jax.report.environment import print_on_leader
from plm_jax.runs import preflight
from plm_jax.runs.conclude import ModelSamples, PreparedRun, report_pretraining, sample_outputs
from plm_jax.sharding import make_mesh
from plm_jax.tokenizers import Tokenizer, load, wordpiece
from plm_jax.training.compile_ahead import CompileAhead
from plm_jax.training.feed import NameSteps, TextFeed, mean_epochs
from plm_jax.training.train import DIFFERENT_DATA, TrainingResult

MAX_FETCHED_BYTES = 8 << 30
"""largest size of a model that is fetched from other hosts, to sample from it for the report"""


def prepare_pretraining(
    config: PretrainRun, name_steps: NameSteps | None = None, caller: Caller = Caller(),
    started: float = 0.0) -> PreparedRun:
  """Prepare the text of a run, and check what can be checked of it before the first step.

  name_steps, caller: see `runs.run.run`. started: time.monotonic() when the command began.
  """
  ahead = start_compiling(config)
  try:
    folders, tokenizer = prepare_corpora(config)
    preflight.check_prompts(config, tokenizer)
  except BaseException:
    if ahead:
      ahead.cancel()
    raise
  for check in (preflight.check_heldout, preflight.check_sentence_pairs):
    if warning := check(config, folders):
      print_on_leader(f'warning: {warning}')

  if config.scale == 'gpu' and not fit.fitted_before(config):
    tokens = sum(read_meta(folder).tokens('train') for folder in folders)
    config = fit.finish_fit(config, tokens, time.monotonic() - started)

  # Notes on duration and mesh.
  notes = []
  if jax.default_backend() == 'cpu' and (duration := describe_duration(config)):
    notes.append(duration)
  mesh, planned = make_mesh(config.mesh), (config.mesh.fsdp, config.mesh.tensor)
  other = (mesh.shape['fsdp'], mesh.shape['tensor']) != planned
  if config.mesh.adapts and other and config.scale != 'gpu':
    shape = ' x '.join(f'{size} {axis}' for axis, size in mesh.shape.items())
    notes.append(f'the recipe has a mesh of {config.mesh.fsdp} fsdp x {config.mesh.tensor} '
                 f'tensor, for its pod; here it is {shape}')

  def token_vectors(old):
    from plm_jax.word_vectors import aligned_vectors, token_vectors  # most runs need none
    if config.tuning.vocabulary == 'wechsel':
      return aligned_vectors.load_aligned_vectors(config.tuning, old, tokenizer)
    return token_vectors.train_token_vectors(folders, tokenizer)
  def open_feed(mesh):
    feed = TextFeed(config, folders, tokenizer, mesh, name_steps, token_vectors)
    if config.scale != 'test' and (
        epochs := mean_epochs(config.train.phases, feed.pipelines)) > 100:
      print_on_leader(f'warning: this run reads its text {epochs:,.0f} times, and more than 40 '
                      'help little: is it the text that you meant?')
    return feed
  def report(result):
    report_samples(config, folders, tokenizer, result, caller)
  return PreparedRun(config, tokenizer, open_feed, report, notes, ahead)


def start_compiling(config: PretrainRun) -> CompileAhead | None:
  """Start to compile a new run of the laptop scale on CPUs whose tokenizer is yet to be trained.

  Returns:
    None for other runs: their vocabulary is not known, or there is hardly any preparation that
    compilation could go on during.
  """
  text = config.data.prepare
  if config.scale != 'laptop' or jax.default_backend() != 'cpu' or jax.process_count() > 1:
    return None
  if text.kind != 'wordpiece' or text.tokenizer or config.warm_start:
    return None
  if (storage.resolve_path(config.folder) / 'config.json').exists():  # compiled before
    return None
  if preflight.finished_records(config.data.path[0]):
    return None
  blanks = text.layout == 'glm'
  return CompileAhead(config, wordpiece.expected_vocab(config.model.vocab, blanks))


def report_samples(
    config: PretrainRun, folders: list[epath.Path], tokenizer: Tokenizer, result: TrainingResult,
    caller: Caller) -> None:
  """Sample from the trained model on process 0, and write the report.

  Parameters on other hosts are fetched by all of them together; then process 0 continues alone.
  """
  objective, params = config.objective, result.params
  parameters = count_parameters(jax.eval_shape(objective.lifecycle.exported, params))
  if jax.process_count() > 1:
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    fits = size <= MAX_FETCHED_BYTES
    params = multihost_utils.process_allgather(params, tiled=True) if fits else None
  with hosts.barrier('report'):  # the first process to finish would end the job
    if jax.process_index() == 0:
      shown = ModelSamples()
      if params is not None:
        shown = sample_outputs(config, folders, LoadedModel(
            config.family, config.model, objective.heads(config.model),
            objective.lifecycle.exported(params), tokenizer))
      text = hints.examine_text(folders[0], tokenizer)
      report_pretraining(
          config, result, parameters, shown, text, preflight.describe_heldout(config, folders),
          caller)


def prepare_corpora(config: PretrainRun) -> tuple[list[epath.Path], Tokenizer]:
  """Return the token records of every corpus, prepared where necessary, and their tokenizer.

  Process 0 goes first. Processes that do not see its disk prepare the same bytes themselves.
  """
  own = None
  with hosts.barrier('tokenizer of the run'):
    if config.mode == 'evaluate':
      own = preflight.load_run_tokenizer(config)
  folders = hosts.leader_first('records', lambda: prepare_records(config, own))
  with hosts.barrier('tokenizer'):
    tokenizer = own or load(folders[0] / 'tokenizer')
    digests = {}
    for path, folder in zip(config.data.path, folders, strict=True):
      digests[f'the text of {path}'] = read_meta(folder).content_digest[:16]
  facts = {'the tokenizer': tokenizer.hash[:16], **digests}
  hosts.check_agreement('data', facts, DIFFERENT_DATA)
  if not own:
    preflight.check_tokenizer_kind(config, folders[0], tokenizer)
    for folder in folders:
      preflight.check_exact_text(config, folder)
  return folders, tokenizer


def prepare_records(config: PretrainRun, own: Tokenizer | None) -> list[epath.Path]:
  """Prepare the token records of every corpus.

  Args:
    config: the run.
    own: the tokenizer of the run that is evaluated, with which all records must be made; None: the
      run decides.
  """
  preflight.check_heldout_paths(config)
  text, folders = dataclasses.asdict(config.data.prepare), []
  if config.warm_start and not text['tokenizer'] and (found := find_tokenizer(config.warm_start)):
    # Save it in the format of plm_jax, whatever the format of the checkpoint.
    place = epath.Path(storage.cache_folder()) / 'tokenizers' / found.hash[:16]
    found.save(place)
    text['tokenizer'] = str(place)
  for source, heldout in config.data.corpora:
    folder = preflight.finished_records(source)
    if folder is None:
      source, heldout = (path if '://' in path else os.path.expanduser(path)
                         for path in (source, heldout))
      share = 0.0 if heldout else text['heldout']
      settings = PrepareConfig(
          **{**text, 'heldout': share}, source=source, vocab=config.model.vocab,
          heldout_path=heldout)
      folder = records_folder(settings)
      if own and not preflight.is_made_with(own, folder):  # as the run itself would
        tokenizer = str(storage.resolve_path(config.folder) / 'tokenizer')
        settings = dataclasses.replace(settings, tokenizer=tokenizer)
        folder = records_folder(settings)
      prepare(settings, folder, () if own else config.rules())
    elif own and not preflight.is_made_with(own, folder):
      raise RecordsError(f'the records in {folder} were made with another tokenizer than that of '
                         f'the run in {config.folder}, whose losses would mean nothing: give the '
                         'text itself')
    folders.append(folder)
    # The corpora of a mixture share the tokenizer of the first.
    text['tokenizer'] = text['tokenizer'] or str(folder / 'tokenizer')
  return folders
