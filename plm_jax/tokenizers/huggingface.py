"""Reads the tokenizer files of transformers: the class, added tokens with flags, special tokens.

Files: tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json and
config.json. Everything that they state is done, or refused by name.
"""
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
from typing import Any

from etils import epath
import tokenizers
from tokenizers import AddedToken

from plm_jax import storage
from plm_jax.tokenizers import byte_bpe, wordpiece
from plm_jax.tokenizers.byte_bpe import ByteBPE
from plm_jax.tokenizers.contract import (
    CONFIG_FILE,
    FIM_TOKENS,
    Tokenizer,
    TokenizerError,
    abbreviate,
    check_contiguous_ids,
    read_config,
    read_json,
    read_option,
)
from plm_jax.tokenizers.fairseq_sentencepiece import (
    FIRST_TOKENS,
    LANGUAGES_BY_LAYOUT,
    FairseqSentencePiece,
)
from plm_jax.tokenizers.sentence_piece import SentencePiece
from plm_jax.tokenizers.subword_bpe import CODES_FILE, OPTIONS, SubwordBPE
from plm_jax.tokenizers.tokenizer_json import (
    SPECIAL_ROLES,
    TOKENIZER_FILE,
    TokenizerJson,
    model_kind,
)
from plm_jax.tokenizers.word_bpe import WordBPE
from plm_jax.tokenizers.wordpiece import BertNormalization, WordPiece

# Classes of transformers whose vocabulary files are read, by the kind of file. Other classes
# prepare text or number their tokens in another way.
BERT_CLASSES = (
    'Bert', 'BertJapanese', 'ConvBert', 'DistilBert', 'DPRContextEncoder', 'DPRQuestionEncoder',
    'Electra', 'Ernie', 'GLMBert', 'LayoutLM', 'Lxmert', 'MobileBert', 'RetriBert', 'SqueezeBert')
CLASSES_BY_FILE = {
    'vocab.txt': tuple(name for name in BERT_CLASSES if name != 'BertJapanese'),
    'vocab.json': ('Bart', 'Deberta', 'Flaubert', 'GLMGPT2', 'GPT2', 'LED', 'Longformer',
                   'OpenAIGPT', 'Roberta', 'XLM'),
    CODES_FILE: ('Bertweet', 'Phobert'),
    'SentencePiece': ('Albert', 'DebertaV2', 'GLMChinese', 'Llama', 'MBart', 'MT5', 'T5',
                      'XLMRoberta', 'XLNet'),
}
GENERIC_CLASSES = (
    'PreTrainedTokenizer', 'PreTrainedTokenizerFast', 'TokenizersBackend', 'PythonBackend')
# Classes of transformers that a tokenizer.json does not describe: they prepare text in Python.
PYTHON_CLASSES = (
    'BertJapanese', 'Bertweet', 'BioGpt', 'CTRL', 'Cpm', 'Flaubert', 'FSMT', 'Marian', 'MBart50',
    'Phobert', 'Prophetnet', 'RoFormer', 'Transfo', 'XLM', 'XLMProphetNet')
# model_type -> class, for folders of old models that name none.
CLASSES_BY_MODEL = {
    'flaubert': 'FlaubertTokenizer', 'roformer': 'RoFormerTokenizer', 'xlm': 'XLMTokenizer'}
# Files that only other classes have.
UNSUPPORTED_FILES = {'source.spm': 'Marian'}
# Options that change ids, with the only values that are supported.
SUPPORTED_VALUES = {
    'do_basic_tokenize': (True,), 'do_word_tokenize': (), 'word_tokenizer_type': ('basic',),
    'subword_tokenizer_type': ('wordpiece',), 'never_split': ([],), 'normalization': (False,),
    'remove_space': (True,), 'split_special_tokens': (False,), 'sp_model_kwargs': ({},)}


