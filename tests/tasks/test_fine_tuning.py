import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.config import ConfigError
from plm_jax.inference.loading import Trained
from plm_jax.layers.heads import SummaryClasses
from plm_jax.layers.stack import StackConfig
from plm_jax.models import deberta_v2, xlnet
from plm_jax.tasks.fine_tuning import Example, RowTask, encode, fine_tune, predict, prepared
from plm_jax.tasks.former_forms import row
from plm_jax.tokenizers import WordBPE, train_byte_bpe
from plm_jax.training.optim import OptimConfig

LETTERS = 'abcdefgh'
# Letters that end a word are ids 5 .. 12.
IDS = {piece: i for i, piece in enumerate(
    ['<unk>', '_start_', '_delimiter_', '_classify_', '!', *(f'{letter}</w>' for letter in LETTERS)])}
TOKENIZER = WordBPE(IDS, [])
START, DELIMITER, EXTRACT = 1, 2, 3
AROUND = (START,), (DELIMITER,), (EXTRACT,)


def task_arrays(task, *examples, length=8):
  return task.arrays(examples, TOKENIZER, AROUND, length)


def test_rows_of_one_text_and_of_two():
  one = task_arrays(RowTask('classification'), Example(('a b',), 1))
  assert one['tokens'].tolist() == [[START, 5, 6, EXTRACT, 0, 0, 0, 0]]
  assert one['extract'].tolist() == [[3]] and one['truth'].tolist() == [1]
  assert one['labels'].tolist() == [[5, 6, EXTRACT, 0, 0, 0, 0, 0]]
  assert one['weights'].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]]
  two = task_arrays(RowTask('entailment', classes=3), Example(('a b', 'c'), 2))
  assert two['tokens'].tolist() == [[START, 5, 6, DELIMITER, 7, EXTRACT, 0, 0]]


def test_similarity_is_read_in_both_orders():
  rows = task_arrays(RowTask('similarity'), Example(('a b', 'c')))
  assert rows['tokens'][:, :6].tolist() == [
      [START, 5, 6, DELIMITER, 7, EXTRACT], [START, 7, DELIMITER, 5, 6, EXTRACT]]
  logits = RowTask('similarity').logits({'label': jnp.array([[1.0, 2.0], [10.0, 20.0], [3.0, 4.0], [0.0, 0.0]])})
  assert logits.tolist() == [[11, 22], [3, 4]]


def test_a_choice_has_a_row_for_each_answer():
  task = RowTask('choice', classes=3)
  rows = task_arrays(task, Example(('a', 'b', 'c', 'd d'), 2))
  assert rows['tokens'][:, :6].tolist() == [
      [START, 5, DELIMITER, 6, EXTRACT, 0], [START, 5, DELIMITER, 7, EXTRACT, 0],
      [START, 5, DELIMITER, 8, 8, EXTRACT]]
  assert task.logits({'choice': jnp.arange(6.0)[:, None]}).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_longer_text_loses_its_end_first():
  assert row([[5, 6, 7, 8, 9], [10]], AROUND, 7) == [1, 5, 6, 7, 2, 10, 3]
  assert row([[5] * 9, [6] * 9], AROUND, 9) == [1, 5, 5, 5, 2, 6, 6, 6, 3]
  assert row([[5] * 9, [6] * 9], ((0,), (2, 2), (2,)), 9) == [0, 5, 5, 2, 2, 6, 6, 6, 2]


def test_examples_of_another_task():
  with pytest.raises(ConfigError, match='example 1 has 2 texts and the label 0: classification takes 1 texts'):
    task_arrays(RowTask(), Example(('a',)), Example(('a', 'b')))
  with pytest.raises(ConfigError, match='labels below 2'):
    task_arrays(RowTask(), Example(('a',), 2))
  with pytest.raises(ConfigError, match='tagging takes words and a label for each below 2'):
    task_arrays(RowTask('tagging'), Example(('a', 'b'), (1,)))
  with pytest.raises(ConfigError, match='the longest example has 9 tokens, the model takes 8'):
    task_arrays(RowTask('tagging'), Example(tuple('abcdefg'), (1,) * 7))


@pytest.mark.parametrize(('config', 'kind'), [
    (tiny.config(), r'an encoder \(EncoderConfig\)'), (deberta_v2.v3_small(), r'an encoder \(DebertaConfig\)'),
    (xlnet.base(), r'an encoder \(XLNetConfig\)'),
    (DecoderConfig(vocab=96, block=tiny.block(), types=8), r'a GLM, which is asked by a blank')],
    ids=['bert', 'deberta', 'xlnet', 'glm'])
