"""Text to text: the objective, and the evaluation of generated answers."""
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.errors import ConfigError
from plm_jax.evaluation import text_to_text
from plm_jax.evaluation.text_to_text import ReadingConfig, TextPrediction
from plm_jax.inference import generate
from plm_jax.layers.heads import ModelWithHeads, NextTokenHead
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives.text_to_text import TextToText
from plm_jax.sources.lines import SourceError
from plm_jax.sources.text_to_text_tasks import TextToTextExample, parse_task
from plm_jax.tokenizers import raw_bytes
from plm_jax.tokenizers.contract import Vocab

T5 = Vocab(size=50, pad=0, eos=1, unk=2, sentinel=49)
BART = Vocab(size=50, pad=1, cls=0, sep=2, mask=4)
# Two examples: target 5 6, inputs 7 8 9; target 10, inputs 11 12. Rows of 7 tokens to read and 5 to
# write.
WINDOWS = dict(
    tokens=jnp.array([[5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0]]),
    segments=jnp.array([[1] * 5 + [2] * 3 + [0] * 4]),
    sentences=jnp.array([[1, 1, 2, 2, 2, 3, 4, 4, 0, 0, 0, 0]]))


def rows(windows, vocab=T5, **fields):
  objective = TextToText(decoder_length=5, **fields)
  batch = jax.jit(lambda w: objective.corrupt(jax.random.key(0), w, vocab))(windows)
  return {name: np.asarray(x)[0].tolist() for name, x in batch.items()}


def window(target, inputs):
  """One example that may be too long for its window of 12."""
  both = (target + inputs)[:12]
  sentences = ([1] * len(target) + [2] * len(inputs))[:12]
  fill = [0] * (12 - len(both))
  return dict(tokens=jnp.array([both + fill]), segments=jnp.array([[1] * len(both) + fill]),
              sentences=jnp.array([sentences + fill]))


def test_examples_of_a_row_as_t5_has_them():
  assert rows(WINDOWS) == {
      'tokens': [7, 8, 9, 1, 11, 12, 1], 'segments': [1, 1, 1, 1, 2, 2, 2],
      'place': [0, 1, 2, 3, 0, 1, 2],
      'decoder_tokens': [0, 5, 6, 0, 10], 'decoder_segments': [1, 1, 1, 2, 2],
      'decoder_place': [0, 1, 2, 0, 1],
      'labels': [5, 6, 1, 10, 1], 'weights': [1.0] * 5, 'content': [1.0, 1.0, 0.0, 1.0, 0.0]}


def test_a_vocabulary_without_sentinels_and_start_is_marians():
  marian = Vocab(size=50, pad=0, eos=1, unk=2)
  assert TextToText().special_tokens == ('pad', 'eos')
  assert rows(WINDOWS, marian) == rows(WINDOWS, T5)
  with pytest.raises(ConfigError, match='specials is 1, and texts of this tokenizer have 2'):
    rows(WINDOWS, BART)


def test_an_example_as_bart_has_it():
  assert rows(window([5, 6], [7, 8, 9]), BART, specials=2) == {
      'tokens': [0, 7, 8, 9, 2, 1, 1], 'segments': [1] * 5 + [0] * 2,
      'place': [0, 1, 2, 3, 4, 0, 0],
      'decoder_tokens': [2, 0, 5, 6, 1], 'decoder_segments': [1, 1, 1, 1, 0],
      'decoder_place': [0, 1, 2, 3, 0],
      'labels': [0, 5, 6, 2, 0], 'weights': [1.0] * 4 + [0.0], 'content': [0.0, 1.0, 1.0, 0.0, 0.0]}


def test_an_example_as_mbart_has_it():
  """Its own code: the source ends with its language, the decoder begins with that of the target and
  ends with it."""
  mbart = Vocab(size=50, bos=0, pad=1, eos=2, mask=49, source=40, target=41)
  assert rows(window([5, 6], [7, 8, 9]), mbart, specials=2) == {
      'tokens': [7, 8, 9, 2, 40, 1, 1], 'segments': [1] * 5 + [0] * 2,
      'place': [0, 1, 2, 3, 4, 0, 0],
      'decoder_tokens': [41, 5, 6, 2, 1], 'decoder_segments': [1, 1, 1, 1, 0],
      'decoder_place': [0, 1, 2, 3, 0],
      'labels': [5, 6, 2, 41, 0], 'weights': [1.0] * 4 + [0.0],
      'content': [1.0, 1.0, 0.0, 0.0, 0.0]}


def test_ends_of_targets_count_in_the_loss_and_not_in_the_accuracy():
  """A model that knows that the target ends, and nothing else, would be right in two of five; so
  would 5, 5, 5, ..."""
  objective, batch = TextToText(decoder_length=5), {name: np.array([x])
                                                    for name, x in rows(WINDOWS).items()}
  ends = jnp.zeros((1, 5, 50)).at[..., 1].set(9.0)
  losses = objective.loss({'lm': ends}, batch)
  assert [x.tolist() for x in losses['seq2seq_accuracy']] == [0, 3] and losses['seq2seq'][1] == 5
  labels, weights = objective.accuracy_targets({'lm': ends}, batch)['seq2seq']
  assert labels[weights > 0].tolist() == [5, 6, 10]


def test_texts_that_are_too_long_lose_what_is_before_their_end_token():
  batch = rows(window([5, 6], list(range(10, 20))))
  assert batch['tokens'] == [10, 11, 12, 13, 14, 15, 1]
  assert batch['labels'] == [5, 6, 1, 0, 0]
  batch = rows(window([5] * 7, [10, 11, 12]))
  assert batch['tokens'] == [10, 11, 12, 1, 0, 0, 0]
  assert batch['labels'] == [5, 5, 5, 5, 1]
  batch = rows(window([5] * 3, list(range(10, 19))), BART, specials=2)
  assert (batch['tokens'], batch['labels']) == ([0, 10, 11, 12, 13, 14, 2], [0, 5, 5, 5, 2])


def test_nothing_is_learned_of_an_example_without_inputs_or_of_an_empty_row():
  assert rows(window([5] * 12, [7]))['weights'] == [0.0] * 5
  assert rows(window([], []))['weights'] == [0.0] * 5


@pytest.mark.slow
def test_examples_of_a_row_do_not_see_each_other():
  """An example's logits are the same, to rounding, beside another and alone."""
  objective = TextToText(decoder_length=5)
  cfg = EncoderDecoderConfig(vocab=50, block=tiny.block(norm_at='pre', dropout=0.0),
                             stack=StackConfig(2),
                             decoder=StackConfig(2), max_length=12, absolute='learned')
  model = objective.build(cfg, packed=True)
  def batch_of(windows):
    return objective.corrupt(jax.random.key(0), windows, T5)
  together, alone = batch_of(WINDOWS), batch_of(window([10], [11, 12]))
  params = tiny.random_params(jax.eval_shape(model.init, jax.random.key(0), together)['params'])
  logits = jax.jit(lambda batch: model.apply({'params': params}, batch)['lm'])
  np.testing.assert_allclose(logits(together)[0, 3:], logits(alone)[0, :2], atol=1e-5)


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
