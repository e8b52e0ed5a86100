"""Any tokenizer.json, run by the `tokenizers` library, as transformers does with the same file.

For all tokenizers that no class here describes exactly: unigram and BPE models of transformers 5,
which writes no SentencePiece model next to them, and vocabularies with added tokens. The ids are
those of transformers because the library and the description are the same.
"""
from collections.abc import Iterable, Mapping, Sequence
import functools
import json
import re
from typing import Any
import unicodedata

import numpy as np
import tokenizers

from plm_jax import unicode_words
from plm_jax.tokenizers import byte_bpe, long_text
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    FIM_NAMES,
    GLM_TOKENS,
    TokenizerError,
    Vocab,
    abbreviate,
    add_encoder_roles,
    config_bytes,
)
from plm_jax.tokenizers.long_text import LibraryTokenizer
from plm_jax.tokenizers.sentence_piece import (
    BYTE_TOKEN,
    SENTINEL_TOKEN,
    parse_token,
    starts_albert_word,
)
from plm_jax.tokenizers.wordpiece import remove_chinese_spaces

TOKENIZER_FILE = 'tokenizer.json'
SPECIAL_ROLES = ('pad', 'unk', 'cls', 'sep', 'mask', 'bos', 'eos')
# The first two language tokens of mBART; the order of all is
# `fairseq_sentencepiece.MBART_LANGUAGES`.
FIRST_LANGUAGES = ('ar_AR', 'cs_CZ')
# Between any two characters of which one is not ASCII.
NON_ASCII_BORDERS = r'(?<=[^\x00-\x7F])(?=[\s\S])|(?<=[\s\S])(?=[^\x00-\x7F])'
OUTER_SPACES = r'\A +| +\z'  # spaces at the beginning and the end of a text
# Regular expressions of the files that transformers writes. Unknown ones are refused because some
# take unbounded time.
KNOWN_PATTERNS = frozenset(byte_bpe.SPLIT_PATTERNS) | frozenset({
    ' {2,}', r'\s{2,}|[\n\r\t]', r'^\s+|\s+$', r'\s+', NON_ASCII_BORDERS,
    OUTER_SPACES, ' +', '▁{2,}'})
NO_BORDERS = re.compile('(?!)')


