"""Export and upload the named checkpoints of a run, which `train` and `run` keep by words."""
import hashlib
import pathlib
from typing import Literal

import tyro

from experiments.babylm.entry import require_named_checkpoints
from plm_jax.api import models
from plm_jax.cli import options
from plm_jax.cli.export import print_export
from plm_jax.cli.options import command
from plm_jax.conversion.folders import atomic_folder
from plm_jax.loading.loaded_model import load_model

ALL = 'all'
"""value of --checkpoint for all named checkpoints and the final model"""
LOCAL_OWNER = 'local'
"""owner of the models in a cache that `export` writes"""


@command()
def export_command(
    run: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    checkpoint: str = ALL, dtype: Literal['float32', 'float16', 'bfloat16', 'same'] = 'same'
) -> None:
  """Writes the checkpoints of a run as revisions in a local cache of the Hugging Face hub.

  Args:
    run: run folder
    out: folder of the cache, or for one checkpoint; it must not exist yet
    output: same as the OUTPUT argument
    checkpoint: name of the only checkpoint to export, such as chck_10M, to a folder that
      transformers loads; all: the final model and all named checkpoints
    dtype: dtype of the tensors. same: float32
  """
  out = options.choose_output(out, output)
  kind = None if dtype == 'same' else dtype
  if checkpoint != ALL:
    print_export(models.export(load_model(run, checkpoint=checkpoint), out, kind), out)
    return
  name = export_revisions(run, out, kind)
  print(f'{name} in {out}: HF_HUB_CACHE={out} HF_HUB_OFFLINE=1 lets transformers load it, with the '
        'checkpoints as revisions')


def export_revisions(run: str, out: str, dtype: models.Dtype | None = None) -> str:
  """Export the final model of a run and its named checkpoints as a cache of the Hugging Face hub.

  Args:
    run: run folder.
    out: folder of the cache, which must not exist yet or be empty.
    dtype: dtype of the tensors; None: float32.

  Returns:
    The name of the model in the cache.
  """
  checkpoints = require_named_checkpoints(run)
  title = pathlib.PurePath(run).name
  with atomic_folder(out) as draft:
    home = draft / f'models--{LOCAL_OWNER}--{title}'
    (home / 'refs').mkdir(parents=True)
    for revision in ('main', *checkpoints):
      # The hub names a snapshot by its commit, of 40 hexadecimal digits.
      commit = hashlib.sha1(f'{title} {revision}'.encode()).hexdigest()
      name = '' if revision == 'main' else revision
      models.export(load_model(run, checkpoint=name), home / 'snapshots' / commit, dtype)
      (home / 'refs' / revision).write_text(commit)
  return f'{LOCAL_OWNER}/{title}'


@command()
def push_command(
    run: tyro.conf.Positional[str], name: tyro.conf.Positional[str], checkpoint: str = ALL,
    public: bool = False, dtype: Literal['float32', 'float16', 'bfloat16', 'same'] = 'same',
    message: str = ''
) -> None:
  """Uploads the checkpoints of a run to the Hugging Face hub, each as a branch with its name.

  Log in before with `hf auth login`, or set HF_TOKEN.

  Args:
    run: run folder
    name: ORG/NAME on the hub, or NAME for your own account; it is made if there is none
    checkpoint: name of the only checkpoint to upload, such as chck_10M; all: the final model, as
      the main branch, and all named checkpoints
    public: let everyone read the model; by default it is private
    dtype: dtype of the tensors. same: float32
    message: message of the commits
  """
  kind = None if dtype == 'same' else dtype
  parts = ['', *require_named_checkpoints(run)] if checkpoint == ALL else [checkpoint]
  for part in parts:
    address = models.push(
        load_model(run, checkpoint=part), name, public, kind, part, message)
    print(f'{address} ({"public" if public else "private"}): add language and license to its '
          'model card')
