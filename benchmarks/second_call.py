"""Measure the second call of every public function that runs a model, compared with the same work in torch.

    python -m benchmarks.second_call --data=sentences.txt
    python -m benchmarks.second_call --data=sentences.txt --alone

Needs the extra `bench` with sentence-transformers; --alone omits the peers and needs neither. --data has one sentence
per line, for the vocabularies and the inputs. The models have random weights: encoders and a decoder with --layers
layers of --width, exported by plm_jax and loaded by both libraries. Each round calls the function once in plm_jax and
once in the other library, alternately in one process; the table shows the fastest call. Compilations are counted with
JAX's events, in all calls after the second. Copies are host arrays with the shape of a parameter that were put on the
device.
"""
import argparse
from collections import Counter
from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
import tempfile
import time
from typing import Any, NamedTuple

from flax.core import meta
import jax
from jax import monitoring
import jax.numpy as jnp
import numpy as np

from benchmarks.side_by_side import machine
import plm_jax
from plm_jax import conversion, tokenizers, validation
from plm_jax.evaluation.probing import ProbeConfig
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.pooling import VectorConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.models import bert, gpt2
from plm_jax.tasks.embedding_losses import InBatch
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TaggingTask

LENGTH, VOCAB, NEW = 256, 8000, 16
compilations: Counter[str] = Counter()


@monitoring.register_event_duration_secs_listener
def count(event: str, duration_secs: float, **kwargs: Any) -> None:
  """Count the programs that the backend compiles."""
  del duration_secs, kwargs
  if event == '/jax/core/compile/backend_compile_duration':
    compilations[event] += 1


class Case(NamedTuple):
  """A function of plm_jax and its counterpart in another library."""

  name: str
  kind: str
  """folder of the model"""
  ours: Callable[[Any], Any]
  """model -> result"""
  peer: str = ''
  """transformers class that loads the folder, or sentence-transformers; '': no peer"""
  theirs: Callable[[Any, Any], Any] = lambda model, tokenizer: None


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='one sentence per line')
  parser.add_argument('--layers', type=int, default=6)
  parser.add_argument('--width', type=int, default=384)
  parser.add_argument('--rounds', type=int, default=9)
  parser.add_argument('--alone', action='store_true', help='without the peers')
  args = parser.parse_args()
  os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')  # idle torch threads must not take CPU time from JAX
  lines = [line for line in pathlib.Path(args.data).read_text().splitlines() if len(line.split()) > 7]
  print(machine(*(['jax'] if args.alone else ['jax', 'torch', 'transformers', 'sentence-transformers'])))
  print(f'{args.layers} layers of {args.width}, the fastest of {args.rounds} calls after the first two\n')
  print('| function | compilations | parameters copied | ms | peer | ms | ratio |\n' + '|---' * 7 + '|')
  with tempfile.TemporaryDirectory() as folder:
    write_models(pathlib.Path(folder), lines, args.layers, args.width)
    for case in cases(lines, pathlib.Path(folder)):
      print(measured(case, pathlib.Path(folder), args.rounds, args.alone), flush=True)


def measured(case: Case, folder: pathlib.Path, rounds: int, alone: bool) -> str:
  """Time a case and return its line of the table."""
  model: Any = plm_jax.load(folder / case.kind)
  shapes = {np.shape(x) for x in jax.tree.leaves(model.params) if np.ndim(x) > 1}
  peer = None if alone or not case.peer else loaded_peer(case, folder / case.kind)
  for _ in range(2):  # the second call may compile programs that depend on the first result
    case.ours(model)
    if peer:
      case.theirs(*peer)
  compilations.clear()
  with copies(shapes) as copied:
    seconds: dict[str, list[float]] = {'ours': [], 'theirs': []}
    for _ in range(rounds):
      seconds['ours'].append(timed(lambda: case.ours(model)))
      if peer:
        seconds['theirs'].append(timed(lambda: case.theirs(*peer)))
  ours = 1000 * min(seconds['ours'])
  cells = [case.name, f'{sum(compilations.values()) / rounds:.1f}', f'{len(copied) / rounds:.0f}', f'{ours:.1f}']
  if peer:
    theirs = 1000 * min(seconds['theirs'])
    cells += [case.peer.removeprefix('AutoModelFor'), f'{theirs:.1f}', f'{theirs / ours:.2f}']
  else:
    cells += ['', '', '']
  return f'| {" | ".join(cells)} |'


def timed(work: Callable[[], Any]) -> float:
  """Return the seconds that `work` takes."""
  begun = time.perf_counter()
  work()
  return time.perf_counter() - begun


