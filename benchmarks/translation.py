"""Train a small Transformer on Multi30k, German to English, compared with the same model in torch.

    python -m benchmarks.translation --data DIR                                         # 2 x 12 minutes of training
    python -m benchmarks.translation --data DIR --width 256 --vocab 8000 --seconds 3600
    python -m benchmarks.translation --data DIR --seconds 20 --rounds 2 --limit 40      # a quick check

Needs the extras `bench` and `metrics`, and in DIR multi30k_de-en_{train,dev,test2016,test2017}.tsv.gz: a header line
`de en`, then one pair of texts per line (github.com/multi30k/dataset, task 1, raw).

Both train from scratch on the same batches of packed pairs, in the same order, with the same tokens (SentencePiece,
trained on both languages together), size, dropout, label smoothing, Adam and schedule. They alternate in turns, for
--seconds of training each in total. The torch model has the layers of nn.Transformer with the normalization after each
sublayer (post-norm), as in plm_jax, and torch's initialization. plm_jax's time includes everything in its training,
with the data pipeline; torch's time does not include the preparation of its batches. Compilation time is reported, but
not counted.

After each turn both translate the development set with greedy decoding and a limit of 64 tokens. The metric is
sacreBLEU, 13a, on detokenized text. At the end both translate the test sets, plm_jax also with beam search; BLEU is
reported in mixed case and in lower case.
"""
import argparse
from collections.abc import Sequence
import contextlib
import dataclasses
import gzip
import json
import os
import pathlib
import sys
import time
from typing import Any

import numpy as np

from benchmarks.side_by_side import Worker, machine

