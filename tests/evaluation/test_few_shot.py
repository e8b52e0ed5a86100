import dataclasses
import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_decoders
import tiny

from plm_jax import conversion, tokenizers
from plm_jax.cli import evaluation
from plm_jax.config.run import ConfigError
from plm_jax.evaluation import few_shot
from plm_jax.evaluation.few_shot import TASKS, FewShotExample
from plm_jax.evaluation.scoring import ContinuationScore, Scorer
from plm_jax.models import gemma3, gpt_neox, qwen3, smollm3
from plm_jax.sources.labeled_files import LabeledRow, to_json_value
from plm_jax.sources.lines import SourceError
from plm_jax.tokenizers.contract import Vocab


class Words:
  """A text's words by number, as they come; 0 begins a text, 1 is any word that has none."""

  spaced = True

  def __init__(self, *words):
    self.ids = {word: number for number, word in enumerate(words, 2)}
    self.vocab = Vocab(len(words) + 2, bos=0, eos=0)

  def encode_batch(self, texts):
    return [[self.ids.get(word, 1) for word in text.split()] for text in texts]


def scorer(odds):
  """odds: word -> its probability after any other word, or (previous word, word) -> its
  probability after this one."""
  tokenizer = Words(*dict.fromkeys(word for key in odds
                                   for word in ([key] if isinstance(key, str) else key)))
  table = np.full((tokenizer.vocab.size, tokenizer.vocab.size), 1e-6)
  for key, odd in odds.items():
    if isinstance(key, str):
      table[:, tokenizer.ids[key]] = odd
  for key, odd in odds.items():
    if not isinstance(key, str):
      table[tokenizer.ids[key[0]], tokenizer.ids[key[1]]] = odd
  table[:, 1] += 1 - table.sum(1)
  def logits(params, batch):
    return jnp.take_along_axis(params[batch['tokens']], batch['positions'][..., None], 1)
  return Scorer(logits, jnp.log(jnp.asarray(table, jnp.float32)), tokenizer, 64)  # pyright: ignore


