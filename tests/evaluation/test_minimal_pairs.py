"""The likelihood of a text under an encoder, compared with masking each token by the public API;
and minimal pairs counted by hand."""
import json
import math
import pathlib

import backbones
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import plm_jax
from plm_jax import conversion
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.cli import commands
from plm_jax.cli.minimal_pairs import table_lines
from plm_jax.config.run import ConfigError
from plm_jax.evaluation import minimal_pairs, pseudo_likelihood
from plm_jax.evaluation.minimal_pairs import JudgedPair, MinimalPair, PairAccuracy
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading import loaded_model
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sources.lines import SourceError
from plm_jax.tokenizers import train_byte_bpe, train_wordpiece

BLIMP = pathlib.Path(__file__).parents[1] / 'fixtures' / 'blimp.jsonl'


def model(family: str, head: str, tokenizer) -> LoadedModel:
  """Make a small model of a family with random parameters."""
  cfg = backbones.small(family, tokenizer.vocab.size, 64)
  heads = {head: conversion.build_head(family, head, cfg, 2)}
  zeros = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  batch = {'tokens': zeros, 'segments': zeros}
  shapes = jax.eval_shape(ModelWithHeads(cfg.backbone(), heads).init, jax.random.key(0), batch)
  return LoadedModel(family, cfg, heads, tiny.random_params(shapes['params']), tokenizer)


@pytest.fixture(scope='module')
def lines() -> list[str]:
  return [row['sentence_good'] for row in map(json.loads, BLIMP.read_text().splitlines())]


@pytest.fixture(scope='module')
def bert(lines) -> LoadedModel:
  return model('bert', 'mlm', train_wordpiece(lines * 9, 128))


@pytest.fixture(scope='module')
def roberta(lines) -> LoadedModel:
  return model('roberta', 'mlm', train_byte_bpe(lines * 9, 300))


@pytest.fixture(scope='module')
def gpt2(lines) -> LoadedModel:
  return model('gpt2', 'lm', train_byte_bpe(lines * 9, 300, layout='gpt2'))


def asked(trained: LoadedModel, texts: list[str], how: str) -> list[float]:
  """Mask one token at a time, and sum the log-probabilities of `fill_mask`."""
  tokenizer = trained.tokenizer
  assert tokenizer
  rows, told = [], []
  for number, text in enumerate(texts):
    ids = tokenizer.encode(text)
    for place, token in enumerate(ids):
      row, end = [*ids], place + 1
      while how == 'pll-word-l2r' and end < len(ids) and not tokenizer.starts_word[ids[end]]:
        end += 1
      row[place:end] = [tokenizer.vocab.mask] * (end - place)
      rows.append(row)
      told.append((number, tokenizer.pieces[token].lstrip('▁')))
  following = iter(rows)
  # the tokens themselves: a text with a mask may be divided otherwise
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tokenizer, 'encode', lambda text, specials=False: next(following))
    found = plm_jax.fill_mask(trained, ['[MASK]'] * len(rows), top=tokenizer.vocab.size)
  sums = [0.0] * len(texts)
  for (number, piece), (first, *_) in zip(told, found, strict=True):
    sums[number] += math.log(dict(first)[piece])
  return sums


@pytest.mark.parametrize('how', ['pll', 'pll-word-l2r'])
def test_pseudo_likelihood_equals_masking_tokens_one_by_one(bert, how):
  texts = ['Tanya appreciates himself.', 'The.',
           'Those actors had not harmed the waitress, and the doctors.']
  scores = plm_jax.likelihood(bert, texts, how)
  np.testing.assert_allclose(scores, asked(bert, texts, how), rtol=1e-5)


def test_later_tokens_of_the_same_word_are_masked_too(bert):
  """Only later tokens of the same word: both methods score the last token of each word
  equally."""
  scorer = pseudo_likelihood.make_pseudo_scorer(bert, 'pll-word-l2r')
  ids, = scorer.encode(['appreciates himself.'])
  starts = bert.tokenizer.starts_word[ids]
  assert starts.tolist().count(True) == 3 < len(ids)
  ends = [*np.flatnonzero(starts)[1:].tolist(), len(ids)]
  assert [scorer.hidden(ids, place) for place in range(len(ids))] == [
      next(end for end in ends if end > place) for place in range(len(ids))]
  assert [pseudo_likelihood.make_pseudo_scorer(bert).hidden(ids, place)
          for place in range(len(ids))] == [
    *range(1, len(ids) + 1)
  ]