@contextlib.contextmanager
def copies(shapes: set[tuple[int, ...]]) -> Iterator[list[Any]]:
  """Collect the host arrays of these shapes that `jnp.asarray`, `jnp.array` or `jax.device_put` copy to the device."""
  found, real = [], (jax.device_put, jnp.asarray, jnp.array)
  def watched(function: Any) -> Any:
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
      found.extend(leaf for leaf in jax.tree.leaves(x) if isinstance(leaf, np.ndarray) and leaf.shape in shapes)
      return function(x, *args, **kwargs)
    return call
  jax.device_put, jnp.asarray, jnp.array = map(watched, real)
  try:
    yield found
  finally:
    jax.device_put, jnp.asarray, jnp.array = real


def loaded_peer(case: Case, folder: pathlib.Path) -> tuple[Any, Any]:
  """Load the same weights in the other library; return (model, tokenizer)."""
  if case.peer == 'sentence-transformers':
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
    return SentenceTransformer(str(folder), device='cpu'), None
  import transformers  # pyright: ignore[reportMissingImports]
  more = {'attn_implementation': 'eager'} if case.name == 'attention' else {}
  model = getattr(transformers, case.peer).from_pretrained(folder, **more).eval()
  return model, transformers.AutoTokenizer.from_pretrained(folder)


def write_models(folder: pathlib.Path, lines: list[str], layers: int, width: int) -> None:
  """Write a model with random weights for each kind, in a folder of that name."""
  pieces = tokenizers.train_wordpiece(lines, VOCAB)
  encoder = resized(bert.base(), pieces, layers, width)
  tasks = {'label': SequenceTask(labels=('bad', 'good')), 'span': AnswerTask(),
           'tags': TaggingTask(labels=('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC'))}
  for kind, task in tasks.items():
    save(
      LoadedModel(
        'bert',
        encoder,
        task.heads(encoder),
        random(TaskObjective(task).build(encoder, False), TaskObjective(task).shapes(2, 8)),
        pieces,
        labels=task.labels,
        task=task,
        length=LENGTH,
      ),
      folder / kind,
    )
  task = EmbeddingTask(vector_loss=InBatch(), vector=VectorConfig(('mean',), normalize=True))
  save(LoadedModel('bert', encoder, task.heads(encoder), random(TaskObjective(task).build(encoder, False), TaskObjective(task).shapes(2, 8)), pieces,
               task=task, length=LENGTH), folder / 'vectors')
  for kind, family, config, head, tokenizer in (
      ('masked', 'bert', encoder, 'mlm', pieces),
      ('causal', 'gpt2', None, 'lm', tokenizers.train_byte_bpe(lines, VOCAB, layout='gpt2'))):
    config = config or resized(gpt2.small(), tokenizer, layers, width)
    heads = {head: conversion.build_head(family, head, config, 2)}
    names = ('tokens', 'segments', 'positions') if head == 'mlm' else ('tokens', 'segments')
    shapes = dict.fromkeys(names, jax.ShapeDtypeStruct((1, 4), jnp.int32))
    save(
      LoadedModel(family, config, heads, random(ModelWithHeads(config.backbone(), heads), shapes), tokenizer),
      folder / kind,
    )


