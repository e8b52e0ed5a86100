import importlib.util
import json

import jax
import jax.numpy as jnp
import pytest
import tiny

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.config.run import ConfigError
from plm_jax.evaluation import text_to_text
from plm_jax.evaluation.text_to_text import ReadingConfig, TextPrediction
from plm_jax.inference import generate
from plm_jax.layers.heads import ModelWithHeads, NextTokenHead
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sources.lines import SourceError
from plm_jax.sources.text_to_text_tasks import TextToTextExample, parse_task
from plm_jax.tokenizers import raw_bytes


def judged(name, *pairs):
  predictions = [TextPrediction(TextToTextExample('', (target,) if isinstance(target, str)
                                                  else target, ''), text)
                 for text, target in pairs]
  return text_to_text.compute_metrics(parse_task(f'task:{name}:x'), predictions)


def test_metrics_by_hand():
  assert judged('sst2', ('positive', 'positive'), ('Positive', 'positive')) == {'accuracy': 50.0}
  # Right: 2 of 3 called equivalent, of 3 that are: precision and recall 2/3.
  pairs = [('equivalent', 'equivalent')] * 2 + [('equivalent', 'not_equivalent'),
                                                ('not_equivalent', 'equivalent')]
  assert judged('mrpc', *pairs) == {'f1': pytest.approx(200 / 3), 'accuracy': 50.0}
  # Of the table [[2, 1], [1, 2]]: (4 - 1) / 9.
  yes, no = 'acceptable', 'unacceptable'
  pairs = [(yes, yes)] * 2 + [(no, no), ('other words', no), (yes, no), (no, yes)]
  assert judged('cola', *pairs) == {'matthews': pytest.approx(100 / 3)}
  assert judged('cola', (yes, yes), (yes, no)) == {'matthews': 0.0}
  found = judged('stsb', ('1.0', '1.0'), ('2.0', '2.0'), ('4.0', '9.0'))
  # Deviations (-4, -1, 5) / 3 and -3, -2, 5.
  assert found == pytest.approx({'spearman': 100.0, 'pearson': 1300 / (42 / 9 * 38) ** 0.5})
  assert text_to_text.parse_numbers(['2.6', 'much', 'nan']) == [2.6, -1.0, -1.0]
  assert judged('squad', ('the Rome!', ('Paris', 'Rome'))) == {'exact_match': 100.0,
                                                               'token_f1': 100.0}


@pytest.fixture(scope='module')
def trained() -> LoadedModel:
  cfg = EncoderDecoderConfig(vocab=384, block=tiny.block(norm_at='pre', dropout=0.0),
                             stack=StackConfig(1),
                             decoder=StackConfig(1), tied=False)
  heads = {'lm': NextTokenHead(cfg.block, cfg.vocab, tied=False)}
  row = jnp.ones((1, 4), jnp.int32)
  shapes = jax.eval_shape(ModelWithHeads(cfg.backbone(), heads).init, jax.random.key(0), dict(
      tokens=row, segments=row, decoder_tokens=row, decoder_segments=row))
  return LoadedModel('t5', cfg, heads, tiny.random_params(shapes['params'], std=0.5),
                     raw_bytes.ByteTokenizer())


def test_rows_with_the_same_inputs_are_references_of_one_example(tmp_path):
  """As in E2E NLG, one row per reference; labels of a classification are not merged."""
  pytest.importorskip('sacrebleu')
  path = tmp_path / 'e2e.tsv'
  path.write_text(
      'mr\tref\nname[A]\tA is a pub.\nname[B]\tB is a cafe.\nname[A]\tThere is a pub called A.\n'
                  'name[A]\tA is a pub.\n')
  source, task = f'task:columns-mr-ref:{path}', parse_task('task:columns-mr-ref:x')
  found = text_to_text.read_examples(source, task)
  assert [(example.inputs, example.targets) for example in found] == [
      ('name[A]', ('A is a pub.', 'There is a pub called A.')), ('name[B]', ('B is a cafe.',))]
  assert [example.inputs for example in text_to_text.read_examples(source, task, 1)] == ['name[A]']
  answers = [TextPrediction(found[0], 'There is a pub called A.'),
             TextPrediction(found[1], 'B is a cafe.')]
  assert text_to_text.compute_metrics(task, answers)['bleu'] == pytest.approx(100)
  path.write_text('sentence\tlabel\ngood\t1\ngood\t0\n')
  assert len(text_to_text.read_examples(f'task:sst2:{path}', parse_task('task:sst2:x'))) == 2


