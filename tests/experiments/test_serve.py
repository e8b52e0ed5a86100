"""The example of a service, `experiments.serve`: batches of requests, and its answers over HTTP."""
from concurrent.futures import ThreadPoolExecutor
import contextlib
import http.client
import json
import threading
import time

import numpy as np
import pytest
import ready

from experiments.serve import MAX_BODY, Batcher, make_app
import plm_jax


def test_requests_that_arrive_together_are_one_batch():
  sizes = []

  def count_letters(texts):
    sizes.append(len(texts))
    time.sleep(0.02)
    return [len(text) for text in texts]

  batcher = Batcher(count_letters, texts=8, wait=0.01)
  with ThreadPoolExecutor(16) as pool:
    found = list(pool.map(lambda number: batcher(['a' * number] * (number % 3 + 1)), range(48)))
  assert found == [[number] * (number % 3 + 1) for number in range(48)]
  assert sum(sizes) == 96 and len(sizes) < 40 and max(sizes) <= 8 + 2


def test_a_request_that_fails_fails_alone():
  def refuse_empty(texts):
    if '' in texts:
      raise ValueError('empty')
    return texts

  batcher = Batcher(refuse_empty, wait=0.05)
  with ThreadPoolExecutor(3) as pool:
    one, bad, other = [pool.submit(batcher, texts) for texts in (['a'], [''], ['b', 'c'])]
    assert one.result() == ['a'] and other.result() == ['b', 'c']
    with pytest.raises(ValueError, match='empty'):
      bad.result()
  assert batcher(['d']) == ['d']


@contextlib.contextmanager
def serve(model):
  """Serves a model -> port."""
  uvicorn = pytest.importorskip('uvicorn', reason='needs the extra serve')
  pytest.importorskip('fastapi', reason='needs the extra serve')
  server = uvicorn.Server(uvicorn.Config(make_app(model), port=0, log_level='error'))
  thread = threading.Thread(target=server.run, daemon=True)
  thread.start()
  while not server.started:
    time.sleep(0.01)
  yield server.servers[0].sockets[0].getsockname()[1]
  server.should_exit = True
  thread.join()


@pytest.fixture(scope='module')
def port():
  """The port of a server with a small BERT."""
  with serve(ready.model('bert')) as found:
    yield found


def post(port, path, value, **headers):
  connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
  body = value if isinstance(value, bytes) else json.dumps(value)
  connection.request('POST', path, body, {'content-type': 'application/json', **headers})
  response = connection.getresponse()
  return response.status, json.loads(response.read())


def test_concurrent_clients_get_the_results_of_the_function(port):
  texts = [ready.texts(number)[0] for number in range(24)]
  with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda text: post(port, '/encode', {'texts': [text]}), texts))
  assert all(status == 200 for status, _ in found)
  want = plm_jax.encode(ready.model('bert'), texts)
  np.testing.assert_allclose([value['results'][0] for _, value in found], want, atol=1e-5)


def test_masks_are_filled_and_errors_are_one_line(port):
  status, value = post(port, '/fill_mask', {'texts': ['ana [MASK] home', 'a [MASK] film']})
  assert status == 200 and len(value['results']) == 2
  (token, probability), *_ = value['results'][0][0]
  assert isinstance(token, str) and 0 < probability < 1
  status, value = post(port, '/fill_mask', {'texts': ['no blank']})
  assert status == 422 and 'MASK' in value['detail'] and '\n' not in value['detail']
  assert post(port, '/encode', {'texts': []})[0] == 422
  assert post(port, '/predict', {'texts': ['a']})[0] == 404  # this model has learned no task


def test_a_request_without_a_list_of_texts_is_a_one_line_error(port):
  for value in ({'texts': [float('nan')]}, {'texts': 'a'}, {}, [], b'{"texts": ['):
    status, answer = post(port, '/encode', value)
    assert status == 422 and answer['detail'].startswith('body') and '\n' not in answer['detail']
  assert post(port, '/encode', b'\xff')[0] == 400
  assert post(port, '/encode', {'texts': ['\ud800']})[0] == 422


def test_a_large_body_is_refused(port):
  status, answer = post(port, '/encode', {'texts': ['a' * MAX_BODY]})
  assert status == 413 and 'at most 1,048,576 bytes' in answer['detail']
  status, answer = post(port, '/encode', b'2\r\n{}\r\n0\r\n\r\n',
                        **{'transfer-encoding': 'chunked'})
  assert status == 411


def test_no_function_truncates_long_texts_silently():
  for kind in ('classification', 'embedding', 'bert'):
    name = 'predict' if kind == 'classification' else 'encode'
    with serve(ready.model(kind)) as port:
      assert post(port, f'/{name}', {'texts': ['a film', 'a ' * 10]})[0] == 200
      status, answer = post(port, f'/{name}', {'texts': ['a film', 'a ' * 40_000]})
      assert status == 422 and ('too long' in answer['detail']
                                or '40002 tokens' in answer['detail'])


def test_a_damaged_model_is_a_server_error():
  model = ready.model('classification')
  model.params['heads_label']['dense']['bias'] = np.array([np.nan, 0], np.float32)
  with serve(model) as port:
    status, answer = post(port, '/predict', {'texts': ['a film']})
  assert status == 500 and 'not finite' in answer['detail']