def write(path, *rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


ROWS = {
    'piqa': ({'question': 'Open a jar. ', 'choices': ['Twist.', 'Sing. '], 'label': 0},
             'Open a jar.',
             ('Twist.', 'Sing.'), 0),
    'qasc': ({'id': '1', 'question': {'stem': 'What flies?', 'choices': [
        {'text': 'stones', 'label': 'A'}, {'text': 'birds', 'label': 'B'}]}, 'answerKey': 'B'},
        'Question: What flies?\nAnswer:', ('stones', 'birds'), 1),
    'commonsense-qa': ({'question': 'Where?',
                        'choices': {'label': ['A', 'B', 'C'], 'text': ['x', 'y', 'z']},
                        'answerKey': 'C'}, 'Question: Where?\nAnswer:', ('x', 'y', 'z'), 2),
    'boolq': ({'question': 'is it so', 'passage': 'It is so.', 'label': 1},
              'It is so.\nquestion: is it so?\nanswer:', ('no', 'yes'), 1),
    'lambada': ({'text': 'He said,\n\n"Come here'}, 'He said,\n\n"Come', ('here',), 0),
    'lambada-blank': ({'text': 'She likes the cat'}, 'She likes the ____. ->', ('cat',), 0),
}


@pytest.mark.parametrize('name', ROWS)
def test_prompts(name, tmp_path):
  row, context, choices, label = ROWS[name]
  path = write(tmp_path / 'a.jsonl', row)
  assert TASKS[name].examples(path) == [FewShotExample(context, choices, label, f'{path}:1')]


@pytest.mark.parametrize(('name', 'features', 'context', 'choices', 'label'), [
    ('piqa', {'goal': b'Open a jar.', 'sol1': b'Sing.', 'sol2': b'Twist.', 'label': np.int64(1),
              'id': b'7'},
     'Open a jar.', ('Sing.', 'Twist.'), 1),
    ('qasc', {'question': b'What flies?', 'answerKey': b'B', 'fact1': b'', 'choices': {
        'text': np.array([b'stones', b'birds'], object), 'label': np.array([b'A', b'B'], object)}},
     'Question: What flies?\nAnswer:', ('stones', 'birds'), 1),
    ('boolq', {'question': b'is it so', 'passage': b'It is.', 'answer': np.bool_(False),
               'title': b'So'},
     'So -- It is.\nquestion: is it so?\nanswer:', ('no', 'yes'), 0),
    ('lambada', {'passage': b'he came here'}, 'he came', ('here',), 0),
])
def test_features_of_tfds(name, features, context, choices, label):
  assert TASKS[name].read(LabeledRow(to_json_value(features), 'tfds')) == FewShotExample(
    context, choices, label, 'tfds'
  )


def test_examples_come_before_the_question():
  shots = [
    FewShotExample('Question: a\nAnswer:', ('x', 'y'), 1, ''),
    FewShotExample('Question: b\nAnswer:', ('z', 'w'), 0, ''),
  ]
  question = FewShotExample('Question: c\nAnswer:', ('x', 'y'), 0, '')
  assert TASKS['qasc'].prompt(question, shots) == (
      'Question: a\nAnswer: y\n\nQuestion: b\nAnswer: z\n\nQuestion: c\nAnswer:')
  blank = TASKS['lambada-blank']
  shot = FewShotExample('Alice went to visit her friend ____. ->', ('Bob',), 0, '')
  assert blank.prompt(shot._replace(context='A ball, a glove, and a ____. ->'), [shot]) == (
      'Fill in blank:\n\nAlice went to visit her friend ____. -> Bob\nA ball, a glove, and a ____. '
      '->')


def test_samples_depend_on_seed_and_question_and_exclude_the_question():
  pool = [FewShotExample(f'{number % 9}', ('a',), 0, str(number)) for number in range(18)]
  asked = [FewShotExample(f'question {number}', ('a',), 0, '') for number in range(20)]
  own = few_shot.sample_shots(pool, pool[5], 16, seed=3)
  assert len({x.where for x in own}) == 16 and '5' not in {x.context for x in own}
  assert own == few_shot.sample_shots(pool, pool[5], 16, seed=3)
  assert own[:2] == few_shot.sample_shots(pool, pool[5], 2, seed=3)
  assert own != few_shot.sample_shots(pool, pool[5], 16, seed=4)
  assert len({tuple(x.where for x in few_shot.sample_shots(pool, some, 16, seed=3))
              for some in asked}) == 20
  assert few_shot.sample_shots([], pool[5], 0, seed=3) == []
  with pytest.raises(ConfigError,
                     match='17 examples are needed before each question, there are 16 other ones'):
    few_shot.sample_shots(pool, pool[5], 17, seed=3)


def test_a_limit_is_drawn():
  examples = [FewShotExample(str(number), ('a',), 0, '') for number in range(1000)]
  some = [int(x.context) for x in few_shot.sample_subset(examples, 100, seed=0)]
  assert len(set(some)) == 100 and some == sorted(some) and 400 < np.mean(some) < 600
  assert few_shot.sample_subset(examples, 100,
                                seed=1) != few_shot.sample_subset(examples, 100, seed=0)
  assert few_shot.sample_subset(examples, 2000, seed=0) == examples


def test_how_choices_are_compared():
  score, alone = ContinuationScore(-6.0, False, 3, 0), ContinuationScore(-7.5, False, 3, 0)
  values = {how: few_shot.normalize_score(how, score, 'naïve', alone)
            for how in ('sum', 'token', 'byte', 'calibrated')}
  assert values == {'sum': -6, 'token': -2, 'byte': -1, 'calibrated': 1.5}


def test_evaluate_by_each_comparison():
  """'long long' is more likely per token, 'b' in total; after 'Answer:' alone 'b' is even more
  likely, so 'a' gains most."""
  model = scorer({'a': 0.1, 'b': 0.15, 'long': 0.3, ('Answer:', 'a'): 0.01, ('Answer:', 'b'): 0.2,
                  ('Answer:', 'long'): 0.3, 'Question': 0.001})
  task = dataclasses.replace(TASKS['multiple-choice'], template='{question}')
  examples = [FewShotExample('Which', ('a', 'b', 'long long'), label, '') for label in (0, 1, 1, 2)]
  for normalize, chosen, accuracy in (('sum', 1, 0.5), ('token', 2, 0.25), ('byte', 2, 0.25),
                                      ('calibrated', 0, 0.25)):
    result = few_shot.evaluate_few_shot(
        dataclasses.replace(task, normalize=normalize), model, examples)
    assert {x.predicted for x in result.predictions} == {chosen}
    assert result.accuracy == accuracy
  logprobs = [score.logprob for score in result.predictions[0].scores]
  assert logprobs == pytest.approx([math.log(0.1), math.log(0.15), 2 * math.log(0.3)], abs=1e-4)
  want = [math.log(0.1 / 0.01), math.log(0.15 / 0.2), math.log(0.3 / 0.3)]
  assert result.predictions[0].normalized_scores == pytest.approx(want, abs=1e-4)
  assert (result.chance, result.majority_baseline) == (pytest.approx(1 / 3), 0.5)
  assert result.error == pytest.approx(math.sqrt(0.25 * 0.75 / 3))
  assert few_shot.prediction_record(result.predictions[1])['right'] is False


def test_last_words():
  model = scorer({'cat': 0.5, ('the', 'cat'): 0.6, ('the', 'dog'): 0.2})
  task = TASKS['cloze']
  examples = [task.read(LabeledRow({'text': text}, ''))
              for text in ('see the cat', 'see the dog', 'a cat', 'cat dog')]
  result = few_shot.evaluate_few_shot(task, model, examples)
  assert [x.right for x in result.predictions] == [True, False, True, False]
  assert result.perplexity == pytest.approx(1 / (0.6 * 0.2 * 0.5 * 1e-6) ** 0.25, rel=1e-3)
  assert (result.chance, result.majority_baseline, result.truncated_prompts) == (0, 0.5, 0)


def test_last_words_that_are_not_stop_words():
  model = scorer({'it': 0.5, 'the': 0.3, 'cat': 0.15, 'dog': 0.01})
  task = TASKS['lambada-filtered']
  examples = [task.read(LabeledRow({'text': text}, ''))
              for text in ('see cat', 'see dog', 'see it')]
  assert [x.right for x in few_shot.evaluate_few_shot(task, model, examples).predictions] == [
      True, False, False]
  plain = few_shot.evaluate_few_shot(TASKS['lambada'], model, examples)
  assert [x.right for x in plain.predictions] == [False, False, True]
  assert plain.perplexity == few_shot.evaluate_few_shot(task, model, examples).perplexity


def test_shots_come_before_every_question():
  model = scorer({'yes': 0.3, 'no': 0.2})
  examples = [FewShotExample(f'{number}?', ('no', 'yes'), number % 2, '') for number in range(5)]
  result = few_shot.evaluate_few_shot(TASKS['yes-no'], model, examples, shots=2, pool=examples,
                                      seed=1)
  assert [len(x.prompt.split('\n\n')) for x in result.predictions] == [3] * 5
  assert all(x.prompt.endswith(x.example.context) and x.prompt.count(x.example.context) == 1
             for x in result.predictions)
  again = few_shot.evaluate_few_shot(TASKS['yes-no'], model, examples, shots=2, pool=examples,
                                     seed=1)
  assert again.predictions == result.predictions


@pytest.mark.parametrize(('name', 'row', 'message'), [
    ('piqa', {'ask': 'x', 'choices': ['a', 'b'], 'label': 0},
     "a.jsonl:1: no column 'question.stem' or 'question' or 'goal', only ['ask', 'choices', "
     "'label']"),
    ('piqa', {'question': 'x', 'choices': ['a', 'b'], 'label': 2},
     'a.jsonl:1: the label is a number below 2 or one of 0, 1, got 2'),
    ('piqa', {'question': 'x', 'choices': ['a', 'b'], 'label': -1}, 'got -1'),
    ('qasc', {'question': 'x', 'choices': {'text': ['a', 'b'], 'label': ['A', 'B']},
              'answerKey': 'C'}, "got 'C'"),
    ('piqa', {'question': 'x', 'choices': ['a'], 'label': 0},
     "expected two or more choices, got ['a']"),
    ('boolq', {'question': 'x', 'passage': 3, 'label': 0},
     "the column 'passage' must be a text, got 3"),
    ('boolq', {'question': 'x', 'passage': 'y', 'label': 'maybe'}, "one of 0, 1, got 'maybe'"),
    ('lambada', {'text': 'word'}, 'a passage of one word'),
    ('lambada', ['text'], 'an object is expected, got ["text"]'),
])
def test_bad_rows(name, row, message, tmp_path):
  with pytest.raises(SourceError) as error:
    TASKS[name].examples(write(tmp_path / 'a.jsonl', row))
  assert message in str(error.value)


def test_bad_files(tmp_path):
  for name, content, message in (
      ('a.jsonl', '\n', 'has no rows'), ('b.jsonl', '{"text"\n', 'b.jsonl:1: not JSON'),
      ('c.txt', 'x\n', 'rows are read from .jsonl')):
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=message):
      TASKS['lambada'].examples(str(tmp_path / name))
  with pytest.raises(SourceError, match='no files match'):
    TASKS['lambada'].examples(str(tmp_path / 'none.jsonl'))