class TokenizerJson(LibraryTokenizer):
  """Tokenizer of the `tokenizers` library from the content of a tokenizer.json.

  Added tokens that are not special are tokens with and without `specials`.
  """

  def __init__(
      self, content: Mapping[str, Any], roles: Mapping[str, str],
      languages: tuple[str, str] | None = None):
    """Build the tokenizer.

    Args:
      content: of a tokenizer.json, with all added tokens.
      roles: names of the special tokens by role, of SPECIAL_ROLES.
      languages: of encoder inputs and decoder outputs (mBART); None: none.

    Raises:
      TokenizerError: an unknown or a random kind of model, unknown regular expressions, or ids with
        gaps.
    """
    self.content = {**content, 'truncation': None, 'padding': None}
    self.roles, self.languages = dict(roles), languages
    model, self.kind = content['model'], model_kind(content)
    check_patterns(content)
    if model.get('dropout'):
      raise TokenizerError(
          f'model.dropout is {abbreviate(model["dropout"])}: a text has other ids each time')
    self.keeps_leading_space = self.kind == 'byte_bpe'
    # A long text cannot be cut if every text gets a space whatever it begins with.
    steps = flatten_steps(content.get('normalizer'))
    prepends = any(step['type'] == 'Prepend' for step in steps)
    self._border = NO_BORDERS if prepends else long_text.SPACE_BORDERS
    added = content.get('added_tokens') or []
    self._special_names = {token['content'] for token in added if token.get('special')}
    self._plain = self._build_plain()
    names = self._list_tokens(added)
    is_mapping = isinstance(model['vocab'], Mapping)  # else pairs of a token and its score
    plain_tokens = {entry if is_mapping else entry[0] for entry in model['vocab']}
    new_tokens = [token for token in added if token['content'] not in plain_tokens]
    self._model_size = len(names) - len(new_tokens)
    of_model, others = names[:self._model_size], names[self._model_size:]
    self._token_bytes = list(map(byte_bpe.token_bytes, of_model)) + list(map(str.encode, others))
    self.pieces = ([byte_bpe.display_token(content) for content in self._token_bytes]
                   if self.kind == 'byte_bpe' else names)
    self._ids = self._ids_by_name = {name: n for n, name in enumerate(names)}
    self.vocab = self._make_vocab()
    self._silent_ids = frozenset(
        self._ids[name] for name in self._special_names if name in self._ids)
    self.starts_word = np.array([self._starts_word(n) for n in range(len(names))])

  def decode(self, ids: Iterable[int]) -> str:
    """Decode ids into text.

    Special tokens of SentencePiece models become nothing, those of others their names.
    """
    numbers = [int(i) for i in ids]
    if self.kind == 'sentencepiece':
      numbers = [i for i in numbers if i not in self._silent_ids]
    text = self._with_specials.decode(numbers, skip_special_tokens=False)
    return remove_chinese_spaces(text) if self.kind == 'wordpiece' else text

  @property
  def token_bytes(self) -> list[bytes]:
    """UTF-8 text or byte of each token [V], with its space; b'' for special tokens."""
    return [self._parse_token(n) for n in range(len(self.pieces))]

  @property
  def sentinels(self) -> range:
    """Ids of T5's sentinels, the first sentinel first; empty without sentinels."""
    first = self.vocab.sentinel
    if first < 0:
      return range(0)
    return range(first, first - self.vocab.sentinels, -1)

  @property
  def separators(self) -> int:
    """Number of special tokens between two texts in the file's template; 1 without one."""
    step = template_step(self.content.get('post_processor'))
    if step.get('type') == 'RobertaProcessing':
      return 2
    pair = [next(iter(part)) for part in step.get('pair') or ()]
    texts = [n for n, part in enumerate(pair) if part == 'Sequence']
    return texts[1] - texts[0] - 1 if len(texts) == 2 else 1

  def assemble(self) -> tokenizers.Tokenizer:
    """Build the library's tokenizer, with special tokens."""
    return tokenizers.Tokenizer.from_str(json.dumps(self.content))

  def _files(self) -> dict[str, bytes]:
    config = {'kind': 'tokenizer_json', 'tokenizer_class': 'PreTrainedTokenizerFast'}
    if self.languages:
      config['src_lang'], config['tgt_lang'] = self.languages
    config |= {f'{role}_token': name for role, name in self.roles.items()}
    return {TOKENIZER_FILE: (json.dumps(self.content, ensure_ascii=False) + '\n').encode(),
            CONFIG_FILE: config_bytes(config, ensure_ascii=False)}

  def _list_tokens(self, added: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of all tokens by id. Raises TokenizerError for gaps."""
    library = self._with_specials
    by_id = {n: name for name, n in library.get_vocab(with_added_tokens=False).items()}
    by_id |= {n: token.content for n, token in library.get_added_tokens_decoder().items()}
    if missing := sorted(set(range(max(by_id) + 1)) - by_id.keys()):
      raise TokenizerError(f'no token has the id {missing[0]}, and ids go up to {max(by_id)}')
    names = [by_id[n] for n in range(len(by_id))]
    for token in added:
      if names[token['id']:token['id'] + 1] != [token['content']]:
        raise TokenizerError(
            f'the added token {abbreviate(token["content"])} has the id {token["id"]}, which the '
            'vocabulary does not leave to it')
    return names

  def _make_vocab(self) -> Vocab:
    ids, model = self._ids, self.content['model']
    roles = {role: ids[name] for role, name in self.roles.items() if name in ids}
    if self.kind == 'sentencepiece' and 'unk_id' in model:
      roles['unk'] = -1 if model['unk_id'] is None else model['unk_id']
    if self.languages:
      # mBART has no token of its own before a text, although its class names one.
      roles = {role: i for role, i in roles.items() if role not in ('cls', 'sep')}
      source, target = self.languages
      roles |= {'source': ids[source], 'target': ids[target or source],
                'language': ids[FIRST_LANGUAGES[0]]}
    else:
      roles = add_encoder_roles(roles)
    named = GLM_TOKENS | FIM_NAMES
    roles |= {role: ids[name] for name, role in named.items() if name in ids}
    for name in ('<extra_id_0>', '▁<extra_id_0>'):
      if name in ids:
        first = last = ids[name]
        while last >= 0 and SENTINEL_TOKEN.match(self.pieces[last]):
          last -= 1
        roles |= {'sentinel': first, 'sentinels': first - last}
        break
    return Vocab(len(ids), **roles)

  def _starts_word(self, n: int) -> bool:
    token = self.pieces[n]
    if n in self.vocab.specials or n in self._silent_ids or n >= self._model_size:
      return True
    if self.kind == 'word_bpe':
      return True
    if self.kind == 'byte_bpe':
      return byte_bpe.starts_word(self._token_bytes[n])
    if self.kind == 'wordpiece':
      return not token.startswith('##')
    if BYTE_TOKEN.fullmatch(token):
      return False
    if self.pieces[:5] == ['<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]']:
      return starts_albert_word(token)
    return token.startswith('▁') or unicode_words.starts_word(token)

  def _parse_token(self, n: int) -> bytes:
    token = self.pieces[n]
    if n in self.vocab.specials or n in self._silent_ids:
      return b''
    if self.kind == 'byte_bpe' or n >= self._model_size:
      return self._token_bytes[n]
    if self.kind == 'wordpiece':
      return (token[2:] if token.startswith('##') else f' {token}').encode()
    return parse_token(token.replace('</w>', ' '))

  @functools.cached_property
  def _with_specials(self) -> tokenizers.Tokenizer:
    return self.assemble()

  def _build_plain(self) -> tokenizers.Tokenizer:
    """Build the library's tokenizer that takes the names of special tokens as text."""
    content = self.content
    if content['model']['type'] == 'Unigram':
      # A unigram model has its special tokens among the others, and would find them in a text.
      def rename(name: str) -> str:
        return f'\uffff{name}\uffff' if name in self._special_names else name

      added = [{**token, 'content': rename(token['content'])}
               for token in content.get('added_tokens') or []]
      tokens = [[rename(token), score] for token, score in content['model']['vocab']]
      model = {**content['model'], 'vocab': tokens}
      content = {**content, 'added_tokens': added, 'model': model, 'post_processor': None}
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    library.encode_special_tokens = True
    return library

  @property
  def _arguments(self):
    return self.content, self.roles, self.languages


def model_kind(content: Mapping[str, Any]) -> str:
  """Return the kind of tokenizer that a tokenizer.json describes, as `Tokenizer.kind`.

  Raises:
    TokenizerError: an unknown kind of model.
  """
  model = content['model']
  kind = model.get('type')
  if kind == 'Unigram':
    return 'sentencepiece'
  if kind == 'WordPiece':
    return 'wordpiece'
  if kind != 'BPE':
    raise TokenizerError(
        f'model.type is {abbreviate(kind)}, known are WordPiece, BPE and Unigram')
  if any(step['type'] == 'ByteLevel' for step in flatten_steps(content.get('pre_tokenizer'))):
    return 'byte_bpe'
  if model.get('end_of_word_suffix'):
    return 'word_bpe'
  return 'sentencepiece'


def flatten_steps(part: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
  """Yield the steps of a normalizer or pre-tokenizer, those of sequences one by one."""
  if part and part['type'] == 'Sequence':
    for inner in part.get('normalizers', part.get('pretokenizers')) or ():
      yield from flatten_steps(inner)
  elif part:
    yield part


def check_patterns(content: Mapping[str, Any]) -> None:
  """Raise TokenizerError for a regular expression that is not known."""
  for name in ('normalizer', 'pre_tokenizer'):
    for step in flatten_steps(content.get(name)):
      pattern = step.get('pattern')
      regex = pattern.get('Regex') if isinstance(pattern, Mapping) else None
      if regex is not None and regex not in KNOWN_PATTERNS and regex != uncomposed_pattern():
        raise TokenizerError(
            f'{name}: text is split or replaced in a way that is not known here: '
            f'{abbreviate(regex)}')


@functools.cache
def uncomposed_pattern() -> str:
  """Return the pattern of borders between characters that SentencePiece does not compose."""
  several = []
  for code in range(0xa0, 0x10000):
    hangul_or_surrogate = 0xac00 <= code <= 0xdfff
    if not hangul_or_surrogate and len(unicodedata.normalize('NFKC', chr(code))) > 1:
      several.append(chr(code))
  return (r'(?<=[\x{AC00}-\x{D7A3}])(?=[\x{11A8}-\x{11C2}])|'
          rf'(?<=[{"".join(several)}])(?=\p{{M}})')


def template_step(part: Mapping[str, Any] | None) -> Mapping[str, Any]:
  """Return the step of a post-processor that places special tokens, {} where none does."""
  if not part:
    return {}
  steps = part.get('processors', [part]) if part['type'] == 'Sequence' else [part]
  return next((step for step in reversed(steps) if step['type'] != 'ByteLevel'), {})
