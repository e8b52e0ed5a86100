"""Training steps on one NVIDIA GPU, next to transformers with torch.compile and SDPA.

    python -m benchmarks.gpu_step
    python -m benchmarks.gpu_step --only bert_128 gpt2
    python -m benchmarks.gpu_step --only gpt2 --profile    # the largest kernels of plm_jax's step

One row of a table per model, about a minute each: milliseconds per optimizer step of both, their ratio,
and the model FLOPs utilization (MFU) of ours and of the peer, by the FLOPs that the objective needs and
the peak of dense bfloat16 products. Both sides train the published size in bfloat16 with float32
parameters, with dropout except in attention, gradient clipping at 1 and a fused optimizer; random text.
transformers computes BERT's and T5's logits at every position, plm_jax those of BERT at the masked ones.
The two processes are timed alternately, in rounds of ten steps; medians count.
"""
import argparse
from collections.abc import Callable
import dataclasses
import json
import os
import subprocess
from typing import Any

from benchmarks import kernels
from benchmarks.side_by_side import Worker, contest, machine

STEPS, ROUND = 10, 2  # steps that are timed together, and how often in a round
NO_GPU = 'no NVIDIA GPU'
# Dense bfloat16 FLOP/s, by NVIDIA's data sheets.
PEAKS = {'H100': 989e12, 'H200': 989e12, 'A100': 312e12}


@dataclasses.dataclass(frozen=True)
class Case:
  """A training step: recipe, sequence length and batch size (sequences)."""

  recipe: str
  length: int
  batch: int


