"""The commands `export`, `push` and `expand-vocab`, which write a checkpoint."""
import pathlib
import tempfile
from typing import Literal

import tyro

from plm_jax import conversion, storage
from plm_jax.api import models
from plm_jax.cli import options
from plm_jax.cli.options import command
from plm_jax.conversion import peft
from plm_jax.errors import ConfigError
from plm_jax.loading.loaded_model import read_adapter_run
from plm_jax.sources import text_sources
from plm_jax.storage import hub
from plm_jax.training import vocabulary_expansion


@command(average='[0, inf)')
def export_command(
    run: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    dtype: Literal['float32', 'float16', 'bfloat16', 'same'] = 'same', adapter: bool = False,
    average: int = 0
) -> None:
  """Writes a checkpoint that transformers loads, with its tokenizer; or an adapter that peft loads.

  Args:
    run: run folder, transformers checkpoint, original TensorFlow checkpoint, or ORG/NAME of the
      Hugging Face hub
    out: folder for the checkpoint, local or gs://; it must not exist yet
    output: same as the OUTPUT argument
    dtype: dtype of the tensors. same: keep the dtype of the input (float32 for a run)
    adapter: write only the adapter, without the base model, for peft; for runs with
      --tuning.adapter.kind
    average: number of newest checkpoints of a run whose mean is written (checkpoint averaging);
      --train.keep decides how many there are. 0: the best checkpoint, or the newest
  """
  out = options.choose_output(out, output)
  kind = None if dtype == 'same' else dtype
  if adapter and average:
    raise ConfigError('--average is of whole models: leave it out with --adapter')
  if adapter:
    config, params = read_adapter_run(run)
    base = config.warm_start
    if name := hub.parse_name(base):
      base = name.name
    elif not conversion.is_checkpoint(base):
      base = ''
    peft.save_adapter(out, config.family, config.model, params, config.tuning.adapter, base)
    model = f': {base}' if base else ', exported'
    print(f'adapter in {out}: peft loads it with PeftModel.from_pretrained(base, {out!r}), where '
          f'base is the model that the run began with{model}')
    return
  print_export(models.export(run, out, kind, average=average), out)


def print_export(done: models.Exported, out: str) -> None:
  """Print what an exported checkpoint in a folder is for, and what it lacks."""
  if done.lost:
    print('left out, as transformers has no such head for this model: ' + ', '.join(done.lost))
  print(f'checkpoint in {out}: {done.how}')
  if (storage.resolve_path(out) / 'README.md').exists():
    print(f'model card in {out.rstrip("/")}/README.md: add language and license before you publish '
          'it')


@command()
def push_command(
    run: tyro.conf.Positional[str], name: tyro.conf.Positional[str], public: bool = False,
    dtype: Literal['float32', 'float16', 'bfloat16', 'same'] = 'same', revision: str = '',
    message: str = '', dry_run: bool = False
) -> None:
  """Exports a model and uploads it to the Hugging Face hub, with its model card, as one commit.

  Log in before with `hf auth login`, or set HF_TOKEN.

  Args:
    run: run folder or checkpoint
    name: ORG/NAME on the hub, or NAME for your own account; it is made if there is none
    public: let everyone read the model; by default it is private
    dtype: dtype of the tensors. same: keep the dtype of the input (float32 for a run)
    revision: branch; the main branch by default
    message: message of the commit
    dry_run: only print the files that would be uploaded, and who could read them
  """
  kind = None if dtype == 'same' else dtype
  if dry_run:
    with tempfile.TemporaryDirectory(prefix='plm_jax-push-') as folder:
      draft = pathlib.Path(folder, 'model')
      models.export(run, draft, kind)
      for path in sorted(draft.iterdir()):
        print(f'{path.stat().st_size:16,} bytes  {path.name}')
    readers = 'everyone' if public else 'only you and your organization'
    print(f'{name} on the Hugging Face hub: {readers} could read it. Nothing was uploaded')
    return
  address = models.push(run, name, public, kind, revision, message)
  print(f'{address} ({"public" if public else "private"}): add language and license to its '
        'model card')


@command(words='[1, 1000000]', least='[1, inf)')
def expand_vocab_command(
    run: tyro.conf.Positional[str], text: tyro.conf.Positional[str],
    out: tyro.conf.Positional[str] = '', output: str = '', words: int = 1000, least: int = 5
) -> None:
  """Writes a checkpoint with words of a domain added to its vocabulary (vocabulary expansion).

  Args:
    run: run folder or checkpoint; its tokenizer is WordPiece, byte-level BPE or SentencePiece
    text: text of the domain: files, globs or folders
    out: folder for the checkpoint, for --warm-start; it must not exist yet
    output: same as the OUTPUT argument
    words: maximum number of words to add: the most frequent words that the tokenizer splits into
      several tokens
    least: minimum frequency of an added word
  """
  out = options.choose_output(out, output)
  trained = models.load(run)
  tokenizer = vocabulary_expansion.require_tokenizer(trained)
  found = vocabulary_expansion.find_new_words(
      text_sources.read_texts(text), tokenizer, words, least)
  grown = vocabulary_expansion.expand_vocabulary(trained, found)
  models.export(grown, out)
  listed = ', '.join(map(str.strip, found[:5])) + (', ...' if len(found) > 5 else '')
  added = vocabulary_expansion.require_tokenizer(grown).vocab.size - tokenizer.vocab.size
  parts = f' and {added - len(found)} parts of them' if added > len(found) else ''
  print(f'{len(found)} words{parts} more, {listed}: give --warm-start={out} '
        f'--model.vocab={grown.model.vocab}')