@dataclasses.dataclass(frozen=True)
class DeclaredTokens:
  """Added and special tokens that the files of a folder declare besides the vocabulary."""

  tokens: Mapping[str, tuple[int | None, AddedToken]]
  """Added and special tokens by name, with their ids where stated."""
  flagged: frozenset[str]
  """Names of the tokens whose flags are stated, not only their names."""
  roles: Mapping[str, str]
  """Names of the special tokens by SPECIAL_ROLES, '' for one that is stated to be absent."""


def read_tokenizer_class(folder: epath.Path) -> str:
  """Return the class in tokenizer_config.json, else in config.json, without 'Fast' at the end.

  '' where neither names one.
  """
  name = read_config(folder).get('tokenizer_class')
  model_config = folder / 'config.json'
  if name is None and model_config.exists():
    name = storage.read_json(model_config, error=TokenizerError).get('tokenizer_class')
  if name is None and model_config.exists():
    stated = storage.read_json(model_config, error=TokenizerError).get('model_type')
    name = CLASSES_BY_MODEL.get(str(stated))
  name = '' if name is None else str(name)
  return name if name in GENERIC_CLASSES else name.removesuffix('Fast')


def check_class(folder: epath.Path, file: str) -> None:
  """Check that a folder's files name a class and options whose ids are the ids computed here.

  Args:
    folder: where the files are.
    file: the kind of vocabulary file to read, of CLASSES_BY_FILE, or tokenizer.json.

  Raises:
    TokenizerError: a class or an option would give other ids.
  """
  content = read_config(folder)
  if content.get('kind'):
    return  # written by plm_jax
  name = read_tokenizer_class(folder)
  short = name.removesuffix('Tokenizer')
  known = [f'{class_name}Tokenizer' for class_name in CLASSES_BY_FILE.get(file, ())]
  if file == TOKENIZER_FILE:
    supported = name in GENERIC_CLASSES or any(
        f'{class_name}Tokenizer' == name
        for class_name in itertools.chain.from_iterable(CLASSES_BY_FILE.values()))
    wrong = short in PYTHON_CLASSES or ('auto_map' in content and not supported)
  else:
    wrong = bool(name) and name not in GENERIC_CLASSES and name not in known
  if wrong:
    message = (f'{folder} has a tokenizer of the class {abbreviate(name)[1:-1]}, which is not '
               'implemented here')
    if known:
      message += f': known for a {file} are {", ".join(sorted(known))}'
    raise TokenizerError(message)
  if file != TOKENIZER_FILE:
    for other, families in UNSUPPORTED_FILES.items():
      if (folder / other).exists():
        raise TokenizerError(f'{folder} has a file {other}, of the tokenizers of {families}, which '
                             'are not implemented here')
  own = OPTIONS.get(short)
  for option, values in SUPPORTED_VALUES.items():
    if option != own and (value := content.get(option)) is not None and value not in values:
      raise TokenizerError(
          f'{folder / CONFIG_FILE}: {option} is {abbreviate(value)}, which is not implemented here')


