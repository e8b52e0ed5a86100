"""Implement `python -m plm_jax mine-negatives`, `evaluate-retrieval` and `mteb`."""
from typing import Annotated, Any

import tyro

from plm_jax import errors
from plm_jax.api import retrieval
from plm_jax.api.retrieval import MiningConfig
from plm_jax.cli import inputs, output_files
from plm_jax.cli.options import command
from plm_jax.sources.lines import SourceError
from plm_jax.tasks import sources


@command()
def mine_negatives_command(
    retriever: tyro.conf.Positional[str], pairs: tyro.conf.Positional[str], output: str,
    corpus: str = '', judge: str = '',
    settings: Annotated[MiningConfig, tyro.conf.arg(name='')] = MiningConfig()) -> None:
  """Writes hard negatives of pairs of a query and a relevant document, to train on.

  Args:
    retriever: a model with text vectors (run folder, checkpoint, sentence-transformers folder), or
      bm25
    pairs: queries and relevant documents: .jsonl, .tsv or .csv with columns such as query and
      positive
    output: file for the pairs with their negatives and scores (.jsonl)
    corpus: documents to search, in addition to those of the pairs: .txt with one per line, or
      .jsonl, .tsv or .csv
    judge: a cross-encoder whose scores decide instead of the retriever's, and are written for
      distillation
    settings: which documents become negatives
  """
  found = sources.read_sources('embedding', [pairs], use='predict')
  examples = found.examples
  for line in found.report.lines():
    errors.print_line(line)
  for example in examples:
    if len(example.texts) < 2:
      raise SourceError(f'{example.where}: a row has a query and a relevant document, got one text')
  texts = [text for text, _ in inputs.read_texts(corpus, '')] if corpus else []
  given = [(example.texts[0], example.texts[1]) for example in examples]
  mined = retrieval.mine_negatives(retriever, given, texts, settings, judge or None)
  written = fewer = 0
  with output_files.open_text(output) as write:
    for one in mined:
      if not one.negatives:
        continue
      written += 1
      fewer += len(one.negatives) < settings.number
      row: dict[str, Any] = {
          'query': one.query, 'positive': one.positive, 'negatives': one.negatives}
      if judge:
        row['scores'] = [round(score, 6) for score in one.scores]
      write(output_files.json_line(row))
  print(f'{written:,} pairs with negatives in {output}')
  if fewer:
    print(f'{fewer:,} of them have fewer than {settings.number} negatives')
  if written < len(given):
    print(f'{len(given) - written:,} pairs have no negatives by --margin={settings.margin:g} and '
          '--depth, and are left out')


@command(depth='[1, 1000000]', batch='[1, 16777216]')
def evaluate_retrieval_command(
    retriever: tyro.conf.Positional[str], folder: tyro.conf.Positional[str], split: str = 'test',
    depth: int = 100, reranker: str = '', output: str = '', batch: int = 32) -> None:
  """Evaluates retrieval on a data set in BEIR's layout: nDCG@10, MRR@10, MAP and recall.

  For sparse vectors also the mean number of active dimensions, and the FLOPs: the expected number
  of products per pair of a query and a document.

  Args:
    retriever: a model with text vectors (run folder, checkpoint, sentence-transformers folder), or
      bm25
    folder: folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, plain or compressed
    split: name of the file of judgments
    depth: documents that are retrieved per query
    reranker: a cross-encoder, or a model of late interaction (ColBERT), that sorts the retrieved
      documents
    output: file for the ranking, in TREC's format: query, Q0, document, rank, score, name
    batch: batch size of the cross-encoder in pairs
  """
  data = retrieval.read_beir(folder, split)
  print(f'{len(data.queries):,} queries, {len(data.documents):,} documents')
  if own := len(data.queries.keys() & data.documents.keys()):
    print(f'{own:,} queries have the id of a document, which is left out of their ranking, as in '
          'BEIR')
  sparsity: dict[str, float] = {}
  found = retrieval.retrieve(retriever, data, depth, sparsity)
  if reranker:
    found = retrieval.rerank_found(reranker, data, found, batch)
  for name, value in retrieval.score_retrieval(data, found).items():
    shown = f'{name}_{depth}' if name in ('map', 'recall') else name
    print(f'{shown:18}{value:8.2f}')
  for name, value in sparsity.items():
    print(f'{name:18}{value:8.2f}')
  if output:
    with output_files.open_text(output) as write:
      for query, hits in found.items():
        for rank, (document, score) in enumerate(hits, 1):
          write(f'{query} Q0 {document} {rank} {score:.6f} plm_jax\n')
    print(f'ranking in {output}')


@command()
def mteb_command(
    run: tyro.conf.Positional[str], tasks: tyro.conf.Positional[tuple[str, ...]], name: str = '',
    results: str = '') -> None:
  """Evaluates text vectors or a cross-encoder on tasks of MTEB, by the package mteb.

  Args:
    run: run folder, checkpoint, or sentence-transformers folder
    tasks: names of tasks or benchmarks of mteb, such as SICK-R or NanoBEIR
    name: ORG/NAME of the model in the results. Default: plm_jax/ and the name of the folder
    results: folder for the results. What it has for the same model is not evaluated again.
      Default: the folder of mteb, ~/.cache/mteb
  """
  try:
    import mteb  # pyright: ignore[reportMissingImports]
  except ModuleNotFoundError as error:
    raise errors.ConfigError("mteb is not installed: pip install 'plm_jax[mteb]'") from error
  from plm_jax.api.mteb_adapter import load_for_mteb
  benchmarks = {benchmark.name: benchmark.tasks for benchmark in mteb.get_benchmarks()}
  chosen = []
  try:
    for given in tasks:
      chosen += benchmarks.get(given) or [mteb.get_task(given)]
  except KeyError as error:
    raise errors.ConfigError(f'mteb has no such task or benchmark: {error.args[0]}') from error
  model: Any = load_for_mteb(run, name)
  for task in chosen:
    if not (hasattr(model, 'encode') or task._support_search):
      raise errors.ConfigError(f'{run} has no vector per text, which {task.metadata.name} needs')
  for one in mteb.evaluate(model, chosen, cache=mteb.ResultCache(results or None)).task_results:
    print(f'{one.task_name:32} {one.task.metadata.main_score:24} {100 * one.get_score():6.2f}')