def resized(config: Any, tokenizer: Any, layers: int, width: int) -> Any:
  """Return the config with this number of layers and width, and with heads of size 32."""
  block = validation.with_paths(config.block, {'width': width, 'heads': width // 32, 'mlp_dim': 4 * width})
  return config.resize(block, layers, tokenizer.vocab.size, LENGTH)


def random(module: Any, shapes: Any) -> Any:
  """Initialize the parameters of a module; return them as host arrays."""
  batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  return jax.tree.map(np.asarray, meta.unbox(jax.jit(module.init)(jax.random.key(0), batch)['params']))


def save(trained: LoadedModel, folder: pathlib.Path) -> None:
  """Export a model."""
  plm_jax.export(trained, folder)


def cases(lines: list[str], folder: pathlib.Path) -> list[Case]:
  """List the functions, most of them with the same work in torch."""
  one, other = (' '.join(line.split()[:16]) for line in lines[:2])
  words = one.split()
  blank = ' '.join([*words[:6], '[MASK]', *words[7:]])
  context, question = ' '.join(lines[2:12])[:600], ' '.join(lines[12].split()[:6])
  text = ' '.join(lines[20:40])[:2000]
  tagged = folder / 'tagged.conll'
  tagged.write_text('\n\n'.join('\n'.join(f'{word} {"N" if len(word) > 4 else "O"}' for word in line.split()[:12])
                                for line in lines[40:48]) + '\n')
  probing = ProbeConfig(seeds=1, epochs=1)
  return [
      Case('encode, 1 sentence', 'vectors', lambda model: plm_jax.encode(model, one), 'sentence-transformers',
           lambda model, _: model.encode([one])),
      Case('encode, 32 sentences', 'vectors', lambda model: plm_jax.encode(model, lines[:32]), 'sentence-transformers',
           lambda model, _: model.encode(lines[:32])),
      Case('similar', 'vectors', lambda model: plm_jax.similar(model, one, other), 'sentence-transformers',
           lambda model, _: model.similarity(*model.encode([one, other])[:, None])),
      Case('search, 32 texts', 'vectors', lambda model: plm_jax.search(model, lines[:32], one), 'sentence-transformers',
           lambda model, _: model.similarity(model.encode([one]), model.encode(lines[:32])).topk(10)),
      Case('fill_mask', 'masked', lambda model: plm_jax.fill_mask(model, blank), 'AutoModelForMaskedLM',
           lambda model, tokenizer: forward(model, tokenizer, blank).logits.softmax(-1).topk(5)),
      Case('predict', 'label', lambda model: plm_jax.predict(model, one), 'AutoModelForSequenceClassification',
           lambda model, tokenizer: forward(model, tokenizer, one).logits.softmax(-1).tolist()),
      Case('tag', 'tags', lambda model: plm_jax.tag(model, one), 'AutoModelForTokenClassification',
           lambda model, tokenizer: forward(model, tokenizer, one).logits.argmax(-1).tolist()),
      Case('answer', 'span', lambda model: plm_jax.answer(model, question, context), 'AutoModelForQuestionAnswering',
           lambda model, tokenizer: forward(model, tokenizer, question, context).start_logits.argmax(-1).tolist()),
      Case(f'generate, {NEW} tokens', 'causal', lambda model: plm_jax.generate(model, one, max_new=NEW, min_new=NEW),
           'AutoModelForCausalLM', lambda model, tokenizer: generated(model, tokenizer, one)),
      Case(f'stream, {NEW} tokens', 'causal',
           lambda model: [*plm_jax.stream(model, one, max_new=NEW, min_new=NEW)]),
      Case('score', 'causal', lambda model: plm_jax.score(model, [(one, ' ' + other)]), 'AutoModelForCausalLM',
           lambda model, tokenizer: forward(model, tokenizer, f'{one} {other}').logits.log_softmax(-1).max().item()),
      Case('perplexity', 'causal', lambda model: plm_jax.perplexity(model, [text], length=128, stride=127),
           'AutoModelForCausalLM', lambda model, tokenizer: windows_loss(model, tokenizer, text)),
      Case('likelihood, masked', 'masked', lambda model: plm_jax.likelihood(model, one), 'AutoModelForMaskedLM',
           lambda model, tokenizer: each_masked(model, tokenizer, one)),
      Case('minimal_pairs, masked', 'masked', lambda model: plm_jax.minimal_pairs(model, [(one, other)]),
           'AutoModelForMaskedLM', lambda model, tokenizer: [
               each_masked(model, tokenizer, sentence) for sentence in (one, other)]),
      Case('losses', 'causal', lambda model: plm_jax.losses(model, [text]), 'AutoModelForCausalLM',
           lambda model, tokenizer: windows_loss(model, tokenizer, text)),
      Case('attention', 'masked', lambda model: plm_jax.attention(model, one), 'AutoModelForMaskedLM',
           lambda model, tokenizer: [x.numpy() for x in forward(
               model, tokenizer, one, output_attentions=True).attentions]),
      Case('neighbors', 'masked', lambda model: plm_jax.neighbors(model, f'*{words[0]}* {words[1]}', lines[:8])),
      Case('probe', 'masked', lambda model: plm_jax.probe(model, str(tagged), str(tagged), config=probing)),
  ]


def forward(model: Any, tokenizer: Any, *texts: str, **more: Any) -> Any:
  """Run a transformers model on a text or a pair of texts."""
  import torch  # pyright: ignore[reportMissingImports]
  with torch.inference_mode():
    return model(**tokenizer(*texts, return_tensors='pt'), **more)


def generated(model: Any, tokenizer: Any, text: str) -> Any:
  """Continue a text with greedy decoding."""
  inputs = tokenizer(text, return_tensors='pt')
  return tokenizer.decode(model.generate(**inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
                                         pad_token_id=0)[0])


def windows_loss(model: Any, tokenizer: Any, text: str) -> float:
  """Sum the losses of a text in windows of 128 tokens, processed as one batch."""
  import torch  # pyright: ignore[reportMissingImports]
  ids = tokenizer(text, return_tensors='pt').input_ids[0]
  rows = torch.nn.utils.rnn.pad_sequence(ids.split(128), batch_first=True, padding_value=0)
  with torch.inference_mode():
    logits = model(rows).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction='sum').item()


def each_masked(model: Any, tokenizer: Any, text: str) -> float:
  """Sum the log-probabilities of the tokens of a text, each masked in turn, processed as one batch."""
  import torch  # pyright: ignore[reportMissingImports]
  ids = tokenizer(text, return_tensors='pt').input_ids[0]
  places = torch.arange(1, len(ids) - 1)
  rows = ids.repeat(len(places), 1)
  rows[places - 1, places] = tokenizer.mask_token_id
  with torch.inference_mode():
    logits = model(rows).logits[places - 1, places].log_softmax(-1)
  return logits[torch.arange(len(places)), ids[places]].sum().item()


if __name__ == '__main__':
  main()