def read_declared_tokens(
    folder: epath.Path, content: Mapping[str, Any] | None = None) -> DeclaredTokens:
  """Read added and special tokens with their flags from all files of a folder.

  If several files describe a token, its flags are those that transformers uses: of
  added_tokens_decoder, then of tokenizer.json, added_tokens.json and special_tokens_map.json.

  Args:
    folder: where the files are.
    content: of the tokenizer.json; None: there is none.
  """
  values = read_config(folder)
  decoder = values.get('added_tokens_decoder')
  special_map = folder / 'special_tokens_map.json'
  if not decoder and special_map.exists():
    values = {**values, **read_json(special_map)}
  roles, special, flagged = {}, {}, set()
  for key, value in values.items():
    entries = list(special_entries(key, value))
    for entry in entries:
      token = make_added_token(entry)
      special.setdefault(token.content, token)
      if isinstance(entry, Mapping):
        flagged.add(token.content)
    role = key.removesuffix('_token')
    if key.endswith('_token') and role in SPECIAL_ROLES:
      roles[role] = make_added_token(entries[0]).content if entries else ''
  tokens: dict[str, tuple[int | None, AddedToken]] = {}
  numbered = list((decoder or {}).items())
  numbered += [(token['id'], token) for token in (content or {}).get('added_tokens') or []]
  for number, token in numbered:
    tokens.setdefault(token['content'], (int(number), make_added_token(token, special=False)))
    flagged.add(token['content'])
  if not decoder and (folder / 'added_tokens.json').exists():
    for name, number in read_json(folder / 'added_tokens.json').items():
      # Added tokens that are not special are normalized as the text is.
      token = AddedToken(name, special=name in special, normalized=name not in special)
      tokens.setdefault(name, (number, token))
  for name, token in special.items():
    tokens.setdefault(name, (None, token))
  return DeclaredTokens(tokens, frozenset(flagged), roles)


def special_entries(key: str, value: Any) -> Iterator[str | Mapping[str, Any]]:
  """Yield the special tokens that an entry of a configuration states."""
  if key in ('additional_special_tokens', 'extra_special_tokens'):
    if isinstance(value, Mapping):
      yield from value.values()
    else:
      yield from value or ()
  elif key.endswith('_token') and isinstance(value, str | Mapping) and value:
    yield value


def make_added_token(value: str | Mapping[str, Any], special: bool = True) -> AddedToken:
  """Make the library's token from a name, or from a name with flags.

  Args:
    value: the name, or its entry in a file.
    special: the flag where it is not stated.
  """
  if isinstance(value, str):
    return AddedToken(value, special=special, normalized=not special)
  special = read_option(value, 'special', special)
  flags = {name: read_option(value, name, False) for name in ('single_word', 'lstrip', 'rstrip')}
  normalized = read_option(value, 'normalized', not special)
  return AddedToken(str(value['content']), special=special, normalized=normalized, **flags)


def load_tokenizer_json(path: epath.Path, text: BertNormalization | None = None) -> Tokenizer:
  """Load a tokenizer.json with the class here that describes it exactly, else as `TokenizerJson`.

  Args:
    path: the file.
    text: overrides the text normalization of a WordPiece vocabulary.

  Raises:
    TokenizerError: the tokenizer would give other ids here.
  """
  folder, content = path.parent, read_json(path)
  check_class(folder, TOKENIZER_FILE)
  declared = read_declared_tokens(folder, content)
  content = apply_config_options(folder, content, text)
  kind = model_kind(content)
  model = content['model']
  base: Tokenizer | None = None
  if kind == 'wordpiece' and is_bert_wordpiece(content):
    normalizer = content['normalizer']
    check_contiguous_ids(model['vocab'])
    names = sorted(model['vocab'], key=model['vocab'].__getitem__)
    if set(wordpiece.SPECIALS) <= set(names) and has_bert_roles(declared):
      base = WordPiece(names, BertNormalization(
          normalizer['lowercase'], normalizer['strip_accents'], normalizer['handle_chinese_chars']))
  elif kind == 'byte_bpe':
    if arguments := byte_bpe.parse_tokenizer_json(content):
      base = ByteBPE(*arguments, mask_lstrip=mask_strips_left(declared))
  elif kind == 'word_bpe':
    ids = {**model['vocab'], **byte_bpe.parse_added_tokens(content)}
    base = WordBPE(ids, byte_bpe.parse_merges(model['merges']))
  if base and not missing_tokens(base, declared):
    return base
  library = tokenizers.Tokenizer.from_str(json.dumps(content))
  return add_tokens(library, declared, base, read_languages(folder, library))


