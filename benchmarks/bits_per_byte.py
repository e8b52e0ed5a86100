"""Compare a trained language model with `xz -9` in bits per byte of held-out text; both know the training text.

    python -m benchmarks.bits_per_byte                  # trains experiments.gpt2_small at --scale=laptop
    python -m benchmarks.bits_per_byte --run=FOLDER     # evaluates a trained run

xz gets the training text as a prefix, and its dictionary is large enough for all of it. The compressed size of the
held-out text is the difference of two sizes. Both encode the same bytes, which are decoded from the run's token
records: each text is followed by a line break, which corresponds to the model's end-of-text token. Windows of the model
have no context from earlier windows; in the last line of the table, windows overlap by half.
"""
import argparse
import dataclasses
import lzma

from etils import epath
import numpy as np

from benchmarks.side_by_side import machine
from plm_jax import recipes
from plm_jax.data import records
from plm_jax.evaluation import perplexity, scoring
from plm_jax.loading import loaded_model
from plm_jax.runs.pretrain import prepare_corpora
from plm_jax.runs.run import run
from plm_jax.tokenizers import Tokenizer
from plm_jax.training.train import evaluate_run


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--run', help='folder of a trained run; without it, a run is trained')
  args = parser.parse_args()
  recipe = recipes.find_recipe('gpt2_small')('laptop')
  if not args.run:
    run(recipe)
  folder = args.run or recipe.folder
  config = dataclasses.replace(loaded_model.read_config(folder), output=folder)
  folders, tokenizer = prepare_corpora(config)
  train, heldout = ([text for place in folders for text in texts(place, split, tokenizer)]
                    for split in ('train', 'heldout'))
  before, text = (''.join(f'{some}\n' for some in split).encode() for split in (train, heldout))
  whole = dataclasses.replace(config, train=dataclasses.replace(config.train, eval_batches=1 << 30))
  sliding = perplexity.perplexity(scoring.make_scorer(loaded_model.load_model(folder)), heldout)
  rows = {
      'xz -9, alone': 8 * compressed(text) / len(text),
      'xz -9 after the training text': 8 * (compressed(before + text) - compressed(before)) / len(text),
      f'{config.name}, windows on their own': evaluate_run(whole, folders, tokenizer)['bits_per_byte'],
      f'{config.name}, windows that overlap': sliding.bits_per_byte,
  }
  print(machine('jax', 'numpy'))
  print(f'\n{len(before):,} bytes of training text, {len(text):,} held out\n\n| | bits per byte |\n|---|---|')
  for name, bits in rows.items():
    print(f'| {name} | {bits:.3f} |')


def texts(folder: epath.Path, split: records.Split, tokenizer: Tokenizer) -> list[str]:
  """Decode the documents of one split of a folder of token records."""
  found = []
  for shard in records.read_meta(folder).shards(split):
    tokens, sentences = np.asarray(records.open_tokens(folder, shard))['token'], records.read_sentences(folder, shard)
    first = np.append(True, sentences['document'][1:] != sentences['document'][:-1])
    found += [tokenizer.decode(ids.tolist()) for ids in np.split(tokens, sentences['start'][first][1:])]
  return found


def compressed(text: bytes) -> int:
  """Return the size in bytes after `xz -9e`, with a dictionary at least as large as the text (64 MiB or more)."""
  filters = [{'id': lzma.FILTER_LZMA2, 'preset': 9 | lzma.PRESET_EXTREME, 'dict_size': max(len(text), 1 << 26)}]
  return len(lzma.compress(text, format=lzma.FORMAT_XZ, filters=filters))


if __name__ == '__main__':
  main()
