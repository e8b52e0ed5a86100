"""Character encodings: guess the encoding of text that is not UTF-8, and convert text to UTF-8."""
import codecs
import io
import logging
import re
from typing import Any

from plm_jax.errors import add_advice, name_field

UTF_8 = 'utf-8'
SAMPLE_BYTES = 1 << 16  # by which an encoding is guessed
# The most frequent encodings of text; of those with the same letters the more frequent one first.
CANDIDATE_ENCODINGS = (
    'gb18030', 'big5', 'cp932', 'euc_jp', 'cp949', 'cp1251', 'koi8_r', 'cp866', 'cp1252', 'cp1250',
    'cp1253', 'cp1254', 'cp1255', 'cp1256', 'cp874', 'utf_16_le', 'utf_16_be')
DISPLAY_NAMES = {
    'gb18030': 'GBK', 'cp932': 'Shift-JIS', 'euc_jp': 'EUC-JP', 'cp949': 'EUC-KR',
    'koi8_r': 'KOI8-R', 'big5': 'Big5', 'iso2022_jp': 'ISO-2022-JP', 'iso2022_kr': 'ISO-2022-KR',
    'utf_16_le': 'UTF-16 without a byte order mark',
    'utf_16_be': 'big-endian UTF-16 without a byte order mark'}
LATIN_LETTERS = {  # beyond ASCII, of Western, Turkish and Central European languages
    'cp1252': 'àáâãäåæçèéêëìíîïñòóôõöøùúûüœß¿¡', 'cp1254': 'âçğıîöşûüİŞĞ',
    'cp1250': 'áâäąăćčçďéęěëíîłľĺńňóôöőŕřśšşťţúůüűýźžżß'}
AMBIGUOUS_BYTES = b'N', b'0'
"""with a zero byte, the letter N and the digit 0, or the Chinese character for one and the
ideographic space in the other byte order"""
ISO_2022 = re.compile(rb'\x1b\$(?:([@B]|\([@BD])|\)C)')
"""where a text in ISO-2022-JP, or ISO-2022-KR, changes from ASCII to other characters"""
INVALID_MARK = '\udcff'  # replaces bytes that are invalid in an encoding


def encoding_problem(encoding: str) -> str:
  """Return why a name is no text encoding, '' where it is one."""
  try:
    is_text = codecs.lookup(encoding)._is_text_encoding
  except LookupError:
    return 'is an encoding that Python knows, such as utf-8, gb18030, shift_jis, cp1251 or utf-16'
  return '' if is_text else 'is no encoding of text'


def is_utf_8(encoding: str) -> bool:
  """Return whether a name is one of UTF-8's."""
  return codecs.lookup(encoding).name in (UTF_8, 'utf-8-sig')


class TranscodedStream(io.RawIOBase):
  """A stream of text in another encoding, converted to UTF-8. Invalid bytes stay invalid UTF-8."""

  def __init__(self, raw: Any, encoding: str):
    self.raw = raw
    self.decoder = codecs.getincrementaldecoder(encoding)('plm_jax.mark')
    self.buffered = b''

  def readable(self) -> bool:
    """Return True, which io.BufferedReader checks."""
    return True

  def readinto(self, buffer) -> int:
    """Fill a buffer with the next bytes; return their number, 0 at the end."""
    while not self.buffered:
      content = self.raw.read(1 << 16) or b''
      text = self.decoder.decode(content, final=not content)
      self.buffered = text.encode('utf-8', 'surrogatepass')
      if not content:
        break
    count = min(len(buffer), len(self.buffered))
    buffer[:count], self.buffered = self.buffered[:count], self.buffered[count:]
    return count


def detect_utf_16(beginning: bytes) -> str:
  """Detect UTF-16 without a byte order mark from the beginning of a file.

  Spaces, line ends and digits have a zero byte in UTF-16, always on the same side. At least one
  line end has it, and a fiftieth of the characters: more than in a text with stray zero bytes.

  Returns:
    'utf_16_le', 'utf_16_be' or ''.
  """
  beginning = beginning[:1 << 12]
  zeros = []
  for match in re.finditer(b'\0', beginning):
    at = match.start()
    if beginning[at ^ 1:(at ^ 1) + 1] not in AMBIGUOUS_BYTES:
      zeros.append(at % 2)
  if not zeros or len(set(zeros)) > 1 or len(zeros) * 100 < len(beginning):
    return ''
  line_end = b'\n\0' if zeros[0] else b'\0\n'
  if b'\n' in beginning and line_end not in beginning:
    return ''
  if b'\n' not in beginning and len(zeros) < 2:
    return ''
  return 'utf_16_le' if zeros[0] else 'utf_16_be'


def detect_iso_2022(beginning: bytes) -> str:
  """Detect the encodings of Japanese and Korean mail, which are ASCII with escape sequences.

  Returns:
    'iso2022_jp', 'iso2022_kr' or ''.
  """
  found = ISO_2022.search(beginning)
  if not found or not beginning.isascii():
    return ''
  return 'iso2022_jp' if found[1] else 'iso2022_kr'


def guess_encoding(content: bytes) -> str:
  """Guess the encoding of text that is not UTF-8, from its beginning.

  Returns:
    One of `CANDIDATE_ENCODINGS` or of `detect_iso_2022`; '' where none is likely.
  """
  if not content:
    return ''
  if found := detect_utf_16(content) or detect_iso_2022(content):
    return found
  import charset_normalizer  # late: only needed for text that cannot be read

  start = 0
  high = re.search(rb'[\x80-\xff]', content)
  if high and high.start() > SAMPLE_BYTES // 2:
    start = content.rfind(b'\n', 0, high.start()) + 1
  sample = content[start:start + SAMPLE_BYTES]
  logging.getLogger('charset_normalizer').setLevel(logging.ERROR)
  found = charset_normalizer.from_bytes(sample, cp_isolation=list(CANDIDATE_ENCODINGS)).best()
  if found is None or found.encoding not in CANDIDATE_ENCODINGS:
    return ''
  if found.encoding not in LATIN_LETTERS:
    return found.encoding
  # These three differ in a few letters. A short text is not enough to distinguish them by
  # frequency.
  best, most, total = '', -1, 0
  for name, usual in LATIN_LETTERS.items():
    letters = re.findall('[^\0-\x7f]', sample.decode(name, 'replace'))
    count = sum(letter in usual for letter in letters)
    if count > most:
      best, most, total = name, count, len(letters)
  return best if 2 * most > total else ''


def encoding_advice(content: bytes) -> str:
  """Name the probable encoding of text that is not UTF-8, and how to read it; '' if unknown."""
  found = guess_encoding(content)
  if not found:
    return ''
  name = found.replace('_', '-')
  label = f'{DISPLAY_NAMES[found]} ({name})' if found in DISPLAY_NAMES else name
  source = ICONV_NAMES.get(found, name)
  advice = add_advice(f'give {name_field("encoding")}={name}',
                      f'convert it to UTF-8 (iconv -f {source} -t UTF-8)')
  return f'it is probably {label}: {advice}'


ICONV_NAMES = {
    'gb18030': 'GB18030', 'cp932': 'CP932', 'euc_jp': 'EUC-JP', 'cp949': 'CP949',
    'koi8_r': 'KOI8-R', 'iso2022_jp': 'ISO-2022-JP', 'iso2022_kr': 'ISO-2022-KR',
    'utf_16_le': 'UTF-16LE', 'utf_16_be': 'UTF-16BE'}
codecs.register_error(
    'plm_jax.mark', lambda error: (INVALID_MARK, error.end))  # pyright: ignore
