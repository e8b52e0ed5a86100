"""Measure a few ratios of speed in about three minutes and compare them with the stored ones.

    python -m benchmarks.guard            # before a release, on a quiet machine
    python -m benchmarks.guard --store    # to accept the new ratios

Each ratio compares our code with a reference that does the same work with as little as possible. Both are timed in turn
in the same run, so a ratio depends little on the machine. The references need no other library:

    work               ratio
    step: ...          FLOP/s of an optimizer step / FLOP/s of a matrix product
    fill_mask, encode  seconds of the tokenizer and a jitted forward pass / seconds of the call
    start-up: ...      CPU seconds of a bare JAX program / CPU seconds of the command; both have cached programs
    prepare            CPU seconds of the library `tokenizers` / CPU seconds of `prepare`

1.0 means as fast as the reference, and more is faster. The command ends with status 1 if a ratio is lower than the stored
one by more than --tolerance. benchmarks/figures/guard.json has the stored ratios of each processor, because products and
the rest of a step depend on it differently. A processor without stored ratios is not compared.
"""
import argparse
from collections.abc import Callable, Iterator
import contextlib
import io
import json
import os
import pathlib
import random
import resource
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks import command_start_up
from benchmarks.side_by_side import compare, machine, processor

STORED = pathlib.Path(__file__).parent / 'figures' / 'guard.json'
FAMILIES = 'bert', 'llama', 't5'
SENTENCES, ROUNDS = 256, 7


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--store', action='store_true', help='store the measured ratios')
  parser.add_argument('--tolerance', type=float, default=0.15, help='relative decrease of a ratio that is accepted')
  args = parser.parse_args()
  all_stored = json.loads(STORED.read_text()) if STORED.exists() else {}
  stored = all_stored.get(processor(), {})
  print(machine('jax', 'flax', 'tokenizers'))
  print(f'stored on {stored["machine"]}' if stored else 'no ratios are stored for this processor: --store stores them')
  print('\n| work | stored | now |\n|---|---|---|')
  ratios, slower = {}, []
  for name, ratio in measure_all():
    before = stored.get('ratios', {}).get(name)
    ratios[name] = round(ratio, 3)
    print(f'| {name} | {before if before is not None else "-"} | {ratio:.3f} |', flush=True)
    if before is not None and ratio < before * (1 - args.tolerance):
      slower.append(name)
  if args.store:
    all_stored[processor()] = {'machine': machine('jax', 'flax', 'tokenizers'), 'ratios': ratios}
    STORED.write_text(json.dumps(all_stored, indent=2) + '\n')
  elif slower:
    sys.exit(f'slower than stored by more than {args.tolerance:.0%}: {", ".join(slower)}. Repeat it on a quiet machine; '
             '--store accepts the new ratios')


def measure_all() -> Iterator[tuple[str, float]]:
  """Yield (name, ratio) of all work."""
  for family in FAMILIES:
    yield f'step: {family}', step_ratio(family)
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    lines = make_lines(random.Random(0), 20_000)
    (folder / 'text.txt').write_text('\n\n'.join('\n'.join(lines[i:i + 20]) for i in range(0, len(lines), 20)))
    model = write_model(folder / 'model', lines[:4000])
    yield from call_ratios(model, lines)
    yield 'start-up: fill-mask', start_up_ratio(folder / 'model', folder)
    yield 'prepare', prepare_ratio(folder / 'text.txt', folder / 'model')


def make_lines(draw: random.Random, count: int) -> list[str]:
  """Make sentences of 5 to 25 words, drawn from made-up words as frequent as real ones are (Zipf)."""
  syllables = [first + vowel for first in 'bdfgklmnprstvw' for vowel in 'aeiou']
  words = [''.join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(20_000)]
  weights = [1 / (rank + 3) for rank in range(len(words))]
  return [' '.join(draw.choices(words, weights, k=draw.randint(5, 25))).capitalize() + '.' for _ in range(count)]


def step_ratio(family: str) -> float:
  """Return the FLOP/s of an optimizer step of a family divided by those of a matrix product."""
  found = compare('benchmarks.family_step', ['plm_jax'], ['--family', family], 3)['plm_jax']
  return found['flops'] / found['median'] / found['peak']


