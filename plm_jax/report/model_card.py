"""Write the model card of an exported model, README.md, as model hubs display it."""
from collections.abc import Mapping
import types
from typing import Any, NamedTuple

from plm_jax import storage
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.checkpoints.restore import find_run_checkpoints, open_newest
from plm_jax.config.run import PretrainRun, RunConfig
from plm_jax.objectives import metric_names
from plm_jax.report.environment import package_version
from plm_jax.report.history import history
from plm_jax.storage import hub
from plm_jax.training import run_metrics

BASELINES_FILE = 'baselines.json'
"""scores of the baselines by metric and name, in the folder of a fine-tuning run"""
PIPELINES = {
    'similar': 'sentence-similarity', 'rerank': 'text-ranking', 'tag': 'token-classification',
    'answer': 'question-answering', 'predict': 'text-classification', 'fill_mask': 'fill-mask',
    'generate': 'text-generation'}
"""pipeline_tag of model hubs, by the first of these that a model supports"""

BUILT_IN = {'embedded': 'documentation of installed Python packages (built-in corpus)'}


class ExportedModel(NamedTuple):
  """What a model card says about the exported files."""

  family: str
  """model_type of transformers"""
  can: tuple[str, ...]
  """functions that the model supports (`LoadedModel.capabilities`)"""
  parameters: int
  """number of parameters"""
  usage: str = '`plm_jax.load` loads it.'
  """a sentence on what loads the model"""


TEMPLATE = """---
library_name: {library}
{pipeline}{base}tags:
- plm_jax
---

# {name}

A `{family}` model with {parameters:,} parameters ({size}), {how} with the recipe `{recipe}` of
plm_jax {version}{scale}.

| | |
|---|---|
{rows}

## How to use

{usage}

## Limitations

The metrics above are all that was measured. The model repeats errors and biases of its training
text, and was not tested on other text.
"""


def render_card(
    run: RunConfig, heldout: Mapping[str, float], model: ExportedModel, step: int | None = None,
    baselines: Mapping[str, Mapping[str, float]] = types.MappingProxyType({})) -> str:
  """Return the model card of a run.

  Args:
    run: its configuration.
    heldout: held-out metrics of the exported parameters.
    model: what was exported.
    step: updates before the exported parameters; None: all that were planned.
    baselines: their scores by metric and name.
  """
  tag = next((tag for name, tag in PIPELINES.items() if name in model.can), '')
  pretrained = isinstance(run, PretrainRun)
  name = hub.parse_name(run.warm_start)
  base = f'base_model: {name.name}\n' if name and not pretrained else ''
  step = run.train.steps if step is None else step
  planned = f' of {run.train.steps:,} planned' if step != run.train.steps else ''
  scale = f' at the {run.scale} scale' if run.scale != 'paper' else ''
  tokens = run_metrics.count_tokens_read(run.train.steps_and_tokens, step)
  rows = {'Steps': f'{step:,}{planned}', 'Tokens read': f'{tokens:,}'}
  if isinstance(run, PretrainRun):
    # Only the last part of a path, since the rest describes the machine.
    rows['Text'] = ', '.join(BUILT_IN.get(path, f'`{last_part(path)}`') for path in run.data.path)
    if heldout_paths := list(filter(None, run.data.heldout_path)):
      rows['Held-out text'] = ', '.join(f'`{last_part(path)}`' for path in heldout_paths)
    terms = [name for name in run.objective.terms if name not in metric_names.REGULARIZERS]
    rows['Objectives'] = ', '.join(map(metric_names.term_name, terms))
  format_metric = run.training_objective.reporting.format_metric
  for name, value in heldout.items():
    if name.partition('/')[0] not in metric_names.REGULARIZERS:
      title = metric_names.display_name(name, heldout)
      rows[f'Held-out {title}'] = format_metric(name, value)
    for baseline, score in baselines.get(name, {}).items():
      rows[f'Baseline, {baseline}'] = f'{format_metric(name, score)} {name}'
  how = 'pre-trained' if pretrained else 'fine-tuned'
  return TEMPLATE.format(
      library='sentence-transformers' if 'similar' in model.can else 'transformers', base=base,
      pipeline=f'pipeline_tag: {tag}\n' if tag else '', name=run.title, recipe=run.name,
      usage=model.usage, family=model.family, parameters=model.parameters,
      size=describe_size(run.model), scale=scale, how=how, version=package_version(),
      rows='\n'.join(f'| {key} | {text} |' for key, text in rows.items()))


def describe_size(model: Any) -> str:
  """Describe the number of layers and the width of a model in words."""
  if model.kind == 'recurrent':
    return f'{model.layers} layers, {model.cells:,} cells'
  layers = f'{model.stack.layers}'
  if model.kind == 'encoder-decoder':
    layers += f' + {model.decoder.layers}'
  return f'{layers} layers, hidden size {model.block.width:,}'


def last_part(path: str) -> str:
  """Return the last part of a path."""
  return path.rstrip('/').rpartition('/')[2]


def run_card(folder: str, model: ExportedModel, checkpoint: str = '') -> str:
  """Return the model card of the run in a folder; '' if no run has written there.

  checkpoint: name of the exported checkpoint; '': the best or the newest.

  Its metrics are those of the exported checkpoint, or the last ones of metrics.jsonl up to it.
  """
  try:
    found = history(folder)
  except CheckpointError:
    return ''
  if not found.config:
    return ''
  try:
    with open_newest(find_run_checkpoints(folder, name=checkpoint)) as (checkpoints, newest):
      step, heldout = newest, checkpoints.meta(newest).get('heldout')
  except CheckpointError:
    step, heldout = None, None
  if not heldout:
    until = found.config.train.steps if step is None else step
    heldout = {}
    for name in found.curves:
      values = [value for at, value in found.points(name) if at <= until]
      if values:
        heldout[name] = values[-1]
  path = storage.resolve_path(folder) / BASELINES_FILE
  baselines = storage.read_json(path, error=CheckpointError) if path.exists() else {}
  return render_card(found.config, heldout, model, step, baselines)
