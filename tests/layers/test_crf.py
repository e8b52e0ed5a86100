import itertools
from typing import Any

import jax
import numpy as np

from plm_jax.layers.crf import CRF


def test_likelihood_and_decoding_equal_enumeration():
  """Rows of 4, 2 and no words with 3 tags: all 3 ** 4 tag sequences are enumerated."""
  rng = np.random.default_rng(0)
  scores = rng.normal(0, 2, (3, 4, 3)).astype(np.float32)
  tags, sizes = rng.integers(0, 3, (3, 4)), (4, 2, 0)
  mask = np.arange(4) < np.array(sizes)[:, None]
  params = {name: rng.normal(0, 1, shape).astype(np.float32)
            for name, shape in (('follow', (3, 3)), ('first', 3), ('last', 3))}
  def score(row, path):
    steps = sum(params['follow'][a, b] for a, b in itertools.pairwise(path))
    return params['first'][path[0]] + params['last'][path[-1]] + steps + sum(
        scores[row, at, tag] for at, tag in enumerate(path))
  run: Any = lambda *args, **kwargs: jax.jit(
      lambda params, *args: CRF(3).apply({'params': params}, *args, **kwargs))(params, *args)
  likelihood, found = run(scores, tags, mask), run(scores, mask, method='decode')
  marginals = run(scores, mask, method='marginals')
  for row, size in enumerate(sizes[:2]):
    paths = list(itertools.product(range(3), repeat=size))
    every = np.array([score(row, path) for path in paths])
    wanted = score(row, tuple(tags[row, :size])) - np.log(np.exp(every).sum())
    np.testing.assert_allclose(likelihood[row], wanted, rtol=1e-5)
    shares = [sum(np.exp(x) for x, path in zip(every, paths, strict=True) if path[1] == tag)
              for tag in range(3)]
    np.testing.assert_allclose(marginals[row, 1], shares / np.exp(every).sum(), rtol=1e-4)
    assert found[row].tolist() == [*paths[every.argmax()], *[0] * (4 - size)]
  assert not marginals[1, 2:].any() and likelihood[2] == 0 and found[2].tolist() == [0] * 4
