"""python -m plm_jax similar, search and distil: texts by how near their vectors are."""
from collections.abc import Iterator
import json

import numpy as np
import tyro

from plm_jax import similarity, storage
from plm_jax.cli import applied, writing
from plm_jax.cli.options import command
from plm_jax.data.lines import SourceError
from plm_jax.errors import ConfigError
from plm_jax.storage import reachable
from plm_jax.tasks import sources


@command()
def similar_command(run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]], output: str = ''
                    ) -> None:
  """Prints how alike texts are, by the cosine of their vectors.

  Args:
    run: folder of a run, of a checkpoint, or of sentence-transformers
    texts: two texts or more, of which the first is compared with each other; or a file of pairs, as `finetune` takes
      them (.tsv, .csv, .jsonl)
    output: file for the numbers, a line each; empty: standard output
  """
  reachable.check_reachable({output: 'write'})
  pairs = [(texts[0], other) for other in texts[1:]]
  if len(texts) == 1:
    pairs = pairs_of(texts[0])
  if not pairs:
    raise ConfigError('there is nothing to compare: give two texts, or a file of pairs')
  found = similarity.similar(similarity.reader(run), [first for first, _ in pairs], [second for _, second in pairs])
  with writing.text(output) as write:
    for (first, second), cosine in zip(pairs, found, strict=True):
      write('\t'.join((f'{cosine:.4f}', writing.flat(first), writing.flat(second))) + '\n')


def pairs_of(file: str) -> list[tuple[str, str]]:
  """Reads the first two texts of each row of a file. Raises SourceError for one that has none."""
  if not applied.is_file(file) and not file.startswith(('tfds:', 'embedded:')):
    raise ConfigError(f'{file[:60]!r} is no file of pairs: give two texts, or a file')
  found = [example.texts[:2] for example in sources.examples('embedding', [file], use='predict').examples]
  if any(len(texts) < 2 for texts in found):
    raise SourceError(f'{file}: a row has a text alone: there is nothing that it is compared with')
  return found  # pyright: ignore[reportReturnType]


@command(top='[1, 1000000]', tokens='[1, 16777216]')
def search_command(
    run: tyro.conf.Positional[str], corpus: tyro.conf.Positional[str], queries: tyro.conf.Positional[str],
    top: int = 10, output: str = '', tokens: int = 8192) -> None:
  """Prints the texts of a corpus that are most like each query, as JSON lines; all are looked at.

  Args:
    run: folder of a run, of a checkpoint, or of sentence-transformers
    corpus: .txt, a text a line; .jsonl, .tsv, .csv, plain, .gz or .xz; tfds:NAME:SPLIT; or .npy, the vectors that
      `encode` wrote
    queries: such a file, or one query
    top: how many to find
    output: .jsonl file; empty: standard output
    tokens: that go through the model together, padding included
  """
  reachable.check_reachable({output: 'write'})
  trained = similarity.reader(run)
  asked = [text for text, _ in applied.texts_of(queries, '')] if applied.is_file(queries) else [queries]
  texts: list[str] = []
  if corpus.endswith('.npy'):
    known = mapped(corpus)
  else:
    texts = [text for text, _ in applied.texts_of(corpus, '')]
    if not texts:
      raise SourceError(f'{corpus} has no texts')
    known = np.concatenate([*encoded(trained, texts, tokens)])
  hits = similarity.search(trained, known, asked, top)
  with writing.text(output) as write:
    for query, found in zip(asked, hits, strict=True):
      rows = [{'number': hit.number, 'score': round(hit.score, 6), **({'text': texts[hit.number]} if texts else {})}
              for hit in found]
      write(json.dumps({'query': query, 'hits': rows}, ensure_ascii=False) + '\n')


def encoded(trained: similarity.Model, texts: list[str], tokens: int) -> Iterator[np.ndarray]:
  """Yields the vectors of texts, thousands at a time."""
  for chunk in writing.several(texts, applied.CHUNK):
    yield similarity.encode(trained, chunk, tokens=tokens)


def mapped(file: str) -> np.ndarray:
  """Maps the vectors of a file into memory. Raises SourceError for a file that holds none."""
  try:
    found = np.load(storage.path_of(file), mmap_mode='r')
  except (OSError, ValueError) as error:
    raise SourceError(f'{file} holds no vectors: {error}') from error
  if found.ndim != 2 or found.dtype.kind != 'f':
    raise SourceError(f'{file} holds no vectors [N, D] but {found.dtype} {list(found.shape)}')
  return found


@command(size='[0, 65536]')
def distil_command(run: tyro.conf.Positional[str], out: tyro.conf.Positional[str], size: int = 256) -> None:
  """Writes static vectors of an encoder, one a token, which embed texts without it; sentence-transformers loads them.

  Args:
    run: folder of a run, of a checkpoint, or of sentence-transformers
    out: folder for them, not there yet
    size: numbers of a vector, principal components of what the encoder says; 0: all of that
  """
  found = similarity.distil(run, out, size)
  print(f'{len(found.table):,} vectors of {found.table.shape[1]} numbers in {out}')
