"""Adapt a decoder to an encoder-decoder (T5Gemma), compared with training the encoder-decoder from scratch.

    python -m benchmarks.t5gemma --data=DIR --seeds=3 --minutes=60
    python -m benchmarks.t5gemma --table

DIR contains the files TEXT and HELDOUT, at any depth. A small Gemma 2 is trained on Wikipedia. An encoder-decoder
starts from it and learns prefix language modeling: it predicts the second half of a text from the first. The same
encoder-decoder is trained from scratch for as many updates, and for as long as decoder and adaptation take together.
All read the same text with the same tokenizer. The score is in bits per byte, of the second 63 of the first 126
tokens of paragraphs of WikiText-2 (validation; TEXT has none of its articles), given the first 63. Each step is a
line of figures/t5gemma.jsonl; it is not done again, so that the same command continues after an interruption. The
table is printed from these lines.
"""
import lzma
import math
import pathlib
import statistics
from typing import Any, NamedTuple

import numpy as np

from benchmarks import kept

TABLE = kept.Table('t5gemma', 'benchmarks.t5gemma:measure')
TEXT, HELDOUT = 'enwiki2015_sample.txt.xz', 'wikitext2_raw_valid.txt.xz'
LENGTH, ROWS = 64, 8
HALF = LENGTH - 1
"""tokens of each half of a text"""
PARAGRAPHS, TEXT_BYTES = 512, 8 << 20


class Step(NamedTuple):
  """A step of the benchmark."""

  title: str
  updates: int
  adapts: bool = False
  """whether the encoder-decoder starts from the decoder"""


STEPS = {
    'decoder': Step('decoder', 800),
    'adapted': Step('encoder-decoder, adapted from the decoder', 350, adapts=True),
    'scratch': Step('encoder-decoder from scratch, as many updates', 350),
    'longer': Step('encoder-decoder from scratch, as long as both', 1350)}


def main() -> None:
  parser = TABLE.make_parser(__doc__)
  parser.add_argument('--share', type=float, default=1.0, help='share of the updates, for a trial')
  args = parser.parse_args()
  TABLE.fill(args, ({'step': name, 'seed': seed, 'share': args.share} for seed in range(args.seeds) for name in STEPS))
  print_table()


def measure(given: dict[str, Any]) -> dict[str, Any]:
  """Train the model of a step, and score it."""
  import plm_jax
  from plm_jax.runs import run as runs

  config = make_run(given)
  result = runs.run(config)
  if result is None or not result.finished:
    kept.interrupted(config.folder)
  text = lzma.decompress(kept.place(given['data'], HELDOUT).read_bytes()).decode()
  bits, count = score(plm_jax.load(config.folder), text)
  return {'bits_per_byte': bits, 'texts': count, 'steps': result.step, 'training': round(result.seconds, 1)}


