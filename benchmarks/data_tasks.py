"""Compare pre-trained encoders with untrained ones and baselines: multi-label classification, retrieval and
reranking.

    python -m benchmarks.data_tasks --init=runs/en --goemotions=DIR --squad=DIR --output=runs/data_tasks

--goemotions is the folder with train.tsv, dev.tsv and labels.txt of GoEmotions (Demszky et al. 2020). --squad is the
folder with the training part and the development file of SQuAD 1.1. Questions are the queries and paragraphs the
documents. --init is a run of an encoder, which gives the tokenizer and the settings of the model to all runs. Retrievers
are fine-tuned with random negatives, with negatives from BM25, and with negatives from a retriever of the same size;
every pair has the same number of them. Scores are kept in the output folder, and a run with a kept score is not repeated.
"""
import argparse
import gzip
import json
import pathlib
import random
from typing import Any

from benchmarks import kept
from benchmarks.side_by_side import machine

TRAIN, DEV = 'squad_v1.1_train_part.json.gz', 'squad_v1.1_devA.json.gz'
STARTS = {'pre-trained': [], 'from scratch': ['--warm-start=']}
PARTS = 'multilabel', 'retrieval', 'reranking'
NEGATIVES = 2
EXAMPLES = 8_000  # comments of GoEmotions to train on
QUERIES = 2000
DEPTH = 10  # paragraphs of BM25 that a reranker sorts


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--init', required=True, help='run of a pre-trained encoder')
  parser.add_argument('--goemotions', help='folder of GoEmotions')
  parser.add_argument('--squad', help='folder of SQuAD 1.1')
  parser.add_argument('--parts', nargs='*', choices=PARTS, default=[*PARTS])
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--output', default='runs/data_tasks', help='folder of the runs')
  args = parser.parse_args()
  output = pathlib.Path(args.output)
  output.mkdir(parents=True, exist_ok=True)
  print(machine('jax'))
  if args.squad and {*args.parts} & {'retrieval', 'reranking'}:
    write_squad(args.squad, output)
  if args.goemotions and 'multilabel' in args.parts:
    write_goemotions(args.goemotions, output)
    compare_multilabel(args, output)
  if args.squad and 'retrieval' in args.parts:
    compare_retrieval(args, output)
  if args.squad and 'reranking' in args.parts:
    compare_reranking(args, output)


def write_squad(data: str, output: pathlib.Path) -> None:
  """Write pairs of a question and its paragraph, and a data set in BEIR's layout."""
  if (output / 'beir/qrels/test.tsv').exists():
    return
  pairs = [{'query': question, 'positive': paragraph} for question, paragraph in read_squad(data, TRAIN)]
  write_rows(output / 'pairs.jsonl', pairs)
  judged = read_squad(data, DEV)
  documents = {text: f'd{index}' for index, text in enumerate(dict.fromkeys(text for _, text in judged))}
  judged = random.Random(0).sample(judged, QUERIES)
  (output / 'beir/qrels').mkdir(parents=True)
  write_rows(output / 'beir/corpus.jsonl', [{'_id': key, 'text': text} for text, key in documents.items()])
  write_rows(output / 'beir/queries.jsonl',
             [{'_id': f'q{index}', 'text': question} for index, (question, _) in enumerate(judged)])
  (output / 'beir/qrels/test.tsv').write_text('query-id\tcorpus-id\tscore\n' + ''.join(
      f'q{index}\t{documents[text]}\t1\n' for index, (_, text) in enumerate(judged)))


def read_squad(data: str, name: str) -> list[tuple[str, str]]:
  """Read questions and their paragraphs."""
  with gzip.open(kept.place(data, name), 'rt', encoding='utf-8') as file:
    articles = json.load(file)['data']
  return [(question['question'].strip(), paragraph['context'].strip())
          for article in articles for paragraph in article['paragraphs'] for question in paragraph['qas']]


def write_goemotions(data: str, output: pathlib.Path) -> None:
  """Write the comments with the names of their labels."""
  names = kept.place(data, 'labels.txt').read_text().split()
  for part, limit in (('train', EXAMPLES), ('dev', None)):
    lines = kept.place(data, f'{part}.tsv').read_text(encoding='utf-8').splitlines()
    rows = [line.split('\t') for line in lines if line]
    random.Random(0).shuffle(rows)
    write_rows(output / f'{part}.jsonl', [
        {'text': text, 'labels': [names[int(number)] for number in numbers.split(',')]}
        for text, numbers, *_ in rows[:limit]])


