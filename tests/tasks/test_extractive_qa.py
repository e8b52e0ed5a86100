import functools
import unicodedata

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import tokenizers
from plm_jax.errors import ConfigError
from plm_jax.sources.row_readers import Answer, Example
from plm_jax.tasks.batches import BatchShape, FeatureBatches
from plm_jax.tasks.extractive_qa import AnswerTask, best_spans, token_extents

TEXTS = [
    'The Eiffel Tower (French: La tour Eiffel) is 330 metres tall, about the height of an '
    '81-storey building.',
    'Beyoncé rose to fame in the late 1990s  as lead singer of Destiny\u2019s Child; she was born '
    'in 1981.',
    '  Łódź\u00a0and  Kraków\tare cities.\nSee e\u0301te\u0301 and \ufb01lm, 50% off \u2014 '
    '\u201cnow\u201d! ',
    'An emoji 😀🎉 or two 👨\u200d👩\u200d👧 (x\u00b2 \u2248 \u00bd), zero\u200bwidth and '
    '\U0001d400\U0001d401 bold.',
    '《红楼梦》，中国古典四大名著之一，清代作家曹雪芹著于1784年（乾隆49年）。共120回。',
    '中文 with English words，２０２６年\u3000全角空格，𠀀𠀁 and　end。',
]


def wordpiece():
  return tokenizers.train_wordpiece(TEXTS, 300, min_count=1)


KINDS = {
    'wordpiece': (wordpiece, 'bert'),
    'cased': (lambda: tokenizers.train_wordpiece(
        TEXTS[:3], 200, tokenizers.BertNormalization(lowercase=False), min_count=1), 'bert'),
    'byte_bpe': (lambda: tokenizers.train_byte_bpe(TEXTS, 300), 'roberta'),
    'unigram': (lambda: tokenizers.train_sentencepiece(TEXTS * 9, 130, layout='bert'), 'electra'),
    'albert': (lambda: tokenizers.train_sentencepiece(TEXTS * 9, 130, lowercase=True,
                                                      layout='albert'), 'albert'),
    'xlnet': (lambda: tokenizers.train_sentencepiece(TEXTS * 9, 220, 'bpe', layout='xlnet'),
              'xlnet'),
}
tokenizer_of = functools.cache(lambda kind: KINDS[kind][0]())


def perfect(features):
  """What a head gives that has learned every row by heart."""
  outputs = [np.zeros((size, 2), np.float32) for size in features.tokens.lengths]
  for logits, start, end in zip(outputs, features.values['start'], features.values['end'],
                                strict=True):
    logits[start, 0] = logits[end, 1] = 9
  return outputs


def blank(character):
  return unicodedata.category(character) in ('Cc', 'Cf', 'Zs', 'Zl', 'Zp')


def parts_of(text, draw, number):
  """Parts of a text with something to read at both ends."""
  while number:
    start, end = sorted(draw.integers(0, len(text) + 1, 2).tolist())
    if end > start and not blank(text[start]) and not blank(text[end - 1]):
      number -= 1
      yield Answer(text[start:end], start)


@pytest.mark.parametrize('kind', [
    pytest.param(kind, marks=[pytest.mark.slow] * (kind not in ('wordpiece', 'albert')))
    for kind in KINDS])
def test_answers_come_back_to_the_character_from_every_window(kind):
  draw, tokenizer = np.random.default_rng(0), tokenizer_of(kind)
  questions = ('Who?', 'How tall is it?', '谁？') * 4
  golds = [(text, answer) for text in TEXTS for answer in parts_of(text, draw, 12)]
  examples = [Example((questions[n % 12], text), answers=(answer,))
              for n, (text, answer) in enumerate(golds)]
  held = 0
  for length, stride in ((24, 1), (32, 7), (40, 100), (400, 128)):
    task = AnswerTask(family=KINDS[kind][1], stride=stride, answer_length=400)
    features = task.features(examples, tokenizer, length)
    assert features.tokens.lengths.max() <= length
    start, end, stand = (features.values[name] for name in ('start', 'end', 'stand'))
    for row, number in enumerate(features.example):
      begins, ends = (features.prediction_arrays[name][row] for name in ('begins', 'ends'))
      assert (begins[stand[row]], ends[stand[row]]) == (0, 0)
      _, answer = golds[number]
      if start[row] != stand[row]:
        assert begins[start[row]] <= answer.start
        assert ends[end[row]] >= answer.start + len(answer.text)
        # As little as tokens allow: what is more belongs to the first and the last of them.
        assert ends[start[row]] > answer.start
        assert begins[end[row]] < answer.start + len(answer.text)
    found = task.predict(examples, features, perfect(features))
    answered = set(features.example[start != stand].tolist())
    held += len(answered)
    for number, ((context, answer), prediction) in enumerate(zip(golds, found, strict=True)):
      for part in (prediction, *prediction.candidates):
        assert part.text == context[part.start:part.end]
        assert part.text
      if number in answered:
        assert prediction.start <= answer.start
        assert prediction.end >= answer.start + len(answer.text)
        assert prediction.probability > 0.9
    if length == 400:
      assert len(answered) == len(examples) == len(features)
  assert held > 2 * len(examples)


