"""Do one run from its configuration: pre-train, fine-tune, prepare, compile or evaluate.

This is the common driver. `pretrain` and `finetune` read the data of a run, and report it.
"""
from collections.abc import Mapping, Sequence
import dataclasses
import sys
import time
from typing import Any

import jax

from plm_jax import environment, storage, validation, versions
from plm_jax.compile.report import compile_run, explain_out_of_memory
from plm_jax.compile.search import search_mesh
from plm_jax.config import run as config_lib
from plm_jax.config import serialization
from plm_jax.config.run import ConfigError, FinetuneRun, HostsConfig, PretrainRun, RunConfig
from plm_jax.data.records import read_meta
from plm_jax.distributed import hosts, machine
from plm_jax.errors import Caller, name_field
from plm_jax.loading.loaded_model import read_config
from plm_jax.objectives import metric_names
from plm_jax.planning import fit
from plm_jax.planning.devices import present_device
from plm_jax.report.environment import print_on_leader
from plm_jax.runs import preflight
from plm_jax.runs.conclude import PreparedRun
from plm_jax.runs.finetune import evaluate_finetuning, prepare_finetuning
from plm_jax.runs.pretrain import prepare_corpora, prepare_pretraining
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.storage import bucket_check, compilation_cache, hub
from plm_jax.storage.lock import Lock
from plm_jax.training.feed import NameSteps
from plm_jax.training.train import TrainingResult, evaluate_run, train
from plm_jax.training.warm_start import resolve_models
from plm_jax.training.writers import check_wandb

ALL_BATCHES = 1 << 20
"""more batches than any text for evaluation has"""
HUB_FIELDS = ('warm_start', 'tuning.decoder', 'objective.teacher', 'objective.vector_loss.teacher',
              'objective.vector_loss.guide', 'data.prepare.tokenizer', 'data.tokenizer')
"""options of a run that may name a model of the Hugging Face hub"""


def run(config: RunConfig, name_steps: NameSteps | None = None, caller: Caller = Caller()
        ) -> TrainingResult | None:
  """Do one run in this process; every process of a job calls it in the same way.

  Args:
    config: the run.
    name_steps: names checkpoints to keep at certain steps of pre-training, in `named_checkpoints`
      of the folder; every process of a job calls it.
    caller: for hints that depend on the options that are given.

  Returns:
    The result of training; None in other modes.

  Raises:
    UserError: options, text, machine or folder that cannot be used.
  """
  config_lib.check(config)
  started = time.monotonic()
  if config.mode == 'compile':
    if config.search:
      search_mesh(config)
    else:
      compile_run(config)
    return None
  environment.keep_memory()

  # Checks of buckets, of the machine, and of the agreement between processes.
  bucket_check.check_reachable(preflight.bucket_uses(config, config.mode == 'train'))
  computes, own = config.mode != 'prepare', machine.Machine()
  if computes:
    machine.check_tpu_usable(own)
  check_same_on_all_hosts(config, hosts.join_job(config.hosts))
  compilation_cache.use_compilation_cache()
  if computes:
    machine.check_platform(own, machine.start_jax())
    config = fit_to_devices(pin_hub_names(config))
  with hosts.barrier('checks before the run'):
    if computes:
      config = resolve_models(config)
    if config.mode == 'train':
      preflight.check_best_metric(config)
      preflight.check_warm_start(config)
      preflight.check_disk(config, preflight.check_memory(config).state)
      check_wandb(config.train.wandb)

  # Text or labeled examples, then the work.
  if config.mode == 'train':
    hosts.check_shared_folder(config.folder)
    with hosts.locked(config.folder) as lock:
      if isinstance(config, FinetuneRun):
        return train_prepared(prepare_finetuning(config, caller), lock)
      prepared = prepare_pretraining(as_pretrain_run(config), name_steps, caller, started)
      return train_prepared(prepared, lock)
  if config.mode == 'prepare':
    if isinstance(config, FinetuneRun):
      raise ConfigError('labeled examples need no records: they are read when a run begins')
    folders, _ = prepare_corpora(as_pretrain_run(config))
    print_on_leader('\n'.join(map(str, folders)))
  elif isinstance(config, FinetuneRun):
    print_metrics(config, evaluate_finetuning(config))
  else:
    config = as_pretrain_run(config)
    folders, tokenizer = prepare_corpora(config)
    print_on_leader(f'text: {preflight.describe_heldout(config, folders)}')
    print_metrics(config, evaluate_run(config, folders, tokenizer))
  return None


def fit_to_devices(config: RunConfig) -> RunConfig:
  """Fit a run to the devices here: all of it but the steps with scale gpu, else the dtype.

  A run that resumes keeps what was chosen when it began.
  """
  if not isinstance(config, PretrainRun) or config.mode != 'train':
    return config
  device = present_device(jax.devices())
  dtype = validation.get_field(config, 'model.block.dtype')
  if device.note and dtype == 'bfloat16':
    print_on_leader(device.note)
    config = validation.with_paths(config, {'model.block.dtype': device.dtype})
  if config.scale != 'gpu':
    return config
  with hosts.barrier('size of the text'):
    tokens, records = preflight.corpus_tokens(config)
    return fit.start_fit(config, device, tokens, fit.has_new_tokenizer(config, records))


