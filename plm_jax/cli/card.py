"""README.md beside an exported model: what it is, how it came about, and what only its author can say."""
from collections.abc import Mapping

from plm_jax.cli.concluding import own_version
from plm_jax.cli.curves import history
from plm_jax.config import Experiment, Run
from plm_jax.objectives import figures
from plm_jax.training import metrics
from plm_jax.training.checkpoint import CheckpointError

PIPELINES = {'fill_mask': 'fill-mask', 'generate': 'text-generation'}  # of transformers, by what a model can

CARD = """---
library_name: transformers
{pipeline}tags:
- plm_jax
---

# {name}

A {family} of {parameters:,} parameters, {how} with plm_jax {version} by its recipe `{name}`.

| | |
|---|---|
{rows}

## To be said by its author

Above, between the lines of three dashes, `language:` and `license:`. Here: where the text is from and whether it may
be shared, what the model is good for, and what it is not.
"""


def card(run: Run, heldout: Mapping[str, float], family: str, can: tuple[str, ...], parameters: int) -> str:
  """Writes the card of a model that a run has trained, in the form that model hubs show.

  heldout: its last held-out figures; can: what may be asked of it (`Trained.can`).
  """
  pipeline = next((f'pipeline_tag: {PIPELINES[name]}\n' for name in can if name in PIPELINES), '')
  rows = {'Scale': run.scale, 'Steps': f'{run.train.steps:,}',
          'Tokens read': f'{metrics.tokens_read(run.train.pace, run.train.steps):,}'}
  if isinstance(run, Experiment):
    # The last part of each path: the others are of the machine.
    rows['Text'] = ', '.join(f'`{path.rstrip("/").rpartition("/")[2]}`' for path in run.data.path)
    rows['Learned'] = ', '.join(map(figures.question, run.objective.terms))
  rows |= {f'Held-out {figures.called(name, heldout)}': run.objective.shown(name, value)
           for name, value in heldout.items()}
  return CARD.format(
      pipeline=pipeline, name=run.name, family=family, parameters=parameters,
      how='pre-trained' if isinstance(run, Experiment) else 'fine-tuned',
      version=own_version(), rows='\n'.join(f'| {key} | {text} |' for key, text in rows.items()))


def of_run(folder: str, family: str, can: tuple[str, ...], parameters: int) -> str:
  """Writes the card of the run in a folder; '' where no run has written there."""
  try:
    found = history(folder)
  except CheckpointError:
    return ''
  heldout = {name: value for name in found.curves if (value := found.last(name)) is not None}
  return card(found.config, heldout, family, can, parameters) if found.config else ''
