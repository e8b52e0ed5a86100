"""Fill in the middle: documents come back exactly, and cuts have the distribution of the paper."""
import dataclasses
import functools
import math
import random

import numpy as np
import pytest
from scipy import stats
from shuffled import Shuffled

from plm_jax import tokenizers
from plm_jax.data import records
from plm_jax.data.windows import Windows
from plm_jax.errors import ConfigError
from plm_jax.preparation import encode, parallel_prepare, prepare
from plm_jax.preparation.fill_middle import FillMiddle
from plm_jax.preparation.prepare_config import PrepareConfig, TextConfig

DOCUMENTS = (
    'def area(r):\r\n\treturn 3.14 * r ** 2\r\n\r\n\r\nprint(area(2))  # né à Łódź\r\n',
    '  北京市是中华人民共和国的首都。\n\n日本語のテキスト、ひらがなとカタカナ。\n',
    'สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง', 'مرحبا بالعالم، هذا نص عربي. שלום עולם',
    'हिन्दी में एक वाक्य। e\u0301 \ufb01 \u3000 \u00a0',
    '👩‍👩‍👧‍👦 🇩🇪😀😀 emoji\n\n\n\n', 'x', '\n', '   ',
    'the <|fim_prefix|> of a text <|fim_end|></s> is text\n' * 3)
ROLES = 'fim_prefix', 'fim_suffix', 'fim_middle', 'fim_end'


def train(kind):
  if kind == 'bytes':
    return tokenizers.ByteTokenizer()
  if kind == 'sentencepiece-bpe':  # as `prepare` trains it: without line breaks
    lines = [line for text in DOCUMENTS for line in text.split('\n')] * 3
    return tokenizers.train_sentencepiece(lines, 420, 'bpe', layout='llama')
  return tokenizers.train_byte_bpe(DOCUMENTS * 3, 500, layout=kind)


@pytest.fixture(scope='module', params=['gpt2', 'bert', 'sentencepiece-bpe', 'bytes', 'json'])
def tokenizer(request, tmp_path_factory):
  config = TextConfig(sentences='none', kind='byte-bpe', fim_rate=1.0)
  if request.param != 'json':
    return prepare.add_fill_middle_tokens(config, train(request.param))
  # A tokenizer.json with an added token of its own.
  base = tokenizers.add_special_tokens(train('gpt2'), ['<|im_start|>'])
  assert isinstance(base, tokenizers.TokenizerJson)
  return prepare.add_fill_middle_tokens(config, base)


@functools.lru_cache(4)
def token_bytes(tokenizer):
  return tokenizer.token_bytes


def read_back(tokenizer, ids):
  """Return (prefix, middle, suffix, whether the suffix is first) of a text's ids; None: no hole."""
  place = {role: getattr(tokenizer.vocab, role) for role in ROLES}
  ids = [int(i) for i in ids]
  if ids[0] != place['fim_prefix']:
    assert not set(place.values()) & set(ids)
    return None
  assert ids[-1] == place['fim_end']
  assert all(ids.count(i) == 1 for i in place.values())
  hole, middle = ids.index(place['fim_suffix']), ids.index(place['fim_middle'])
  content = lambda some: b''.join(token_bytes(tokenizer)[i] for i in some)
  if hole == 1:
    return content(ids[middle + 1:-1]), b'', content(ids[2:middle]), True
  return content(ids[1:hole]), content(ids[middle + 1:-1]), content(ids[hole + 1:middle]), False


