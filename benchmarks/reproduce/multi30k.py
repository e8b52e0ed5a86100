"""Multi30k, English to German, by a Transformer of 2.6 million parameters.

Source: LividWo/Revisit-MMT at dc368d0af8d60270b8f4aaa2f3ac58771c551da3 (Wu et al., ACL 2021, arXiv:2105.14462).
README-baseline.md has the commands and the figure, evaluate.sh the evaluation. Settings that the command leaves alone are the
defaults of its fairseq: fairseq/optim/__init__.py:25, optim/adam.py:40-44, optim/lr_scheduler/__init__.py:16,
lr_scheduler/inverse_square_root_schedule.py:56, criterions/__init__.py:16, label_smoothed_cross_entropy.py:44,
options.py:351, models/transformer.py:684-693.
"""
import collections
import json
import math
import os
import pathlib
import tempfile
import time
from typing import Any

WIDTH, MLP, LAYERS, HEADS, DROPOUT = 128, 256, 4, 4, 0.3  # transformer.py:686-693, README-baseline.md
PEAK, WARMUP, STEPS, PATIENCE, TOKENS = 0.005, 2000, 8000, 10, 2 * 4096  # README-baseline.md, two GPUs
LENGTH = 128  # tokens of a packed row, on each side
EPOCH = 57
"""updates per epoch: fairseq saves and evaluates after each"""
LAST, BEAMS = 10, 5  # evaluate.sh
SPECIALS = '<pad>', '</s>', '<unk>'


def read_lines(folder: pathlib.Path, name: str) -> list[str]:
  """Read a file of the authors: a sentence per line, tokenized, in lower case, in BPE pieces."""
  return (folder / name).read_text().splitlines()


def write_parts(data: pathlib.Path, folder: pathlib.Path) -> int:
  """Write training and validation pairs and the joined vocabulary; return its size."""
  import tokenizers
  counts: collections.Counter = collections.Counter()
  for part in ('train', 'valid'):
    pairs = [*zip(read_lines(data, f'{part}.en'), read_lines(data, f'{part}.de'), strict=True)]
    (folder / f'{part}.tsv').write_text('\n'.join(map('\t'.join, [('en', 'de'), *pairs])) + '\n')
    if part == 'train':
      for pair in pairs:
        counts.update(' '.join(pair).split())
  pieces = [*SPECIALS, *(piece for piece, _ in counts.most_common())]
  # A whole piece or <unk>: no piece continues another.
  library = tokenizers.Tokenizer(tokenizers.models.WordPiece(
      {piece: number for number, piece in enumerate(pieces)}, unk_token='<unk>', max_input_chars_per_word=100))
  library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  library.add_special_tokens([*SPECIALS])
  (folder / 'tokenizer').mkdir()
  library.save(str(folder / 'tokenizer' / 'tokenizer.json'))
  roles = dict(zip(('pad_token', 'eos_token', 'unk_token'), SPECIALS, strict=True))
  (folder / 'tokenizer' / 'tokenizer_config.json').write_text(json.dumps(roles))
  return len(pieces)


def options(folder: str, vocab: int, seed: int, steps: int) -> list[str]:
  """Return the options of `python -m plm_jax train transformer_base` for the published run."""
  return [
      '--scale=laptop', f'--output={folder}/run', f'--seed={seed}', f'--data.path=task:columns-en-de:{folder}/train.tsv',
      f'--data.heldout-path=task:columns-en-de:{folder}/valid.tsv', f'--data.prepare.tokenizer={folder}/tokenizer',
      f'--model.vocab={vocab}', f'--model.block.width={WIDTH}', f'--model.block.heads={HEADS}',
      f'--model.block.mlp-dim={MLP}', f'--model.block.dropout={DROPOUT}', f'--model.stack.layers={LAYERS}',
      f'--model.decoder.layers={LAYERS}', f'--model.embed-factor={math.sqrt(WIDTH)}',
      f'--model.block.init.std={WIDTH ** -0.5}', f'--model.max-length={LENGTH}',
      f'--objective.decoder-length={LENGTH}', f'--optim.peak={PEAK}', f'--optim.warmup={min(WARMUP, steps)}', '--optim.eps=1e-8',
      '--optim.clip=25', f'--train.phases.0.steps={steps}', f'--train.phases.0.length={LENGTH}',
      f'--train.phases.0.batch={TOKENS // LENGTH}', f'--train.eval-every={EPOCH}', f'--train.save-every={EPOCH}',
      f'--train.keep={LAST}', f'--train.early={PATIENCE}', '--train.best=seq2seq', '--mesh.data=1']


def run(given: dict[str, Any]) -> dict[str, Any]:
  """Train, average the last checkpoints and translate test2016.

  given: data and seed; folder: an interrupted run resumes there; steps, average and limit (number of texts) shorten the
  run.
  """
  import sacrebleu

  from benchmarks import kept
  import plm_jax
  from plm_jax import recipes
  from plm_jax.cli.run import parse
  from plm_jax.loading.loaded_model import load_model
  from plm_jax.runs import run as runs
  data = kept.place(given['data'], 'test.2016.en').parent
  folder = given.get('folder') or tempfile.mkdtemp()
  vocab_file = pathlib.Path(folder) / 'vocab.json'
  if not vocab_file.exists():
    os.makedirs(folder, exist_ok=True)
    vocab_file.write_text(str(write_parts(data, pathlib.Path(folder))))
  began = time.time()
  config = parse(recipes.find_recipe('transformer_base'), options(
      folder, int(vocab_file.read_text()), given['seed'], given.get('steps', STEPS)))
  result = runs.run(config)
  if result is None or not result.finished:
    kept.interrupted('the benchmark')
  seconds = time.time() - began
  scores = {}
  for name, number in (('score', given.get('average', LAST)), ('newest', 1)):
    trained = load_model(f'{folder}/run', average=number)
    settings = plm_jax.GenerationConfig(max_new=LENGTH - 1, beams=BEAMS, length_penalty=1.0)
    found = plm_jax.generate(trained, read_lines(data, 'test.2016.en')[:given.get('limit')], settings)
    texts = [undo_bpe(continuations[0].text) for continuations in found]
    references = [undo_bpe(line) for line in read_lines(data, 'test.2016.de')][:given.get('limit')]
    bleu = sacrebleu.corpus_bleu(texts, [references], tokenize='none', force=True)
    scores[name] = bleu.score
    scores[f'{name}_details'] = f'{"/".join(f"{p:.1f}" for p in bleu.precisions)} BP={bleu.bp:.3f} reflen {bleu.ref_len}'
  return {**scores, 'steps': result.step, 'loss': result.heldout.get('seq2seq'), 'seconds': round(seconds)}


def undo_bpe(text: str) -> str:
  """Join the pieces of words, as fairseq's --remove-bpe."""
  return f'{text} '.replace('@@ ', '').rstrip()
