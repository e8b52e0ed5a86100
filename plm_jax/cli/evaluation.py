"""The commands `evaluate`, `perplexity` and `few-shot`."""
from typing import Annotated, Literal

import tyro

from plm_jax.api import models, scoring
from plm_jax.cli import options, output_files
from plm_jax.cli.options import command
from plm_jax.evaluation import few_shot
from plm_jax.evaluation.few_shot import FewShotConfig
from plm_jax.evaluation.scoring import make_scorer
from plm_jax.runs import run as run_lib
from plm_jax.sharding import MeshConfig


@command()
def evaluate_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]] = (),
    path: Annotated[tuple[str, ...], tyro.conf.arg(name='data.path')] = (), batches: int = 0,
    mesh: MeshConfig = MeshConfig()) -> None:
  """Prints the held-out metrics of a run, on its own held-out text or on other text.

  Args:
    run: run folder
    texts: corpora, in any form that --data.path accepts. For a folder of records, the held-out
      split is evaluated. Default: the held-out text of the run
    path: same as TEXT
    batches: number of batches per corpus. 0: all batches of other text, and of --data.heldout-path;
      for other held-out text of the run, as many as its evaluations during training used
    mesh: devices over which the batch, or a large model, is split
  """
  run_lib.evaluate_folder(run, (*texts, *path), batches, mesh)


@command(seed=options.SEED_LIMITS)
def perplexity_command(
    checkpoint: tyro.conf.Positional[str], text: tyro.conf.Positional[str], length: int = 0,
    stride: int = 0, start: bool = True, samples: int = 0, seed: int = 0,
    mesh: MeshConfig = MeshConfig()) -> None:
  """Prints the perplexity of texts under a decoder, measured by a sliding window, or an upper bound
  of it under a model of masked diffusion.

  Args:
    checkpoint: run folder or transformers checkpoint
    text: files and globs, separated by commas: each file is one text, or each line of a .jsonl
      file; embedded, the built-in corpus; or tfds:NAME:SPLIT
    length: window size in tokens. 0: the maximum sequence length of the model
    stride: number of tokens from the start of one window to the start of the next. 0: half of
      --length
    start: start each text with the start token, as in training. Without it, the first token of a
      text is not predicted
    samples: random masks per window of a masked language model. 0: 16 for a model of masked
      diffusion. With a number, any masked language model is measured
    seed: random seed of the masks
    mesh: devices over which the batch, or a large model, is split
  """
  found = scoring.perplexity(
      models.load(checkpoint, mesh), text, length, stride, start, samples, seed)
  if found.is_bound:
    print('upper bounds, estimated from random masks:')
  print(f'{found.tokens:,} tokens, {found.words:,} words, {found.bytes:,} bytes')
  values = {
      'perplexity per token': found.per_token, 'perplexity per word': found.per_word,
      'perplexity per byte': found.per_byte, 'bits per byte': found.bits_per_byte}
  for name, value in values.items():
    print(f'{name:21}{value:>14,.4f}')


@command()
def few_shot_command(
    checkpoint: tyro.conf.Positional[str],
    task: tyro.conf.Positional[Literal[tuple(few_shot.TASKS)]],  # pyright: ignore
    output: str = '', start: bool = True, mesh: MeshConfig = MeshConfig(),
    settings: Annotated[FewShotConfig, tyro.conf.arg(name='')] = FewShotConfig()) -> None:
  """Evaluates a language model on a task with zero-shot or few-shot prompts.

  Args:
    checkpoint: run folder or transformers checkpoint
    task: name of the task
    output: file for the predictions (.jsonl)
    start: start each text with the start token, as in training
    mesh: devices over which the batch, or a large model, is split
    settings: evaluation settings
  """
  examples, pool = settings.questions(task)
  trained = models.load(checkpoint, mesh)
  result = few_shot.evaluate_few_shot(
      settings.task(task), make_scorer(trained, start, trained.mesh), examples, settings.shots,
      pool, settings.seed)
  print(f'{task}, {settings.shots} shots, {len(result.predictions):,} questions')
  print(f'accuracy          {result.accuracy:8.2%}  +- {result.error:.2%}')
  if result.chance:
    print(f'guessing          {result.chance:8.2%}')
  else:
    print(f'perplexity        {result.perplexity:8.2f}  of the word')
  print(f'most frequent     {result.majority_baseline:8.2%}')
  if result.truncated_prompts:
    print(f'{result.truncated_prompts:,} prompts were too long and lost their beginning')
  if output:
    output_files.write_json_lines(output, map(few_shot.prediction_record, result.predictions))
