"""A `tokenizer.json` of a unigram model -> SentencePiece's own, which transformers 5 no longer writes beside it."""
import base64
from collections.abc import Iterator, Mapping
import pathlib
from typing import Any

from etils import epath

from plm_jax.conversion.rules import ConvertError
from plm_jax.tokenizers import LanguagePieces, SentencePiece
from plm_jax.tokenizers.byte_bpe import read_added
from plm_jax.tokenizers.contract import brief, option, read_config
from plm_jax.tokenizers.languages import FIRST, KINDS, MASK, Kind
from plm_jax.tokenizers.sentence_piece import LAYOUTS, SENTINEL, SENTINELS, Layout, messages

# What SentencePiece does beside its map of characters, or what comes to the same; its first step joins spaces.
KNOWN = ('Strip', 'WhitespaceSplit', 'Metaspace', 'Replace')


def from_unigram(path: pathlib.Path, content: Mapping[str, Any]) -> SentencePiece | LanguagePieces:
  """Makes the tokenizer of a tokenizer.json, whose content it takes. Raises ConvertError for one that does with text
  what SentencePiece would not."""
  normalizers, words = (list(steps(content.get(name))) for name in ('normalizer', 'pre_tokenizer'))
  maps = [step['precompiled_charsmap'] for step in normalizers if step['type'] == 'Precompiled']
  others = [step for step in (*normalizers, *words) if step['type'] != 'Precompiled']
  wrong = [brief(step) for step in others if step['type'] not in KNOWN or not plain(step)]
  wrong += [f'{len(maps)} maps of characters'] * (len(maps) != 1)
  wrong += ['no space in front of a text'] * ('Metaspace' not in {step['type'] for step in words})
  if wrong:
    raise ConvertError(f'{path}: text is not prepared as SentencePiece would, with one map of characters: '
                       f'{"; ".join(wrong)}')
  vocab, charsmap = [tuple(some) for some in content['model']['vocab']], base64.b64decode(maps[0])
  pieces = [piece for piece, _ in vocab]
  added = read_added(content)
  special = {*added} | {*filter(SENTINEL.match, pieces)}
  if layout := named(pieces):
    beside = read_config(epath.Path(path.parent))
    front = [(FIRST[n], 0.0) for n in (3, 0, 2)]
    found = LanguagePieces(model([*front, *vocab[4:-len(KINDS[layout]) - 1]], 0, special, charsmap),
                           option(beside, 'src_lang', '') or 'en_XX', option(beside, 'tgt_lang', ''), layout)
  else:
    # T5's sentinels are behind the model's own pieces, whether the file counts them among these or not.
    own = vocab[:next((n for n, piece in enumerate(pieces) if piece.startswith('<extra_id_')), len(vocab))]
    unnamed = model(own, content['model']['unk_id'], special, charsmap)
    found = SentencePiece(
        model(own, content['model']['unk_id'], special, charsmap, SentencePiece(unnamed).layout),
        sentinels=sum(piece.startswith('<extra_id_') for piece in special) or SENTINELS)
  ids = dict(enumerate(found.pieces))
  given = {**dict(enumerate(pieces)), **{number: name for name, number in added.items()}}
  if ids != given:
    other = sorted(n for n in ids.keys() | given.keys() if ids.get(n) != given.get(n))
    raise ConvertError(f'{path}: the pieces {brief([given.get(n) for n in other[:3]])} have ids that they would not '
                       'have here')
  return found


def named(pieces: list[str]) -> Kind | None:
  """Tells whose languages the pieces end with, of those that begin with fairseq's; None where they do not."""
  return next((layout for layout, names in KINDS.items()
               if pieces[:4] == [*FIRST] and pieces[-len(names) - 1:] == [*names, MASK]), None)


def steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
  """Yields the steps of a sequence, one by one."""
  if part and part['type'] == 'Sequence':
    for one in part.get('normalizers', part.get('pretokenizers')) or ():
      yield from steps(one)
  elif part:
    yield part


def plain(step: Mapping[str, Any]) -> bool:
  """Tells whether a step of a known type is what SentencePiece does."""
  if step['type'] == 'Replace':
    return step['pattern'] == {'Regex': ' {2,}'} and step['content'] in (' ', '▁')
  if step['type'] == 'Metaspace':
    always = step.get('prepend_scheme', 'always' if step.get('add_prefix_space', True) else 'never')
    return step['replacement'] == '▁' and always == 'always'
  return step['type'] != 'Strip' or step.get('strip_left', True)


def model(vocab: list[tuple[str, float]], unk: int, special: set[str], charsmap: bytes, layout: Layout = 'bert'
          ) -> bytes:
  """Makes SentencePiece's file of these pieces and their scores; layout: which names those have that begin and end."""
  found = messages()
  proto = found.ModelProto()
  kinds = found.ModelProto.SentencePiece
  for number, (piece, score) in enumerate(vocab):
    kind = kinds.UNKNOWN if number == unk else kinds.CONTROL if piece in special else kinds.NORMAL
    proto.pieces.add(piece=piece, score=score, type=kind)
  proto.trainer_spec.model_type = found.TrainerSpec.UNIGRAM
  proto.trainer_spec.vocab_size, proto.trainer_spec.unk_piece = len(vocab), vocab[unk][0]
  for role in ('bos_piece', 'eos_piece'):
    if role in LAYOUTS[layout]:
      setattr(proto.trainer_spec, role, LAYOUTS[layout][role])
  proto.normalizer_spec.precompiled_charsmap = charsmap
  return proto.SerializeToString()
