"""Static vectors distilled from an encoder: a vector a token, a text is their mean, and no model is asked.

What Model2Vec does (Tulkens and van Dongen 2024; its distill/): every token of the vocabulary goes through the encoder,
alone; principal components of the vectors; a weight of each token by its rank, as frequent ones say little. A folder is
that of sentence-transformers' StaticEmbedding.
"""
from collections.abc import Sequence
import dataclasses
import json
from typing import Any

import numpy as np

from plm_jax.conversion import files, folders, vocabulary
from plm_jax.conversion.rules import ConvertError
from plm_jax.embeddings.exchange import MODULES, modules
from plm_jax.embeddings.measures import unit
from plm_jax.errors import ConfigError
from plm_jax.inference import encode
from plm_jax.inference.loading import Trained
from plm_jax.tokenizers import Tokenizer

KIND, PLACE, TABLE = 'StaticEmbedding', '0_StaticEmbedding', 'embedding.weight'
SIF = 1e-4  # a of a / (a + p) (Arora et al. 2017, equation 3), as in Model2Vec


@dataclasses.dataclass(frozen=True, eq=False)
class StaticVectors:
  """A vector for each token of a vocabulary."""

  tokenizer: Tokenizer
  table: np.ndarray
  """[V, D] float32"""
  normalise: bool = True
  """vectors of texts have the length 1"""

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """Computes the mean of each text's token vectors -> float32 [N, D]; a text without tokens has zeros."""
    rows = self.tokenizer.encode_batch(list(texts))
    sizes = np.array([len(row) for row in rows], np.int64)
    out, there = np.zeros((len(rows), self.table.shape[1]), np.float32), np.flatnonzero(sizes)
    if len(there):
      flat = np.concatenate([np.asarray(rows[number], np.int64) for number in there])
      starts = np.cumsum(sizes[there]) - sizes[there]
      out[there] = np.add.reduceat(self.table[flat], starts, axis=0) / sizes[there, None]
    return unit(out).astype(np.float32) if self.normalise else out

  def save(self, folder: Any) -> None:
    """Writes a folder that sentence-transformers loads. Raises ConvertError where something is there already."""
    with folders.fresh_folder(folder) as draft:
      (draft / PLACE).mkdir()
      files.write_safetensors(draft / PLACE, iter([(TABLE, self.table)]), 1 << 40)
      vocabulary.save(draft / PLACE, self.tokenizer, 512)
      names = [KIND, *(['Normalize'] if self.normalise else [])]
      if self.normalise:
        (draft / '1_Normalize').mkdir()
      listed = [{'idx': number, 'name': str(number), 'path': f'{number}_{name}',
                 'type': f'sentence_transformers.models.{name}'} for number, name in enumerate(names)]
      (draft / MODULES).write_text(json.dumps(listed, indent=2))


def load(folder: Any) -> StaticVectors | None:
  """Loads static vectors; None for a folder of another kind. Raises ConvertError for a table that does not fit its
  tokenizer."""
  listed = modules(folder)
  names = [name for name, _ in listed[1]] if listed else []
  if listed is None or names[:1] != [KIND]:
    return None
  root = listed[1][0][1]
  source, tokenizer = files.SafeTensors(root), vocabulary.load(root)
  if tokenizer is None or names[1:] not in ([], ['Normalize']) or TABLE not in source.tensors:
    raise ConvertError(f'{folder}: static vectors are a tokenizer, a tensor {TABLE} and the length 1 or not, got the '
                       f'modules {", ".join(names)}, tensors {", ".join(source.tensors)}')
  table = np.asarray(source.read(TABLE), np.float32)
  if table.ndim != 2 or len(table) < tokenizer.vocab.size:
    raise ConvertError(f'{folder}: vectors {list(table.shape)} for a tokenizer of {tokenizer.vocab.size} pieces')
  return StaticVectors(tokenizer, table, 'Normalize' in names)


def distil(trained: Trained, size: int = 256, sif: float = SIF) -> StaticVectors:
  """Distils the static vectors of an encoder.

  Args:
    trained: any encoder with a tokenizer, whose ids are taken to lie in the order of their frequency
    size: D, principal components that are kept; 0: all numbers as they are
    sif: a token of share p weighs sif / (sif + p), p by Zipf's law from its id; 0: all weigh alike

  Raises:
    ConfigError: no tokenizer; more components than there can be.
  """
  if trained.tokenizer is None:
    raise ConfigError('the model has no tokenizer: it has no tokens whose vectors could be kept')
  vocab = trained.tokenizer.vocab
  vectors = np.asarray(encode.encode(trained, [[number] for number in range(vocab.size)]), np.float64)
  if size > min(vectors.shape):
    raise ConfigError(f'{vectors.shape[0]} vectors of {vectors.shape[1]} numbers have {min(vectors.shape)} principal '
                      f'components, and {size} are to be kept')
  if size:
    centred = vectors - vectors.mean(0)
    vectors = centred @ np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :size]
  if sif:
    shares = 1 / np.arange(2, vocab.size + 2)
    vectors *= (sif / (sif + shares / shares.sum()))[:, None]
  return StaticVectors(trained.tokenizer, vectors.astype(np.float32))
