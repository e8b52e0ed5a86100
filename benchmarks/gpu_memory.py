"""Compute the largest batch of models on GPUs of 8 to 80 GB, and write it into the GPU page.

    python -m benchmarks.gpu_memory

For each model and memory: sequences per step without and with activation checkpointing
(`--model.stack.remat=full`), without gradient accumulation. The memory is estimated
(`plm_jax.planning.memory`), with the share of the GPU that JAX takes by default. Takes minutes.
"""
import pathlib
import re

from plm_jax import recipes, validation
from plm_jax.planning.devices import GIB, GPU_MEMORY_SHARE, USED_SHARE, Device
from plm_jax.planning.memory import estimate_memory

ROOT = pathlib.Path(__file__).parents[1] / 'docs'
PAGES = {'howto/gpu.md': 'model', 'zh/howto/gpu.md': '模型'}
"""Pages with the table, and the first column of its head."""
MODELS = {
    'bert_base': (128, 512), 'bert_large': (128, 512), 'modernbert_base': (1024,),
    'gpt2_small': (1024,), 'gpt2_medium': (1024,), 't5_base': (512,)}
SIZES = (8, 16, 24, 40, 80)


def main() -> None:
  rows = [row for name, lengths in MODELS.items() for row in list_rows(name, lengths)]
  for page, title in PAGES.items():
    heads = [title, *(f'{size} GB' for size in SIZES)]
    first, *others = (f'| {" | ".join(line)} |' for line in (heads, *rows))
    table = '\n'.join([first, f'{"|---" * len(heads)}|', *others])
    path = ROOT / page
    text = re.sub(rf'^\| {title} \| 8 GB(.*\n)+?(?=\n|\Z)', table + '\n', path.read_text('utf-8'),
                  flags=re.MULTILINE)
    path.write_text(text, 'utf-8')
    print(table)


def list_rows(name: str, lengths: tuple[int, ...]) -> list[list[str]]:
  """Return a row per sequence length: the largest batches without and with checkpointing."""
  config, rows = recipes.find_recipe(name)('paper'), []
  for phase in config.train.phases:
    if phase.length not in lengths or any(f'x {phase.length:,}' in row[0] for row in rows):
      continue
    found = []
    for policy in ('none', 'full'):
      run = validation.with_paths(config, {'model.stack.remat': policy})
      found.append(estimate_memory(run, phase, Device(name, 'NVIDIA', 0, 0)))
    cells = [f'{name} x {phase.length:,}']
    for size in SIZES:
      room = size * GIB * GPU_MEMORY_SHARE * USED_SHARE
      plain, less = (memory.most_rows(room) for memory in found)
      cells.append(f'{plain} / {less}')
    rows.append(cells)
  return rows


if __name__ == '__main__':
  main()