CONTESTANTS = 'plm_jax', 'torch'
LONGEST = 64  # maximum tokens of a translation
TESTS = 'test2016', 'test2017'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder with the four files')
  parser.add_argument('--seconds', type=float, default=720, help='training time of each contestant')
  parser.add_argument('--rounds', type=int, default=8, help='rounds of each contestant')
  parser.add_argument('--layers', type=int, default=3, help='layers of encoder and of decoder')
  parser.add_argument('--width', type=int, default=128)
  parser.add_argument('--heads', type=int, default=4)
  parser.add_argument('--vocab', type=int, default=4000, help='vocabulary size')
  parser.add_argument('--dropout', type=float, default=0.1)
  parser.add_argument('--length', type=int, default=64, help='sequence length of source and target')
  parser.add_argument('--batch', type=int, default=16, help='batch size in sequences')
  parser.add_argument('--peak', type=float, default=3e-3, help='learning rate')
  parser.add_argument('--warmup', type=int, default=500, help='updates')
  parser.add_argument('--beams', type=int, default=5)
  parser.add_argument('--limit', type=int, default=0, help='texts to translate per set; 0: all')
  parser.add_argument('--only', choices=CONTESTANTS, help='only this contestant')
  parser.add_argument('--contestant', choices=CONTESTANTS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant:
    take_part(args)
    return
  names = [args.only] if args.only else list(CONTESTANTS)
  print(machine('jax', 'torch'))
  workers: dict[str, Worker] = {}
  try:
    for name in names:
      workers[name] = Worker('benchmarks.translation', name, sys.argv[1:])
      print(f'{name}: ' + ', '.join(f'{key} {value:,.4g}' for key, value in workers[name].read().items()), flush=True)
    print('\n| minutes | ' + ' | '.join(f'{name}: updates | epochs | loss | BLEU' for name in names) + ' |')
    print('|---' * (1 + 4 * len(names)) + '|')
    last = {}
    for _ in range(args.rounds):
      last = {name: worker.go() for name, worker in workers.items()}
      cells = [f'{last[names[0]]["seconds"] / 60:.1f}']
      for found in last.values():
        cells += [f'{found["updates"]:,}', f'{found["epochs"]:.1f}', f'{found["loss"]:.2f}', f'{found["bleu"]:.1f}']
      print('| ' + ' | '.join(cells) + ' |', flush=True)
    report(last)
  finally:
    for worker in workers.values():
      worker.close()


def report(last: dict[str, dict[str, Any]]) -> None:
  print('\n| | set | search | BLEU | lower case |\n|---|---|---|---|---|')
  for name, found in last.items():
    for test, search, mixed, lower in found['tests']:
      print(f'| {name} | {test} | {search} | {mixed:.1f} | {lower:.1f} |')
  for name, found in last.items():
    print(f'\n{name}:')
    for source, target, text in found['samples']:
      print(f'  {source}\n    {text}\n    ({target})')


def take_part(args) -> None:
  """Run a contestant: print its facts, then train for one turn and translate for each line on stdin."""
  with contextlib.redirect_stdout(sys.stderr):  # stdout is reserved for the parent process
    config, folders, tokenizer = prepared(args)
    contestant = (PlmJax if args.contestant == 'plm_jax' else Torch)(args, config, folders, tokenizer)
  print(json.dumps(contestant.facts), flush=True)
  sets = {name: pairs(args.data, name, args.limit) for name in ('dev', *TESTS)}
  trained, losses, updates = 0.0, [], 0
  for turn, _ in enumerate(sys.stdin, 1):
    while trained < args.seconds * turn / args.rounds:
      seconds, loss = contestant.update()
      trained, updates, losses = trained + seconds, updates + 1, [*losses[-99:], loss]
    found = {'seconds': trained, 'updates': updates, 'loss': float(np.mean(losses)),
             'epochs': updates / contestant.epoch}
    texts, found['bleu'], _ = judged(contestant, sets['dev'], 1)
    if turn == args.rounds:
      found['samples'] = [(*pair, text) for pair, text in zip(sets['dev'][:4], texts, strict=False)]
      found['tests'] = [(name, f'{beams} beams' if beams > 1 else 'greedy', *judged(contestant, sets[name], beams)[1:])
                        for beams in contestant.beams for name in TESTS]
    print(json.dumps(found), flush=True)


def judged(contestant, texts: Sequence[tuple[str, str]], beams: int) -> tuple[list[str], float, float]:
  """Return the translations, their mixed-case BLEU and their lower-case BLEU."""
  from plm_jax.metrics import generation

  found = contestant.translate([source for source, _ in texts], beams)
  targets = [target for _, target in texts]
  return found, generation.bleu(found, targets), generation.bleu(found, targets, lowercase=True)


def pairs(folder: str, name: str, limit: int) -> list[tuple[str, str]]:
  lines = gzip.decompress((pathlib.Path(folder) / f'multi30k_de-en_{name}.tsv.gz').read_bytes()).decode().splitlines()
  return [tuple(line.split('\t')) for line in lines[1:][:limit or None]]


def prepared(args):
  """Return the run config, its token records and its tokenizer."""
  from plm_jax.config.run import DataConfig, Phase, PretrainRun, TrainConfig
  from plm_jax.models import transformer
  from plm_jax.objectives.text_to_text import TextToText
  from plm_jax.optim.optimizers import AdamW
  from plm_jax.preparation.prepare_config import TextConfig
  from plm_jax.runs.pretrain import prepare_corpora

  model = transformer.make_config(args.layers, args.width, args.heads, 4 * args.width, dropout=args.dropout)
  text = TextConfig(kind='sentencepiece-unigram', layout='t5', lowercase=False, heldout=0.0)
  file = pathlib.Path(args.data) / 'multi30k_de-en_train.tsv.gz'
  config = PretrainRun(
      'translation', model=dataclasses.replace(model, vocab=args.vocab, max_length=max(256, args.length)),
      objective=TextToText(smoothing=0.1, decoder_length=args.length),
      data=DataConfig(path=(f'task:columns-de-en:{file}',), prepare=text, assembly='examples'),
      optim=AdamW(peak=args.peak, warmup=args.warmup, schedule='inverse_sqrt', b2=0.98, eps=1e-9,
                        bias_correction=True, weight_decay=0.0),
      train=TrainConfig(phases=(Phase(1_000_000, args.length, args.batch),)))
  return config, *prepare_corpora(config)


class PlmJax:
  """plm_jax as a run uses it: pipeline, jitted training step, generation."""

  def __init__(self, args, config, folders, tokenizer):
    import jax

    from plm_jax.layers.dense import count_parameters
    from plm_jax.sharding import make_mesh
    from plm_jax.training.feed import make_token_info, open_phase, stream_batches
    from plm_jax.training.learner import make_learner
    from plm_jax.training.step import jit_train_step, make_sharded_init

    self.config, self.tokenizer, self.beams = config, tokenizer, (1, args.beams)
    mesh = make_mesh(config.mesh)
    learner = make_learner(config, tokenizer.vocab)
    pipeline = open_phase(config, folders, tokenizer, config.train.phases[0], 0)
    self.stream = stream_batches(config, [pipeline], make_token_info(config, folders, tokenizer), 0, mesh)
    with jax.set_mesh(mesh):
      make, _, layout = make_sharded_init(learner, pipeline.batch(0, slice(1)), mesh)
      self.state = make()
      windows = pipeline.batch(0)
      began = time.perf_counter()
      self.step = jit_train_step(learner, layout).lower(self.state, windows).compile()
    self.mesh, self.epoch = mesh, len(pipeline.corpora[0]) / args.batch
    self.facts = {'parameters': count_parameters(self.state.params), 'seconds to compile': time.perf_counter() - began,
                  'updates an epoch': self.epoch}

  def update(self) -> tuple[float, float]:
    """Run one update; return its seconds and its loss without label smoothing."""
    import jax

    began = time.perf_counter()
    _, _, windows = next(self.stream)
    with jax.set_mesh(self.mesh):
      self.state, numbers = self.step(self.state, windows)
    total, weight = (float(x) for x in numbers['seq2seq'])
    return time.perf_counter() - began, total / weight

  def translate(self, texts: Sequence[str], beams: int) -> list[str]:
    from plm_jax.evaluation.text_to_text import generate_answers
    from plm_jax.loading.generation_config import GenerationConfig
    from plm_jax.loading.loaded_model import LoadedModel

    heads = self.config.objective.heads(self.config.model)
    trained = LoadedModel('t5', self.config.model, heads, self.state.params, self.tokenizer)
    settings = GenerationConfig(LONGEST, beams=beams)
    return generate_answers(trained, self.tokenizer.encode_batch(list(texts)), settings, 100)


class Torch:
  """The model with torch's layers, on the sequences of plm_jax's pipeline."""

  def __init__(self, args, config, folders, tokenizer):
    import jax
    import torch

    from plm_jax.optim.optimizers import make_schedule
    from plm_jax.training.feed import open_phase

    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    self.config, self.tokenizer, self.beams = config, tokenizer, (1,)
    pipeline = open_phase(config, folders, tokenizer, config.train.phases[0], 0)
    self.stream = pipeline.stream()
    self.rows = jax.jit(lambda windows: config.objective.corrupt(jax.random.key(0), windows, tokenizer.vocab))
    self.rate = jax.jit(make_schedule(config.optim, 1))
    self.model = torch_model(config.model)
    optim = config.optim
    self.optimizer = torch.optim.Adam(
        self.model.parameters(), lr=1.0, betas=(optim.b1, optim.b2), eps=optim.eps)
    self.updates, self.epoch = 0, len(pipeline.corpora[0]) / args.batch
    self.facts = {'parameters': sum(x.numel() for x in self.model.parameters())}

  def update(self) -> tuple[float, float]:
    import torch
    from torch.nn import functional

    rows = {name: torch.tensor(np.asarray(x)) for name, x in self.rows(next(self.stream)).items()}
    rate = float(self.rate(self.updates))
    began = time.perf_counter()
    for group in self.optimizer.param_groups:
      group['lr'] = rate
    real = rows['weights'] > 0
    logits = self.model(rows)[real]
    labels = rows['labels'][real].long()
    loss = functional.cross_entropy(logits, labels, label_smoothing=self.config.objective.smoothing)
    self.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip)
    self.optimizer.step()
    seconds = time.perf_counter() - began
    self.updates += 1
    with torch.no_grad():
      return seconds, float(functional.cross_entropy(logits.detach(), labels))

  def translate(self, texts: Sequence[str], beams: int) -> list[str]:
    """Translate with greedy decoding, whatever `beams` is.

    Texts of similar length form a batch. There is no KV cache: each new token processes the whole prefix again.
    """
    del beams
    vocab = self.tokenizer.vocab
    sources = [[*ids, vocab.eos] for ids in self.tokenizer.encode_batch(list(texts))]
    order, found = np.argsort([len(some) for some in sources], kind='stable'), {}
    self.model.eval()
    for begin in range(0, len(order), 100):
      places = order[begin:begin + 100].tolist()
      written = greedy(self.model, [sources[place] for place in places], vocab)
      found |= {place: self.tokenizer.decode(ids).strip() for place, ids in zip(places, written, strict=True)}
    self.model.train()
    return [found[place] for place in range(len(texts))]


