"""Implement `python -m plm_jax similar`, `search`, `rerank` and `distill`."""
from collections.abc import Iterator, Sequence
import sys
from typing import Any

import numpy as np
import tyro

from plm_jax import progress, storage
from plm_jax.api import retrieval, similarity
from plm_jax.cli import inputs, options, output_files, partial_output, work_identity
from plm_jax.cli.options import command
from plm_jax.errors import ConfigError
from plm_jax.metrics.nearest import Vectors, stack_vectors
from plm_jax.sources.lines import SourceError
from plm_jax.tasks import sources


@command()
def similar_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]], output: str = ''
) -> None:
  """Prints the similarity of texts: the cosine, or what the model was trained for.

  Args:
    run: run folder, checkpoint, or sentence-transformers folder
    texts: two or more texts: the first is compared with each of the others; or a file of pairs
      (.tsv, .csv, .jsonl)
    output: file for the results, one per line. Default, or -: standard output
  """
  if len(texts) == 1:
    pairs = read_text_pairs(texts[0])
  else:
    for text in texts:
      if inputs.is_source(text):
        raise ConfigError(f'{text} is a file, and texts are compared: give texts, or one file of '
                          'pairs alone')
    pairs = [(texts[0], other) for other in texts[1:]]
  if not pairs:
    raise ConfigError('there is nothing to compare: give two texts, or a file of pairs')
  trained = similarity.load_encoder(run)
  found = similarity.similar(
      trained, [first for first, _ in pairs], [second for _, second in pairs])
  with output_files.open_text(output) as write:
    for (first, second), cosine in zip(pairs, found, strict=True):
      cells = f'{cosine:.4f}', output_files.one_line(first), output_files.one_line(second)
      write('\t'.join(cells) + '\n')


def read_text_pairs(file: str) -> list[tuple[str, str]]:
  """Read the first two texts of each row of a file.

  Raises:
    ConfigError: the argument is not a file.
    SourceError: a row has fewer than two texts.
  """
  if not inputs.is_source(file):
    raise ConfigError(f'{file[:60]!r} is no file of pairs: give two texts, or a file')
  examples = sources.read_sources('embedding', [file], use='predict').examples
  pairs = []
  for example in examples:
    if len(example.texts) < 2:
      raise SourceError(f'{file}: a row has a text alone: there is nothing that it is compared '
                        'with')
    pairs.append((example.texts[0], example.texts[1]))
  return pairs


@command(top='[1, 1000000]', tokens='[1, 16777216]')
def search_command(
    run: tyro.conf.Positional[str], corpus: tyro.conf.Positional[str],
    queries: tyro.conf.Positional[tuple[str, ...]], top: int = 10, output: str = '',
    tokens: int = 8192) -> None:
  """Prints the nearest texts of a corpus for each query as JSON Lines (exact search).

  Args:
    run: run folder, checkpoint, or sentence-transformers folder
    corpus: texts: .txt with one text per line, or .jsonl, .tsv or .csv, optionally compressed (.gz,
      .xz); tfds:NAME:SPLIT; or a file with vectors from `encode`: .npy, or .npz of sparse or token
      vectors
    queries: queries, files of queries, or - for standard input with one query per line
    top: number of results per query
    output: file for the results (.jsonl). Default, or -: standard output
    tokens: maximum batch size in tokens, including padding; on a CPU at most 2,048, fewer of
      long texts
  """
  query_texts: list[str] = []
  for query in queries:
    if query == '-' or inputs.is_source(query):
      query_texts += [text for text, _ in inputs.read_texts(query, '')]
    else:
      query_texts.append(query.strip())
  if not query_texts:
    raise ConfigError('there is no query: give one, a file of queries, or - for standard input')
  trained = similarity.load_encoder(run)
  texts: list[str] = []
  if corpus.endswith(('.npy', '.npz')):
    if message := similarity.describe_document_prompt(trained):
      print(message, file=sys.stderr)
    hits = similarity.search_vectors(trained, map_vectors(corpus), query_texts, top)
  else:
    texts = [text for text, _ in inputs.read_texts(corpus, '')]
    if not texts:
      raise SourceError(f'{corpus} has no texts')
    with progress.track('texts', len(texts)):
      # thousands of documents at a time
      vectors = stack_vectors([
          similarity.encode(trained, chunk, tokens=tokens, prompt='document')
          for chunk in output_files.split_chunks(texts, inputs.CHUNK_ROWS)])
    hits = similarity.search_vectors(trained, vectors, query_texts, top)
  with output_files.open_text(output) as write:
    for query, found in zip(query_texts, hits, strict=True):
      rows = []
      for hit in found:
        row: dict[str, Any] = {'number': hit.number, 'score': round(hit.score, 6)}
        if texts:
          row['text'] = texts[hit.number]
        rows.append(row)
      write(output_files.json_line({'query': query, 'hits': rows}))