def test_documents_are_prefix_middle_and_suffix(tokenizer):
  space = b' ' if encode.adds_space(tokenizer) else b''
  seen = set()
  for seed in range(40):
    holes = FillMiddle(0.8, seed=seed)
    ids, lengths, counts = encode.encode_holes(
        list(DOCUMENTS), np.zeros(len(DOCUMENTS), bool), tokenizer, holes)
    assert counts == [1] * len(DOCUMENTS)
    for text, part in zip(DOCUMENTS, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
      found, cut = read_back(tokenizer, part), holes.sample_cut(text)
      if cut is None:
        assert found is None and tokenizer.decode(part) == text
        continue
      first, second, suffix_first = cut
      prefix, middle, suffix, swapped = found
      # SentencePiece has a space before the beginning of a document, and of no other part.
      whole = prefix + middle + suffix
      assert whole == (space if first else b'') + text.encode()
      # Without a prefix, both orders are the same.
      assert swapped == (suffix_first or not first) and suffix.decode() == text[second:]
      if not swapped:
        assert middle.decode() == text[first:second]
      seen.add(swapped)
  assert seen == {True, False}


def test_tokens_are_kept_by_files(tokenizer, tmp_path):
  tokenizer.save(tmp_path)
  again = tokenizers.load(tmp_path)
  assert again.vocab == tokenizer.vocab and again.hash == tokenizer.hash
  assert tokenizers.add_special_tokens(again, []) is again
  names = [tokenizer.pieces[getattr(tokenizer.vocab, role)] for role in ROLES]
  assert [again.encode(name, specials=True) for name in names] == [
      [getattr(tokenizer.vocab, role)] for role in ROLES]
  assert all(i < tokenizer.vocab.fim_prefix for i in again.encode(''.join(names)))


@pytest.mark.parametrize(('rate', 'spm_rate'), [(0.5, 0.5), (0.9, 0.2)])
def test_rates_and_cuts_have_the_distribution_of_the_paper(rate, spm_rate):
  """The rates are binomial; both borders together are two independent uniform characters."""
  rng, number, length = random.Random(0), 20_000, 9
  holes = FillMiddle(rate, spm_rate, seed=5)
  texts = {''.join(rng.choices('abcdefgh', k=length)) for _ in range(number)}
  cuts = [cut for cut in map(holes.sample_cut, sorted(texts)) if cut]

  def deviation(found, total, share):  # in standard deviations
    return abs(found - total * share) / math.sqrt(total * share * (1 - share))

  assert deviation(len(cuts), len(texts), rate) < 4
  assert deviation(sum(cut[2] for cut in cuts), len(cuts), spm_rate) < 4
  # Of two of the 10 borders, in order: 1/100 where they are equal, and 2/100 elsewhere.
  pairs = [(first, second) for first in range(length + 1) for second in range(first, length + 1)]
  counted = [sum(cut[:2] == pair for cut in cuts) for pair in pairs]
  shares = np.array([1 if first == second else 2 for first, second in pairs]) / 100
  assert stats.chisquare(counted, shares * len(cuts)).pvalue > 1e-3
  # The cut tells nothing about the order.
  table = [[sum(cut[0] < 3 and cut[2] == order for cut in cuts),
            sum(cut[0] >= 3 and cut[2] == order for cut in cuts)] for order in (False, True)]
  assert stats.chi2_contingency(table).pvalue > 1e-3


def test_cuts_of_long_texts_are_uniform():
  sizes = [300 + n % 1700 for n in range(4000)]
  cuts = [(FillMiddle(1.0).sample_cut(f'{n} '.ljust(size, '.')), size)
          for n, size in enumerate(sizes)]
  # The smaller of two uniform numbers has the distribution 1 - (1 - x)^2, the larger one x^2.
  first, second = (np.array([cut[side] / size for cut, size in cuts]) for side in (0, 1))
  assert stats.kstest(first, lambda x: 1 - (1 - x) ** 2).pvalue > 1e-3
  assert stats.kstest(second, lambda x: x ** 2).pvalue > 1e-3


def test_contexts_hold_whole_texts(tokenizer):
  """Context level: every text has at most the tokens of a context, and is one of the document's."""
  document = ''.join(DOCUMENTS[:5]) * 3
  holes = FillMiddle(0.7, context=64)
  ids, lengths, (count,) = encode.encode_holes([document], np.array([False]), tokenizer, holes)
  assert count == len(lengths) > 5 and lengths.max() <= 64
  space = b' ' if encode.adds_space(tokenizer) else b''
  whole, cut = b'', 0
  for part in np.split(ids, np.cumsum(lengths)[:-1]):
    found = read_back(tokenizer, part)
    cut += found is not None
    text = b''.join(token_bytes(tokenizer)[i] for i in part) if found is None else b''.join(
        found[:3])
    whole += text
  assert whole.removeprefix(space) == document.encode()
  assert 0 < cut < count


@pytest.fixture
def config(tmp_path, monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(encode, 'UNIT_CHARACTERS', 300)
  monkeypatch.setattr(parallel_prepare, 'PIECE_CHARACTERS', 500)
  folder = tmp_path / 'text'
  folder.mkdir()
  for n in range(30):
    (folder / f'{n:02}.txt').write_bytes(f'{n}\n{DOCUMENTS[n % 6]}'.encode())
  return PrepareConfig(
      source=str(folder), kind='byte-bpe', layout='gpt2', vocab=350, sentences='none', heldout=0.2,
      workers=1, shard_tokens=400, fim_rate=0.5)


def contents(folder):
  return {path.name: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def read_documents(folder):
  """Return the ids of every document of the records of a folder."""
  found = []
  for split in records.SPLITS:
    windows = Windows(folder, split, 4096, 'document')
    read = windows.read(np.arange(len(windows)))
    found += [tokens[segments > 0] for tokens, segments in zip(
        read['tokens'], read['segments'], strict=True)]
  return found


@pytest.mark.parametrize('changes', [
    {}, {'fim_context': 40}, {'kind': 'bytes', 'layout': 'bert'},
    {'kind': 'sentencepiece-bpe', 'layout': 'llama', 'vocab': 420}])
def test_any_number_of_machines_and_workers_gives_the_same_bytes(config, tmp_path, changes):
  config = dataclasses.replace(config, **changes)
  meta = prepare.prepare(config, tmp_path / 'one')
  prepare.prepare(dataclasses.replace(config, workers=2), tmp_path / 'two')
  prepare.prepare(config, tmp_path / 'many', (), Shuffled(config.shard_tokens))
  assert contents(tmp_path / 'one') == contents(tmp_path / 'two') == contents(tmp_path / 'many')
  tokenizer = tokenizers.load(tmp_path / 'one' / 'tokenizer')
  assert tokenizer.vocab.fills_middle and meta.exact
  assert tokenizer.vocab.size <= config.vocab or config.kind == 'bytes'
  if not config.fim_context:
    holes = [read_back(tokenizer, ids) for ids in read_documents(tmp_path / 'one')]
    cuts = [config.holes.sample_cut(f'{n}\n{DOCUMENTS[n % 6]}') for n in range(30)]
    assert len(holes) == 30 and holes.count(None) == cuts.count(None)


def test_seed_and_rates_are_part_of_the_fingerprint(config):
  plain = dataclasses.replace(config, fim_rate=0.0)
  others = [config, plain, *(dataclasses.replace(config, **change) for change in (
      {'fim_seed': 1}, {'fim_rate': 0.6}, {'fim_spm_rate': 0.1}, {'fim_context': 64}))]
  assert len({prepare.fingerprint(other, None) for other in others}) == len(others)


def test_a_given_tokenizer_gets_the_tokens_and_keeps_its_own(config, tmp_path):
  train('gpt2').save(tmp_path / 'given')
  config = dataclasses.replace(config, tokenizer=str(tmp_path / 'given'))
  prepare.prepare(config, tmp_path / 'records')
  found = tokenizers.load(tmp_path / 'records' / 'tokenizer')
  assert found.pieces[:-4] == train('gpt2').pieces
  # With the tokens, a tokenizer stays as it is: that of the records is the same one.
  again = dataclasses.replace(config, tokenizer=str(tmp_path / 'records' / 'tokenizer'))
  assert prepare.load_tokenizer(again).hash == found.hash


@pytest.mark.parametrize('names', [
    ('<fim_prefix>', '<fim_suffix>', '<fim_middle>'),
    ('<|fim_prefix|>', '<|fim_suffix|>', '<|fim_middle|>'),
    ('<｜fim▁begin｜>', '<｜fim▁hole｜>', '<｜fim▁end｜>')])
def test_tokens_of_released_tokenizers_are_found(names):
  """Without a token after the middle, the end of the text is there."""
  found = tokenizers.add_special_tokens(
      tokenizers.add_special_tokens(train('gpt2'), ['<|other|>']), names)
  size = found.vocab.size
  assert [getattr(found.vocab, role) for role in ROLES] == [size - 3, size - 2, size - 1, -1]
  assert prepare.add_fill_middle_tokens(TextConfig(
      sentences='none', kind='byte-bpe', fim_rate=1.0), found) is found
  ids, lengths, _ = encode.encode_holes(
      ['one text, not two'], np.array([False]), found, FillMiddle(1.0))
  assert ids[-1] < found.vocab.eos and len(lengths) == 1
  ids, lengths, (count,) = encode.encode_holes(
      ['one text, not two ' * 20], np.array([False]), found, FillMiddle(1.0, context=40))
  ends = np.cumsum(lengths) - 1
  assert (ids[ends[:-1]] == found.vocab.eos).all() and count > 2
  assert ids[ends[-1]] != found.vocab.eos


def test_tokenizers_that_change_text_are_refused():
  for other in (tokenizers.train_wordpiece(DOCUMENTS, 200),
                tokenizers.train_sentencepiece(DOCUMENTS, 200)):
    with pytest.raises(tokenizers.TokenizerError, match='does not keep all characters'):
      prepare.add_fill_middle_tokens(
          TextConfig(sentences='none', kind='byte-bpe', fim_rate=0.5), other)


@pytest.mark.parametrize(('options', 'message'), [
    ({'fim_rate': 0.5}, 'sentences=none'),
    ({'fim_rate': 1.5, 'sentences': 'none'}, 'from 0 to 1'),
    ({'sentences': 'none', 'fim_spm_rate': 0.1}, 'would change nothing: .*fim_rate is 0'),
    ({'sentences': 'none', 'fim_rate': 0.5, 'fim_context': 8}, '32 tokens or more, got 8'),
    ({'sentences': 'none', 'fim_rate': 0.5, 'source': 'task:sst2:x.tsv'}, 'is for text')])
def test_options_that_cannot_be(options, message):
  with pytest.raises(ConfigError, match=message):
    PrepareConfig(kind='byte-bpe', layout='gpt2', **options)