def add_declared_tokens(base: Tokenizer, folder: epath.Path) -> Tokenizer:
  """Return `base`, or a tokenizer with the declared tokens of a folder that `base` lacks.

  Raises:
    TokenizerError: they cannot be added.
  """
  fast = folder / TOKENIZER_FILE
  content = read_json(fast) if fast.exists() else None
  declared = read_declared_tokens(folder, content)
  if isinstance(base, SubwordBPE) and (missing := missing_tokens(base, declared)):
    raise TokenizerError(f'{folder} adds the tokens {abbreviate(missing[:5])} to the vocabulary of '
                         f'{base.words.style}, which is not implemented here')
  if not isinstance(base, WordPiece | ByteBPE | WordBPE | SentencePiece | FairseqSentencePiece):
    return base
  if isinstance(base, ByteBPE):
    lstrip = mask_strips_left(declared, base.mask_lstrip)
    if lstrip != base.mask_lstrip:
      base = ByteBPE(base.ids, base.merges, base.prefix, base.split, base.ignore_merges,
                     lstrip)
  missing = missing_tokens(base, declared)
  if not missing:
    return base
  if isinstance(base, SentencePiece | FairseqSentencePiece):
    if fast.exists():
      return load_tokenizer_json(fast)
    raise TokenizerError(
        f'{folder} adds the tokens {abbreviate(missing[:5])} to a SentencePiece model, which is '
        'not implemented: save the tokenizer with transformers 5, which writes a tokenizer.json')
  return add_tokens(base.assemble(), declared, base)


def apply_config_options(
    folder: epath.Path, content: Mapping[str, Any],
    text: BertNormalization | None) -> dict[str, Any]:
  """Return a tokenizer.json with the steps that transformers rebuilds from tokenizer_config.json.

  These are the text normalization of BERT's classes and `add_prefix_space` of byte-level BPE.

  Args:
    folder: of the configuration.
    content: of the tokenizer.json.
    text: overrides the text normalization of a WordPiece vocabulary.
  """
  content, config = dict(content), read_config(folder)
  normalizer, words = content.get('normalizer') or {}, content.get('pre_tokenizer') or {}
  if normalizer.get('type') == 'BertNormalizer' and content['model'].get('type') == 'WordPiece':
    if read_tokenizer_class(folder).startswith('DPR'):
      config = {}  # transformers rebuilds nothing for DPR's classes, and writes False for any case
    lower = read_option(normalizer, 'lowercase', True)
    chinese = read_option(normalizer, 'handle_chinese_chars', True)
    if text is None:
      strip = config.get('strip_accents', normalizer.get('strip_accents'))
      if strip is not None:
        strip = read_option({'strip_accents': strip}, 'strip_accents', False)
      text = BertNormalization(
          read_option(config, 'do_lower_case', lower), strip,
          read_option(config, 'tokenize_chinese_chars', chinese))
    content['normalizer'] = {
        **normalizer, 'lowercase': text.lowercase, 'strip_accents': text.strip_accents,
        'handle_chinese_chars': text.chinese_chars}
  if words.get('type') == 'ByteLevel':
    default = read_option(words, 'add_prefix_space', False)
    prefix = read_option(config, 'add_prefix_space', default)
    content['pre_tokenizer'] = {**words, 'add_prefix_space': prefix}
  return content


