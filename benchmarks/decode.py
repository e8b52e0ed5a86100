"""Time generation on the CPU against transformers' generate: GPT-2 greedily, T5 and BART with four beams.

    python -m benchmarks.decode
    python -m benchmarks.decode --size 4x512 --rows 1 --rounds 3
    python -m benchmarks.decode --size t5-4x512 bart-4x512 t5-small --rows 1 4

GPT-2 continues a prompt; T5 and BART generate a new text from their input. Needs the extra `bench`. Weights are random,
in float32; the prompt has 128 tokens, and 64 are generated, on all cores. Prefill is the time to the first token. The
decoding speed is measured over the other 63 tokens. Below the table, for GPT-2 and plm_jax only: the memory of the KV
cache compared with its formula, and the time per token at position 100 and at position 900 of one text. The cache is
allocated at full size, so the two times are about equal: both are as long as at the end of the longest text.
"""
import argparse
import dataclasses
import functools
import statistics
import time
from typing import Any

from benchmarks.side_by_side import compare, contest, machine
from benchmarks.training_step import torch_ready

SIZES = {'4x512': (4, 512), 'small': (12, 768)}
PAIRS = {'t5-4x512': (4, 512), 'bart-4x512': (4, 512), 't5-small': (6, 512)}  # layers per side, hidden size
VOCAB, PROMPT, NEW, BEAMS = 50257, 128, 64, 4


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--size', choices=[*SIZES, *PAIRS], nargs='*', default=list(SIZES))
  parser.add_argument('--rows', type=int, nargs='*', default=[1, 16])
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--new', type=int, default=NEW, help=argparse.SUPPRESS)
  parser.add_argument('--contestant', choices=['plm_jax', 'transformers'], help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant:
    contestant = plm_jax if args.contestant == 'plm_jax' else transformers
    contest({}, contestant(args.size[0], args.rows[0], args.new), 1)
    return
  print(machine('jax', 'torch', 'transformers'))
  print('\n| size | rows | prefill ms | transformers | ratio | tokens per second | transformers | ratio |')
  print('|---|---|---|---|---|---|---|---|')
  for size in args.size:
    for rows in args.rows:
      found = {new: compare('benchmarks.decode', ('plm_jax', 'transformers'), [
          '--size', size, '--rows', str(rows), '--new', str(new)], args.rounds) for new in (1, NEW)}
      first, whole = ([found[new][name]['median'] for name in ('plm_jax', 'transformers')] for new in (1, NEW))
      speed = [rows * (NEW - 1) / (b - a) for a, b in zip(first, whole, strict=True)]
      print(f'| {size} | {rows} | {1000 * first[0]:.0f} | {1000 * first[1]:.0f} | {first[1] / first[0]:.2f} | '
            f'{speed[0]:,.0f} | {speed[1]:,.0f} | {speed[0] / speed[1]:.2f} |', flush=True)
  for size in args.size:
    if size in SIZES:
      cache(size)


def plm_jax(size: str, rows: int, new: int):
  """Build a function that reads the prompt and generates `new` tokens; it is already compiled."""
  import jax

  from plm_jax.inference import engine

  steps, params, batch, config, ids = ready(size, rows, PROMPT, new)
  work = functools.partial(engine.generate_tokens, steps, params, batch, config, ids)
  jax.block_until_ready(work())
  return lambda: jax.block_until_ready(work())


def transformers(size: str, rows: int, new: int):
  torch = torch_ready()
  import transformers as hf

  layers, width = (SIZES | PAIRS)[size]
  if size.startswith('t5'):
    model: Any = hf.T5ForConditionalGeneration(hf.T5Config(
        vocab_size=VOCAB, d_model=width, num_layers=layers, d_ff=4 * width, num_heads=width // 64))
  elif size.startswith('bart'):
    model = hf.BartForConditionalGeneration(hf.BartConfig(
        vocab_size=VOCAB, d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width, encoder_attention_heads=width // 64, decoder_attention_heads=width // 64))
  else:
    model = hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64))
  model, beams = model.eval(), BEAMS if size in PAIRS else 1
  tokens = torch.randint(0, VOCAB - 1, (rows, PROMPT))
  def work():
    with torch.inference_mode():
      return model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, min_new_tokens=new,
                            max_new_tokens=new, pad_token_id=VOCAB - 1, num_beams=beams, decoder_start_token_id=0,
                            forced_eos_token_id=None)
  work()
  return work


def cache(size: str) -> None:
  import jax

  from plm_jax.inference import engine

  steps, params, batch, config, ids = ready(size, 1, 64, 960)
  state = jax.block_until_ready(engine.initial_state(steps, config, ids, params, batch, 0))
  measured = sum(x.nbytes for x in jax.tree.leaves((state.cache['key'], state.cache['value'])))
  layers, width = SIZES[size]
  milliseconds = {}
  for position in (100, 900):
    state = jax.block_until_ready(engine.advance(steps, config, ids, params, state, position - 64))
    seconds = []
    for until in range(position - 63, position - 43):
      began = time.perf_counter()
      state = jax.block_until_ready(engine.advance(steps, config, ids, params, state, until))
      seconds.append(time.perf_counter() - began)
    milliseconds[position] = 1000 * statistics.median(seconds)
  print(f'\n{size}: a row of 1,024 tokens takes {measured:,} bytes of cache; 2 N S D times 4 is '
        f'{2 * layers * 1024 * width * 4:,}. ' + ', '.join(
            f'at position {position} a token takes {ms:.1f} ms' for position, ms in milliseconds.items()))


def ready(size: str, rows: int, prompt: int, new: int):
  """Build the arguments of `engine.generate_tokens` for a model with random weights.

  Returns:
    (decoding steps, parameters, batch, generation config, output vocabulary).
  """
  import flax.linen as nn
  import jax
  import numpy as np

  from plm_jax.inference.decoder_steps import DecoderSteps, EncoderDecoderSteps
  from plm_jax.inference.search import OutputVocab
  from plm_jax.layers.heads import NextTokenHead
  from plm_jax.loading.generation_config import GenerationConfig
  from plm_jax.models import bart, gpt2, t5

  layers, width = (SIZES | PAIRS)[size]
  model = (
    gpt2.make_config(layers, width)
    if size in SIZES
    else bart.make_config(layers, width)
    if size.startswith('bart')
    else (t5.make_config(layers, width, width // 64, 4 * width))
  )
  model = dataclasses.replace(model, vocab=VOCAB)
  tokens = np.random.default_rng(0).integers(0, VOCAB, (rows, prompt)).astype(np.int32)
  batch = {'tokens': tokens, 'segments': np.ones_like(tokens)}
  head = NextTokenHead(model.block, model.vocab)
  if size in PAIRS:
    first = np.zeros((rows, 1), np.int32)
    own = {'decoder_tokens': first, 'decoder_segments': first + 1}
    params = jax.jit(model.backbone().init)(jax.random.key(0), {**batch, **own})['params']
    steps = EncoderDecoderSteps(model, head)
    source = {'source': tokens, 'source_segments': batch['segments'], 'tokens': first, 'segments': first + 1}
    return (
      steps,
      steps.load_params({'backbone': nn.unbox(params)}),
      source,
      GenerationConfig(new, min_new=new, beams=BEAMS),
      OutputVocab(VOCAB, (1,), 0),
    )
  params = jax.jit(model.backbone().init)(jax.random.key(0), batch)['params']
  steps = DecoderSteps(model, head)
  return (
    steps,
    steps.load_params({'backbone': nn.unbox(params)}),
    batch,
    GenerationConfig(new),
    OutputVocab(VOCAB, (), 0),
  )


if __name__ == '__main__':
  main()