@pytest.mark.slow
def test_each_example_gets_its_own_answer(trained, tmp_path):
  """Answers in batches of similar lengths, the last one padded, equal those of single examples
  truncated to the same length."""
  texts = ['a long sentence, which is cut', 'bc', 'def', 'gh ijk', 'lm']
  rows = [json.dumps({'sentence': text, 'label': n % 2}) for n, text in enumerate(texts)]
  (tmp_path / 'x.jsonl').write_text('\n'.join(rows))
  config = GenerationConfig(max_new=6)
  result = text_to_text.evaluate_text_to_text(trained, f'task:sst2:{tmp_path}/x.jsonl', config,
                                              ReadingConfig(24, 2))
  alone = [generate.generate(trained, [f'sst2 sentence: {text}'[:23]], config)[0][0].text.strip()
           for text in texts]
  assert [some.text for some in result.predictions] == alone
  assert len(set(alone)) > 1 and result.truncated_inputs == 1
  assert [some.example.targets[0] for some in result.predictions] == ['negative',
                                                                      'positive'] * 2 + ['negative']
  two = text_to_text.evaluate_text_to_text(trained, f'task:sst2:{tmp_path}/x.jsonl', config,
                                           ReadingConfig(24, 2, 2))
  assert two.predictions == result.predictions[:2]


def test_unusable_sources_and_models_are_refused(trained, tmp_path):
  (tmp_path / 'x.jsonl').write_text('')
  with pytest.raises(SourceError, match='has no examples'):
    text_to_text.evaluate_text_to_text(trained, f'task:sst2:{tmp_path}/x.jsonl')
  decoder = LoadedModel('gpt2', tiny.config(), trained.heads, {}, trained.tokenizer)
  with pytest.raises(ConfigError, match='for an encoder-decoder'):
    text_to_text.evaluate_text_to_text(decoder, f'task:sst2:{tmp_path}/x.jsonl')


def test_missing_libraries_are_reported_before_decoding(trained, tmp_path, monkeypatch):
  """One line that names the extra; a task whose metrics need none is not stopped."""
  (tmp_path / 'x.csv').write_text('a,b\nc,d\n')
  source, real = f'task:columns-a-b:{tmp_path}/x.csv', importlib.util.find_spec
  monkeypatch.setattr(importlib.util, 'find_spec',
                      lambda name: None if name == 'sacrebleu' else real(name))
  monkeypatch.setattr(generate, 'generate', lambda *args: pytest.fail('decoded'))
  expected = (r'bleu, chrf are computed by sacrebleu, not installed here: pip install '
              r'"plm_jax\[metrics\]"')
  monkeypatch.setitem(text_to_text.metrics.LIBRARIES, 'rouge', 'json')
  with pytest.raises(ConfigError, match=expected):
    text_to_text.evaluate_text_to_text(trained, source)
  text_to_text.metrics.check_installed(['accuracy', 'exact_match', 'rouge'])


def test_answers_are_kept_before_they_are_measured(trained, tmp_path, monkeypatch):
  (tmp_path / 'x.jsonl').write_text(json.dumps({'sentence': 'a', 'label': 0}))
  monkeypatch.setattr(text_to_text, 'generate_answers', lambda *args: ['positive'])
  monkeypatch.setattr(text_to_text, 'compute_metrics', lambda *args: 1 / 0)
  kept = []
  with pytest.raises(ZeroDivisionError):
    text_to_text.evaluate_text_to_text(trained, f'task:sst2:{tmp_path}/x.jsonl', keep=kept.extend)
  assert [(some.text, some.example.targets) for some in kept] == [('positive', ('negative',))]