@pytest.mark.parametrize('language', [0, 0.5])
def test_models_without_a_form_are_refused(config, kind, language):
  """With language=0 a BERT was trained in GPT's form without a word."""
  model = Trained('a', config, {}, {}, TOKENIZER)
  task, refused = RowTask(language=language), f'^rows of labelled text .* the model is {kind}'
  with pytest.raises(ConfigError, match=refused):
    fine_tune(model, task, [Example(('a',))] * 2, batch=2)
  with pytest.raises(ConfigError, match=refused):
    encode(model, task, [])


def test_settings_that_cannot_be(trained):
  for name, value in (('classes', 1), ('language', -1), ('language', float('nan'))):
    with pytest.raises(ConfigError, match=f'RowTask.{name} is'):
      RowTask(**{name: value})
  with pytest.raises(ConfigError, match='epochs and batch are at least 1, got 0 and 32'):
    fine_tune(trained, RowTask(), [], 0)
  with pytest.raises(ConfigError, match=r'got heads \[\], 1 examples'):
    predict(trained, RowTask(), [Example(('a',))])


def test_tags_stand_at_the_first_token_of_each_word():
  tokenizer = train_byte_bpe(['ab cd'] * 3, 264)
  words = ('ab', 'cdef', 'c', 'é')
  ids = tokenizer.encode('ab cdef c é')
  rows = RowTask('tagging', 9).arrays([Example(words, (5, 6, 7, 8))], tokenizer, ((0,), (2, 2), (2,)), 24)
  assert rows['tokens'][0, :len(ids) + 3].tolist() == [0, *ids, 2, 0]
  read = [[ids[n - 1] for n in range(1, len(ids) + 1) if rows['marks'][0, :n + 1].sum() == w + 1] for w in range(4)]
  assert [tokenizer.decode(some).strip() for some in read] == list(words)
  assert rows['truth'][rows['marks'] > 0].tolist() == [5, 6, 7, 8]


@pytest.fixture(scope='module')
def both() -> Trained:
  """An encoder-decoder, and a tokenizer with BART's special tokens."""
  tokenizer = train_byte_bpe(['a b c d e f g h'], 275)
  block = tiny.block(norm=dict(eps=1e-5), dropout=0.0, attention=dict(dropout=0.0), init=dict(std=0.1))
  config = EncoderDecoderConfig(tokenizer.vocab.size, block, StackConfig(1), StackConfig(1), max_length=16,
                                absolute='learned', first_position=2, embed_norm=True)
  batch = {name: jnp.ones((1, 4), jnp.int32) for name in ('tokens', 'segments', 'decoder_tokens', 'decoder_segments')}
  shapes = jax.eval_shape(lambda: config.backbone().init(jax.random.key(0), batch)['params'])
  return Trained('bart', config, {}, {'backbone': tiny.random_params(shapes)}, tokenizer)


def test_an_encoder_decoder_reads_the_row_on_both_sides(both):
  """The decoder's is shifted, and what is read stands where the last </s> would be predicted."""
  vocab, ids = both.tokenizer.vocab, both.tokenizer.encode_batch(['a b', 'c'])
  assert (vocab.bos, vocab.eos) == (0, 2)
  task = RowTask('entailment', language=0)
  rows = encode(both, task, [Example(('a b', 'c')), Example(('c', 'c'))])
  whole = [0, *ids[0], 2, 2, *ids[1], 2]
  size = len(whole)
  assert rows['tokens'][0, :size].tolist() == whole and rows['extract'][0] == size - 1
  assert rows['decoder_tokens'][0, :size].tolist() == [2, *whole[:-1]]
  assert rows['decoder_tokens'][1, :size].tolist() == [2, 0, *ids[1], 2, 2, *ids[1], 0, 0][:size]
  assert rows['decoder_segments'].tolist() == rows['segments'].tolist()
  assert isinstance(task.heads(both.model)['label'], SummaryClasses)


def test_an_encoder_decoder_learns_labels_alone(both):
  with pytest.raises(ConfigError, match='language=0'):
    fine_tune(both, RowTask(), questions('classification', 32, 0))


