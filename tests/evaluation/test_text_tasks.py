import json

import jax
import jax.numpy as jnp
import pytest
import tiny

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.config import ConfigError
from plm_jax.data.examples import Example, task_of
from plm_jax.data.lines import SourceError
from plm_jax.evaluation import text_to_text
from plm_jax.evaluation.text_to_text import Prediction, ReadingConfig
from plm_jax.inference import generate
from plm_jax.inference.loading import Trained
from plm_jax.inference.search import GenerationConfig
from plm_jax.layers.heads import NextTokens, WithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.tokenizers import raw_bytes


def judged(name, *pairs):
  predictions = [Prediction(Example('', (target,) if isinstance(target, str) else target, ''), text)
                 for text, target in pairs]
  return text_to_text.judged(task_of(f'task:{name}:x'), predictions)


def test_metrics_by_hand():
  assert judged('sst2', ('positive', 'positive'), ('Positive', 'positive')) == {'accuracy': 50.0}
  # Right: 2 of 3 called equivalent, of 3 that are: precision and recall 2/3.
  pairs = [('equivalent', 'equivalent')] * 2 + [('equivalent', 'not_equivalent'), ('not_equivalent', 'equivalent')]
  assert judged('mrpc', *pairs) == {'f1': pytest.approx(200 / 3), 'accuracy': 50.0}
  # Of the table [[2, 1], [1, 2]]: (4 - 1) / 9.
  yes, no = 'acceptable', 'unacceptable'
  pairs = [(yes, yes)] * 2 + [(no, no), ('other words', no), (yes, no), (no, yes)]
  assert judged('cola', *pairs) == {'matthews': pytest.approx(100 / 3)}
  assert judged('cola', (yes, yes), (yes, no)) == {'matthews': 0.0}
  found = judged('stsb', ('1.0', '1.0'), ('2.0', '2.0'), ('4.0', '9.0'))
  # Deviations (-4, -1, 5) / 3 and -3, -2, 5.
  assert found == pytest.approx({'spearman': 100.0, 'pearson': 1300 / (42 / 9 * 38) ** 0.5})
  assert text_to_text.numbers(['2.6', 'much', 'nan']) == [2.6, -1.0, -1.0]
  assert judged('squad', ('the Rome!', ('Paris', 'Rome'))) == {'exact_match': 100.0, 'token_f1': 100.0}


@pytest.fixture(scope='module')
def trained() -> Trained:
  cfg = EncoderDecoderConfig(vocab=384, block=tiny.block(norm_at='pre', dropout=0.0), stack=StackConfig(1),
                             decoder=StackConfig(1), tied=False)
  heads = {'lm': NextTokens(cfg.block, cfg.vocab, tied=False)}
  row = jnp.ones((1, 4), jnp.int32)
  shapes = jax.eval_shape(WithHeads(cfg.backbone(), heads).init, jax.random.key(0), dict(
      tokens=row, segments=row, decoder_tokens=row, decoder_segments=row))
  return Trained('t5', cfg, heads, tiny.random_params(shapes['params'], std=0.5), raw_bytes.Bytes())


@pytest.mark.slow
def test_each_example_gets_its_own_answer(trained, tmp_path):
  """In batches of like lengths, the last of them filled up: as if each was asked alone, cut to so many tokens."""
  texts = ['a long sentence, which is cut', 'bc', 'def', 'gh ijk', 'lm']
  rows = [json.dumps({'sentence': text, 'label': n % 2}) for n, text in enumerate(texts)]
  (tmp_path / 'x.jsonl').write_text('\n'.join(rows))
  config = GenerationConfig(max_new=6)
  result = text_to_text.evaluate(trained, f'task:sst2:{tmp_path}/x.jsonl', config, ReadingConfig(24, 2))
  alone = [generate.generate(trained, [f'sst2 sentence: {text}'[:23]], config)[0][0].text.strip() for text in texts]
  assert [some.text for some in result.predictions] == alone
  assert len(set(alone)) > 1 and result.cut == 1
  assert [some.example.targets[0] for some in result.predictions] == ['negative', 'positive'] * 2 + ['negative']
  two = text_to_text.evaluate(trained, f'task:sst2:{tmp_path}/x.jsonl', config, ReadingConfig(24, 2, 2))
  assert two.predictions == result.predictions[:2]


def test_what_cannot_be_asked_is_refused(trained, tmp_path):
  (tmp_path / 'x.jsonl').write_text('')
  with pytest.raises(SourceError, match='has no examples'):
    text_to_text.evaluate(trained, f'task:sst2:{tmp_path}/x.jsonl')
  decoder = Trained('gpt2', tiny.config(), trained.heads, {}, trained.tokenizer)
  with pytest.raises(ConfigError, match='for an encoder-decoder'):
    text_to_text.evaluate(decoder, f'task:sst2:{tmp_path}/x.jsonl')
