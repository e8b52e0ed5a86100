"""nanoGPT's character model of Shakespeare on a CPU, trained by plm_jax and by a program in PyTorch.

Source: karpathy/nanoGPT at 3adf61e154c3fe3fca428ad6bc3818b27a3b8291. README.md, line 88, has the command and the figure.
config/train_shakespeare_char.py and the defaults of train.py have the settings that the command leaves alone.
"""
import json
import lzma
import math
import pathlib
import tempfile
import time
from typing import Any

import numpy as np

LAYERS, HEADS, WIDTH, LENGTH, ROWS = 4, 4, 128, 64, 12  # README.md:88
STEPS, WARMUP = 2000, 100  # README.md:88; config/train_shakespeare_char.py:31
PEAK, FLOOR, B2 = 1e-3, 1e-4, 0.99  # config/train_shakespeare_char.py:26-30
B1, DECAY, CLIP = 0.9, 0.1, 1.0  # train.py:60-63
BATCHES = 20  # --eval_iters of README.md:88
END = '<|endoftext|>'


def options(folder: str, seed: int, steps: int) -> list[str]:
  """Return the options of `python -m plm_jax train gpt2_small` for the published run.

  Args:
    folder: contains train.txt, val.txt and the folder tokenizer; the run is written to its folder run.
    seed: of the run.
    steps: fewer than STEPS for a short form of it, whose learning rate still takes STEPS to fall.
  """
  return [
      '--scale=laptop', f'--output={folder}/run', f'--seed={seed}', f'--data.path={folder}/train.txt',
      f'--data.heldout-path={folder}/val.txt', f'--data.prepare.tokenizer={folder}/tokenizer', '--model.vocab=66',
      f'--model.stack.layers={LAYERS}', f'--model.block.heads={HEADS}', f'--model.block.width={WIDTH}',
      f'--model.block.mlp-dim={4 * WIDTH}', f'--model.max-length={LENGTH}',
      # model.py: no biases (train.py:56), LayerNorm with a scale alone, exact GELU, N(0, 0.02) for all matrices and
      # tables, and 0.02 / sqrt(2 layers) for those that write to the residual stream.
      '--model.block.attention.bias', '--model.block.mlp.bias=False', '--model.block.mlp.bias-in=False',
      '--model.block.norm.kind=layer_scale', '--model.block.mlp.activation=gelu', '--model.block.init.std=0.02',
      f'--model.block.init.out-std={0.02 / math.sqrt(2 * LAYERS):.7f}',
      '--objective.starts-every-row=False',
      f'--optim.peak={PEAK}', f'--optim.floor={FLOOR / PEAK}', f'--optim.warmup={WARMUP}', f'--optim.horizon={STEPS}',
      f'--optim.b1={B1}', f'--optim.b2={B2}', f'--optim.weight-decay={DECAY}', f'--optim.clip={CLIP}',
      f'--train.phases.0.steps={steps}', f'--train.phases.0.length={LENGTH}', f'--train.phases.0.batch={ROWS}',
      '--train.eval-every=200', '--train.eval-batches=200', f'--train.save-every={steps}', '--mesh.data=1']


def write_parts(text: str, folder: pathlib.Path) -> None:
  """Write the first 90% and the last 10% of the text, and the tokenizer of its characters."""
  import tokenizers
  cut = int(0.9 * len(text))  # data/shakespeare_char/prepare.py
  for name, part in (('train', text[:cut]), ('val', text[cut:])):
    (folder / f'{name}.txt').write_text(part, newline='')
  (folder / 'tokenizer').mkdir()
  ids = {character: number for number, character in enumerate(sorted(set(text)))}
  library = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
  library.decoder = tokenizers.decoders.Fuse()
  library.add_special_tokens([END])
  library.save(str(folder / 'tokenizer' / 'tokenizer.json'))
  (folder / 'tokenizer' / 'tokenizer_config.json').write_text(json.dumps({'eos_token': END}))


def read_text(data: str) -> str:
  """Read tinyshakespeare, as karpathy/char-rnn has it."""
  from benchmarks import kept
  return lzma.decompress(kept.place(data, 'tinyshakespeare.txt.xz').read_bytes()).decode()


def encode(text: str) -> np.ndarray:
  """Encode characters as ids in their order."""
  characters = sorted(set(text))
  return np.searchsorted(characters, list(text)).astype(np.int32)


def cut_windows(ids: np.ndarray) -> np.ndarray:
  """Cut windows of LENGTH + 1 tokens that share one: every token but the first is predicted once."""
  starts = range(0, len(ids) - LENGTH, LENGTH)
  return np.stack([ids[start:start + LENGTH + 1] for start in starts])


def draw_windows(ids: np.ndarray, number: int, seed: int) -> np.ndarray:
  """Draw windows of LENGTH + 1 tokens at random, as nanoGPT's get_batch."""
  starts = np.random.default_rng(seed).integers(len(ids) - LENGTH, size=number)
  return np.stack([ids[start:start + LENGTH + 1] for start in starts])