@pytest.mark.parametrize('kind', ['entailment', pytest.param('tagging', marks=pytest.mark.slow)])
def test_an_encoder_decoder_learns_what_others_are_asked(both, kind):
  task = RowTask(kind, language=0)
  asked, others = ([tags(example) for example in some] if kind == 'tagging' else some
                   for some in (questions('entailment', 160, 0), questions('entailment', 50, 1)))
  # The decoder's state at a word has not read it: where to look it up in the encoder takes longer to learn.
  epochs = 24 if kind == 'tagging' else 4
  done = fine_tune(both, task, asked, epochs, 16, OptimConfig(peak=5e-3, schedule='linear', warmup=2))
  found = predict(done, task, others)
  right = np.concatenate([np.atleast_2d(of).argmax(-1) == example.label
                          for of, example in zip(found, others, strict=True)])
  assert right.size == 50 * (4 if kind == 'tagging' else 1) and right.mean() > 0.8
  assert set(done.heads) == {task.head}


def tags(example: Example) -> Example:
  """Which words of the first text are one of the letters c, d and e."""
  words = tuple(example.texts[0].split())
  return Example(words, tuple(int(word in 'cde') for word in words))


@pytest.fixture(scope='module')
def trained() -> Trained:
  block = tiny.block(norm_at='pre', norm=dict(eps=1e-5), dropout=0.0, attention=dict(dropout=0.0), init=dict(std=0.1))
  config = DecoderConfig(vocab=len(IDS), block=block, stack=StackConfig(1), max_length=16)
  batch = {name: jnp.ones((1, 4), jnp.int32) for name in ('tokens', 'segments')}
  shapes = jax.eval_shape(lambda: config.backbone().init(jax.random.key(0), batch)['params'])
  return Trained('openai-gpt', config, {}, {'backbone': tiny.random_params(shapes)}, TOKENIZER)


def questions(kind: str, number: int, seed: int) -> list[Example]:
  """Of a choice, the answer that repeats the context; of the others, whether a text (both texts) begins with a."""
  draw, found = np.random.default_rng(seed), []
  for _ in range(number):
    letters = draw.permutation(list(LETTERS))
    label = int(draw.integers(2))
    if kind == 'choice':
      answers = [letters[1], letters[1]]
      answers[label] = 'a'
      found.append(Example((' '.join(letters[2:4]), *answers), label))
    else:
      texts = [' '.join(['a' if label else 'b', *draw.choice(list(LETTERS[2:]), 3)]) for _ in range(2)]
      found.append(Example(tuple(texts[:1 if kind == 'classification' else 2]), label))
  return found


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['classification', 'similarity', 'choice'])
def test_learns_what_others_are_asked(trained, kind):
  task = RowTask(kind)
  done = fine_tune(trained, task, questions(kind, 160, 0), 4, 16, OptimConfig(peak=5e-3, schedule='linear', warmup=2))
  others = questions(kind, 50, 1)
  probabilities = predict(done, task, others)
  assert probabilities.shape == (50, 2) and np.allclose(probabilities.sum(-1), 1, atol=1e-5)
  assert (probabilities.argmax(-1) == [example.label for example in others]).mean() > 0.8
  assert set(done.heads) == {task.head, 'lm'}


@pytest.mark.slow
def test_language_is_learned_beside_the_label(trained):
  """The gradient is the label's and half of the language model's."""
  example = questions('classification', 4, 0)
  def gradient(task):
    rows = task_arrays(task, *example)
    model = task.build(trained.model, False)
    params = tiny.random_params(jax.eval_shape(lambda: model.init(jax.random.key(0), rows)['params']))
    def loss(params):
      losses = task.loss(model.apply({'params': params}, rows), rows)
      return sum(factor * losses[name][0] / losses[name][1] for name, factor in task.terms.items())
    return jax.jit(jax.grad(loss))(params)['backbone']
  alone, half, whole = (gradient(RowTask(language=language)) for language in (0.0, 0.5, 1.0))
  tiny.assert_close(half, jax.tree.map(lambda a, b: (a + b) / 2, alone, whole), rel=1e-4)


def test_a_vocabulary_without_the_three_tokens_gets_them(trained):
  tokenizer = train_byte_bpe(['some text'] * 3, 270, layout='gpt2')
  size = tokenizer.vocab.size
  table = np.zeros((size, 32), np.float32)
  model = dataclasses.replace(trained.model, vocab=size)
  backbone = {**trained.params['backbone'], 'embeddings': {**trained.params['backbone']['embeddings'], 'tokens': table}}
  wider = prepared(Trained('gpt2', model, {}, {'backbone': backbone}, tokenizer))
  new = wider.params['backbone']['embeddings']['tokens']
  assert wider.model.vocab == size + 3 == len(new) and np.abs(new[size:]).min() > 0 and not new[:size].any()
  assert prepared(wider) is wider
