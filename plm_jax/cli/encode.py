"""Implement `python -m plm_jax encode`, for files of any size."""
import contextlib
import dataclasses
from typing import Annotated, Any

import tyro

from plm_jax import progress
from plm_jax.api import models
from plm_jax.api.similarity import encode
from plm_jax.cli import inputs, output_files, partial_output, work_identity
from plm_jax.cli.inputs import display_name, load_on_mesh
from plm_jax.cli.options import command
from plm_jax.errors import ConfigError
from plm_jax.inference import static_vectors
from plm_jax.inference.encode import Pooling
from plm_jax.inference.sentence_vectors import with_sparse_vectors
from plm_jax.inference.static_vectors import StaticVectors
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sharding import MeshConfig
from plm_jax.sources.lines import SourceError
from plm_jax.tasks.document_windows import WindowPooling
from plm_jax.validation import ValidatedConfig, intervals


@dataclasses.dataclass(frozen=True)
class EncodeConfig(ValidatedConfig):
  """Layer and pooling of text vectors."""

  limits = intervals(tokens='[1, 16777216]', layer='(-inf, inf)')

  layer: int = -1
  """layer to read. 0: token embeddings; k: output of layer k; -1: last layer"""
  pooling: Pooling = 'own'
  """how token vectors become one vector per text. own: the pooling that the model was trained with,
  or else mean pooling; late interaction (ColBERT) has no pooling. none: no pooling, write all token
  vectors"""
  cut: bool = False
  """truncate texts that are too long; without this option or --windows, they are an error"""
  windows: WindowPooling = 'off'
  """vector of a text that is too long. mean, max: the mean or the maximum of the vectors of its
  windows; off: see --cut"""
  stride: int = 0
  """tokens between the starts of consecutive windows; 0: three quarters of a window"""
  sparse: bool = False
  """sparse vectors (SPLADE) of a masked language model. A model that was trained for sparse vectors
  gives them without this option"""
  prompt: str = 'own'
  """text before each text, by its name: query, document, or another one of the model. own: that of
  documents if the model was trained with one, or the default of a sentence-transformers folder;
  none: no prompt. With late interaction, query makes the vectors of queries, others those of
  documents"""
  column: str = ''
  """column with the texts. Default: the first of sentence, text, review, content, title and
  question that the file has"""
  tokens: int = 8192
  """maximum batch size in tokens, including padding; on a CPU at most 2,048, fewer of long texts"""


@command()
def encode_command(
    run: tyro.conf.Positional[str], file: tyro.conf.Positional[str], output: str,
    settings: Annotated[EncodeConfig, tyro.conf.arg(name='')] = EncodeConfig(),
    mesh: MeshConfig = MeshConfig(1)) -> None:
  """Writes one vector per text of a file, or per token with --pooling=none or a ColBERT model.

  Sparse vectors (SPLADE) are written to .npz, which scipy.sparse.load_npz reads.

  Args:
    run: run folder or transformers checkpoint
    file: texts: .txt with one text per line, or .jsonl, .tsv or .csv, optionally compressed (.gz,
      .xz); tfds:NAME:SPLIT; or - for standard input
    output: file for the vectors: .npy; .npz with `vectors` and, for token vectors, `lengths`; or
      .parquet. Sparse vectors: .npz
    settings: layer and pooling
    mesh: devices over which a large model is split
  """
  output_files.check_vector_output(output, settings.pooling == 'none')
  trained: Any = static_vectors.load(run) or load_on_mesh(run, mesh)
  is_loaded = isinstance(trained, LoadedModel)
  if settings.sparse:
    if not is_loaded or settings.pooling != 'own' or settings.layer != -1:
      raise ConfigError('--sparse is for masked language models, without --pooling and --layer')
    trained = with_sparse_vectors(trained)
  makes_own = settings.pooling == 'own' and settings.layer == -1
  is_sparse = makes_own and getattr(getattr(trained, 'task', None), 'is_sparse', False)
  if is_sparse and not output.lower().endswith('.npz'):
    raise ConfigError(f'--output of sparse vectors is .npz, got {output}')
  ragged = settings.pooling == 'none' or (makes_own and trained.similarity == 'maxsim')
  output_files.check_vector_output(output, ragged)
  work = work_identity.identify_work(output, [file], trained, settings=settings, mesh=mesh)
  count = skipped = 0
  devices = models.mesh_context(trained) if is_loaded else contextlib.nullcontext()
  with (devices, progress.track('texts') as done,
        partial_output.open_vectors(output, ragged, work, is_sparse) as out):
    texts = inputs.read_texts(file, settings.column)
    for chunk in output_files.split_chunks(texts, inputs.chunk_rows()):
      count += len(chunk)
      if out.skip_chunk(len(chunk)):
        skipped += len(chunk)
        continue
      out.write(encode_chunk(trained, chunk, settings))
      out.finish_chunk(len(chunk))
      done.update(count - skipped - done.done)  # for a model that reports no progress itself
    if not count:
      raise SourceError(f'{display_name(file)} has no texts')
  print(f'vectors of {count:,} texts in {output}')


def encode_chunk(
    trained: LoadedModel | StaticVectors, chunk: list[tuple[str, str]], settings: EncodeConfig
) -> Any:
  """Encode (text, place) pairs; raise SourceError with the place of a text that is refused."""
  def encode_texts(texts):
    pooling: Any = settings.pooling  # one of them returns lists
    return encode(
        trained, texts, settings.layer, pooling, settings.cut, settings.tokens, settings.windows,
        settings.stride, settings.prompt)

  try:
    return encode_texts([text for text, _ in chunk])
  except ConfigError:
    for text, where in chunk:
      try:
        encode_texts([text])
      except ConfigError as error:
        raise SourceError(f'{where}: {error.marked}') from error
    raise