@pytest.mark.parametrize(('template', 'error', 'message'), [
    ('{question} {hint}', SourceError, "the template names a column 'hint', there are"),
    ('{question', ConfigError,
     "the template '{question' cannot be filled: expected '}' before end of string"),
    ('{}', ConfigError, 'cannot be filled'),
])
def test_bad_templates(template, error, message):
  task = dataclasses.replace(TASKS['multiple-choice'], template=template)
  with pytest.raises(error, match=message):
    task.read(LabeledRow({'question': 'x', 'choices': ['a', 'b'], 'label': 0}, 'a:1'))


def test_tfds(tmp_path):
  tfds = pytest.importorskip('tensorflow_datasets')
  tf = pytest.importorskip('tensorflow')
  text = tfds.features.Text()
  features = tfds.features.FeaturesDict({
      'question': text, 'answerKey': text,
      'choices': tfds.features.Sequence({'text': text, 'label': text})})
  row = {'question': 'What flies?', 'answerKey': 'B',
         'choices': {'text': ['stones', 'birds'], 'label': ['A', 'B']}}
  folder = tmp_path / 'qasc'
  folder.mkdir()
  with tf.io.TFRecordWriter(f'{folder}/qasc-validation.tfrecord-00000-of-00001') as writer:
    writer.write(features.serialize_example(features.encode_example(row)))
  template = tfds.core.ShardedFileTemplate(
      folder, dataset_name='qasc', split='validation', filetype_suffix='tfrecord')
  tfds.folder_dataset.write_metadata(
      data_dir=folder, features=features,
      split_infos=[tfds.core.SplitInfo('validation', [1], 0, template)])
  assert TASKS['qasc'].examples(f'tfds:{folder}:validation') == [
      FewShotExample('Question: What flies?\nAnswer:', ('stones', 'birds'), 1,
                     f'tfds:{folder}:validation[0]')]