@pytest.mark.parametrize('kind', KINDS)
def test_every_character_is_of_a_token_and_tokens_begin_and_end_with_something(kind):
  tokenizer = tokenizer_of(kind)
  for text in TEXTS:
    ids, _, starts = tokenizer.encode_with_offsets([text])
    begins, ends = token_extents(text, starts)
    assert len(begins) == len(ends) == len(ids)
    covered = np.zeros(len(text), bool)
    for begin, end in zip(begins, ends, strict=True):
      covered[begin:end] = True
      assert begin == end == 0 or not (blank(text[begin]) or blank(text[end - 1]))
    assert all(covered[at] or blank(character) for at, character in enumerate(text))


def test_tokens_reach_up_to_the_next_and_those_of_one_character_share_it():
  begins, ends = token_extents('\u0301ab \u200b🎉. ', np.array([1, 3, 5, 5, 6]))
  assert begins.tolist() == [0, 0, 5, 5, 6]
  assert ends.tolist() == [3, 0, 6, 6, 7]
  # The first token of a character begins a part, the last one ends it.
  scores, first, last = best_spans(np.zeros((5, 2)), begins, ends, 5, 9)
  assert scores.tolist() == [0] * 6
  assert [*zip(first.tolist(), last.tolist(), strict=True)] == [(0, 0), (0, 3), (0, 4), (2, 3),
                                                                (2, 4), (4, 4)]


def test_windows_begin_every_stride_and_hold_the_answer_whole():
  tokenizer = tokenizers.WordPiece(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdefghij',
                                    '?', '##b'])
  example = Example(('a ? ? ?', 'a b  c d e fb'), answers=(Answer('d e', 7),))
  task = AnswerTask(stride=2, question_length=2)
  features = task.features([example], tokenizer, 9)
  rows = [[tokenizer.pieces[i] for i in features.tokens[row]] for row in range(len(features))]
  assert rows == [['[CLS]', 'a', '?', '[SEP]', 'a', 'b', 'c', 'd', '[SEP]'],
                  ['[CLS]', 'a', '?', '[SEP]', 'c', 'd', 'e', 'f', '[SEP]'],
                  ['[CLS]', 'a', '?', '[SEP]', 'e', 'f', '##b', '[SEP]']]
  assert features.aligned['types'][2].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
  assert features.values['start'].tolist() == [0, 5, 0]
  assert features.values['end'].tolist() == [0, 6, 0]
  assert features.values['stand'].tolist() == [0, 0, 0]
  assert features.values['weight'].tolist() == [1, 1, 1]
  assert features.prediction_arrays['begins'][1].tolist() == [0, 0, 0, 0, 5, 7, 9, 11, 0]
  assert features.prediction_arrays['ends'][1].tolist() == [0, 0, 0, 0, 6, 8, 10, 12, 0]
  assert features.example.tolist() == [0, 0, 0]
  assert (features.clipped, features.skipped) == (1, ())
  # A stride beyond the room leaves nothing out; XLNet has the context in front.
  assert len(AnswerTask(stride=50, question_length=2).features([example], tokenizer, 9)) == 2
  last = AnswerTask(family='xlnet', question_length=2).features([example], tokenizer, 20)
  assert [tokenizer.pieces[i] for i in last.tokens[0]] == [
      *'abcdef', '##b', '[SEP]', 'a', '?', '[SEP]', '[CLS]']
  assert [last.values[name].tolist() for name in ('stand', 'start', 'end')] == [[11], [3], [4]]


