"""The commands `generate` and `text-to-text`."""
import sys
from typing import Annotated

import tyro

from plm_jax import storage
from plm_jax.api import models
from plm_jax.cli import inputs, options, output_files
from plm_jax.cli.options import command
from plm_jax.errors import ConfigError
from plm_jax.evaluation import text_to_text
from plm_jax.evaluation.text_to_text import ReadingConfig
from plm_jax.inference import generate
from plm_jax.loading import generation_config
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.metrics import generation as metrics
from plm_jax.sharding import MeshConfig


@command(seed=options.SEED_LIMITS)
def generate_command(
    run: tyro.conf.Positional[str], prompts: tyro.conf.Positional[tuple[str, ...]] = (),
    file: str = '', stream: bool = False, seed: int = 0, mesh: MeshConfig = MeshConfig(1),
    settings: Annotated[GenerationConfig, tyro.conf.arg(name='')] = GenerationConfig()) -> None:
  """Generates continuations of texts; an encoder-decoder generates outputs for its inputs.

  Args:
    run: run folder or transformers checkpoint
    prompts: texts to continue ('' generates from scratch), or inputs of an encoder-decoder; - reads
      one prompt per line from standard input
    file: file with additional prompts, one per line; - for standard input
    stream: print the text while it is generated (one prompt only)
    seed: random seed for sampling (with --temperature)
    mesh: devices over which the model is split
    settings: generation settings; the generation_config.json of a checkpoint overrides the defaults
  """
  prompts = inputs.read_prompts(prompts)
  if file == '-':
    prompts += tuple(sys.stdin.read().splitlines())
  elif file:
    prompts += tuple(storage.read_text(file).splitlines())
  if not prompts:
    raise ConfigError("there is no prompt: give one, --file, or '' for a text from its first word")
  trained = inputs.load_on_mesh(run, mesh)
  settings = generation_settings(trained, settings, stream)
  print_continuations(trained, prompts, stream, seed, settings)


def generation_settings(
    trained: LoadedModel, settings: GenerationConfig, stream: bool = False) -> GenerationConfig:
  """Return the checkpoint's generation settings with the typed options, and print the former.

  Args:
    trained: the model, with the settings in its files.
    settings: the parsed options.
    stream: whether text is streamed, where a beam search of the files is turned off.
  """
  stated = trained.generation
  pieces = trained.tokenizer.pieces if trained.tokenizer else None
  if described := stated.describe(pieces):
    print(f'from the files of {trained.source}: {described}', file=sys.stderr)
  typed = options.typed_fields(settings, sys.argv[1:])
  if stream:
    typed.setdefault('beams', 1)
  return generation_config.resolve_generation_config(stated, None, typed)


def print_continuations(
    trained: LoadedModel, prompts: tuple[str, ...], stream: bool, seed: int,
    settings: GenerationConfig) -> None:
  """Print texts with their prompts, streamed if asked for, and warn of texts without a stop."""
  continues = generate.continues_prompts(trained)
  ended = []  # reasons, one per text

  def text_around(prompt):
    if settings.hole:
      before, _, after = prompt.partition(settings.hole)
      return before, after
    return prompt if continues else '', ''

  if stream:
    if len(prompts) * settings.number > 1:
      raise ConfigError('--stream prints one text: give one prompt, and no --number')
    before, after = text_around(prompts[0])
    print(before, end='', flush=True)
    for delta in models.stream(trained, prompts[0], settings, seed):
      print(delta.text, end='', flush=True)
      ended = [delta.ended]
    print(after)
  else:
    every = models.generate(trained, prompts, settings, seed)
    for prompt, found in zip(prompts, every, strict=True):
      for continuation in found:
        before, after = text_around(prompt)
        print(f'{before}{continuation.text}{after}\n')
        ended.append(continuation.ended)
  without = len(ended) - ended.count('stop')
  if settings.stop and without:
    print(f'no stop sequence came in {without} of {len(ended)}: ended by the model, or at '
          f'{settings.max_new} tokens', file=sys.stderr)


@command()
def text_to_text_command(
    checkpoint: tyro.conf.Positional[str], task: tyro.conf.Positional[str], output: str = '',
    mesh: MeshConfig = MeshConfig(1),
    reading: Annotated[ReadingConfig, tyro.conf.arg(name='')] = ReadingConfig(),
    settings: Annotated[GenerationConfig, tyro.conf.arg(name='')] = GenerationConfig()) -> None:
  """Evaluates an encoder-decoder on a text-to-text task.

  Args:
    checkpoint: run folder or transformers checkpoint
    task: task:NAME:SOURCE, where NAME is a text-to-text task, such as sst2, squad, summarize or
      translate-de-en, and SOURCE is a .jsonl or .tsv file (plain, .gz or .xz) or tfds:NAME:SPLIT
    output: file for the predictions (.jsonl)
    mesh: devices over which the model is split
    reading: how examples are read
    settings: generation settings; the generation_config.json of a checkpoint overrides the defaults
  """
  trained = inputs.load_on_mesh(checkpoint, mesh)

  def write_predictions(predictions):
    records = []
    for example, text in predictions:
      records.append({'where': example.where, 'inputs': example.inputs, 'targets': example.targets,
                      'text': text})
    output_files.write_json_lines(output, records)

  with models.mesh_context(trained):
    settings = generation_settings(trained, settings)
    result = text_to_text.evaluate_text_to_text(
        trained, task, settings, reading, write_predictions if output else None)
  print(f'{task}, {len(result.predictions):,} examples')
  for name, value in result.metrics.items():
    print(f'{name:18}{value:8.2f}')
  references = [prediction.example.targets for prediction in result.predictions]
  if 'bleu' in result.metrics:
    print(f"BLEU has sacreBLEU's tokenizer {metrics.choose_bleu_tokenizer(references)}")
  if 'rougeL' in result.metrics and not metrics.is_english(references):
    print('ROUGE compares words of all scripts; only English words are stemmed')
  if result.truncated_inputs:
    print(f'{result.truncated_inputs:,} inputs were longer than {reading.length} tokens and lost '
          'their ends')
