"""Every way to encode a text gives the same ids: `encode`, `encode_batch`, `encode_flat` and
`encode_with_offsets`."""
import random
import sys
import unicodedata

import numpy as np
import pytest
from tokenizer_kinds import KINDS, some_texts


def by_category() -> dict[str, list[str]]:
  """Returns every character of Unicode but surrogates, by its general category."""
  found: dict[str, list[str]] = {}
  for code in range(sys.maxunicode + 1):
    category = unicodedata.category(chr(code))
    if category != 'Cs':
      found.setdefault(category, []).append(chr(code))
  return found


CATEGORIES = by_category()
# White space and control characters by any library's definition, and marks that change their
# neighbors.
ODD = ''.join(map(chr, [
    *range(0x21), *range(0x7f, 0xa1), 0xad, 0x1680, 0x180e, *range(0x2000, 0x2010),
    *range(0x2028, 0x2030), 0x205f,
    *range(0x2060, 0x2065), 0x2581, 0x3000, 0xfe0f, 0xfeff, 0xfffd]))


def odd_texts() -> list[str]:
  """Make texts of words with characters of every category between, before and after them."""
  draw = random.Random(5)
  texts = [text for odd in ODD for text in (odd, f'a{odd}b', f'{odd}low', f'the {odd} 中{odd}国',
                                            f'a. {odd}{odd}b ')]
  for category in sorted(CATEGORIES):
    for _ in range(40):
      odd = draw.choice(CATEGORIES[category])
      near = draw.choice(['a', ' ', '中', 'é', 'e\u0301', ',', '\u0301', '7', '[MASK]', ' <mask>',
                          '</s> '])
      texts.append(draw.choice([f'a{odd}b', f'{odd}{near}', f'{near}{odd}',
                                f' {near}{odd}low  {odd}']))
  return [*texts, *some_texts(20, 9), '', ' ', '   ', '\n\n', 'a' * 150, '中' * 120,
          'a' * 99 + ' ' + 'b' * 101]


TEXTS = odd_texts()


@pytest.mark.parametrize('kind', KINDS)
def test_every_way_to_encode_gives_the_same_ids(kind):
  tokenizer = KINDS[kind]()
  alone = [tokenizer.encode(text) for text in TEXTS]
  ids, lengths = tokenizer.encode_flat(TEXTS)
  flat = [some.tolist() for some in np.split(ids, np.cumsum(lengths)[:-1])]
  placed, sizes, places = tokenizer.encode_with_offsets(TEXTS)
  assert {text: some for text, some, other in zip(TEXTS, flat, alone, strict=True) if some
          != other} == {}
  assert tokenizer.encode_batch(TEXTS) == alone
  assert placed.tolist() == ids.tolist() and sizes.tolist() == lengths.tolist()
  assert len(places) == len(ids)
  # Again, with all words in the cache.
  assert tokenizer.encode_flat(TEXTS)[0].tolist() == ids.tolist()