def write_model(folder: pathlib.Path, lines: list[str]) -> Any:
  """Write a BERT of 4 layers of 256 with random weights, as others would export it, and load it."""
  import jax

  from benchmarks.second_call import random as random_params
  from benchmarks.second_call import resized
  import plm_jax
  from plm_jax import conversion, tokenizers
  from plm_jax.layers.heads import ModelWithHeads
  from plm_jax.loading.loaded_model import LoadedModel
  from plm_jax.models import bert

  pieces = tokenizers.train_wordpiece(lines, 8000)
  config = resized(bert.base(), pieces, 4, 256)
  heads = {'mlm': conversion.build_head('bert', 'mlm', config, 2)}
  module = ModelWithHeads(config.backbone(), heads)
  shapes = dict.fromkeys(('tokens', 'segments', 'positions'), jax.ShapeDtypeStruct((1, 4), 'int32'))
  plm_jax.export(LoadedModel('bert', config, heads, random_params(module, shapes), pieces), folder)
  return plm_jax.load(folder)


def call_ratios(model: Any, lines: list[str]) -> Iterator[tuple[str, float]]:
  """Yield the ratios of calls: the tokenizer and a jitted forward pass alone, of the function."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  import plm_jax

  tokenizer, params = model.tokenizer, model.device_params()
  forward = jax.jit(lambda params, batch: model.model.backbone().apply({'params': params['backbone']}, batch).hidden)

  def bare(texts: list[str], rows: int) -> None:
    ids = sorted((tokenizer.encode(text) for text in texts), key=len)
    for first in range(0, len(ids), rows):
      some = ids[first:first + rows]
      length = -(-max(map(len, some)) // 16) * 16
      tokens, segments = np.zeros((2, len(some), length), np.int32)
      for row, own in enumerate(some):
        tokens[row, :len(own)], segments[row, :len(own)] = own, 1
      np.asarray(forward(params, {'tokens': jnp.asarray(tokens), 'segments': jnp.asarray(segments)}))

  blank = ' '.join([*lines[0].split()[:6], '[MASK]', *lines[0].split()[7:12]])
  many = lines[:SENTENCES]
  for name, work, reference in (
      ('fill_mask', lambda: plm_jax.fill_mask(model, blank), lambda: bare([blank], 1)),
      ('encode, 1 sentence', lambda: plm_jax.encode(model, lines[0]), lambda: bare(lines[:1], 1)),
      (f'encode, {SENTENCES} sentences', lambda: plm_jax.encode(model, many), lambda: bare(many, 32))):
    yield name, in_turn(work, reference)


def in_turn(work: Callable[[], Any], reference: Callable[[], Any]) -> float:
  """Time a reference and our work in turn; return the ratio of their shortest times."""
  seconds: dict[Callable[[], Any], list[float]] = {work: [], reference: []}
  for _ in range(ROUNDS + 2):
    for timed, found in seconds.items():
      began = time.perf_counter()
      timed()
      found.append(time.perf_counter() - began)
  return min(seconds[reference][2:]) / min(seconds[work][2:])


def start_up_ratio(model: pathlib.Path, scratch: pathlib.Path) -> float:
  """Return the CPU time of a bare program divided by that of `fill-mask`; both have cached programs."""
  arguments = ['fill-mask', str(model), 'Ba be bi [MASK] bu.']
  environment = {
      **os.environ, 'PLM_JAX_CACHE': str(scratch / 'cache'), 'JAX_COMPILATION_CACHE_DIR': str(scratch / 'bare'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
  seconds: dict[str, list[float]] = {'benchmarks.bare_model': [], 'plm_jax': []}
  for _ in range(4):  # the first fills the caches
    for module, found in seconds.items():
      found.append(command_start_up.cpu_seconds([sys.executable, '-m', module, *arguments], environment))
  return min(seconds['benchmarks.bare_model'][1:]) / min(seconds['plm_jax'][1:])


def prepare_ratio(text: pathlib.Path, tokenizer: pathlib.Path) -> float:
  """Return the CPU time of `tokenizers` on the lines of a text divided by that of `prepare`."""
  import tokenizers

  from plm_jax.preparation.prepare import PrepareConfig, prepare

  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  library = tokenizers.Tokenizer.from_file(str(tokenizer / 'tokenizer.json'))
  lines, ratios = text.read_text().split('\n'), []
  for _ in range(3):
    began = cpu_seconds()
    for first in range(0, len(lines), 1000):
      library.encode_batch_fast(lines[first:first + 1000], add_special_tokens=False)
    middle = cpu_seconds()
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
      prepare(PrepareConfig(source=str(text), tokenizer=str(tokenizer), workers=1), scratch)
    ratios.append((middle - began) / (cpu_seconds() - middle))
  return statistics.median(ratios)


def cpu_seconds() -> float:
  """Return the CPU seconds of this process and of the children that have ended."""
  spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(usage.ru_utime + usage.ru_stime for usage in spent)


if __name__ == '__main__':
  main()