def evaluate(loss: Any, text: str) -> dict[str, float]:
  """Evaluate in nats per character: on all of the validation text, and on nanoGPT's number of random windows.

  loss: windows [number, LENGTH + 1] -> mean loss of each [number].
  """
  heldout = encode(text)[int(0.9 * len(text)):]
  whole = loss(cut_windows(heldout))
  estimates = [float(loss(draw_windows(heldout, BATCHES * ROWS, seed)).mean()) for seed in range(10)]
  return {'score': float(whole.mean()), 'estimate': float(np.mean(estimates)), 'noise': float(np.std(estimates, ddof=1))}


def run(given: dict[str, Any]) -> dict[str, Any]:
  """Train with plm_jax and evaluate; given: data, seed and steps."""
  import jax
  import jax.numpy as jnp

  import plm_jax
  from plm_jax import recipes
  from plm_jax.cli.run import parse
  from plm_jax.evaluation.scoring import NextTokenLogits
  from plm_jax.runs import run as runs
  text, steps = read_text(given['data']), given.get('steps', STEPS)
  with tempfile.TemporaryDirectory() as folder:
    write_parts(text, pathlib.Path(folder))
    began = time.time()
    result = runs.run(parse(recipes.find_recipe('gpt2_small'), options(folder, given['seed'], steps)))
    seconds = time.time() - began
    trained = plm_jax.load(f'{folder}/run')
    lines = [json.loads(line) for line in (pathlib.Path(folder) / 'run' / 'metrics.jsonl').read_text().splitlines()]
    curve = {str(line['step']): line['clm'] for line in lines if line['split'] == 'heldout'}
  assert result and result.finished
  logits_of = NextTokenLogits(trained.model, 'lm', trained.heads['lm'])

  @jax.jit
  def losses(windows):
    read, predicted = windows[:, :-1], windows[:, 1:]
    everywhere = jnp.broadcast_to(jnp.arange(LENGTH), read.shape)
    batch = {'tokens': read, 'segments': jnp.ones_like(read), 'positions': everywhere}
    logprobs = jax.nn.log_softmax(logits_of(trained.params, batch))
    return -jnp.take_along_axis(logprobs, predicted[..., None], -1)[..., 0].mean(-1)

  return {**evaluate(lambda windows: np.asarray(losses(windows)), text), 'curve': curve, 'seconds': round(seconds)}


def run_torch(given: dict[str, Any]) -> dict[str, Any]:
  """Train the same model on the same text with PyTorch, written from the description: a second witness."""
  import torch
  from torch import nn
  from torch.nn import functional as F

  class Block(nn.Module):
    def __init__(self):
      super().__init__()
      self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
      self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, False), nn.Linear(WIDTH, WIDTH, False)
      self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, False), nn.Linear(4 * WIDTH, WIDTH, False)

    def forward(self, x):
      heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1)]
      x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
      return x + self.down(F.gelu(self.up(self.norms[1](x))))

  class Model(nn.Module):
    def __init__(self, vocab):
      super().__init__()
      self.tokens, self.places = nn.Embedding(vocab, WIDTH), nn.Embedding(LENGTH, WIDTH)
      self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
      self.norm = nn.LayerNorm(WIDTH, bias=False)
      for name, p in self.named_parameters():
        if p.dim() == 2:
          writes = name.endswith(('out.weight', 'down.weight'))
          nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if writes else 0.02)

    def forward(self, windows):
      x = self.norm(self.blocks(self.tokens(windows[:, :-1]) + self.places.weight))
      loss = F.cross_entropy((x @ self.tokens.weight.T).transpose(1, 2), windows[:, 1:].long(), reduction='none')
      return loss.mean(-1)

  torch.set_num_threads(1)  # more take longer, for matrices this small
  torch.manual_seed(given['seed'])
  draw = np.random.default_rng(given['seed'])
  text, steps = read_text(given['data']), given.get('steps', STEPS)
  ids = encode(text)
  train = ids[:int(0.9 * len(text))]
  model = Model(len(set(text)))
  decayed = [p for p in model.parameters() if p.dim() == 2]
  others = [p for p in model.parameters() if p.dim() < 2]
  optimizer = torch.optim.AdamW([{'params': decayed, 'weight_decay': DECAY}, {'params': others, 'weight_decay': 0.0}],
                                lr=PEAK, betas=(B1, B2))

  def loss(windows):
    with torch.no_grad():
      return np.concatenate([model(torch.tensor(part)).numpy() for part in np.array_split(windows, 8)])

  began, curve = time.time(), {}
  for step in range(steps):
    share = (step - WARMUP) / (STEPS - WARMUP)
    rate = PEAK * (step + 1) / (WARMUP + 1) if step < WARMUP else (
        FLOOR + 0.5 * (1 + math.cos(math.pi * share)) * (PEAK - FLOOR))
    for group in optimizer.param_groups:
      group['lr'] = rate
    starts = draw.integers(len(train) - LENGTH, size=ROWS)
    model(torch.tensor(np.stack([train[start:start + LENGTH + 1] for start in starts]))).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 200 == 0:
      curve[str(step + 1)] = float(loss(cut_windows(ids[len(train):])).mean())
  return {**evaluate(loss, text), 'curve': curve, 'seconds': round(time.time() - began)}
