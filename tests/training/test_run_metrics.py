import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.layers.stack import StackConfig
from plm_jax.objectives import window_shapes
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.metric_names import split_by_corpus
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.report import html
from plm_jax.training import run_metrics
from plm_jax.training.evaluate import make_evaluator
from plm_jax.training.step import Learner, eval_step, init_state


def test_sums_are_divided_once():
  steps = [dict(mlm=(jnp.float32(6), jnp.float32(2)), loss=jnp.float32(1), skipped=0),
           dict(mlm=(jnp.float32(2), jnp.float32(6)), loss=jnp.float32(4), skipped=1)]
  assert run_metrics.combine_metrics(steps) == dict(mlm=1.0, loss=2.5, skipped=0.5)
  assert run_metrics.combine_metrics([dict(mlm=(jnp.float32(0), jnp.float32(0)))]) == dict(mlm=0.0)


def test_long_sums_keep_their_digits():
  step = dict(mlm=(np.float32(0.1), np.float32(1)))
  assert abs(run_metrics.combine_metrics([step] * 30_000)['mlm'] - 0.1) < 1e-8


@pytest.mark.parametrize(('kind', 'peak'), [
    ('TPU v2', 23e12), ('TPU v5 lite', 197e12), ('TPU v5p', 459e12), ('TPU v5', 459e12),
    ('NVIDIA H100 80GB HBM3', 989e12), ('NVIDIA A100-SXM4-40GB', 312e12),
    ('NVIDIA L40S', None), ('cpu', None), ('TPU v55', None)])
def test_peak_of_a_device(kind, peak):
  assert run_metrics.peak_flops(types.SimpleNamespace(device_kind=kind)) == peak


def test_writer(tmp_path):
  writer = run_metrics.MetricsWriter(tmp_path)
  writer.write(3, 'train', dict(loss=1.5))
  run_metrics.MetricsWriter(tmp_path, 3).write(
    6, 'heldout', dict(mlm=0.25, nsp=float('nan'), bits_per_byte=float('inf'))
  )
  text = (tmp_path / 'metrics.jsonl').read_text()
  assert [json.loads(line) for line in text.splitlines()] == [
      dict(step=3, split='train', loss=1.5),
      dict(step=6, split='heldout', mlm=0.25, nsp=None, bits_per_byte=None)]
  curves, *_ = html.read_curves(tmp_path / 'metrics.jsonl')
  assert {name: curves[name] for name in ('loss', 'mlm')} == dict(
      loss=dict(train=[(3, 1.5)]), mlm=dict(heldout=[(6, 0.25)]))
  assert all(np.isnan(curves[name]['heldout'][0][1]) for name in ('nsp', 'bits_per_byte'))


def test_a_resumed_run_removes_lines_that_it_writes_again():
  first = '{"step": 2, "split": "train", "loss": Infinity}\n'
  second = '{"step": 4, "split": "heldout", "mlm": 0.5}\n'
  third, torn = '{"step": 6, "split": "train"}\n', '{"step": 4, "spl'
  assert run_metrics.lines_until(first + second + third + torn, 4) == first + second
  assert run_metrics.lines_until(first + second.rstrip(), 4) == first + second
  assert run_metrics.lines_until(first + torn + third + second, 8) == first + second
  assert run_metrics.lines_until('', 8) == run_metrics.lines_until('[]\n\n3\n', 8) == ''


@pytest.mark.slow
def test_evaluation_is_a_mean_over_all_batches_and_knows_the_baseline(learner, params, windows):
  evaluate = make_evaluator(learner)
  batches = [tiny.take(windows, slice(0, 6)), tiny.take(windows, slice(6, 12))]
  values = evaluate(params, batches)
  assert values == evaluate(params, batches)
  step = jax.jit(lambda w: eval_step(learner, params, w))
  results = [jax.device_get(step(w)) for w in batches]
  sums = sum(losses['mlm'][0] for losses, _ in results), sum(losses['mlm'][1]
                                                             for losses, _ in results)
  np.testing.assert_allclose(values['mlm'], sums[0] / sums[1], rtol=1e-6)
  for name in ('mlm', 'nsp'):
    labels = np.concatenate([labels[weights > 0]
                             for labels, weights in (answers[name] for _, answers in results)])
    np.testing.assert_allclose(values[f'{name}_baseline'], np.bincount(labels).max() / labels.size,
                               rtol=1e-6)
  assert set(values) == {f'{name}{kind}' for name in ('mlm', 'nsp')
                         for kind in ('', '_accuracy', '_baseline')}


def test_evaluation_of_nothing(learner, params):
  assert make_evaluator(learner)(params, []) == {}


@pytest.mark.slow
def test_bits_per_byte_count_all_labels():
  """In a model of zeros all 96 tokens are equally likely: the bits per token, divided by the
  bytes of the labels."""
  objective = CausalLM()
  model = DecoderConfig(
      vocab=tiny.VOCAB.size, block=tiny.block(norm_at='pre'), stack=StackConfig(1),
      max_length=tiny.LENGTH)
  learner = Learner(objective.build(model, False), objective, make_optimizer(AdamW(), 10),
                    tiny.VOCAB, 0)
  shapes = jax.eval_shape(lambda w: init_state(learner, w), window_shapes(2, 32)).params
  params = jax.tree.map(lambda x: jnp.zeros(x.shape), tiny.unbox(shapes))
  sizes, windows = np.arange(1, 1 + tiny.VOCAB.size), tiny.windows(6, length=32)
  values = make_evaluator(learner, sizes)(params, [windows])
  assert values['clm'] == pytest.approx(np.log(96), rel=1e-5)
  batch = objective.corrupt(jax.random.key(0), windows, tiny.VOCAB)
  labels = np.asarray(batch['labels'])[np.asarray(batch['weights']) > 0]
  assert values['bits_per_byte'] == pytest.approx(np.log2(96) * labels.size / sizes[labels].sum(),
                                                  rel=1e-5)
  assert 'bits_per_byte' not in make_evaluator(learner)(params, [windows])


@pytest.mark.slow
def test_figures_of_each_corpus_of_a_mixture(learner, params, windows):
  """After the metrics of all text: they equal an evaluation on that corpus alone."""
  batches = [dict(tiny.take(windows, rows), corpus=jnp.full(6, corpus))
             for corpus, rows in ((0, slice(0, 6)), (1, slice(6, 12)))]
  values = make_evaluator(learner, corpora=('de', 'sw'))(params, batches)
  usual, figures = make_evaluator(learner), ('mlm', 'mlm_accuracy', 'nsp', 'nsp_accuracy')
  alone = [usual(params, [batch]) for batch in batches]
  whole, corpora = split_by_corpus(values)
  assert whole == usual(params, batches)
  assert corpora == {name: {figure: some[figure] for figure in figures}
                     for name, some in zip(('de', 'sw'), alone, strict=True)}
  reporting = learner.objective.reporting
  assert reporting.higher_is_better('mlm_accuracy/de') and not reporting.higher_is_better('mlm/de')
  assert reporting.format_metric('mlm_accuracy/de', 0.25) == '25.0%'