def torch_model(model):
  """Return a torch module that maps a `TextToText` batch to logits [B, T, V].

  Args:
    model: config of a Transformer, whose sizes and dropout rates the module has.
  """
  import torch
  from torch import nn

  from plm_jax.architectures.encoder_decoder import sinusoids

  block = model.block

  def layers(kind, stack, number):
    layer = kind(block.width, block.heads, block.mlp_dim, block.dropout, block.mlp.activation, block.norm.eps,
                 batch_first=True)
    # torch applies dropout to sublayer outputs, like plm_jax, and also inside them: set the inner rates.
    layer.dropout.p = block.mlp.dropout
    for part in (layer.self_attn, getattr(layer, 'multihead_attn', None)):
      if part is not None:
        part.dropout = block.attention.dropout
    return stack(layer, number, **({'enable_nested_tensor': False} if stack is nn.TransformerEncoder else {}))

  class Model(nn.Module):

    def __init__(self):
      super().__init__()
      self.table = nn.Parameter(torch.randn(model.vocab, block.width) * block.width ** -0.5)
      self.positions: Any
      self.register_buffer('positions', torch.tensor(np.asarray(sinusoids(model.max_length, block.width))))
      self.encoder = layers(nn.TransformerEncoderLayer, nn.TransformerEncoder, model.stack.layers)
      self.decoder = layers(nn.TransformerDecoderLayer, nn.TransformerDecoder, model.decoder.layers)
      for x in (*self.encoder.parameters(), *self.decoder.parameters()):
        if x.dim() > 1:
          nn.init.xavier_uniform_(x)
      self.dropout = nn.Dropout(block.dropout)

    def embed(self, tokens, place):
      return self.dropout(self.table[tokens.long()] * model.embed_factor + self.positions[place.long()])

    def encode(self, rows):
      return self.encoder(self.embed(rows['tokens'], rows['place']), self.hidden(rows['segments'], rows['segments']))

    def hidden(self, of, seen, causal=False):
      """Return the attention mask [B H, Q, K], True where attention is blocked.

      Padding attends to all segments, so that every query has a key.
      """
      looks = (of[:, :, None] == seen[:, None]) | (of == 0)[:, :, None]
      if causal:
        looks &= torch.ones(looks.shape[1:], dtype=torch.bool).tril()
      return ~looks.repeat_interleave(block.heads, 0)

    def forward(self, rows, encoded=None):
      own = rows['decoder_segments']
      h = self.decoder(self.embed(rows['decoder_tokens'], rows['decoder_place']),
                       self.encode(rows) if encoded is None else encoded, self.hidden(own, own, causal=True),
                       self.hidden(own, rows['segments']))
      return h @ self.table.T

  return Model()


def greedy(model, sources: Sequence[Sequence[int]], vocab) -> list[list[int]]:
  import torch

  longest = max(map(len, sources))
  tokens = torch.tensor([[*some, *[vocab.pad] * (longest - len(some))] for some in sources])
  place = torch.arange(longest).expand(tokens.shape)
  segments = (place < torch.tensor([[len(some)] for some in sources])).int()
  rows = {'tokens': tokens, 'segments': segments, 'place': place}
  written = torch.full((len(sources), 1), vocab.pad)
  ended = torch.zeros(len(sources), dtype=torch.bool)
  with torch.no_grad():
    encoded = model.encode(rows)
    for size in range(1, LONGEST + 1):
      rows |= {'decoder_tokens': written, 'decoder_segments': torch.ones_like(written),
               'decoder_place': torch.arange(size).expand(written.shape)}
      following = model(rows, encoded)[:, -1, :vocab.size].argmax(-1)
      written = torch.cat([written, following[:, None]], 1)
      ended |= following == vocab.eos
      if ended.all():
        break
  rows = [row[1:] for row in written.tolist()]
  return [row[:row.index(vocab.eos)] if vocab.eos in row else row for row in rows]


if __name__ == '__main__':
  main()
