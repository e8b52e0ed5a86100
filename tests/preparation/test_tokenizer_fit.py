import dataclasses
import logging
import random
import re
from typing import Any, get_args

import pytest
from scripts_text import DECOMPOSED, NAMES, SOLID, documents, sentences

from plm_jax import tokenizers, validation
from plm_jax.cli.flags import write_flags
from plm_jax.config.run import PretrainRun
from plm_jax.errors import ConfigError
from plm_jax.preparation import prepare, prepare_config, tokenizer_fit
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.tokenizers import BertNormalization, TokenizerError

LOSE = {*NAMES} - {'korean', 'korean nfd', 'chinese'}  # marks, where accents are stripped


def config_of(tmp_path, name, text=None, **kwargs):
  (tmp_path / 'text.txt').write_text(text or documents(name, 80, 2))
  return PrepareConfig(source=str(tmp_path / 'text.txt'), workers=1, **{'vocab': 4000, **kwargs})


@pytest.mark.parametrize('name', NAMES)
def test_letters_that_lose_their_marks_are_counted(name, tmp_path, caplog):
  """In all scripts that have marks; none where accents are kept, and then words that differ in
  marks differ in ids."""
  prepare.train_tokenizer(config_of(tmp_path, name))
  said = [message for message in caplog.messages if 'lose their accents and marks' in message]
  assert bool(said) == (name in LOSE), caplog.messages
  if said:
    number, total = re.findall(r'[\d,]+', said[0])[:2]
    assert 0.01 < int(number.replace(',', '')) / int(total.replace(',', '')) < 0.8
    assert 'strip_accents=False keeps them' in said[0]
  caplog.clear()
  kept = prepare.train_tokenizer(config_of(tmp_path, name, strip_accents=False))
  assert not any('accents' in message for message in caplog.messages)
  text = sentences(name, 20)
  plain = prepare.train_tokenizer(config_of(tmp_path, name, kind='byte-bpe'))
  letters = lambda some: len({*''.join(some).lower()})
  assert kept.vocab.unk not in [i for ids in kept.encode_batch(text) for i in ids]
  assert letters(map(kept.decode, kept.encode_batch(text))) >= letters(text) - 1 and plain.decode(
      plain.encode(text[0])) == text[0]


def test_english_is_not_warned_of(tmp_path, caplog):
  text = ('The cat of the café sat on the mat, and the naïve dog barked at it. ' * 3
          + '\nIt is plain text. ' * 500)
  for kind in ('wordpiece', 'word-bpe', 'words'):
    prepare.train_tokenizer(config_of(tmp_path, '', text, kind=kind))
  assert not caplog.messages


def test_counts_are_right(tmp_path):
  config = PrepareConfig(source='x')
  tokenizer = tokenizers.WordPiece([*tokenizers.wordpiece.SPECIALS, 'e'])
  said = tokenizer_fit.accent_warning(config, tokenizer.text,
                                      ['été e e', 'e\u0301t\u00e9 Ba', '12 .'])
  assert said.startswith(
      '4 of 10 letters in a sample of the text (40.0%) lose') and '(é becomes e)' in said
  warning = tokenizer_fit.accent_warning(config, tokenizer.text, ['é'])
  printed = write_flags(warning, validation.field_paths(PretrainRun))
  assert '--data.prepare.strip-accents=False keeps them' in printed
  warning = tokenizer_fit.accent_warning(PrepareConfig(tokenizer='x'), tokenizer.text, ['é'])
  assert 'A cased tokenizer keeps them' in warning
  assert tokenizer_fit.accent_warning(config, BertNormalization(False), ['é']) == ''
  albert = tokenizers.train_sentencepiece(['été à'] * 3, 50, layout='albert')
  assert 'é becomes e' in tokenizer_fit.accent_warning(config, albert.text, ['été'])
  bert = tokenizers.train_sentencepiece(['été à'] * 3, 50, lowercase=True)
  assert tokenizer_fit.accent_warning(config, bert.text,
                                      ['été']) == '' and bert.decode(bert.encode('ÉTÉ')) == 'été'


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('kind', ['sentencepiece-unigram', 'sentencepiece-bpe', 'byte-bpe',
                                  'bytes'])
def test_kinds_that_know_every_script(name, kind, tmp_path, caplog):
  config = config_of(tmp_path, name, kind=kind, lowercase=False)
  tokenizer = prepare.train_tokenizer(config)
  ids, _ = tokenizer.encode_flat(sentences(name, 160))
  assert tokenizer.vocab.unk not in ids
  # Decomposed text has tokens of its own where nothing composes it, and that is said.
  said = 'are not in the composed form' in caplog.text
  assert said == (name in DECOMPOSED and kind == 'byte-bpe') and len(caplog.messages) == said


