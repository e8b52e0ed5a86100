"""Check the round trip with transformers: the same logits to 1e-4 and the same token ids, after export and import.

    python -m benchmarks.roundtrip ENGLISH.txt CHINESE.txt.xz [--lines=10000]

Needs torch, transformers and plm_jax[convert]; nothing is downloaded. A random model of the size of bert-mini is
exported, loaded with AutoModelForPreTraining, AutoModelForMaskedLM and AutoTokenizer, and compared on lines of text,
taken from the files in turn. Then transformers saves the model, and plm_jax imports it again. The exit status is 1 if
anything differs.
"""
import argparse
import dataclasses
import itertools
import lzma
import os
import pathlib
import tempfile

os.environ['HF_HUB_OFFLINE'] = '1'

from flax.linen import unbox
from flax.traverse_util import flatten_dict
import jax
import numpy as np
import torch
import transformers

from plm_jax import conversion
from plm_jax.architectures.encoder import Encoder
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import bert
from plm_jax.tokenizers import BertNormalization, WordPiece, train_wordpiece

LENGTH, ROWS, LIMIT = 128, 64, 1e-4


def main() -> None:
  args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  args.add_argument('text', nargs='+', help='text files, .xz or plain')
  args.add_argument('--lines', type=int, default=10_000)
  args = args.parse_args()
  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  lines = read(args.text, args.lines)
  print(f'{len(lines):,} lines of {", ".join(pathlib.Path(name).name for name in args.text)}; '
        f'torch {torch.__version__}, transformers {transformers.__version__}, jax {jax.__version__}')
  good = True
  for text in (BertNormalization(), BertNormalization(lowercase=False)):
    tokenizer = train_wordpiece(lines, 12_000, text)
    with tempfile.TemporaryDirectory() as folder:
      good &= round_trip(pathlib.Path(folder), lines, tokenizer, 'uncased' if text.lowercase else 'cased')
  raise SystemExit(not good)


def round_trip(folder: pathlib.Path, lines: list[str], tokenizer: WordPiece, name: str) -> bool:
  config = dataclasses.replace(bert.mini(), vocab=tokenizer.vocab.size)
  model = ModelWithHeads(Encoder(config), {head: bert.FAMILY.heads[head].make(config, 2) for head in ('mlm', 'nsp')})
  shapes = unbox(jax.eval_shape(model.init, jax.random.key(0), {
      key: jax.ShapeDtypeStruct((1, 8), np.int32) for key in ('tokens', 'segments')})['params'])
  draw = np.random.default_rng(0)
  params = jax.tree.map(lambda x: draw.normal(0, 0.1, x.shape).astype(np.float32), shapes)
  conversion.save(folder / 'out', config, params, tokenizer)

  def report(what: str, value: str, good: bool) -> bool:
    print(f'{name:8} {what:44} {value:>24}  {"ok" if good else "FAILED"}')
    return good

  theirs = transformers.AutoTokenizer.from_pretrained(folder / 'out')
  wanted = theirs(lines, add_special_tokens=False)['input_ids']
  got = [tokenizer.encode(line, specials=True) for line in lines]
  different = sum(a != b for a, b in zip(got, wanted, strict=True))
  good = report('lines with other ids than AutoTokenizer', f'{different} of {len(lines):,}', not different)
  batch_different = sum(a != b for a, b in zip(tokenizer.encode_batch(lines), wanted, strict=True))
  good &= report('the same, encode_batch', f'{batch_different} of {len(lines):,}', not batch_different)

  batch = make_batch(theirs, lines)
  peer = transformers.AutoModelForPreTraining.from_pretrained(folder / 'out').eval()
  masked = transformers.AutoModelForMaskedLM.from_pretrained(folder / 'out').eval()
  with torch.no_grad():
    want, want_masked = peer(**batch), masked(**batch)
  ours = {'tokens': batch['input_ids'].numpy(), 'segments': batch['attention_mask'].numpy(),
          'types': batch['token_type_ids'].numpy()}
  with jax.default_matmul_precision('highest'):
    outputs = jax.jit(lambda params: model.apply({'params': params}, ours))(params)
  for what, mine, their in (
      ('AutoModelForPreTraining, masked tokens', outputs['mlm'], want.prediction_logits),
      ('AutoModelForPreTraining, next sentence', outputs['nsp'], want.seq_relationship_logits),
      ('AutoModelForMaskedLM', outputs['mlm'], want_masked.logits)):
    error = float(np.abs(np.asarray(mine) - their.numpy()).max())
    good &= report(f'{what}: largest error', f'{error:.1e}', error <= LIMIT)

  peer.save_pretrained(folder / 'theirs')
  theirs.save_pretrained(folder / 'theirs')
  imported = conversion.load(folder / 'theirs')
  mine, back = flatten_dict(params), flatten_dict(imported.params)
  same = mine.keys() == back.keys() and all(x.tobytes() == mine[key].tobytes() for key, x in back.items())
  good &= report('what transformers saved, imported', 'the same bits' if same else 'other parameters', same)
  same = imported.tokenizer.encode_batch(lines) == tokenizer.encode_batch(lines)
  return report('its tokenizer, imported', 'the same ids' if same else 'other ids', same) and good


def make_batch(tokenizer, lines: list[str]):
  """Return a padded batch of ROWS pairs of lines, truncated to LENGTH tokens."""
  chosen = [lines[number] for number in np.linspace(0, len(lines) - 1, 2 * ROWS).astype(int)]
  return tokenizer(chosen[::2], chosen[1::2], truncation=True, max_length=LENGTH, padding=True, return_tensors='pt')


def read(names: list[str], number: int) -> list[str]:
  """Return the first `number` lines with text, taken from the files in turn."""
  def nonempty(name):
    with (lzma.open if name.endswith('.xz') else open)(name, 'rt', encoding='utf-8', newline='\n') as file:
      yield from (line.rstrip('\n') for line in file if line.strip())
  mixed = (line for group in itertools.zip_longest(*map(nonempty, names)) for line in group if line)
  return list(itertools.islice(mixed, number))


if __name__ == '__main__':
  main()
