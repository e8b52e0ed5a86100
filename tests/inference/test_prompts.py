"""Any input text gives a result or a one-line error."""
import dataclasses
import json
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.config.run import ConfigError
from plm_jax.errors import UserError
from plm_jax.evaluation import few_shot, perplexity, text_to_text
from plm_jax.evaluation.cloze import ClozeTask
from plm_jax.evaluation.few_shot import TASKS
from plm_jax.evaluation.scoring import Scorer
from plm_jax.inference import engine, fill_mask, generate
from plm_jax.inference.prompts import fill_template
from plm_jax.layers.heads import NextTokenHead
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tokenizers import WordPiece, train_byte_bpe

TOKENIZER = train_byte_bpe(['the cat sat on the mat'] * 3, 270)
SIZE = TOKENIZER.vocab.size


def decoder() -> LoadedModel:
  config = DecoderConfig(SIZE, tiny.block(norm_at='pre'), StackConfig(1), max_length=32)
  zeros = {name: jnp.zeros((1, 4), jnp.int32) for name in ('tokens', 'segments')}
  shapes = jax.eval_shape(config.backbone().init, jax.random.key(0), zeros)['params']
  return LoadedModel(
    'gpt2', config, {'lm': NextTokenHead(config.block, SIZE)},
    {'backbone': tiny.random_params(shapes)}, TOKENIZER
  )


def encoder() -> LoadedModel:
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'b']
  return LoadedModel('bert', tiny.config(), {'mlm': None}, {}, WordPiece(pieces))  # pyright: ignore


def uniform() -> Scorer:
  return Scorer(lambda params, batch: jnp.zeros((*batch['positions'].shape, SIZE)), None, TOKENIZER,
                32)


def odd_text(draw: random.Random) -> str:
  """Letters, braces, marks of formats, blanks, half of a surrogate pair, characters of four
  bytes."""
  parts = ['cat', ' ', '{', '}', '{question}', '{0}', '[', ']', '!r', ':>9', '.', '[MASK]',
           '\ud800', '😀', '\u200b']
  return ''.join(draw.choices(parts, k=draw.choice([0, 1, 2, 4, 60])))


def messages(ask, number: int) -> list[str]:
  """Return the error messages of `number` calls, '' for a call without an error; unexpected
  exceptions are raised."""
  found = []
  for turn in range(number):
    try:
      ask(turn)
      found.append('')
    except UserError as error:
      found.append(str(error).encode().decode())
  return found


def odd_value(draw: random.Random):
  return draw.choice([odd_text(draw), None, True, -1, 10 ** 40, 0.5, [], [odd_text(draw)], {},
                      {'text': ['a', 'b']},
                      ['a', 'b'], {'text': 'a', 'label': 3}, {'text': ['a', 'b'], 'label': 5}, 0, 1,
                      'A'])


def test_templates_by_hand():
  assert fill_template('{a} and {{b}} {a-b}{c}', {'a': 1, 'a-b': 'x', 'c': [2]}) == '1 and {b} x[2]'
  for template, message in (('{a', "expected '}'"), ('a}', "Single '}'"),
                            ('{}', "'{}' is not the name"), (
      '{a:>999999999}', "'{a:>999999999}' is not the name"), ('{a!r}', "'{a!r}' is not"),
      ('{a.b}', "'{a.b}' is not")):
    with pytest.raises(ConfigError, match=f'cannot be filled: .*{re.escape(message)}'):
      fill_template(template, {'a': 1})
  with pytest.raises(KeyError):
    fill_template('{b}', {'a': 1})


def test_templates_and_rows_never_cause_a_traceback(tmp_path):
  draw = random.Random(5)
  good = {'question': 'a b', 'passage': 'c d', 'text': 'e f', 'choices': ['a', 'b'], 'label': 1,
          'title': 'g'}
  def ask(turn):
    row = {name: value if draw.random() < 0.7 else odd_value(draw) for name, value in good.items()}
    (tmp_path / 'rows.jsonl').write_text(json.dumps(row) + '\n')
    task = TASKS[draw.choice(['multiple-choice', 'yes-no', 'cloze', 'qasc'])]
    if turn % 3 == 0:
      task = dataclasses.replace(task, template=odd_text(draw))
    examples = task.examples(str(tmp_path / 'rows.jsonl'))
    task.prompt(examples[0], examples)
    if turn % 3 == 1:
      ClozeTask(odd_text(draw), ('a', 'b')).ask(row)
  found = messages(ask, 400)
  assert 50 < found.count('') < 350 and not any('\n' in message for message in found)