def test_answers_are_found_where_they_say_or_nearest_and_widened_to_tokens():
  tokenizer = tokenizers.WordPiece(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'no', 'in',
                                    '##ten', '##der'])
  context = 'no nintender in no in'
  def target(*answers):
    features = AnswerTask(unanswerable=True).features([Example(('no', context), answers=answers)],
                                                      tokenizer, 32)
    return [features.values[name].item() for name in ('start', 'end', 'weight')], features.skipped
  assert target(Answer('no', 16)) == ([6, 6, 1], ())
  assert target(Answer('no', 15)) == ([6, 6, 1], ())
  assert target(Answer('no', -1)) == ([3, 3, 1], ())
  assert target(Answer('in no', 0)) == ([5, 6, 1], ())
  assert target(Answer('tend', 5)) == ([4, 4, 1], ())  # a word without pieces is one token
  assert target(Answer(' in ', 12)) == ([5, 5, 1], ())
  assert target() == ([0, 0, 1], ())
  assert target(Answer('on', 3)) == ([0, 0, 0],
                                     ("example 0: the answer 'on' is not in its context",))
  assert target(Answer('on', 3), Answer('no', 0)) == ([3, 3, 1], ())


def test_what_is_not_known_weighs_nothing_and_bad_input_is_named():
  tokenizer, task = tokenizer_of('wordpiece'), AnswerTask()
  features = task.features([Example(('Who?', TEXTS[0])),
                            Example(('', TEXTS[0]), answers=(Answer('Tower', 11),))],
                           tokenizer, 384)
  assert features.values['weight'].tolist() == [0, 0]
  unknown = [Example(('Who?', TEXTS[0]))] * 2
  with pytest.raises(ConfigError, match='no question has an answer'):
    task.scores(unknown, task.predict(unknown, features, perfect(features)))
  assert features.skipped == ("example 1: the tokenizer has no tokens for the question ''",)
  for example, message in (
      (Example(('Who?', ' \t'), where='a.json:7'),
       'a.json:7: the tokenizer has no tokens for the context'),
      (Example(('Who?',)), 'example 0: a question and its context are two texts, not 1'),
      (Example(('Who?', TEXTS[0]), answers=()),
       'the question has no answer, which needs unanswerable')):
    with pytest.raises(ConfigError, match=message):
      task.features([example], tokenizer, 384)
  with pytest.raises(ConfigError, match='in rows of 5 tokens, a question of 8 leaves no room'):
    task.features([Example(('Who? Who?', TEXTS[0]))], tokenizer, 5)
  assert len(task.features([], tokenizer, 384)) == 0


def cross_entropy(logits, place):
  return np.log(np.exp(logits).sum()) - logits[place]


def test_loss_is_the_mean_of_begin_and_end_over_all_of_a_row():
  draw = np.random.default_rng(0)
  span = draw.normal(size=(3, 5, 2)).astype(np.float32)
  batch = {'start': [[1], [2], [99]], 'end': [[3], [2], [99]], 'weight': [[1.0], [1.0], [1.0]],
           'segments': np.ones((3, 5), int)}
  batch = {name: jnp.asarray(some) for name, some in batch.items()}
  losses = AnswerTask().loss({'span': jnp.asarray(span)}, batch)
  each = [np.mean([cross_entropy(span[0, :, 0], 1), cross_entropy(span[0, :, 1], 3)]),
          np.mean([cross_entropy(span[1, :, 0], 2), cross_entropy(span[1, :, 1], 2)])]
  assert losses['span'][0] == pytest.approx(sum(each), rel=1e-5)
  assert losses['span'][1] == 2
  best = span[:2].argmax(1).tolist()
  assert losses['span_accuracy'][0] == (best[0] == [1, 3]) + (best[1] == [2, 2])