def test_text_without_spaces_is_refused_by_what_needs_them(tmp_path, caplog):
  """With advice that helps: what it names is done next."""
  thai = ''.join(sentences('thai', 40))
  for kwargs in ({}, {'strip_accents': False}):
    with pytest.raises(TokenizerError,
                       match=r'of more than 100 characters.*\(Thai\).*kind=sentencepiece-unigram'):
      prepare.train_tokenizer(config_of(tmp_path, '', thai, **kwargs))
  tokenizer = prepare.train_tokenizer(config_of(tmp_path, '', thai, kind='sentencepiece-unigram'))
  assert tokenizer.vocab.unk not in tokenizer.encode(thai)
  kana = 'かばんをもっていたわたしのむすこがばらのはなをみがいた' * 9
  with pytest.raises(TokenizerError, match=r'100.0% of the letters .*\(Hiragana\)'):
    prepare.train_tokenizer(config_of(tmp_path, '', kana))
  for name in SOLID - {'chinese'}:
    caplog.clear()
    tokenizer = prepare.train_tokenizer(config_of(tmp_path, name))
    ids, _ = tokenizer.encode_flat(sentences(name, 160))
    if name != 'japanese':
      script = {'burmese': 'Myanmar'}.get(name, name.title())
      assert f'phrases without a space ({script}' in caplog.text
    assert (ids == tokenizer.vocab.unk).mean() < 0.01


def test_word_lists_need_spaces(tmp_path):
  """Of whole words none is learnt from text without spaces; Chinese and Japanese characters are
  words of the other kind."""
  for name in SOLID:
    with pytest.raises(TokenizerError,
                       match=r'cannot be told\. Give text with spaces between words') as raised:
      prepare.train_tokenizer(config_of(tmp_path, name, kind='words'))
    assert ('or kind=words-and-signs' in str(raised.value)) == (name in ('chinese', 'japanese'))
    if name in ('chinese', 'japanese'):
      tokenizer = prepare.train_tokenizer(config_of(tmp_path, name, kind='words-and-signs'))
      assert tokenizer.vocab.unk not in tokenizer.encode_flat(sentences(name, 160))[0]
    else:
      with pytest.raises(TokenizerError, match='whose words cannot be told'):
        prepare.train_tokenizer(config_of(tmp_path, name, kind='words-and-signs'))
  prepare.train_tokenizer(config_of(tmp_path, '', 'บ้าน สวย ที่นี่ มหาวิทยาลัย\n\n'
                                    + 'แมว กิน ข้าว ' * 30, kind='words'))
  prepare.train_tokenizer(config_of(tmp_path, '', '我们 喜欢 猫 。\n\n他 走 了', kind='words'))


def test_given_tokenizers_are_checked_too(tmp_path, caplog):
  tokenizers.train_wordpiece(['the cat'] * 3, 50).save(tmp_path / 'given')
  with caplog.at_level(logging.WARNING):
    prepare.prepare(config_of(tmp_path, '', ''.join(sentences('thai', 40)) + '\n\nthe cat',
                              tokenizer=str(
        tmp_path / 'given')), tmp_path / 'records')
  assert ('A tokenizer that is trained on the text with kind=sentencepiece-unigram needs '
          'none') in caplog.text
  assert 'A cased tokenizer keeps them' in caplog.text


@pytest.mark.parametrize('config', [
    PrepareConfig(), PrepareConfig(lowercase=False), PrepareConfig(strip_accents=False),
    PrepareConfig(kind='word-bpe'),
    PrepareConfig(kind='sentencepiece-unigram', layout='albert'),
    PrepareConfig(kind='sentencepiece-bpe', layout='t5'),
    PrepareConfig(kind='sentencepiece-unigram', layout='xlnet', strip_accents=False),
    PrepareConfig(kind='byte-bpe')])
def test_rules_of_a_tokenizer_before_it_is_trained(config, tmp_path):
  found = dataclasses.replace(config, source=config_of(tmp_path, 'latin').source, vocab=600)
  trained: Any = prepare.train_tokenizer(found)
  rules = tokenizer_fit.normalization_rules(config)
  assert rules is None or rules == trained.text
  assert bool(rules and rules.removes_accents) == (trained.encode('été ')
                                                   == trained.encode('ete ')), config


def test_samples_are_spread():
  sample = tokenizer_fit.TextSample()
  assert list(sample.watch(map(str, range(9001)))) == [str(n) for n in range(9001)]
  assert len(sample.texts) <= tokenizer_fit.MAX_PARAGRAPHS and sample.texts == [
      str(n) for n in range(0, 9001, 8)]


@pytest.mark.parametrize(('kwargs', 'message'), [
    (dict(kind='word-bpe', strip_accents=False), 'always drops accents: .*kind=byte-bpe'),
    (dict(kind='byte-bpe', coverage=1.0), 'coverage is of wordpiece, sentencepiece-unigram'),
    (dict(coverage=1.5), 'coverage'),
])
def test_options_that_nothing_would_read(kwargs, message):
  with pytest.raises(ConfigError, match=message):
    PrepareConfig(**kwargs)