DECODERS = {
    'qwen3': ('qwen3', qwen3.qwen3_0_6b), 'gemma3': ('gemma3_text', gemma3.gemma3_270m),
    'smollm2': ('llama', smollm3.smollm2_135m), 'smollm3': ('smollm3', smollm3.smollm3_3b),
    'pythia': ('gpt_neox', gpt_neox.pythia_14m)}


@pytest.mark.parametrize('name', DECODERS)
def test_small_decoders_score_as_in_transformers(name, tmp_path, capsys):
  """The command, on a folder with a random model, next to log-likelihoods by transformers."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  family, size = DECODERS[name]
  rows = [{'question': f'What is {n} and {n}?', 'choices': [f'It is {n + n}.', f'né {n}!'],
           'label': n % 2} for n in range(12)]
  tokenizer = tokenizers.train_byte_bpe(
      [f"{row['question']} {' '.join(row['choices'])}" for row in rows] * 3, 290, layout='gpt2')
  config = small_decoders.shrink(size(), vocab=300, max_length=128)
  params = jax.tree.map(
      np.asarray, tiny.random_params(small_decoders.parameters(family, config)))
  conversion.save(tmp_path / 'model', config, params, tokenizer, like=family)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'model').eval()
  encode = transformers.AutoTokenizer.from_pretrained(tmp_path / 'model').encode

  source = write(tmp_path / 'questions.jsonl', *rows)
  evaluation.few_shot_command(
      str(tmp_path / 'model'), 'piqa', str(tmp_path / 'predictions.jsonl'),
      settings=few_shot.FewShotConfig(data=source, shots=2, limit=6))
  assert 'piqa, 2 shots, 6 questions' in capsys.readouterr().out
  lines = (tmp_path / 'predictions.jsonl').read_text().splitlines()
  assert len(lines) == 6
  for line in map(json.loads, lines):
    for choice, logprob in zip(line['choices'], line['logprobs'], strict=True):
      context = [tokenizer.vocab.bos, *encode(line['prompt'], add_special_tokens=False)]
      answer = encode(f' {choice}', add_special_tokens=False)
      with torch.no_grad():
        logits = theirs(torch.tensor([context + answer])).logits[0, len(context) - 1:-1]
      found = torch.log_softmax(logits.double(), -1)[range(len(answer)), answer].sum()
      assert logprob == pytest.approx(float(found), abs=1e-4)
      assert len(context) > max(config.windows, default=0)