@command(top='[1, 1000000]', first='[0, 1000000000]', batch='[1, 16777216]')
def rerank_command(
    run: tyro.conf.Positional[str], queries: tyro.conf.Positional[str],
    corpus: tyro.conf.Positional[str], top: int = 10, first: int = 100, output: str = '',
    batch: int = 32) -> None:
  """Prints the most relevant documents for each query as JSON Lines, by a cross-encoder or ColBERT.

  Args:
    run: run folder of a model that has learned reranking or late interaction, or a CrossEncoder of
      sentence-transformers, or a folder of PyLate
    queries: a query, a file of queries, or - for standard input with one query per line
    corpus: documents: .txt with one per line, or .jsonl, .tsv or .csv, optionally compressed
      (.gz, .xz); tfds:NAME:SPLIT
    top: number of results per query
    first: number of documents per query that are scored: the best ones by BM25. 0: all
    output: file for the results (.jsonl). Default, or -: standard output
    batch: batch size in pairs of a query and a document
  """
  query_texts, sources_read = [queries.strip()], [corpus]
  if queries == '-' or inputs.is_source(queries):
    query_texts = [text for text, _ in inputs.read_texts(queries, '')]
    sources_read.append(queries)
  texts = [text for text, _ in inputs.read_texts(corpus, '')]
  if not texts:
    raise SourceError(f'{corpus} has no documents')
  trained = similarity.load_reranker(run)
  work = work_identity.identify_work(
      output, sources_read, trained, queries=queries, top=top, first=first, batch=batch)
  pairs = min(first or len(texts), len(texts))
  per_chunk = max(1, inputs.chunk_rows() // pairs)
  with partial_output.open_text(output, work, 'queries') as out:
    left = query_texts[out.rows:]
    candidates = choose_candidates(left, texts, first)
    with progress.track('pairs', len(left) * pairs, quiet=not output and sys.stdout.isatty()):
      for chunk in output_files.split_chunks(zip(left, candidates, strict=True), per_chunk):
        for query, numbers in chunk:
          hits, = similarity.rerank(trained, query, [[texts[at] for at in numbers]], top, batch)
          rows = []
          for hit in hits:
            number = int(numbers[hit.number])
            rows.append({'number': number, 'score': round(hit.score, 6), 'text': hit.text})
          out.write(output_files.json_line({'query': query, 'hits': rows}))
        out.finish_chunk(len(chunk))


def choose_candidates(
    queries: list[str], documents: list[str], first: int) -> Iterator[Sequence[int] | np.ndarray]:
  """Yield the numbers of the documents to score for each query, the best `first` by BM25."""
  if not first or len(documents) <= first:
    yield from [range(len(documents))] * len(queries)
    return
  for numbers, *_ in retrieval.search_documents(retrieval.BM25, queries, documents, first):
    yield numbers


def map_vectors(file: str) -> Vectors:
  """Memory-map the vectors of a .npy file, or read the sparse or token vectors of a .npz file.

  Raises SourceError for a file without vectors.
  """
  try:
    found = np.load(storage.resolve_path(file), mmap_mode='r')
    if file.endswith('.npz') and 'lengths' in found:
      return np.split(found['vectors'], np.cumsum(found['lengths'])[:-1])
    if file.endswith('.npz'):
      from scipy import sparse
      with storage.resolve_path(file).open('rb') as content:
        return sparse.load_npz(content).tocsr()
  except (OSError, ValueError, KeyError) as error:
    raise SourceError(f'{file} holds no vectors: {error}') from error
  if found.ndim != 2 or found.dtype.kind != 'f':
    raise SourceError(f'{file} holds no vectors [N, D] but {found.dtype} {list(found.shape)}')
  return found


@command(size='[0, 65536]')
def distill_command(
    run: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    size: int = 256) -> None:
  """Distills an encoder into static vectors, one per token; sentence-transformers loads them.

  Args:
    run: run folder, checkpoint, or sentence-transformers folder
    out: folder for the vectors, which must not exist yet
    output: same as the OUTPUT argument
    size: number of dimensions to keep, by principal component analysis (PCA); 0: all
  """
  out = options.choose_output(out, output)
  found = similarity.distill(run, out, size)
  print(f'{len(found.table):,} vectors of {found.table.shape[1]} numbers in {out}')