def test_no_prompt_is_a_traceback():
  draw, writes, fills = random.Random(6), decoder(), encoder()
  def ask(turn):
    prompts = [odd_text(draw) for _ in range(draw.choice([0, 1, 1, 2]))]
    if turn % 3 == 0:
      generate.prepare_prompts(writes, prompts, GenerationConfig(4))
    elif turn % 3 == 1:
      fill_mask.check_prompts(prompts)
      for prompt in prompts:
        fill_mask.encode_prompt(fills.model, fills.tokenizer, prompt)
    else:
      uniform().encode([(prompt, odd_text(draw)) for prompt in prompts])
  found = messages(ask, 300)
  assert 50 < found.count('') < 250 and not any('\n' in message for message in found)


def test_prompts_by_hand():
  model = decoder()
  for prompts, message in (([], 'there is no prompt'),
                           (['a', 'b\udc80'], 'is not UTF-8 text, at character 1')):
    with pytest.raises(ConfigError, match=message):
      generate.generate(model, prompts)
    with pytest.raises(ConfigError, match=message):
      fill_mask.fill(encoder(), prompts)
  with pytest.raises(ConfigError,
                     match='forced_first and forced_last are ids below 270, got 270 and -1'):
    generate.generate(model, ['a'], GenerationConfig(4, forced_first=270))
  with pytest.raises(ConfigError, match='top is 1 or more, got 0'):
    fill_mask.fill(encoder(), ['a [MASK]'], 0)
  with pytest.raises(CheckpointError,
                     match=r'a gpt2 has no \[MASK\] and continues texts: use `python'):
    fill_mask.fill(model, ['a [MASK]'])
  with pytest.raises(CheckpointError, match=r'the tokenizer has no \[MASK\] and no \[CLS\]'):
    fill_mask.fill(dataclasses.replace(encoder(),
                                       tokenizer=train_byte_bpe(['a'], 270, layout='gpt2')), ['a'])


def test_blanks_are_in_complete_sentences_of_known_tokens(monkeypatch):
  """Three windows of one document: a sentence of 8 tokens fills the first, and has its end in the
  second."""
  rows = np.array([[20, 21, 22, 23, 24, 25, 26, 27], [30, 31, 40, 41, 42, 50, 51, 0],
                   [60, 1, 70, 71, 0, 0, 0, 0]])
  sentences = np.array([[1] * 8, [1, 1, 2, 2, 2, 3, 3, 0], [1, 1, 2, 2, 0, 0, 0, 0]])
  class Windows:
    def __len__(self):
      return 3
    def read(self, places):
      return {'tokens': rows[places], 'sentences': sentences[places], 'words': rows[places],
              'document': np.zeros(len(places), int)}
  found = fill_mask.select_sentences(Windows(), 8, 4, np.random.default_rng(0), unknown=1)
  found = [ids.tolist() for ids, _ in found]
  assert sorted(found) == [[40, 41, 42], [50, 51], [60, 1], [70, 71]] and found[-1] == [60, 1]


def test_seeds():
  np.testing.assert_array_equal(jax.random.key_data(jax.jit(jax.random.key)(engine.check_seed(7))),
                                jax.random.key_data(jax.random.key(7)))
  assert engine.check_seed(2 ** 32 - 1) == 2 ** 32 - 1
  for seed in (-1, 2 ** 32, 10 ** 50):
    with pytest.raises(ConfigError, match='a seed is from 0 to 4294967295, got'):
      engine.check_seed(seed)


def test_numbers_that_cannot_be(tmp_path):
  (tmp_path / 'a.jsonl').write_text('{"question": "a", "choices": ["b", "c"], "label": 0}\n')
  examples = TASKS['multiple-choice'].examples(str(tmp_path / 'a.jsonl'))
  for ask in (
    lambda: few_shot.evaluate_few_shot(TASKS['piqa'], uniform(), examples, shots=-1),
    lambda: few_shot.evaluate_few_shot(TASKS['piqa'], uniform(), [], 0),
    lambda: few_shot.sample_subset(examples, -1, 0),
    lambda: perplexity.perplexity(uniform(), ['\ud800 a']),
    lambda: uniform().score([]),
    lambda: text_to_text.ReadingConfig(batch=0),
  ):
    with pytest.raises(ConfigError):
      ask()