def test_packed_questions_have_the_losses_of_those_alone():
  tokenizer, task = tokenizer_of('wordpiece'), AnswerTask()
  examples = [Example(('Who?', text), answers=(Answer(text[4:9].strip(), -1),))
              for text in TEXTS[:2]]
  features = task.features(examples, tokenizer, 128)
  draw, total = np.random.default_rng(1), 0.0
  each = [draw.normal(size=(size, 2)).astype(np.float32) for size in features.tokens.lengths]
  for row, logits in enumerate(each):
    total += np.mean([cross_entropy(logits[:, side], features.values[name][row])
                      for side, name in enumerate(('start', 'end'))])
  batch, placed = FeatureBatches(features,
                                 BatchShape(batch=2, length=256, pack=True)).lay_out(np.arange(2))
  assert batch['segments'].max() == 2
  span = np.full((*batch['tokens'].shape, 2), 50, np.float32)  # of padding
  for number, row, first in zip(placed.number, placed.row, placed.first, strict=True):
    span[row, first:first + len(each[number])] = each[number]
  losses = task.loss({'span': jnp.asarray(span)},
                     {name: jnp.asarray(some) for name, some in batch.items()})
  assert losses['span'][0] == pytest.approx(total, rel=1e-5)
  assert losses['span'][1] == 2


def test_best_parts_are_those_of_all_pairs():
  draw = np.random.default_rng(0)
  for _ in range(30):
    size, longest = int(draw.integers(1, 12)), int(draw.integers(1, 6))
    logits = draw.integers(-2, 3, (size, 2)).astype(float)  # with ties
    begins = np.arange(size) * 2
    ends = begins + (draw.random(size) < 0.8)
    pairs = sorted((-logits[i, 0] - logits[j, 1], i, j) for i in range(size) if ends[i] > begins[i]
                   for j in range(i, min(i + longest, size)) if ends[j] > begins[j])[:5]
    scores, first, last = best_spans(logits, begins, ends, longest, 5)
    assert [*zip((-scores).tolist(), first.tolist(), last.tolist(), strict=True)] == pairs


def test_the_best_of_all_windows_wins_and_none_where_nothing_is_better():
  tokenizer = tokenizers.WordPiece(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdefghij'])
  example = Example(('a', 'b c d e'), answers=())
  task = AnswerTask(unanswerable=True, stride=2, n_best=2)
  features = task.features([example], tokenizer, 6)  # b c | d e
  assert features.tokens.lengths.tolist() == [6, 6]
  logits = [np.zeros((size, 2)) for size in features.tokens.lengths]
  logits[0][3:5] = [[3, 0], [0, 2]]  # b c: 5
  logits[1][3] = [1, 3]  # d: 4
  logits[0][-1] = 99  # [SEP] never wins
  logits[0][0], logits[1][0] = [4, 0.5], [2.5, 2.5]
  found, = task.predict([example], features, logits)
  assert [part[:4] for part in found.candidates] == [('b c', 0, 3, 5), ('d', 4, 5, 4)]
  assert (found.text, found.start, found.end, found.null) == ('b c', 0, 3, -0.5)
  assert found.probability == pytest.approx(1 / (1 + np.exp(-1) + np.exp(-0.5)))
  same, = AnswerTask(unanswerable=True, stride=2, n_best=2,
                     null_threshold=-0.5).predict([example], features, logits)
  assert same == found
  none, = AnswerTask(unanswerable=True, stride=2,
                     null_threshold=-1.0).predict([example], features, logits)
  assert (none.text, none.start, none.end, none.null) == ('', -1, -1, -0.5)
  # Without a threshold there is always an answer; what is no number is no answer.
  logits[0][3] = np.nan
  found, = AnswerTask(stride=2, null_threshold=-99.0).predict([example], features, logits)
  assert found.text == 'd'


def test_scores_are_those_of_the_script_that_is_named():
  tokenizer = tokenizer_of('wordpiece')
  known = [Example(('谁？', TEXTS[4]), answers=(Answer('曹雪芹', -1),)), Example(('谁？', TEXTS[4]))]
  task = AnswerTask(script='cmrc', answer_length=9)
  features = task.features(known, tokenizer, 128)
  found = task.predict(known, features, perfect(features))
  assert task.scores(known, found) == {'f1': 100, 'exact': 100}
  none = [Example(('Who?', TEXTS[0]), answers=()),
          Example(('What?', TEXTS[0]), answers=(Answer('Eiffel Tower', 4),))]
  task = AnswerTask(unanswerable=True)
  features = task.features(none, tokenizer, 128)
  scores = task.scores(none, task.predict(none, features, perfect(features)))
  assert scores['NoAns_f1'] == scores['HasAns_exact'] == scores['best_f1'] == 100