def write_rows(file: pathlib.Path, rows: list[dict[str, Any]]) -> None:
  file.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows), encoding='utf-8')


def read_rows(file: str) -> list[dict[str, Any]]:
  return [json.loads(line) for line in pathlib.Path(file).read_text(encoding='utf-8').splitlines()]


def compare_multilabel(args: argparse.Namespace, output: pathlib.Path) -> None:
  """Print average precision and F1 with tuned thresholds on the development set of GoEmotions."""
  print('\n| multi-label: GoEmotions | average precision | micro F1, tuned | macro F1, tuned |\n|---|---|---|---|')
  for start, options in STARTS.items():
    found = repeat(args, f'multilabel-{start}', [
        '--task=multilabel', f'--train={output}/train.jsonl', f'--dev={output}/dev.jsonl', '--data.epochs=2',
        '--objective.tune-thresholds=each', '--data.no-baseline', *options])
    show(start, found, ('average_precision', 'tuned_micro_f1', 'tuned_macro_f1'))
  scores = kept.run('benchmarks.data_tasks:tfidf', [f'{output}/train.jsonl', f'{output}/dev.jsonl'],
                    output / 'tfidf.json')
  show('TF-IDF, logistic regression', [scores], ('average_precision', 'tuned_micro_f1', 'tuned_macro_f1'))


def compare_retrieval(args: argparse.Namespace, output: pathlib.Path) -> None:
  """Print the metrics of retrievers that learned from different negatives."""
  columns = ('ndcg_10', 'mrr_10', 'recall')
  print('\n| retrieval: SQuAD, by its training | nDCG@10 | MRR@10 | recall@100 |\n|---|---|---|---|')
  beir = str(output / 'beir')
  show('BM25', [kept.run('benchmarks.data_tasks:evaluated', ['bm25', beir, ''], output / 'bm25.json')], columns)
  common = ['--task=embedding', '--loss=in_batch', '--data.epochs=1', '--train.phases.0.length=160']
  for name, miner, start in (
      ('random negatives', 'random', 'pre-trained'), ('random negatives, from scratch', 'random', 'from scratch'),
      ('negatives of BM25', 'bm25', 'pre-trained'), ('mined negatives', 'own', 'pre-trained')):
    model = f'{output}/retrieval-random negatives-0' if miner == 'own' else miner
    file = write_negatives(output, miner, model)
    found = repeat(args, f'retrieval-{name}', [*common, f'--train={file}', *STARTS[start]], beir)
    show(name, found, columns)


def write_negatives(output: pathlib.Path, miner: str, model: str) -> pathlib.Path:
  """Write the pairs with the negatives of a miner, once. Returns the file."""
  file = output / f'negatives-{miner}.jsonl'
  kept.run('benchmarks.data_tasks:mined', [model, f'{output}/pairs.jsonl', str(file)], f'{file}.json')
  return file


def compare_reranking(args: argparse.Namespace, output: pathlib.Path) -> None:
  """Print the metrics of cross-encoders that sort the first paragraphs of BM25."""
  columns = ('ndcg_10', 'mrr_10')
  print(f'\n| reranking: SQuAD, the first {DEPTH} of BM25 | nDCG@10 | MRR@10 |\n|---|---|---|')
  beir = str(output / 'beir')
  write_negatives(output, 'bm25', 'bm25')
  show('the order of BM25', [kept.run('benchmarks.data_tasks:evaluated', ['bm25', beir, 'order'],
                                      output / 'bm25-order.json')], columns)
  for start, options in STARTS.items():
    found = repeat(args, f'rerank-{start}', [
        '--task=rerank', f'--train={output}/negatives-bm25.jsonl', '--data.epochs=1', '--train.phases.0.length=160',
        *options], beir)
    show(start, found, columns)


def repeat(args: argparse.Namespace, name: str, options: list[str], beir: str = '') -> list[dict[str, float]]:
  """Fine-tune with several seeds. Returns the scores of each."""
  return [kept.run('benchmarks.data_tasks:finetuned', [
      [f'--init={args.init}', '--scale=laptop', '--data.least-steps=0', *options, f'--seed={seed}', f'--output={args.output}/{name}-{seed}'],
      beir], f'{args.output}/{name}-{seed}.json') for seed in range(args.seeds)]


