"""Requests per second of the FastAPI example, with one client and with several, and whether their answers agree.

    pip install -e '.[serve]'
    python -m benchmarks.serve --model runs/bert_base-laptop

Starts `experiments.serve` with the model, and sends it one text per request: first all of them one after another, then
with --clients connections at once.
"""
import argparse
from concurrent.futures import ThreadPoolExecutor
import http.client
import itertools
import json
import random
import statistics
import subprocess
import sys
import time

from benchmarks.side_by_side import machine

WORDS = ['Returns', 'the', 'sum', 'of', 'all', 'elements', 'along', 'an', 'axis', 'or', 'raises', 'error', 'where', 'shape']


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--model', required=True)
  parser.add_argument('--clients', type=int, default=8)
  parser.add_argument('--requests', type=int, default=800)
  parser.add_argument('--port', type=int, default=8765)
  args = parser.parse_args()
  draw = random.Random(0)
  texts = [' '.join(draw.choices(WORDS, k=draw.randint(4, 24))) for _ in range(args.requests)]
  server = subprocess.Popen([sys.executable, '-m', 'experiments.serve', args.model, f'--port={args.port}', '--length=32'])
  try:
    wait_for(args.port)
    send(args.port, texts[:50])  # compiles what is left
    print(machine('jax', 'fastapi'))
    print('\n| clients | requests per second | median ms | 95% ms | largest difference |\n|---|---|---|---|---|')
    alone, seconds, latencies = measure(args.port, texts, 1)
    print(row(1, texts, seconds, latencies, 0.0))
    several, seconds, latencies = measure(args.port, texts, args.clients)
    differences = (abs(a - b) for one, other in zip(alone, several, strict=True)
                   for a, b in zip(one, other, strict=True))
    print(row(args.clients, texts, seconds, latencies, max(differences)))
  finally:
    server.terminate()
    server.wait()


def wait_for(port: int) -> None:
  """Wait until the server responds."""
  for _ in itertools.count():
    try:
      connection = http.client.HTTPConnection('127.0.0.1', port, timeout=5)
      connection.request('GET', '/health')
      connection.getresponse().read()
      return
    except OSError:
      time.sleep(0.5)


def send(port: int, texts: list[str]) -> tuple[list[list[float]], list[float]]:
  """Send texts one after another over one connection -> (vectors, seconds of each request)."""
  connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
  vectors, seconds = [], []
  for text in texts:
    begun = time.perf_counter()
    connection.request('POST', '/encode', json.dumps({'texts': [text]}), {'content-type': 'application/json'})
    vectors += json.loads(connection.getresponse().read())['results']
    seconds.append(time.perf_counter() - begun)
  return vectors, seconds


def measure(port: int, texts: list[str], clients: int) -> tuple[list[list[float]], float, list[float]]:
  """Send texts with several clients -> (vectors in the order of the texts, seconds, seconds of each request)."""
  begun = time.perf_counter()
  with ThreadPoolExecutor(clients) as pool:
    results = list(pool.map(lambda number: send(port, texts[number::clients]), range(clients)))
  seconds = time.perf_counter() - begun
  vectors: list[list[float]] = [[]] * len(texts)
  for number, (some, _) in enumerate(results):
    vectors[number::clients] = some
  return vectors, seconds, [latency for _, latencies in results for latency in latencies]


def row(clients: int, texts: list[str], seconds: float, latencies: list[float], difference: float) -> str:
  """Return a row of the table."""
  late = statistics.quantiles(latencies, n=20)[-1]
  return (f'| {clients} | {len(texts) / seconds:,.0f} | {1000 * statistics.median(latencies):.1f} | {1000 * late:.1f} '
          f'| {difference:.1e} |')


if __name__ == '__main__':
  main()