def make_run(given: dict[str, Any]) -> Any:
  """Build the run of a step."""
  from plm_jax import recipes, validation
  from plm_jax.architectures.decoder import DecoderConfig
  from plm_jax.config.run import Phase

  step, seed = STEPS[given['step']], given['seed']
  folder = pathlib.Path(given['output']).expanduser()
  decoder, updates = str(folder / str(seed) / 'decoder'), max(4, round(step.updates * given['share']))
  whole: Any = recipes.find_recipe('t5gemma_2b_2b')('laptop')
  changes: dict[str, Any] = {
      'data.path': (str(write_text(given['data'], folder)),), 'data.prepare.heldout': 0.002,
      'data.prepare.sample': 5_000_000, 'train.eval_every': updates, 'train.save_every': max(2, updates // 4),
      'train.keep': 1, 'optim.warmup': min(100, updates // 4), 'seed': seed,
      'output': str(folder / str(seed) / given['step'])}
  if given['step'] == 'decoder':
    model = whole.model
    run: Any = recipes.find_recipe('gemma3_270m')('laptop')
    return validation.with_paths(run, changes | {
        'family': 'gemma2', 'train.phases': (Phase(updates, 2 * LENGTH, ROWS),), 'optim.peak': 2e-3,
        'model': DecoderConfig(
            vocab=model.vocab, block=model.block, stack=model.stack, max_length=2 * LENGTH, absolute='none',
            embed_factor=model.embed_factor, logit_cap=model.logit_cap, windows=model.windows)})
  changes |= {'train.phases': (Phase(updates, LENGTH, ROWS),), 'optim.peak': 1e-3 if step.adapts else 2e-3}
  if step.adapts:
    changes |= {'warm_start': decoder, 'tuning.decoder': decoder}
  else:
    changes['data.prepare.tokenizer'] = f'{decoder}/tokenizer'
  return validation.with_paths(whole, changes)


def write_text(data: str, folder: pathlib.Path) -> pathlib.Path:
  """Write the beginning of the text for training, unless it exists."""
  file = folder / 'text.txt'
  if not file.exists():
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix('.part')
    with lzma.open(kept.place(data, TEXT)) as text:
      part.write_bytes(text.read(TEXT_BYTES))
    part.replace(file)
  return file


def score(trained: Any, text: str) -> tuple[float, int]:
  """Score the second halves of paragraphs given the first -> (bits per byte, number of paragraphs)."""
  import jax
  import jax.numpy as jnp

  from plm_jax.layers.heads import ModelWithHeads
  from plm_jax.tokenizers.contract import boundary_ids, delimiters

  tokenizer = trained.tokenizer
  encoded = tokenizer.encode_batch([line.strip() for line in text.splitlines() if len(line) > 2 * LENGTH])
  rows = np.array([ids[:2 * HALF] for ids in encoded if len(ids) >= 2 * HALF][:PARAGRAPHS])
  first, second = rows[:, :HALF], rows[:, HALF:]

  def put(tokens: np.ndarray, before: Any = (), behind: Any = ()) -> jax.Array:
    ends = [np.full((len(tokens), 1), number) for number in (*before, *behind)]
    return jnp.asarray(np.concatenate([*ends[:len(before)], tokens, *ends[len(before):]], 1), jnp.int32)

  if trained.model.kind == 'decoder':
    tokens = put(rows[:, :-1], before=boundary_ids(tokenizer.vocab)[:1])
    batch = {'tokens': tokens, 'segments': jnp.ones_like(tokens)}
  else:
    before, behind, start = delimiters(tokenizer.vocab)
    tokens, targets = put(first, before, behind), put(second[:, :-1], before=(start,))
    batch = {'tokens': tokens, 'segments': jnp.ones_like(tokens), 'decoder_tokens': targets,
             'decoder_segments': jnp.ones_like(targets)}
  model = ModelWithHeads(trained.model.backbone(), {'lm': trained.heads['lm']})

  @jax.jit
  def nats(params: Any, batch: dict[str, jax.Array], labels: jax.Array) -> jax.Array:
    logits: Any = model.apply({'params': params}, batch)
    logits = logits['lm'][:, -HALF:]
    return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]).sum()

  total = 0.0
  for begin in range(0, len(rows), 64):
    part = slice(begin, begin + 64)
    total += float(nats(trained.params, {name: x[part] for name, x in batch.items()}, jnp.asarray(second[part])))
  return total / math.log(2) / int(tokenizer.byte_lengths[second].sum()), len(rows)


def print_table() -> None:
  """Print the scores of each step, with the mean and the standard deviation over seeds."""
  print('| model | bits per byte | updates | seconds of training |')
  print('|---' * 4 + '|')
  for name, step in STEPS.items():
    own = TABLE.read(step=name, share=1.0)
    cells = [kept.shown([found['bits_per_byte'] for found in own], 3)]
    if own:
      cells += [f'{own[0]["steps"]:,}', f'{statistics.mean(found["training"] for found in own):.0f}']
    print(f'| {step.title} | {" | ".join([*cells, "", ""][:3])} |')


if __name__ == '__main__':
  main()
