"""Suggestions of a report for the next run, in the language of the text."""
import dataclasses

import pytest

from plm_jax import recipes, validation
from plm_jax.cli.flags import write_flags
from plm_jax.config.run import PretrainRun
from plm_jax.preparation.prepare import PrepareConfig, prepare
from plm_jax.report import hints
from plm_jax.tokenizers import train_wordpiece

BERT = recipes.find_recipe('bert_base')('laptop')
FINE = {'mlm_accuracy': 0.5, 'mlm_baseline': 0.1}
ENGLISH, CHINESE = 'The cat sat on the mat. A dog barks.\n\n', '小猫坐在地毯上。一只狗在叫，很吵。\n\n'


@pytest.mark.parametrize(('text', 'epochs', 'heldout', 'said'), [
    (hints.TextFacts(False, 0.0, 20_000), 3.0, FINE, []),
    (hints.TextFacts(False, 0.02, 20_000), 3.0, FINE,
     ['2.0% of the tokens are unknown to the tokenizer ([UNK]): a larger vocabulary knows more of '
      'the rare ones: '
      '--model.vocab=8192']),
    (hints.TextFacts(True, 0.02, 20_000), 3.0, FINE,
     ['2.0% 的词元不在词表中（[UNK]）：词表更大，认得的生僻字就更多：--model.vocab=8192']),
    (hints.TextFacts(False, 0.0, 500), 40.4, FINE | {'mlm_accuracy': 0.11},
     ['the text was read 40 times', 'only 500 tokens are held out',
      'the MLM accuracy is hardly above']),
    (hints.TextFacts(True, 0.0, 500), 40.4, FINE | {'mlm_accuracy': 0.11},
     ['语料已读了 40 遍', '留出的文本只有 500 个词元', '准确率几乎不高于'])])
def test_hints(text, epochs, heldout, said):
  paths = validation.field_paths(PretrainRun)
  found = [write_flags(hint, paths) for hint in hints.run_hints(BERT, text, epochs, heldout)]
  assert len(found) == len(said) and all(one.startswith(begin)
                                         for one, begin in zip(found, said, strict=True))


@pytest.mark.parametrize(('accuracy', 'baseline', 'hinted'), [
    (0.178, 0.059, True), (0.245, 0.073, False), (0.02, 0.01, True)])
def test_a_model_that_ignores_the_context_is_recognized(accuracy, baseline, hinted):
  """A tenth of BERT's tokens to predict are visible: a model that copies them is ahead of the
  majority class."""
  heldout = {'mlm_accuracy': accuracy, 'mlm_baseline': baseline}
  found = hints.run_hints(BERT, hints.TextFacts(False, 0.0, 20_000), 3.0, heldout)
  assert bool(found) == hinted and (not found or f'({0.1 + 0.9 * baseline:.1%})' in found[0])


def test_next_tokens_are_not_visible():
  decoder = recipes.find_recipe('gpt2_small')('laptop')
  assert hints.accuracy_without_context(decoder, 0.1) == 0.1


def test_a_tokenizer_that_does_not_fit_the_text_is_reported():
  prepared = dataclasses.replace(BERT.data.prepare, tokenizer='vocab.txt')
  config = dataclasses.replace(BERT, data=dataclasses.replace(BERT.data, prepare=prepared))
  said, = hints.run_hints(config, hints.TextFacts(False, 0.5, 20_000), 1.0, FINE)
  assert 'is the tokenizer made for this text?' in said and 'vocab' not in said


@pytest.mark.parametrize(('prepared', 'full', 'said'), [
    (dict(), False, '--data.prepare.coverage=1 gives'), (dict(), True, '--model.vocab=8192'),
    (dict(kind='sentencepiece-unigram'), True, '--data.prepare.coverage=1 gives'),
    (dict(kind='sentencepiece-unigram', coverage=1.0), True,
     'a larger --data.prepare.sample has more of them'),
    (dict(kind='word-bpe'), True, '--data.prepare.kind=byte-bpe knows all'),
    (dict(), None, '--data.prepare.kind=sentencepiece-unigram needs no spaces')])
def test_suggestions_against_unknown_characters(prepared, full, said):
  """A larger vocabulary if single characters fill it, and other advice if it would change
  nothing. full: None for text without spaces."""
  prepared = dataclasses.replace(BERT.data.prepare, **prepared)
  config = dataclasses.replace(BERT, data=dataclasses.replace(BERT.data, prepare=prepared))
  for chinese in (False, True):
    found, = hints.run_hints(config, hints.TextFacts(chinese, 0.5, 20_000, bool(full),
                                                     full is None), 1.0, FINE)
    found = write_flags(found, validation.field_paths(PretrainRun))
    assert said.split(' ')[0] in found and (chinese or said in found)


def test_every_hint_is_there_in_both_languages():
  assert hints.ENGLISH.keys() == hints.CHINESE.keys()


def test_the_language_of_a_text_is_detected(tmp_path):
  tokenizer = train_wordpiece([ENGLISH, CHINESE.replace('地毯', '')] * 3, 100)
  tokenizer.save(tmp_path / 'tokenizer')
  for name, text in (('english', ENGLISH), ('chinese', CHINESE)):
    (tmp_path / f'{name}.txt').write_text(text * 4 + 'A dog sat on the cat.\n')
    prepare(PrepareConfig(source=str(tmp_path / f'{name}.txt'),
                          tokenizer=str(tmp_path / 'tokenizer'), workers=1,
                          heldout=0.5), tmp_path / name)
  english, chinese = (hints.examine_text(tmp_path / name, tokenizer)
                      for name in ('english', 'chinese'))
  assert (english.chinese, english.unknown, chinese.chinese) == (False, 0.0, True)
  assert 0.05 < chinese.unknown < 0.2 and english.heldout > 0
