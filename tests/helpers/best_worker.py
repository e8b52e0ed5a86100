"""One process of runs by several, each by another metric: each is cut off once and continues.

    python best_worker.py COORDINATOR COUNT INDEX RESULT OUTPUT METRIC,METRIC -- ARGUMENTS of
    gpt2_small

Without names of metrics it takes every held-out metric, which takes minutes.
"""
import contextlib
import json
import sys

import jax

from plm_jax import recipes
from plm_jax.cli.run import parse
from plm_jax.distributed import hosts
from plm_jax.runs import preflight, pretrain
from plm_jax.runs.run import run
from plm_jax.training import feed

if __name__ == '__main__':
  coordinator, count, index, result, output, metrics, _, *args = sys.argv[1:]
  place = hosts.JobPlace(coordinator, int(count), int(index))
  jax.distributed.initialize(*place[:3])
  hosts.join_job = lambda _: place
  pretrain.report_pretraining = lambda *_: None
  pretrain.sample_outputs = lambda *_: pretrain.ModelSamples()
  recipe, batches, found = recipes.find_recipe('gpt2_small'), feed.stream_batches, {}

  def cut_off(*arguments):
    for step, phase, windows in batches(*arguments):
      if step == 5:
        raise KeyError('cut off')
      yield step, phase, windows

  names = metrics.split(',') if metrics else preflight.heldout_metrics(parse(recipe, args))
  for name in names:
    own = parse(recipe, [*args, f'--train.best={name}',
                         f'--output={output}-{name.replace("/", "-")}'])
    feed.stream_batches = cut_off
    with contextlib.suppress(KeyError):
      run(own)
    feed.stream_batches = batches
    ended = run(own)
    found[name] = {'best': ended.best, 'heldout': ended.heldout}
  with open(result, 'w') as file:
    json.dump(found, file)