def is_bert_wordpiece(content: Mapping[str, Any]) -> bool:
  """Return whether a tokenizer.json of a WordPiece model does exactly what `WordPiece` does."""
  model = content.get('model') or {}
  normalizer = content.get('normalizer') or {}
  words = content.get('pre_tokenizer') or {}
  expected = {
      'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'max_input_chars_per_word': 100}
  return (all(model.get(name) == value for name, value in expected.items())
          and words.get('type') == 'BertPreTokenizer'
          and normalizer.get('type') == 'BertNormalizer' and normalizer.get('clean_text') is True)


def has_bert_roles(declared: DeclaredTokens) -> bool:
  """Return whether BERT's special tokens have their usual names, unlike MPNet's <mask>.

  Files that declare special tokens, but no roles, have BERT's if [MASK] is among them.
  """
  if any(declared.roles.get(name[1:-1].lower(), name) != name for name in wordpiece.SPECIALS):
    return False
  special = [name for name, (_, token) in declared.tokens.items() if token.special]
  return not special or bool(declared.roles) or '[MASK]' in special


def mask_strips_left(declared: DeclaredTokens, default: bool = True) -> bool:
  """Return whether the mask token absorbs the space before it.

  Args:
    declared: what the files state.
    default: the value where they do not state it.
  """
  for name in (declared.roles.get('mask') or '<mask>', '[MASK]'):
    if name in declared.flagged:
      return declared.tokens[name][1].lstrip
  return default


def missing_tokens(base: Tokenizer, declared: DeclaredTokens) -> list[str]:
  """Return the declared tokens that `base` lacks, or matches in another way than declared.

  Flags that strip spaces count where the model does not strip them itself.
  """
  own = special_flags(base)
  missing = []
  for name, (number, token) in declared.tokens.items():
    if name not in own:
      missing.append(name)
      continue
    own_id, lstrip = own[name]
    strips = lstrip is not None and (token.lstrip, token.rstrip) != (lstrip, False)
    flags_differ = name in declared.flagged and (strips or not token.special)
    if number not in (None, own_id) or token.single_word or flags_differ:
      missing.append(name)
  return missing


def special_flags(base: Tokenizer) -> dict[str, tuple[int, bool | None]]:
  """Return the special tokens of a tokenizer: name -> (id, whether it absorbs the space before it).

  None where that makes no difference.
  """
  if isinstance(base, ByteBPE):
    masks = {base.names.get(role) for role in ('mask', 'gmask', 'smask')}
    return {
        name: (base.ids[name], name in masks and base.mask_lstrip) for name in base.special_tokens}
  if isinstance(base, SentencePiece):
    ids = [i for i in range(len(base.pieces)) if base.is_special(i)]
  elif isinstance(base, FairseqSentencePiece):
    ids = base.specials
  elif isinstance(base, SubwordBPE):
    ids = [base.find_token(name) for name in base.special_tokens]
  else:
    ids = base.vocab.specials
  return {base.pieces[i]: (i, None) for i in ids}  # spaces next to a token are no tokens


def add_tokens(
    library: tokenizers.Tokenizer, declared: DeclaredTokens, base: Tokenizer | None = None,
    languages: tuple[str, str] | None = None) -> TokenizerJson:
  """Add all declared tokens to a tokenizer of the library, at their ids, and those of `base`.

  Args:
    library: the tokenizer to extend.
    declared: tokens to add.
    base: a tokenizer whose special tokens and roles are added too; None: the usual names.
    languages: of encoder inputs and decoder outputs (mBART); None: none.

  Raises:
    TokenizerError: the vocabulary does not leave the declared ids to the tokens.
  """
  roles = dict(declared.roles)
  if base:
    for role in SPECIAL_ROLES:
      if (i := getattr(base.vocab, role)) >= 0:
        roles.setdefault(role, library.id_to_token(i) or '')
    for name, (_, lstrip) in special_flags(base).items():
      token = AddedToken(name, lstrip=bool(lstrip), normalized=False, special=True)
      library.add_tokens([token])
  else:
    added = library.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    for role, names in default_roles(library).items():
      if name := next((name for name in names if name in special), ''):
        roles.setdefault(role, name)
  order = sorted(declared.tokens.values(), key=lambda entry: (entry[0] is None, entry[0] or 0))
  for number, token in order:
    library.add_tokens([token])
    if number is not None and library.token_to_id(token.content) != number:
      raise TokenizerError(
          f'the added token {abbreviate(token.content)} has the id {number}, and would have '
          f'{library.token_to_id(token.content)} after the vocabulary')
  if roles.get('pad') and roles.get('pad') == roles.get('eos'):
    del roles['pad']  # the end of a text is learned, so it is no padding
  if roles.get('pad') and roles.get('pad') == roles.get('mask'):
    # PyLate writes [MASK] as padding, with which it fills up queries.
    names = default_roles(library).get('pad', ())
    roles['pad'] = next((name for name in names if library.token_to_id(name) is not None), '')
  roles = {role: name for role, name in roles.items() if name}
  return TokenizerJson(json.loads(library.to_str()), roles, languages)


def add_special_tokens(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
  """Return a tokenizer with special tokens added at its end, those that it lacks.

  Raises:
    TokenizerError: tokens cannot be added to a tokenizer of this kind.
  """
  missing = [name for name in names if tokenizer.find_token(name) < 0]
  if not missing:
    return tokenizer
  if isinstance(tokenizer, WordPiece):
    return WordPiece(tokenizer.pieces + missing, tokenizer.text)
  if isinstance(tokenizer, SentencePiece):
    return tokenizer.add_special_tokens(missing)
  if isinstance(tokenizer, ByteBPE) and FIM_TOKENS.keys() >= set(missing):  # it knows their roles
    ids = {**tokenizer.ids, **{name: tokenizer.vocab.size + n for n, name in enumerate(missing)}}
    return ByteBPE(ids, tokenizer.merges, tokenizer.prefix, tokenizer.split,
                   tokenizer.ignore_merges, tokenizer.mask_lstrip)
  if not isinstance(tokenizer, ByteBPE | WordBPE | TokenizerJson):
    raise TokenizerError(f'the tokenizer lacks the tokens {abbreviate(missing)}, and none can be '
                         f'added to a tokenizer of the kind {tokenizer.kind}')
  tokens = {name: (None, AddedToken(name, normalized=False, special=True)) for name in missing}
  declared = DeclaredTokens(tokens, frozenset(missing), {})
  languages = tokenizer.languages if isinstance(tokenizer, TokenizerJson) else None
  return add_tokens(tokenizer.assemble(), declared, tokenizer, languages)


def default_roles(library: tokenizers.Tokenizer) -> dict[str, tuple[str, ...]]:
  """Return the usual names of special tokens by role, for files that state no roles."""
  if isinstance(library.model, tokenizers.models.WordPiece):
    return {'pad': ('[PAD]', '<pad>'), 'unk': ('[UNK]', '<unk>'), 'cls': ('[CLS]', '<s>'),
            'sep': ('[SEP]', '</s>'), 'mask': ('[MASK]', '<mask>')}
  if model_kind(json.loads(library.to_str())) == 'sentencepiece':
    cls, sep = ('[CLS]', '<cls>'), ('[SEP]', '<sep>')
    first = [library.id_to_token(i) for i in range(len(FIRST_TOKENS))]
    if first == list(FIRST_TOKENS):
      cls, sep = ('<s>',), ('</s>',)  # of XLM-R: they have two roles each
    return {'pad': ('<pad>', '[PAD]'), 'unk': ('<unk>', '[UNK]'), 'cls': cls, 'sep': sep,
            'mask': ('[MASK]', '<mask>'), 'bos': ('<s>',), 'eos': ('</s>',)}
  return {role: names for role, names in byte_bpe.SPECIAL_NAMES.items() if role in SPECIAL_ROLES}


def read_languages(
    folder: epath.Path, library: tokenizers.Tokenizer) -> tuple[str, str] | None:
  """Return mBART's (source, target) languages, None for vocabularies without its languages."""
  if any(library.token_to_id(name) is None for name in LANGUAGES_BY_LAYOUT['mbart']):
    return None
  config = read_config(folder)
  source = read_option(config, 'src_lang', '') or 'en_XX'
  target = read_option(config, 'tgt_lang', '') or source
  for name in (source, target):
    if library.token_to_id(name) is None:
      raise TokenizerError(f'{abbreviate(name)} is no language of this vocabulary')
  return source, target
