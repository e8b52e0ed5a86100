"""Serve a model over HTTP with FastAPI. Requests that arrive together are computed together.

    pip install -e '.[serve]'
    python -m experiments.serve runs/bert_base-laptop --port=8000
    curl localhost:8000/encode -H 'content-type: application/json' \\
      -d '{"texts": ["Returns the array."]}'

The paths are /encode, /fill_mask and /predict, as far as the model supports them, and /health. A
text that is longer than the model reads is refused with status 422, not truncated.
"""
import argparse
from collections.abc import Callable, Sequence
import concurrent.futures
import functools
import queue
import threading
import time
from typing import Any

import plm_jax
from plm_jax import truncation
from plm_jax.errors import ConfigError, NotFiniteError, UserError

Request = tuple[list[str], concurrent.futures.Future]
MAX_BODY = 1 << 20
"""largest body of a request, in bytes"""


class Batcher:
  """Calls a function of many texts for several callers at once, in a thread of its own.

  A batch begins with the first waiting request, and takes those that arrive within `wait` seconds.
  """

  def __init__(self, function: Callable[[list[str]], Sequence[Any]], texts: int = 32,
               wait: float = 0.002):
    """function: texts -> one result per text. texts: number of texts from which a batch is full."""
    self.function, self.texts, self.wait = function, texts, wait
    self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=self.work, daemon=True).start()

  def __call__(self, texts: list[str]) -> list[Any]:
    """Return the results of the texts. Raises what the function raises for them."""
    result: concurrent.futures.Future = concurrent.futures.Future()
    self.requests.put((texts, result))
    return result.result()

  def work(self) -> None:
    """Collect requests and compute them, for ever."""
    while True:
      batch = [self.requests.get()]
      end = time.monotonic() + self.wait
      while sum(len(texts) for texts, _ in batch) < self.texts:
        try:
          batch.append(self.requests.get(timeout=max(0.0, end - time.monotonic())))
        except queue.Empty:
          break
      self.compute(batch)

  def compute(self, batch: list[Request]) -> None:
    """Compute a batch of requests. A request that fails does not fail the others."""
    try:
      results = list(self.function([text for texts, _ in batch for text in texts]))
    except Exception as error:
      if len(batch) == 1:
        batch[0][1].set_exception(error)
        return
      for request in batch:
        self.compute([request])
      return
    for texts, result in batch:
      result.set_result(results[:len(texts)])
      results = results[len(texts):]


def refuse_truncation(function: Callable[[list[str]], Sequence[Any]], texts: list[str]):
  """Return function(texts). Raises ConfigError if the function truncates a text."""
  with truncation.count() as found:
    results = function(texts)
  if found.truncated:
    raise ConfigError(f'{found}: send shorter texts, or the parts of a text')
  return results


def make_app(model: Any) -> Any:
  """Make the FastAPI application of a model from `plm_jax.load`."""
  import fastapi
  import fastapi.exceptions
  import pydantic

  class Texts(pydantic.BaseModel):
    texts: list[str] = pydantic.Field(min_length=1, max_length=256)

  functions = {
      'encode': lambda texts: [vector.tolist() for vector in plm_jax.encode(model, texts)],
      'fill_mask': lambda texts: plm_jax.fill_mask(model, texts),
      'predict': lambda texts: [label._asdict() for label in plm_jax.predict(model, texts)]}
  names = [name for name in functions if name in model.capabilities]
  app = fastapi.FastAPI(title=f'{model.source or "a model"} of plm_jax')

  @app.exception_handler(fastapi.exceptions.RequestValidationError)
  def describe_request(request, error):
    # The default answer repeats the input, and NaN is no JSON.
    del request
    found = error.errors()[0]
    where = '.'.join(map(str, found['loc']))
    return fastapi.responses.JSONResponse({'detail': f'{where}: {found["msg"]}'}, 422)

  @app.middleware('http')
  async def limit_body(request, call_next):
    size = request.headers.get('content-length', '')
    if request.method == 'POST' and ('transfer-encoding' in request.headers or not size):
      return fastapi.responses.JSONResponse({'detail': 'Content-Length is needed'}, 411)
    if size and int(size) > MAX_BODY:
      detail = f'a request has at most {MAX_BODY:,} bytes, got {int(size):,}'
      return fastapi.responses.JSONResponse({'detail': detail}, 413)
    return await call_next(request)

  @app.get('/health')
  def health() -> dict[str, Any]:
    return {'model': model.source, 'functions': names}

  def add(name: str) -> None:
    batcher = Batcher(functools.partial(refuse_truncation, functions[name]))

    @app.post(f'/{name}')
    def respond(request: Texts) -> dict[str, Any]:
      try:
        return {'results': batcher(request.texts)}
      except NotFiniteError as error:  # a damaged model
        raise fastapi.HTTPException(500, str(error)) from error
      except UserError as error:  # such as a text that is too long
        raise fastapi.HTTPException(422, str(error)) from error

  for name in names:
    add(name)
  return app


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      'model', help='folder of a run or of a checkpoint, or a name on the Hugging Face hub')
  parser.add_argument('--host', default='127.0.0.1')
  parser.add_argument('--port', type=int, default=8000)
  parser.add_argument(
      '--length', type=int, default=128, help='tokens up to which programs are compiled first')
  args = parser.parse_args()
  import uvicorn
  model: Any = plm_jax.load(args.model)
  names = [name for name in ('encode', 'fill_mask', 'predict') if name in model.capabilities]
  plm_jax.warm_up(model, length=args.length, batch=32, functions=names)
  uvicorn.run(make_app(model), host=args.host, port=args.port, log_level='warning')


if __name__ == '__main__':
  main()
