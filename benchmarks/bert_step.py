"""Time an optimizer step of BERT pre-training against transformers' BertForPreTraining with torch's AdamW, on the CPU.

    python -m benchmarks.bert_step

Needs the extra `bench`. Both use MLM and NSP, dropout 0.1, float32, gradients clipped to 1, AdamW with bias correction
and no weight decay on biases and norms, and all cores. transformers computes logits at every position, which is its
standard behavior. plm_jax computes them only at the predicted positions, and its step includes masking the text.
"""
import argparse

from benchmarks.side_by_side import compare, machine
from benchmarks.training_step import (
  LENGTH,
  VOCAB,
  masked_batch,
  plm_jax,
  share,
  torch_ready,
  torch_step,
)

SIZES = {'2/128': (2, 128, 32), '4/512': (4, 512, 32), 'base': (12, 768, 8)}  # layers, hidden size, batch size


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--size', choices=SIZES, nargs='*', default=list(SIZES))
  parser.add_argument('--rounds', type=int, default=6)
  parser.add_argument('--contestant', choices=['plm_jax', 'transformers'], help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant:
    (ours if args.contestant == 'plm_jax' else theirs)(*SIZES[args.size[0]])
    return
  print(machine('jax', 'torch', 'transformers'))
  print('| size | rows x tokens | plm_jax ms | transformers ms | ratio | plm_jax of peak | transformers of peak |')
  print('|---|---|---|---|---|---|---|')
  for size in args.size:
    result = compare('benchmarks.bert_step', ('plm_jax', 'transformers'), ['--size', size], args.rounds)
    a, b = result['plm_jax'], result['transformers']
    print(f'| {size} | {SIZES[size][2]} x {LENGTH} | {1000 * a["median"]:.0f} | {1000 * b["median"]:.0f} | '
          f'{b["median"] / a["median"]:.2f} | {share(a)} | {share(b)} |', flush=True)


def ours(layers: int, width: int, rows: int) -> None:
  from plm_jax.models import bert
  from plm_jax.objectives.mlm import MaskedLM
  plm_jax(bert.make_config(layers, width), MaskedLM(), rows)


def theirs(layers: int, width: int, rows: int) -> None:
  torch = torch_ready()
  from transformers import BertConfig, BertForPreTraining

  from plm_jax.models import bert
  from plm_jax.objectives.mlm import MaskedLM
  model = BertForPreTraining(BertConfig(
      vocab_size=VOCAB, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
      intermediate_size=4 * width)).train()
  batch = {**masked_batch(torch, rows), 'next_sentence_label': torch.randint(0, 2, (rows,))}
  torch_step(
    [model], lambda: model(**batch).loss, rows * MaskedLM().step_flops(bert.make_config(layers, width), LENGTH)
  )


if __name__ == '__main__':
  main()
