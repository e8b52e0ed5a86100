"""Compare sentence scores with a loop in torch: pseudo-likelihoods of BERT and likelihoods of GPT-2, to 1e-4.

    python -m benchmarks.minimal_pairs blimp.jsonl.gz [--limit=2]

Needs torch, transformers and plm_jax[convert]; nothing is downloaded. Models with random weights are exported, and
transformers loads them. For BERT, the loop masks one token of a sentence at a time (for pll-word-l2r, also the tokens
that follow it in its word), runs the model on this single sequence, and adds up the log-probabilities. For GPT-2, it
runs the model once per sentence, without batches. The exit status is 1 if a score differs by more than 1e-4.
"""
import argparse
import os
import pathlib
import tempfile
import time

os.environ['HF_HUB_OFFLINE'] = '1'

from flax.linen import unbox
import jax
import numpy as np
import torch
import transformers

import plm_jax
from plm_jax import conversion, validation
from plm_jax.evaluation import minimal_pairs, pseudo_likelihood
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import bert, gpt2
from plm_jax.tokenizers import train_byte_bpe, train_wordpiece

LIMIT = 1e-4


def main() -> None:
  args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  args.add_argument('pairs', help='file in the format of BLiMP')
  args.add_argument('--limit', type=int, default=2, help='pairs per paradigm')
  args = args.parse_args()
  torch.set_num_threads(1)  # the batch of one sentence is too small to split over threads
  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  pairs = [*minimal_pairs.read_pairs(args.pairs, args.limit)]
  texts = [*dict.fromkeys(text for pair in pairs for text in pair[:2])]
  print(f'{len(pairs):,} pairs, {len(texts):,} sentences; torch {torch.__version__}, transformers '
        f'{transformers.__version__}, jax {jax.__version__}')
  with tempfile.TemporaryDirectory() as folder:
    encoder, decoder = f'{folder}/bert', f'{folder}/gpt2'
    export(encoder, 'bert', 'mlm', train_wordpiece(texts, 2000))
    export(decoder, 'gpt2', 'lm', train_byte_bpe(texts, 2000, layout='gpt2'))
    good = True
    for name, model, how, other in (('BERT, pll', encoder, 'pll', of_encoder), (
        'BERT, pll-word-l2r', encoder, 'pll-word-l2r', of_encoder), ('GPT-2', decoder, 'pll', of_decoder)):
      began = time.time()
      own = plm_jax.likelihood(plm_jax.load(model), texts, how)  # pyright: ignore
      between = time.time()
      theirs = np.array(other(model, texts, how))
      worst = float(np.abs(own - theirs).max())
      good &= worst <= LIMIT
      print(f'{name:20} scores {theirs.min():9.3f} to {theirs.max():8.3f}, largest difference {worst:.1e}; '
            f'{between - began:.1f} s here, {time.time() - between:.1f} s in the loop')
  raise SystemExit(not good)


def export(folder: str, family: str, head: str, tokenizer) -> None:
  """Write a small model with random weights that are large enough for its outputs to differ."""
  size = bert.mini() if family == 'bert' else gpt2.small()
  block = validation.with_paths(size.block, {'width': 256, 'heads': 4, 'mlp_dim': 1024, 'head_size': None})
  model = size.resize(block, 4, tokenizer.vocab.size, 128)
  heads = {head: conversion.build_head(family, head, model, 2)}
  batch = dict.fromkeys(('tokens', 'segments'), jax.ShapeDtypeStruct((1, 8), np.int32))
  shapes = jax.eval_shape(ModelWithHeads(model.backbone(), heads).init, jax.random.key(0), batch)['params']
  draw = np.random.default_rng(0)
  def leaf(path, x):
    gain = getattr(path[-1], 'key', '') == 'scale'
    return (gain + draw.normal(0, 0.1, x.shape)).astype(np.float32)
  params = jax.tree_util.tree_map_with_path(leaf, unbox(shapes))
  conversion.save(pathlib.Path(folder), model, params, tokenizer, like=family)


@torch.no_grad()
def of_encoder(folder: str, texts: list[str], how: pseudo_likelihood.MaskingMode) -> list[float]:
  """Compute pseudo-log-likelihoods one token at a time, as defined by Salazar et al. and Kauf and Ivanova."""
  model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  found = []
  for text in texts:
    ids = tokenizer(text, return_tensors='pt')['input_ids'][0]
    pieces, total = tokenizer.convert_ids_to_tokens(ids), 0.0
    for place in range(1, len(ids) - 1):
      row, end = ids.clone(), place + 1
      while how == 'pll-word-l2r' and pieces[end].startswith('##'):
        end += 1
      row[place:end] = tokenizer.mask_token_id
      logits = model(row[None]).logits[0, place].double()
      total += float(torch.log_softmax(logits, -1)[ids[place]])
    found.append(total)
  return found


@torch.no_grad()
def of_decoder(folder: str, texts: list[str], how: pseudo_likelihood.MaskingMode) -> list[float]:
  """Compute the log-likelihood of each sentence, given the BOS token."""
  del how
  model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  found = []
  for text in texts:
    ids = torch.tensor([tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)['input_ids']])
    logprobs = torch.log_softmax(model(ids[None]).logits[0].double(), -1)
    found.append(float(logprobs[:-1].gather(1, ids[1:, None]).sum()))
  return found


if __name__ == '__main__':
  main()