def finetuned(given: tuple[list[str], str]) -> dict[str, float]:
  """Fine-tune, and return the metrics: of the development set, or of the data set in BEIR's layout."""
  from plm_jax.cli import finetune
  command, beir = given
  config, seeds = finetune.parse('', command, '')
  results = finetune.run_seeds(config, seeds)
  if not results or not results[-1].finished:
    kept.interrupted(config.folder)
  if not beir:
    return tuned(config.folder, results[-1].heldout['average_precision'], config.data.dev[0])
  ranker = config.folder if '--task=rerank' in command else ''
  return evaluated(('bm25' if ranker else config.folder, beir, ranker))


def tuned(folder: str, precision: float, file: str) -> dict[str, float]:
  """Return the scores of a multi-label run on a file with the thresholds that were tuned on it."""
  import plm_jax
  from plm_jax.metrics.multilabel import f1_metrics
  rows = read_rows(file)
  predictions = plm_jax.predict(folder, [row['text'] for row in rows])
  names = sorted({name for row in rows for name in row['labels']})
  truth = [[name in row['labels'] for name in names] for row in rows]
  found = f1_metrics(truth, [[name in one.labels for name in names] for one in predictions])
  return {'average_precision': precision, 'tuned_micro_f1': found['micro_f1'], 'tuned_macro_f1': found['macro_f1']}


def evaluated(given: tuple[str, str, str]) -> dict[str, float]:
  """Retrieve, and sort the first documents with a reranker; `order` keeps their order."""
  from plm_jax.api import retrieval
  retriever, folder, reranker = given
  data = retrieval.read_beir(folder)
  found = retrieval.retrieve(retriever, data, DEPTH if reranker else 100)
  if reranker and reranker != 'order':
    found = retrieval.rerank_found(reranker, data, found)
  return retrieval.score_retrieval(data, found)


def mined(given: tuple[str, str, str]) -> dict[str, int]:
  """Write pairs with negatives: random paragraphs, or those that BM25 or a retriever finds."""
  from plm_jax.api import retrieval
  model, file, written = given
  pairs = [(row['query'], row['positive']) for row in read_rows(file)]
  if model == 'random':
    texts, draw = [*dict.fromkeys(text for _, text in pairs)], random.Random(0)
    rows = [(query, text, [other for other in draw.sample(texts, NEGATIVES + 1) if other != text][:NEGATIVES])
            for query, text in pairs]
  else:
    config = retrieval.MiningConfig(number=NEGATIVES)
    rows = [(one.query, one.positive, one.negatives)
            for one in retrieval.mine_negatives(model, pairs, (), config) if len(one.negatives) == NEGATIVES]
  write_rows(pathlib.Path(written), [
      {'query': query, 'positive': text, 'negatives': negatives} for query, text, negatives in rows])
  return {'pairs': len(rows)}


def tfidf(given: tuple[str, str]) -> dict[str, float]:
  """Score TF-IDF with a logistic regression per label on the development set, with thresholds tuned on it."""
  import numpy as np
  from sklearn.feature_extraction.text import TfidfVectorizer
  from sklearn.linear_model import LogisticRegression
  from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve
  from sklearn.multiclass import OneVsRestClassifier
  from sklearn.preprocessing import MultiLabelBinarizer
  train, dev = (read_rows(file) for file in given)
  binarizer = MultiLabelBinarizer().fit([row['labels'] for row in train])
  vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
  features = vectorizer.fit_transform([row['text'] for row in train])
  model = OneVsRestClassifier(LogisticRegression(C=10, max_iter=200)).fit(
      features, binarizer.transform([row['labels'] for row in train]))
  scores = np.asarray(model.predict_proba(vectorizer.transform([row['text'] for row in dev])))
  truth = np.asarray(binarizer.transform([row['labels'] for row in dev]))
  chosen = np.zeros(truth.shape, bool)
  for label in range(truth.shape[1]):
    precision, recall, thresholds = precision_recall_curve(truth[:, label], scores[:, label])
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    chosen[:, label] = scores[:, label] >= thresholds[f1[:-1].argmax()]
  return {'average_precision': 100 * average_precision_score(truth, scores, average='macro'),
          'tuned_micro_f1': 100 * f1_score(truth, chosen, average='micro'),
          'tuned_macro_f1': 100 * f1_score(truth, chosen, average='macro')}


def show(name: str, found: list[dict[str, float]], columns: tuple[str, ...]) -> None:
  """Print a row of a table: the mean and deviation of each column."""
  cells = (kept.shown([one[column] for one in found], 1) for column in columns)
  print(f'| {name} | {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
  main()