def pin_hub_names(config: RunConfig) -> RunConfig:
  """Give every model of the Hugging Face hub that a run names the commit that it is read from.

  Process 0 asks the hub, so all processes read the same commit. A run that resumes keeps its own.

  Raises:
    HubError: a name is unknown, or the hub cannot be reached.
  """
  pinned: dict[str, str] = {}
  with hosts.barrier('models of the Hugging Face hub'):
    if jax.process_index() == 0:
      begun = (storage.resolve_path(config.folder) / 'config.json').exists()
      before = read_config(config.folder) if begun else config
      for field in HUB_FIELDS:
        name = hub.parse_name(validation.get_field(config, field) or '')
        if name is None:
          continue
        recorded = hub.parse_name(validation.get_field(before, field) or '')
        if begun and recorded and recorded.name == name.name and not name.revision:
          name = recorded
        pinned[field] = hub.pin(name)
  return validation.with_paths(config, hosts.broadcast(pinned, 'commits of the Hugging Face hub'))


def check_same_on_all_hosts(config: RunConfig, place: hosts.JobPlace) -> None:
  """Raise HostsError on all processes where their options or package versions differ."""
  if place.count == 1:
    return
  # Each process has its own place in the job. A file tells whether all see the same output folder.
  own = 'hosts.', 'output'
  flat = serialization.flatten(serialization.to_plain(config))
  options = {name_field(name): value for name, value in flat.items() if not name.startswith(own)}
  hosts.check_agreement('options', options, 'Give every process the same options', place)
  hosts.check_agreement('versions', versions.describe_environment(),
                        'Install the same versions on all machines', place)


def as_pretrain_run(config: RunConfig) -> PretrainRun:
  """Return a configuration of pre-training; raise ConfigError for another one."""
  if not isinstance(config, PretrainRun):
    raise ConfigError(f'{config.name} is not a pre-training run')
  return config


def train_prepared(prepared: PreparedRun, lock: Lock) -> TrainingResult:
  """Train, or resume, a run whose data has been read, and report it.

  Args:
    prepared: the run.
    lock: lock of its folder, which this process holds.
  """
  config, mesh = prepared.config, make_mesh(prepared.config.mesh)
  kind = mesh.devices.flat[0].device_kind
  steps = [f'{phase.steps:,}' for phase in config.train.phases]
  parts = f' ({" + ".join(steps)}, in {len(steps)} phases)' if len(steps) > 1 else ''
  print_on_leader(f'{config.title}: {config.train.steps:,} steps{parts} on {mesh.size} x {kind}, '
                  f'output in {config.folder}')
  if warning := preflight.check_duration(config):
    print_on_leader(f'warning: {warning}')
  for note in prepared.notes:
    print_on_leader(note)
  largest = max(config.train.phases, key=lambda phase: phase.batch * phase.length)
  with explain_out_of_memory(largest), hosts.wait_for_cause():
    result = train(config, prepared.open_feed, prepared.tokenizer, lock, prepared.ahead)
  if result.finished:
    prepared.report(result)
  elif jax.process_index() == 0:
    print(f'stopped at step {result.step:,} and saved: the same command resumes from there',
          file=sys.stderr)
  return result


def print_metrics(config: RunConfig, values: Mapping[str, float]) -> None:
  """Print held-out metrics on process 0: one per line, and those of each corpus in one line."""
  def format_metric(name, value):
    return config.training_objective.reporting.format_metric(name, value, digits=4)

  whole, corpora = metric_names.split_by_corpus(values)
  for name, value in whole.items():
    print_on_leader(f'{metric_names.display_name(name, whole)}: {format_metric(name, value)}')
  for corpus, some in corpora.items():
    print_on_leader(f'{corpus}: {metric_names.format_line(some, format_metric)}')


def evaluate_folder(
    folder: str, texts: Sequence[str] = (), batches: int = 0, mesh: MeshConfig = MeshConfig()
) -> None:
  """Evaluate a run and print its held-out metrics.

  Args:
    folder: folder of the run.
    texts: corpora, of which all text is read; none: the held-out text of the run.
    batches: batches per corpus; 0: as many as in the run's evaluations, or all of `texts` and of a
      held-out text of its own.
    mesh: devices that share the batch, and a large model.
  """
  config = read_config(folder)
  shared: dict[str, Any] = {'mode': 'evaluate', 'topology': '', 'output': folder, 'mesh': mesh,
                            'hosts': HostsConfig()}
  if isinstance(config, FinetuneRun):
    if texts:
      config = validation.with_paths(config, {'data.dev': tuple(texts)})
    run(dataclasses.replace(config, **shared))
    return
  config = as_pretrain_run(config)
  if texts:
    config = replace_texts(config, texts)
  records = filter(None, map(preflight.finished_records, config.data.path))
  own = any(config.data.heldout_path) or any(read_meta(folder).heldout_path for folder in records)
  if texts or batches or own:  # a held-out text of its own is evaluated as a whole
    eval_batches = (batches or ALL_BATCHES) * len(config.data.path)
    config = validation.with_paths(config, {'train.eval_batches': eval_batches})
  run(dataclasses.replace(config, **shared, prompts=()))


def replace_texts(config: PretrainRun, texts: Sequence[str]) -> PretrainRun:
  """Return the configuration of a run for an evaluation on all of other texts.

  It has no shares of the corpora: these are of the corpora of training.

  Raises:
    ConfigError: the run needs as many texts as it has corpora.
  """
  needs_languages = getattr(config.objective, 'language_ids', False)
  if needs_languages and len(texts) != len(config.data.path):
    raise ConfigError('tokens of this run have a language: give one text per corpus of the run, '
                      f'in the order of {", ".join(config.data.path)}; got {len(texts)}')
  phases = [dataclasses.replace(phase, weights=(), temperature=None, corpora=0)
            for phase in config.train.phases]
  return validation.with_paths(config, {
      'data.path': tuple(texts), 'data.heldout_path': (), 'data.weights': (), 'data.cap': 0,
      'data.temperature': 1.0, 'data.unimax_epochs': 0.0, 'data.prepare.heldout': 0.0,
      'train.phases': tuple(phases)})