CASES = {
    'bert_128': Case('bert_base', 128, 256), 'bert_512': Case('bert_base', 512, 64),
    'gpt2': Case('gpt2_small', 1024, 16), 'modernbert': Case('modernbert_base', 1024, 32),
    't5': Case('t5_base', 512, 64),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--only', choices=CASES, nargs='*', default=list(CASES))
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--scale', choices=['paper', 'test'], default='paper', help='test: a rehearsal, without the peer')
  parser.add_argument('--profile', action='store_true', help='print where the time of plm_jax goes, and end')
  parser.add_argument('--contestant', choices=['plm_jax', 'transformers'], help=argparse.SUPPRESS)
  args = parser.parse_args()
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')  # two processes share the GPU
  if args.contestant:
    {'plm_jax': time_ours, 'transformers': time_theirs}[args.contestant](CASES[args.only[0]], args.scale)
    return
  if args.profile:
    for name in args.only:
      work, _ = compiled_step(CASES[name], args.scale, steps=1)
      print(f'\n{name}\n\n{kernels.table(kernels.measure_kernels(work, STEPS))}', flush=True)
    return
  packages = ('jax',) if args.scale == 'test' else ('jax', 'torch', 'transformers')
  print(f'{device_name()}, {machine(*packages)}\n')
  print('| step | plm_jax ms | transformers ms | ratio | plm_jax MFU | transformers MFU | spread |')
  print('|---|---|---|---|---|---|---|')
  for name in args.only:
    print(row(name, args.rounds, args.scale), flush=True)


def row(name: str, rounds: int, scale: str) -> str:
  """Time one case -> its row. Both processes compile at the same time and are then timed in turns."""
  contestants = ('plm_jax',) if scale == 'test' else ('plm_jax', 'transformers')
  arguments = ['--only', name, '--scale', scale]
  workers = {who: Worker('benchmarks.gpu_step', who, arguments) for who in contestants}
  seconds: dict[str, list[float]] = {who: [] for who in contestants}
  try:
    facts = {who: worker.read() for who, worker in workers.items()}
    for _ in range(rounds):
      for who, worker in workers.items():
        seconds[who] += [time / STEPS for time in worker.go()['seconds']]
  except (RuntimeError, json.JSONDecodeError) as error:
    return f'| {name} | failed: {error} | | | | | |'
  finally:
    for worker in workers.values():
      worker.close()
  median = {who: sorted(times)[len(times) // 2] for who, times in seconds.items()}
  spread = ', '.join(
      f'{min(times) / median[who]:.2f} to {max(times) / median[who]:.2f}' for who, times in seconds.items())
  peak = next((peak for gpu, peak in PEAKS.items() if gpu in device_name()), float('nan'))
  use = {who: f'{facts["plm_jax"]["flops"] / time / peak:.0%}' for who, time in median.items()}
  theirs = median.get('transformers', float('nan'))
  return (f'| {name} | {1000 * median["plm_jax"]:.1f} | {1000 * theirs:.1f} | {theirs / median["plm_jax"]:.2f} | '
          f'{use["plm_jax"]} | {use.get("transformers", "")} | {spread} |')


def device_name() -> str:
  """Return the name of the GPU, by nvidia-smi: the parent process must not take its memory."""
  try:
    command = ['nvidia-smi', '--query-gpu=name', '--format=csv,noheader']
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return NO_GPU


def time_ours(case: Case, scale: str) -> None:
  """Compile a training step of plm_jax, then time it whenever it is told to."""
  work, flops = compiled_step(case, scale, STEPS)
  contest({'flops': flops}, work, ROUND)


def compiled_step(case: Case, scale: str, steps: int) -> tuple[Callable[[], None], float]:
  """Compile a training step -> (a function that makes `steps` steps, FLOPs of a step)."""
  from flax.linen import unbox
  import jax

  from benchmarks.gpu import in_bfloat16, learner_of, text
  from plm_jax import recipes, validation
  from plm_jax.training.step import init_state, jit_train_step

  recipe = in_bfloat16(recipes.find_recipe(case.recipe)(scale))
  block = validation.with_paths(recipe.model.block, {'attention.dropout': 0.0})
  recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, block=block))
  phase = dataclasses.replace(recipe.train.phases[-1], batch=case.batch)
  if scale == 'paper':
    phase = dataclasses.replace(phase, length=case.length)
  learner = dataclasses.replace(learner_of(recipe), accumulate=1)
  windows = text(recipe, phase)
  state = jax.jit(lambda windows: unbox(init_state(learner, windows)))(windows)
  windows = jax.device_put(windows)
  step = jit_train_step(learner, None).lower(state, windows).compile()
  for _ in range(3):
    state, metrics = step(state, windows)
  jax.block_until_ready(metrics)

  def work() -> None:
    nonlocal state, metrics
    for _ in range(steps):
      state, metrics = step(state, windows)
    jax.block_until_ready(metrics)

  return work, case.batch * recipe.objective.step_flops(recipe.model, phase.length)


def time_theirs(case: Case, scale: str) -> None:
  """Compile a training step of transformers by torch.compile, then time it whenever it is told to."""
  assert scale == 'paper'
  import torch
  from transformers.utils import logging

  logging.set_verbosity_error()
  torch.manual_seed(0)
  torch.set_float32_matmul_precision('high')
  model, batch = peer(torch, case)
  model = model.cuda().train()
  batch = {name: x.cuda() for name, x in batch.items()}
  compiled: Any = torch.compile(model)
  parameters = list(model.parameters())
  optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

  def step():
    with torch.autocast('cuda', torch.bfloat16):
      loss = compiled(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()

  def work():
    for _ in range(STEPS):
      step()
    torch.cuda.synchronize()

  for _ in range(5):
    step()
  torch.cuda.synchronize()
  contest({}, work, ROUND)


def peer(torch: Any, case: Case) -> tuple[Any, dict[str, Any]]:
  """Build the model of transformers, and a batch."""
  import transformers as hf

  def ids(vocab: int, length: int = case.length) -> Any:
    return torch.randint(1000, vocab, (case.batch, length))

  def masked(vocab: int, share: float) -> Any:
    labels = ids(vocab)
    labels[torch.rand(labels.shape) > share] = -100
    return labels

  if case.recipe == 'bert_base':
    config = hf.BertConfig(attention_probs_dropout_prob=0.0, attn_implementation='sdpa')
    batch = {'input_ids': ids(30522), 'labels': masked(30522, 0.15), 'token_type_ids': ids(30522) % 2,
             'next_sentence_label': torch.randint(0, 2, (case.batch,))}
    return hf.BertForPreTraining(config), batch
  if case.recipe == 'gpt2_small':
    tokens = ids(50257)
    config = hf.GPT2Config(attn_pdrop=0.0, attn_implementation='sdpa')
    return hf.GPT2LMHeadModel(config), {'input_ids': tokens, 'labels': tokens}
  if case.recipe == 'modernbert_base':
    config = hf.ModernBertConfig(attention_dropout=0.0, attn_implementation='sdpa', sparse_prediction=True)
    return hf.ModernBertForMaskedLM(config), {'input_ids': ids(50000), 'labels': masked(50000, 0.3)}
  config = hf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
  return hf.T5ForConditionalGeneration(config), {'input_ids': ids(32000), 'labels': ids(32000, 114)}


if __name__ == '__main__':
  main()
