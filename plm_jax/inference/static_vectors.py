"""Static embeddings distilled from an encoder: a vector per token; a text is their mean.

This is Model2Vec (Tulkens and van Dongen 2024; its distill/). Every token of the vocabulary goes
through the encoder alone. Principal component analysis reduces the vectors. Each is weighted by the
token's rank, since frequent tokens carry little meaning. A folder is that of sentence-transformers'
StaticEmbedding. Encoding a text does not run a model.
"""
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from plm_jax.conversion import files, folders, tokenizer_files
from plm_jax.conversion.sentence_transformers import (
  MODEL_SETTINGS,
  read_modules,
  read_optional_json,
  write_module_list,
)
from plm_jax.errors import ConfigError, check_finite
from plm_jax.inference import encode
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.metrics.embeddings import normalize_vectors
from plm_jax.metrics.nearest import Similarity
from plm_jax.models.rules import ConvertError
from plm_jax.tokenizers import Tokenizer

MODULE_NAME = 'StaticEmbedding'
MODULE_FOLDER = '0_StaticEmbedding'
TENSOR_NAME = 'embedding.weight'
DEFAULT_SIF = 1e-4  # a of a / (a + p) (Arora et al. 2017, equation 3), as in Model2Vec


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class StaticVectors:
  """Static embeddings: a vector for each token of a vocabulary."""

  tokenizer: Tokenizer
  table: np.ndarray
  """[V, D] float32"""
  normalize: bool = True
  """whether vectors of texts are normalized"""
  similarity: Similarity = 'cosine'
  """similarity of vectors"""

  def find_prompt(self, name: str) -> str:
    """Return no text: static vectors have no prompts."""
    return ''

  def __repr__(self) -> str:
    return (f'<static vectors: {len(self.table):,} tokens, {self.table.shape[1]} numbers; can '
            'encode, similar, search>')

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """Compute the mean of each text's token vectors -> float32 [N, D]; zeros for no tokens."""
    rows = self.tokenizer.encode_batch(list(texts))
    sizes = np.array([len(row) for row in rows], np.int64)
    out, nonempty = np.zeros((len(rows), self.table.shape[1]), np.float32), np.flatnonzero(sizes)
    if len(nonempty):
      flat = np.concatenate([np.asarray(rows[number], np.int64) for number in nonempty])
      starts = np.cumsum(sizes[nonempty]) - sizes[nonempty]
      sums = np.add.reduceat(self.table[flat], starts, axis=0)
      out[nonempty] = sums / sizes[nonempty, None]
    check_finite(out)
    return normalize_vectors(out).astype(np.float32) if self.normalize else out

  def save(self, folder: Any) -> None:
    """Write a folder that sentence-transformers loads. Raises ConvertError if it exists."""
    with folders.atomic_folder(folder) as draft:
      (draft / MODULE_FOLDER).mkdir()
      tensors = iter([(TENSOR_NAME, self.table)])
      files.write_safetensors(draft / MODULE_FOLDER, tensors, 1 << 40)
      tokenizer_files.save(draft / MODULE_FOLDER, self.tokenizer, 512)
      modules = [(MODULE_NAME, MODULE_FOLDER)]
      if self.normalize:
        (draft / '1_Normalize').mkdir()
        modules.append(('Normalize', '1_Normalize'))
      write_module_list(draft, modules)
      if self.similarity != 'cosine':
        files.write_json(draft / MODEL_SETTINGS, {'similarity_fn_name': self.similarity})


def load(folder: Any) -> StaticVectors | None:
  """Load static embeddings; None for a folder of another kind.

  Raises ConvertError for a table that does not fit its tokenizer.
  """
  listed = read_modules(folder)
  if listed is None:
    return None
  home, modules = listed
  names = [name for name, _ in modules]
  if names[:1] != [MODULE_NAME]:
    return None
  root = modules[0][1]
  source, tokenizer = files.SafeTensorsFolder(root), tokenizer_files.load(root)
  is_known = names[1:] in ([], ['Normalize']) and TENSOR_NAME in source.tensors
  if tokenizer is None or not is_known:
    raise ConvertError(
        f'{folder}: static vectors are a tokenizer, a tensor {TENSOR_NAME} and the length 1 or '
        f'not, got the modules {", ".join(names)}, tensors {", ".join(source.tensors)}')
  table = np.asarray(source.read(TENSOR_NAME), np.float32)
  if table.ndim != 2 or len(table) < tokenizer.vocab.size:
    raise ConvertError(f'{folder}: vectors {list(table.shape)} for a tokenizer of '
                       f'{tokenizer.vocab.size} pieces')
  settings = read_optional_json(home / MODEL_SETTINGS)
  changes = [name for name in ('truncate_dim', 'default_prompt_name') if settings.get(name)]
  if changes:
    raise ConvertError(f'{home / MODEL_SETTINGS}: {changes[0]} of static vectors is not supported')
  return StaticVectors(
      tokenizer, table, 'Normalize' in names, settings.get('similarity_fn_name') or 'cosine')


def distill_static_vectors(
    trained: LoadedModel, size: int = 256, sif: float = DEFAULT_SIF) -> StaticVectors:
  """Distill static embeddings from an encoder (Model2Vec).

  Args:
    trained: an encoder with a tokenizer, whose ids are assumed to be sorted by frequency.
    size: D, principal components to keep; 0: no reduction.
    sif: a token of frequency p gets the weight sif / (sif + p), with p from its id by Zipf's law;
      0: equal weights.

  Raises:
    ConfigError: there is no tokenizer, or there are fewer components than `size`.
  """
  if trained.tokenizer is None:
    raise ConfigError(
        'the model has no tokenizer: it has no tokens whose vectors could be kept')
  vocab = trained.tokenizer.vocab
  tokens = [[number] for number in range(vocab.size)]
  vectors = np.asarray(encode.encode(trained, tokens), np.float64)
  if size > min(vectors.shape):
    raise ConfigError(
        f'{vectors.shape[0]} vectors of {vectors.shape[1]} numbers have {min(vectors.shape)} '
        f'principal components, and {size} are requested')
  if size:
    centered = vectors - vectors.mean(0)
    _, directions = np.linalg.eigh(centered.T @ centered)
    vectors = centered @ directions[:, ::-1][:, :size]
  if sif:
    frequency = 1 / np.arange(2, vocab.size + 2)
    vectors *= (sif / (sif + frequency / frequency.sum()))[:, None]
  return StaticVectors(trained.tokenizer, vectors.astype(np.float32))
