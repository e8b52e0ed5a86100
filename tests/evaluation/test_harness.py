"""The adapter compared with lm-eval; skipped if lm-eval is not installed."""
import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip('lm_eval')

import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.config.run import ConfigError
from plm_jax.evaluation import harness
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.loading import loaded_model
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives.clm import CausalLM
from plm_jax.sharding import shardings
from plm_jax.tokenizers import train_byte_bpe


def asked(*args):
  return [types.SimpleNamespace(args=some) for some in args]


@pytest.fixture(scope='module')
def model():
  tokenizer = train_byte_bpe(['the cat sat on the mat, and the dog on the cat'] * 9, 280)
  cfg = DecoderConfig(tokenizer.vocab.size, tiny.block(norm_at='pre'), StackConfig(1),
                      max_length=24)
  heads = CausalLM().heads(cfg)
  batch = {name: jnp.ones((1, 8), jnp.int32) for name in ('tokens', 'segments')}
  shapes = jax.eval_shape(ModelWithHeads(cfg.backbone(), heads).init, jax.random.key(0), batch)
  return harness.Harness(LoadedModel('gpt2', cfg, heads, tiny.random_params(shapes['params']),
                                     tokenizer), batch_size=2)


def test_loglikelihood(model):
  pairs = [('the cat', ' sat'), ('', 'the dog'), ('the cat ', 'sat'), ('a mat ' * 30, 'and')]
  want = [(score.logprob, score.greedy) for score in model.scorer.score(pairs)]
  assert model.loglikelihood(asked(*pairs)) == want


@pytest.mark.parametrize(('size', 'windows'), [
    (11, [([0, 1, 2, 3, 4], 1), ([4, 5, 6, 7, 8], 1), ([6, 7, 8, 9, 10], 3)]),
    (9, [([0, 1, 2, 3, 4], 1), ([4, 5, 6, 7, 8], 1)]),
    (3, [([0, 1, 2], 1)]),
])
def test_windows(size, windows):
  """lm-eval's example: a start token and ten tokens, four per window."""
  assert [tuple(span) for span in harness.rolling_spans(list(range(size)), 4)] == windows
  assert [tuple(span) for span in harness.rolling_spans(list(range(size)), 0)] == [
      (list(range(size)), 1)]


def test_loglikelihood_rolling(model):
  short, long = 'the cat sat', 'the cat sat on the mat, ' * 12
  found = model.loglikelihood_rolling(asked((short,), (long,), ('',)))
  assert found[0] == pytest.approx(model.scorer.score([('', short)])[0].logprob, rel=1e-5)
  spans = harness.rolling_spans([*model.scorer.start_ids(0), *model.scorer.tokenizer.encode(long)],
                                24)
  assert found[1] == pytest.approx(sum(logprob for logprob, _ in model.scorer.predict(spans)),
                                   rel=1e-6)
  assert found[2] == 0


def test_generate_until(model):
  """Results are in the order of the requests, whatever is batched together; a stop sequence ends
  a text and is not part of it."""
  whole, long, other, one = model.generate_until(asked(
      ('the cat', {'max_gen_toks': 8}), ('the cat sat on the mat ' * 9, {'max_gen_toks': 8}),
      ('a dog', {'until': ['\n']}),
      ('the cat', {'max_gen_toks': 1, 'do_sample': False, 'temperature': 0.7})))
  assert whole.startswith(one) and len(whole) > len(one) > 0
  assert long and other and '\n' not in other
  stop = whole[2:4]
  [cut] = model.generate_until(asked(('the cat', {'max_gen_toks': 8, 'until': stop})))
  assert cut == whole[:whole.index(stop)]


@pytest.mark.parametrize(('options', 'want'), [
    ({'until': '\n'}, GenerationConfig(256, stop=('\n',))),
    ({'until': ['\n', '.'], 'max_gen_toks': 5, 'do_sample': False, 'temperature': 0.0},
     GenerationConfig(5, stop=('\n', '.'))),
    ({'do_sample': True, 'top_p': 0.9, 'max_new_tokens': 7},
     GenerationConfig(7, temperature=1.0, top_p=0.9)),
    ({'temperature': 0.5, 'top_k': 3}, GenerationConfig(256, temperature=0.5, top_k=3)),
    ({'temperature': 0, 'top_k': 3}, GenerationConfig(256)),
])
def test_options(options, want):
  assert harness.convert_options(options, True) == want


def test_options_that_are_not_known_are_refused():
  with pytest.raises(ConfigError, match=r'not known here: .*num_beams'):
    harness.convert_options({'num_beams': 4, 'until': []}, True)


def test_a_long_prompt_loses_its_beginning(model):
  tokenizer = model.scorer.tokenizer
  text = 'the cat sat on the mat, and the dog too '
  cut = harness.truncate_left(text * 3, 12, tokenizer)
  assert (text * 3).endswith(cut) and len(tokenizer.encode(cut)) == 12
  assert harness.truncate_left(text, 100, tokenizer) == text


def test_the_harness_itself(model):
  """One small task whose metric is known from the scores."""
  from lm_eval.api.task import ConfigurableTask
  from lm_eval.evaluator import evaluate
  rows = [{'question': 'the cat', 'choices': ['sat', 'on the'], 'label': 0},
          {'question': 'the dog', 'choices': ['mat', 'and the'], 'label': 1}] * 3
  datasets = pytest.importorskip('datasets')
  task = ConfigurableTask(config={
      'task': 'tiny', 'output_type': 'multiple_choice', 'test_split': 'test',
      'doc_to_text': '{{question}}',
      'doc_to_choice': '{{choices}}', 'doc_to_target': 'label', 'num_fewshot': 0,
      'dataset_path': 'none',
      'custom_dataset': lambda **_: {'test': datasets.Dataset.from_list(rows)},
      'metric_list': [{'metric': 'acc'}]})
  found = evaluate(model, {'tiny': task}, bootstrap_iters=0)
  scores = model.scorer.score([(row['question'], f' {choice}') for row in rows
                               for choice in row['choices']])
  chosen = np.reshape([score.logprob for score in scores], (-1, 2)).argmax(1)
  right = chosen == np.array([row['label'] for row in rows])
  assert found and found['results']['tiny']['acc,none'] == pytest.approx(right.mean())


def test_on_a_mesh(model, monkeypatch):
  """A saved model on four devices, loaded twice, gives the scores and texts of one device."""
  alone = model.trained
  heads = ModelWithHeads(alone.model.backbone(), alone.heads)
  batch = {name: jnp.ones((1, 8), jnp.int32) for name in ('tokens', 'segments')}
  boxed = jax.eval_shape(heads.init, jax.random.key(0), batch)['params']
  def load(folder, mesh):
    return dataclasses.replace(alone, params=jax.device_put(alone.params, shardings(boxed, mesh)))
  monkeypatch.setattr(loaded_model, 'load_model', load)
  split = harness.Harness('folder', batch_size=2, fsdp=2, tensor=2)
  assert dict(split.scorer.mesh.shape) == dict(data=2, fsdp=2, tensor=2)
  pairs = asked(('the cat', ' sat'), ('the dog', ' on the mat'))
  np.testing.assert_allclose(*([logprob for logprob, _ in x.loglikelihood(pairs)]
                               for x in (split, model)), rtol=1e-5)
  prompts = asked(('the cat', {'max_gen_toks': 8}), ('a dog', {'max_gen_toks': 6}))
  assert split.generate_until(prompts) == model.generate_until(prompts)