def test_decomposed_names_are_of_scripts():
  assert {*DECOMPOSED.values()} <= {*NAMES}


def test_advice_about_unknown_characters_helps(tmp_path, caplog):
  """What a warning names makes the characters known: more coverage, or a larger vocabulary where
  characters fill it."""
  rare = ''.join(chr(0x4e00 + n) for n in range(300))
  text = '\n'.join(['the cat sat on the mat'] * 2000 + [f'{sign} {sign}' for sign in rare])
  def unknown(**kwargs):
    caplog.clear()
    config = config_of(tmp_path, '', text, **kwargs)
    folder = tmp_path / f'{len([*tmp_path.iterdir()])}'
    prepare.prepare(config, folder)
    found = re.findall(r'([\d.]+)% of the tokens are unknown to the tokenizer: (.*)', caplog.text)
    return found[0] if found else ('0', '')
  share, advice = unknown(kind='sentencepiece-bpe')
  assert float(share) > 0.1 and advice.startswith('coverage=1 gives')
  assert unknown(kind='sentencepiece-bpe', coverage=1.0) == ('0', '')
  thai = sentences('thai', 24)
  text = '\n'.join([''.join(thai[n:n + 8]) for n in (0, 8, 16)] + ['internationalization'] * 600)
  share, advice = unknown(strip_accents=False)
  assert float(share) > 0.1 and advice.startswith('words of text without spaces')
  assert unknown(kind='sentencepiece-unigram', coverage=1.0) == ('0', '')
  text = '\n'.join(['the cat sat on the mat'] * 2000 + [f'{sign} {sign}' for sign in rare])
  share, advice = unknown(vocab=60, coverage=1.0)
  assert float(share) > 0.5 and 'vocab=120' in advice
  assert unknown(vocab=1000, coverage=1.0) == ('0', '')


def test_text_of_one_long_word(tmp_path):
  """DNA: what needs words says what does not."""
  dna = ''.join(random.Random(0).choices('ACGT', k=20_000))
  lines = '\n'.join(dna[n:n + 500] for n in range(0, len(dna), 500))
  for text, kinds in ((dna, ('wordpiece', 'word-bpe', 'byte-bpe', 'words')),
                      (lines, ('wordpiece', 'words'))):
    for kind in kinds:
      with pytest.raises(TokenizerError,
                         match=r'kind=sentencepiece-unigram|text with spaces between words'):
        prepare.train_tokenizer(config_of(tmp_path, '', text, kind=kind))
    trained = prepare.train_tokenizer(config_of(tmp_path, '', text, kind='sentencepiece-unigram',
                                                vocab=500))
    assert trained.vocab.size == 500 and trained.vocab.unk not in trained.encode(dna)


def test_long_runs_of_unspaced_scripts_are_learnt_from(tmp_path):
  """Byte-level BPE learns from Chinese without any sign; a run of base64 teaches nothing still."""
  chinese = ''.join(random.Random(0).choices(['我们', '喜欢', '学习'], k=2_000))
  trained = prepare.train_tokenizer(config_of(tmp_path, '', chinese, kind='byte-bpe'))
  assert {'我们', '喜欢', '学习'} <= {*trained.pieces}
  base64 = 'ab' * 2000
  trained = prepare.train_tokenizer(config_of(tmp_path, '', f'some words {base64}',
                                              kind='byte-bpe'))
  assert 'abab' not in trained.pieces


ALL_KINDS = get_args(prepare_config.TextConfig.__annotations__['kind'])
KINDS = [(kind, layout) for kind in ALL_KINDS for layout in prepare_config.tokenizer_layouts(kind)]


@pytest.mark.parametrize(('kind', 'layout'), KINDS)
def test_sizes_of_all_kinds_on_tiny_texts(kind, layout, tmp_path):
  """The text decides how many pieces there are at most; the size that an error names is enough."""
  texts = ['a', 'the cat sat on the mat and the dog ran',
           'the quick brown fox jumps over 0123 dogs', '我们喜欢学习。']
  for text in texts if kind != 'words' else texts[:3]:
    make = lambda size, text=text: prepare.train_tokenizer(config_of(
        tmp_path, '', text, kind=kind, layout=layout, vocab=size))
    most = make(3000)
    assert most.vocab.size == len(most.pieces) <= 3000 and most.vocab.unk not in most.encode(text)
    if kind in ('bytes', 'words', 'words-and-signs'):
      assert make(3).vocab.size == (384 if kind == 'bytes' else 3)
      continue
    with pytest.raises(TokenizerError, match='is too small') as raised:
      make(3)
    named = int(re.findall(r'vocab=(\d+)', str(raised.value))[0])
    enough = make(named)
    assert enough.vocab.size <= named <= max(most.vocab.size, 4 * enough.vocab.size // 3)
    assert enough.vocab.unk not in enough.encode(text)