def test_scores_do_not_depend_on_the_rest_of_the_batch(roberta, lines):
  together = plm_jax.likelihood(roberta, lines)
  np.testing.assert_allclose(together[::7],
                             [plm_jax.likelihood(roberta, line)[0] for line in lines[::7]],
                             rtol=1e-5)
  assert np.isfinite(together).all() and (together
                                          < 0).all() and len({*together.round(4).tolist()}) > 12


def test_a_decoder_scores_whole_texts(gpt2, lines):
  np.testing.assert_allclose(
      plm_jax.likelihood(gpt2, lines[:5]), plm_jax.score(gpt2, [('', line) for line in lines[:5]]),
      rtol=1e-6)


def test_pairs_are_counted_by_paradigm_and_phenomenon(tmp_path):
  rows = [{'sentence_good': 'a', 'sentence_bad': 'b', 'UID': 'two', 'linguistics_term': 'x'},
          {'sentence_good': 'b', 'sentence_bad': 'c', 'UID': 'one', 'linguistics_term': 'x'},
          {'sentence_good': 'c', 'sentence_bad': 'a', 'UID': 'two', 'linguistics_term': 'x'},
          {'sentence_good': 'a', 'sentence_bad': 'a', 'UID': 'three', 'linguistics_term': 'y'}]
  (tmp_path / 'pairs.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  read = [*minimal_pairs.read_pairs(str(tmp_path / 'pairs.jsonl'))]
  assert read[0] == MinimalPair('a', 'b', 'two', 'x', f'{tmp_path / "pairs.jsonl"}:1')
  calls = []
  def score(texts):
    calls.append([*texts])
    return [{'a': -1.0, 'b': -2.0, 'c': -3.0}[text] for text in texts]
  judged = minimal_pairs.judge_pairs(score, read)
  assert calls == [['a', 'b', 'c']]  # each sentence once
  assert judged[0] == JudgedPair(read[0], -1.0,
                                 -2.0) and [one.right
                                            for one in judged] == [True, True, False, False]
  assert minimal_pairs.accuracy_by_paradigm(judged) == [
      PairAccuracy('one', 1, 1, 'x'), PairAccuracy('two', 1, 2, 'x'),
      PairAccuracy('three', 0, 1, 'y')]
  assert minimal_pairs.accuracy_by_phenomenon(judged) == [PairAccuracy('x', 2, 3),
                                                          PairAccuracy('y', 0, 1)]
  every = minimal_pairs.overall_accuracy(judged)
  assert (every.accuracy, every.error) == (0.5, pytest.approx(math.sqrt(0.25 / 3)))
  assert [pair.paradigm for pair in minimal_pairs.read_pairs(str(tmp_path / 'pairs.jsonl'), 1)] == [
    'two',
    'one',
    'three',
  ]


@pytest.mark.parametrize(('right', 'pairs', 'interval', 'beyond'), [
    (60, 100, (0.497, 0.697), 'unsure'), (61, 100, (0.507, 0.706), 'above'),
    (39, 100, (0.294, 0.493), 'below'),
    (0, 5, (0.0, 0.522), 'unsure'), (6, 6, (0.541, 1.0), 'above')])
def test_intervals_are_exact_binomial_intervals(right, pairs, interval, beyond):
  """Literal output of R's binom.test."""
  share = PairAccuracy('one', right, pairs)
  np.testing.assert_allclose(share.interval, interval, atol=5e-4)
  assert share.versus_chance == beyond


def judged_file(path, **rights):
  """Writes what --output would for a run. rights: of each paradigm how many of 100 pairs are
  right."""
  path.write_text(''.join(
      json.dumps({'UID': name, 'linguistics_term': 'x', 'sentence_good': 'a', 'sentence_bad': 'b',
                  'good': float(number < right), 'bad': 0.5}) + '\n'
      for name, right in rights.items() for number in range(100)))
  return str(path)


def test_runs_that_were_judged_are_compared(tmp_path, monkeypatch, capsys):
  one = judged_file(tmp_path / 'bert.jsonl', agreement=90, islands=40, only=50)
  two = judged_file(tmp_path / 'gpt.jsonl', agreement=50, islands=20)
  page = tmp_path / 'both.html'
  monkeypatch.setattr('sys.argv', ['plm_jax', 'minimal-pairs', one, f'--compare-with={two}',
                                   f'--page={page}'])
  commands.main()
  said = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert said[0] == ['paradigm', 'bert', 'gpt', 'pairs', 'phenomenon']
  assert said[1] == ['agreement', '90.0%', '82.4-95.1%', '+', '50.0%', '39.8-60.2%', '=', '100',
                     'x']
  assert said[2] == ['islands', '40.0%', '30.3-50.3%', '=', '20.0%', '12.7-29.2%', '-', '100', 'x']
  assert said[3] == ['only', '50.0%', '39.8-60.2%', '=', '100', 'x']
  assert ' '.join(said[-3]).startswith(
      'bert: of 3 paradigms 1 are above guessing, 0 below, 2 without')
  html = page.read_text()
  assert html.count(
      'class="bar"') == 2 * 2 + 1 and '<b>gpt</b>' in html and '<b class="run">gpt </b>' in html


@pytest.mark.parametrize(('args', 'message'), [
    (['run'], 'there are no pairs: give files of them'),
    (['{one}', 'more.jsonl'], 'has been judged already'),
    (['{one}', '--compare-with={one}'], 'two are the same'),
    (['{raw}'], 'expected the numbers good and bad')])
def test_unusable_files_of_results_are_refused(args, message, tmp_path, monkeypatch):
  places = {'one': judged_file(tmp_path / 'one.jsonl', a=1), 'raw': str(tmp_path / 'raw.jsonl')}
  (tmp_path / 'raw.jsonl').write_text('{"sentence_good": "a", "sentence_bad": "b"}\n')
  monkeypatch.setattr('sys.argv', ['plm_jax', 'minimal-pairs',
                                   *(arg.format(**places) for arg in args)])
  with pytest.raises(SystemExit, match=message):
    commands.main()


def test_a_table_of_pairs_without_a_phenomenon():
  judged = [JudgedPair(MinimalPair('a', 'b', name), 1.0, other)
            for name, other in (('x', 0.0), ('x', 2.0), ('y', 0.0))]
  lines = [line.split()[:2] for line in table_lines({'run': judged})]
  assert lines[1:4] == [['x', '50.0%'], ['y', '100.0%'], ['all', '66.7%']]
  named = [one._replace(pair=one.pair._replace(term='z')) for one in judged]
  assert ['z', '66.7%'] in [line.split()[:2]
                            for line in table_lines({'run': named, 'other': judged})]


def test_the_command_prints_a_table_and_writes_the_scores_of_each_pair(bert, monkeypatch, tmp_path,
                                                                       capsys):
  monkeypatch.setattr(loaded_model, 'load_model', lambda folder, mesh=None: bert)
  out, page = tmp_path / 'out.jsonl', tmp_path / 'page.html'
  monkeypatch.setattr('sys.argv', ['plm_jax', 'minimal-pairs', 'run', str(BLIMP), f'--output={out}',
                                   f'--page={page}'])
  commands.main()
  table = capsys.readouterr().out.splitlines()
  assert table[0].split() == ['paradigm', 'accuracy', 'at', '95%', 'pairs', 'phenomenon']
  rows = [json.loads(line) for line in out.read_text().splitlines()]
  assert len(rows) == 24 and all(row['right'] == (row['good'] > row['bad']) for row in rows)
  for name in {row['UID'] for row in rows}:
    right = sum(row['right'] for row in rows if row['UID'] == name)
    line, = (line.split() for line in table if line.startswith(name))
    assert line[1] == f'{right / 6:.1%}' and line[4] == '6'
  assert 'Paradigms' in page.read_text() and page.read_text().count('<li>') == 4


def test_unusable_pairs_are_one_line_errors(bert, gpt2, tmp_path):
  (tmp_path / 'bad.jsonl').write_text('{"good": "a", "bad": "b"}\n')
  nameless = LoadedModel('bert', bert.model, {}, bert.params, bert.tokenizer)
  for call, error, line in (
      (lambda: plm_jax.minimal_pairs(bert, str(tmp_path / 'bad.jsonl')), SourceError,
       r'bad\.jsonl:1: expected the texts sentence_good and sentence_bad, got the columns good, '
       r'bad'),
      (lambda: plm_jax.likelihood(bert, ['so ' * 99]), ConfigError,
       'has .* tokens, and the model reads 62'),
      (lambda: plm_jax.likelihood(bert, ['']), ConfigError, 'nothing to score'),
      (lambda: plm_jax.likelihood(gpt2, ['a'], 'pll-word-l2r'), ConfigError,
       'a gpt2 reads from left to right'),
      (lambda: plm_jax.likelihood(nameless, ['a']), CheckpointError, 'no language model head')):
    with pytest.raises(error, match=line) as raised:
      call()
    assert '\n' not in str(raised.value)
