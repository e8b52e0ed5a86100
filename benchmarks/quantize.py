"""Measure what int8 quantization costs a sentence encoder in ONNX Runtime: correlations, file size and CPU seconds.

    python -m benchmarks.quantize --model=out/ --data=DIR --onnx=onnx/

--model is a folder of sentence-transformers, such as the export of a run. DIR has stsb_test.tsv.gz and sick_test.tsv.gz.
The folder --onnx gets model.onnx and int8.onnx, whose output is the vector of a text. The weights of int8.onnx have 8
bits, with a scale per output; activations are quantized as they come, so no texts are needed for calibration. Their
scale is that of a batch: with other batches, scores of int8 differ by about 0.1. plm_jax and both files encode the same
sentences, and plm_jax computes Spearman's correlation of their cosines with the labels. CPU seconds are those of one
thread.

Needs torch, sentence-transformers, onnx, onnxscript and onnxruntime.
"""
import argparse
import pathlib
import time

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingImports]
from onnxruntime.quantization import QuantType, quantize_dynamic  # pyright: ignore[reportMissingImports]
from sentence_transformers import SentenceTransformer
import torch

from benchmarks.side_by_side import machine
import plm_jax
from plm_jax.metrics.nearest import compare_pairs
from plm_jax.metrics.tasks import spearman
from plm_jax.sources.row_readers import Columns
from plm_jax.tasks.sources import read_sources

BATCH = 32
DATA = {'STS-B test': ('stsb_test.tsv.gz', 'score'), 'SICK test': ('sick_test.tsv.gz', 'relatedness')}


class TextVectors(torch.nn.Module):
  """All modules of a sentence encoder: encoder, pooling, dense layers, normalization."""

  def __init__(self, library: SentenceTransformer, names: list[str]):
    super().__init__()
    self.library, self.names = library, names

  def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
    """Compute the vectors [B, W] of the inputs of these names [B, L]."""
    return self.library(dict(zip(self.names, inputs, strict=True)))['sentence_embedding']


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--model', required=True, help='folder of sentence-transformers')
  parser.add_argument('--data', required=True, help='folder of the test sets')
  parser.add_argument('--onnx', required=True, help='folder for the ONNX files')
  args = parser.parse_args()
  folder, pairs = pathlib.Path(args.onnx), {}
  for name, (file, label) in DATA.items():
    columns = Columns('sentence1', 'sentence2', label)
    pairs[name] = read_sources('regression', [f'{args.data}/{file}'], columns).examples
  texts = {text for examples in pairs.values() for example in examples for text in example.texts}
  texts = sorted(texts, key=lambda text: (len(text), text))
  numbers = {text: number for number, text in enumerate(texts)}
  library = SentenceTransformer(args.model, device='cpu')
  write_files(library, texts[:2], folder)

  print(machine('jax', 'torch', 'onnxruntime', 'sentence-transformers'))
  print(f'\n{len(texts):,} sentences\n\n| program | file, MB | {" | ".join(DATA)} | CPU seconds |\n|---|---|---|---|---|')
  for name, file in (('plm_jax', ''), ('ONNX', 'model.onnx'), ('ONNX, int8', 'int8.onnx')):
    vectors, seconds = encode(library, folder / file, texts) if file else (plm_jax.encode(args.model, texts), '')
    scores = []
    for examples in pairs.values():
      first, second = (vectors[[numbers[example.texts[side]] for example in examples]] for side in (0, 1))
      scores.append(spearman([example.label for example in examples], compare_pairs(first, second)))
    size = f'{(folder / file).stat().st_size / 1e6:.1f}' if file else ''
    print(f'| {name} | {size} | {" | ".join(f"{score:.2f}" for score in scores)} | {seconds} |')


def write_files(library: SentenceTransformer, texts: list[str], folder: pathlib.Path) -> None:
  """Write model.onnx and int8.onnx."""
  folder.mkdir(parents=True, exist_ok=True)
  inputs = {name: x for name, x in library.tokenize(texts).items() if isinstance(x, torch.Tensor)}
  axes = {0: torch.export.Dim('batch'), 1: torch.export.Dim('length')}
  torch.onnx.export(
      TextVectors(library, list(inputs)).eval(), tuple(inputs.values()), folder / 'model.onnx', dynamo=True,
      external_data=False, input_names=list(inputs), output_names=['vectors'],
      dynamic_shapes={'inputs': (axes,) * len(inputs)})
  quantize_dynamic(folder / 'model.onnx', folder / 'int8.onnx', per_channel=True, weight_type=QuantType.QInt8)


def encode(library: SentenceTransformer, file: pathlib.Path, texts: list[str]) -> tuple[np.ndarray, str]:
  """Encode texts of similar length together by an ONNX file -> vectors, CPU seconds."""
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = 1
  session, found = onnxruntime.InferenceSession(file, options), []
  names = [given.name for given in session.get_inputs()]
  batches = [library.tokenize(texts[start:start + BATCH]) for start in range(0, len(texts), BATCH)]
  began = time.process_time()
  for batch in batches:
    found += session.run(None, {name: batch[name].numpy() for name in names})
  return np.concatenate(found), f'{time.process_time() - began:.1f}'


if __name__ == '__main__':
  main()
