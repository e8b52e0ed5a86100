"""Mutations for `fuzz`: one function per kind of case.

Each takes a source of randomness, the folder of intact inputs, and a scratch folder for damaged copies. Each returns
(description of the damage, command that reads the damaged input).
"""
import collections
from collections.abc import Callable
import gzip
import io
import json
import lzma
import os
import pathlib
import pickle
import random
import shutil
import sys
import types
import zipfile

import mutate
import numpy as np

Made = tuple[str, tuple[str, ...]]
RUNS = ('bert_base', 'gpt2_small', 't5_small')
NUMBERS = (
    '0', '-1', '1', '2', '3', '7', '-7', '0.5', '-0.5', '1.5', 'nan', 'inf', '-inf', '1e308', '1e-308', '99999999',
    '99999999999', '9' * 400, '9' * 5000, 'True', 'None', '', ' ', 'x', '1,2', '[]', '1_000')
TEXTS = (
    '', ' ', '.', '/dev/null', '/dev/zero', '/proc/self/mem', '~', '~nobody/x', '..', 'x' * 5000, '\udcff',
    'a\nb', '喜欢', '*', '[', '**/*', 'gs://', 'gs://x', 's3://bucket/x', 'http://x', 'tfds:', 'tfds:no_such_name',
    'tfds:a/b/c:d', 'task:', 'task:x:y', 'task:sst2:', 'embedded', '{}', '%s', '-', '--', '/root/../etc/passwd')
GENERATION = (
    '--max-new', '--temperature', '--top-k', '--top-p', '--min-p', '--repetition-penalty', '--beams', '--number',
    '--no-repeat-ngram', '--seed', '--mesh.data', '--mesh.tensor', '--stop', '--file', '--length-penalty')
TEXT = (
    '--vocab', '--sample', '--heldout', '--shard-tokens', '--workers', '--tokenizer', '--kind', '--layout',
    '--sentinels', '--segmenter', '--sentences', '--on-error')
TRAINING = (
    'train.phases.0.steps', 'train.phases.0.length', 'train.phases.0.batch', 'train.accumulate', 'train.log-every',
    'train.eval-every', 'train.eval-batches', 'train.save-every', 'train.keep', 'train.max-nonfinite-steps', 'optim.peak',
    'optim.warmup', 'optim.decay', 'optim.b1', 'optim.b2', 'optim.eps', 'optim.clip', 'optim.end', 'seed', 'mesh.data',
    'mesh.fsdp', 'mesh.tensor', 'model.vocab', 'model.max-length', 'model.block.width', 'model.block.heads',
    'model.block.mlp-dim', 'model.block.dropout', 'model.block.attention.dropout', 'model.block.init.std',
    'model.stack.layers', 'model.block.norm.eps', 'objective.mask-rate', 'objective.random-share',
    'objective.keep-share', 'objective.duplicates',
    'data.block', 'data.cap', 'data.temperature', 'data.weights', 'data.path', 'output',
    'warm-start', 'topology', 'mode', 'prompts', 'family', 'data.assembly', 'hosts.count', 'hosts.index',
    'hosts.coordinator', 'hosts.distributed', 'data.prepare.heldout')


def option(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Give a command an option or a path with an unreasonable value."""
  value = draw.choice((*NUMBERS, *TEXTS))
  run, decoder = str(ground / 'bert_base'), str(ground / 'gpt2_small')
  kind = draw.choice(('train', 'train', 'train', 'prepare', 'generate', 'fill-mask', 'other'))
  if kind == 'train':
    name = draw.choice(TRAINING)
    command = ('plm_jax', 'train', 'bert_base', '--scale=test', '--mode=prepare',
               f'--data.path={ground / "bert_base-records"}',
               f'--output={scratch / "run"}', f'--{name}={value}')
  elif kind == 'prepare':
    name = draw.choice((*TEXT, 'source', 'out'))
    source = value if name == 'source' else str(ground / 'text')
    out = value if name == 'out' else str(scratch / 'out')
    more = () if name in ('source', 'out') else (f'{name}={value}',)
    command = ('plm_jax', 'prepare', source, out, '--vocab=600', '--workers=1', *more)
  elif kind == 'generate':
    name = draw.choice((*GENERATION, 'run', 'prompt'))
    model = value if name == 'run' else decoder
    prompt = value if name == 'prompt' else 'The array'
    more = () if name in ('run', 'prompt') else (f'{name}={value}',)
    command = ('plm_jax', 'generate', model, prompt, '--max-new=3', *more)
  elif kind == 'fill-mask':
    name = draw.choice(('--top', 'run', 'prompt'))
    command = ('plm_jax', 'fill-mask', value if name == 'run' else run, value if name == 'prompt' else 'The [MASK].',
               *((f'--top={value}',) if name == '--top' else ()))
  else:
    name, command = draw.choice((
        ('rows', ('rows', value)), ('length', ('rows', f'{run}-records', f'--length={value}')),
        ('batch', ('rows', f'{run}-records', f'--batch={value}')), ('verify', ('verify', value)),
        ('export', ('export', value, str(scratch / 'out'))), ('export to', ('export', run, value)),
        ('evaluate', ('evaluate', value)), ('text', ('perplexity', decoder, value)),
        ('stride', ('perplexity', decoder, str(ground / 'text' / 'corpus.txt'), f'--stride={value}', '--length=16')),
        ('data', ('few-shot', decoder, 'piqa', f'--data={value}')),
        ('task', ('text-to-text', str(ground / 't5_small'), value))))
    command = ('plm_jax', *command)
  return f'{name} = {value[:60]!r}', tuple(part.replace('\0', '') for part in command)


def run(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage the configuration of a run."""
  name = draw.choice(RUNS)
  folder = copied(ground / name, scratch)
  what = damage_json(draw, folder / 'config.json')
  if draw.random() < 0.3:
    return what, ('plm_jax', 'export', str(folder), str(scratch / 'out'))
  return what, ('plm_jax', 'fill-mask', str(folder), 'The [MASK].') if name == 'bert_base' else (
      'plm_jax', 'generate', str(folder), 'The array', '--max-new=2')


def config(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage transformers' configuration of a model, of its generation or of its tokenizer."""
  folder = copied(ground / f'{draw.choice(RUNS)}-hf', scratch)
  file = draw.choice([*sorted(folder.glob('*config.json')), *[folder / 'config.json'] * 3])
  return damage_json(draw, file), ('plm_jax', 'export', str(folder), str(scratch / 'out'))


def tokenizer(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage a file of a tokenizer: vocabulary, merges, SentencePiece model or tokenizer.json."""
  name = draw.choice(RUNS)
  folder = copied(ground / f'{name}-hf' if draw.random() < 0.5 else ground / name / 'tokenizer', scratch)
  file = draw.choice([path for path in sorted(folder.iterdir()) if path.suffix != '.safetensors' and
                      path.name not in ('config.json', 'generation_config.json')])
  what = damage_json(draw, file) if file.suffix == '.json' and draw.random() < 0.8 else damage_bytes(draw, file)
  if (folder / 'config.json').exists() and draw.random() < 0.4:
    return what, ('plm_jax', 'export', str(folder), str(scratch / 'out'))
  return what, (
      'plm_jax', 'prepare', str(ground / 'text'), str(scratch / 'out'), f'--tokenizer={folder}', '--workers=1')


def records(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage a file of records: a shard, a metadata file or stored window boundaries."""
  folder = copied(ground / 'bert_base-records', scratch)
  file = draw.choice([path for path in sorted(folder.rglob('*')) if path.is_file()])
  what = damage_json(draw, file) if file.suffix == '.json' and draw.random() < 0.7 else damage_bytes(draw, file)
  return what, ('plm_jax', *draw.choice((('rows', str(folder)), ('verify', str(folder)), (
      'evaluate', str(ground / 'bert_base'), f'--data.path={folder}'))))


def journal(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage the journal or another file of a `prepare` that was killed."""
  folder = copied(ground / 'torn', scratch)
  files = [path for path in sorted(folder.rglob('*')) if path.is_file()]
  file = draw.choice([*files, *[folder / 'journal.json'] * 5])
  what = damage_json(draw, file) if file.suffix == '.json' else damage_bytes(draw, file)
  return what, ('plm_jax', 'prepare', str(ground / 'text'), str(folder), '--vocab=1500', '--workers=1',
                '--shard-tokens=30000')


def safetensors(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage a safetensors file: its header, with sizes and offsets, or its bytes."""
  folder = copied(ground / f'{draw.choice(RUNS)}-hf', scratch)
  file = folder / 'model.safetensors'
  content = file.read_bytes()
  size = int.from_bytes(content[:8], 'little')
  if draw.random() < 0.6:
    header = mutate.json_of(json.loads(content[8:8 + size]), draw)
    file.write_bytes(len(header).to_bytes(8, 'little') + header + content[8 + size:])
    what = 'model.safetensors: header'
  else:
    file.write_bytes(mutate.bytes_of(content, draw))
    what = 'model.safetensors: bytes'
  return what, ('plm_jax', 'export', str(folder), str(scratch / 'out'))


def pickle_(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage a pickle of torch: its bytes, or the offset, size, stride or element count of a tensor."""
  folder = copied(ground / 'pickle', scratch)
  file = folder / 'pytorch_model.bin'
  if draw.random() < 0.5:
    file.write_bytes(mutate.bytes_of(file.read_bytes(), draw))
    what = 'bytes'
  else:
    state = dict(np.load(ground / 'pickle.npz'))
    odd = draw.choice((0, 1, -1, 7, 1 << 20, 1 << 40, -(1 << 40), 1 << 62, 1 << 70))
    place = draw.choice(('offset', 'size', 'stride', 'numbers'))
    write_pickle(file, state, draw.choice(sorted(state)), place, odd, draw)
    what = f'{place} {odd}'
  return f'pytorch_model.bin: {what}', ('plm_jax', 'export', str(folder), str(scratch / 'out'))


def t5x(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage a T5X checkpoint: its msgpack file, or metadata or chunks of zarr."""
  folder = copied(ground / 't5x', scratch)
  files = [path for path in sorted(folder.rglob('*')) if path.is_file()]
  file = draw.choice([*files, *[folder / 'checkpoint'] * 20])
  what = damage_json(draw, file) if file.name == '.zarray' else damage_bytes(draw, file)
  return what, ('plm_jax', 'export', str(folder), str(scratch / 'out'))


def text(draw: random.Random, ground: pathlib.Path, scratch: pathlib.Path) -> Made:
  """Damage a corpus: plain text, JSON Lines, compressed files, unusual file names."""
  plain = (ground / 'text' / 'corpus.txt').read_text()[:60_000]
  lines = ''.join(json.dumps({'text': part, 'id': n}) + '\n' for n, part in enumerate(plain.split('\n\n')))
  name, content = draw.choice((
      ('a.txt', plain), ('a.jsonl', lines), ('a.JSONL', lines), ('a.json', lines), ('wiki_00', plain),
      ('a.json', json.dumps([{'text': plain}])), ('a.tsv', plain), ('a.csv', lines)))
  whole, ending = content.encode(), draw.choice(('', '', '.gz', '.xz'))
  if name == 'a.jsonl' and not ending and draw.random() < 0.5:
    rows = [json.dumps({'text': part}) for part in plain.split('\n\n')]
    place = draw.randrange(len(rows))
    rows[place] = mutate.json_of({'text': rows[place], 'n': 1}, draw).decode(errors='surrogateescape')
    whole = '\n'.join(rows).encode(errors='surrogateescape')
  elif not ending:
    whole = mutate.bytes_of(whole, draw)
  whole = {'': bytes, '.gz': gzip.compress, '.xz': lzma.compress}[ending](whole)
  (scratch / 'in').mkdir()
  (scratch / 'in' / f'{name}{ending}').write_bytes(mutate.bytes_of(whole, draw) if ending else whole)
  skip = draw.choice(((), ('--on-error=skip',)))
  return f'{name}{ending}', (
      'plm_jax', 'prepare', str(scratch / 'in'), str(scratch / 'out'), '--vocab=600', '--workers=1', *skip)


def copied(folder: pathlib.Path, scratch: pathlib.Path) -> pathlib.Path:
  return pathlib.Path(shutil.copytree(folder, scratch / folder.name))


def damage_json(draw: random.Random, file: pathlib.Path) -> str:
  if draw.random() < 0.05:
    return replaced(draw, file)
  file.write_bytes(mutate.json_of(json.loads(file.read_text()), draw))
  return file.name


def damage_bytes(draw: random.Random, file: pathlib.Path) -> str:
  if draw.random() < 0.1:
    return replaced(draw, file)
  file.write_bytes(mutate.bytes_of(file.read_bytes(), draw))
  return f'{file.name}: bytes'


def replaced(draw: random.Random, file: pathlib.Path) -> str:
  """Replace a file by nothing, a folder, a pipe, an empty file or a link."""
  how = draw.choice(('nothing', 'folder', 'pipe', 'link to itself', 'empty', 'unreadable link'))
  file.unlink()
  if how == 'folder':
    file.mkdir()
  elif how == 'pipe':
    os.mkfifo(file)
  elif how == 'link to itself':
    file.symlink_to(file)
  elif how == 'empty':
    file.touch()
  elif how == 'unreadable link':
    file.symlink_to('/proc/self/mem')
  return f'{file.name}: {how}'


def lay_foreign(ground: pathlib.Path) -> None:
  """Create a torch pickle and a T5X checkpoint."""
  from safetensors.numpy import load_file
  state = load_file(ground / 'bert_base-hf' / 'model.safetensors')
  np.savez(ground / 'pickle.npz', **state)
  shutil.copytree(ground / 'bert_base-hf', ground / 'pickle', dirs_exist_ok=True)
  (ground / 'pickle' / 'model.safetensors').unlink()
  write_pickle(ground / 'pickle' / 'pytorch_model.bin', state)
  import test_t5x
  model = test_t5x.small(test_t5x.t5.small())
  ids = np.ones((1, 4), np.int32)
  batch = {name: ids for name in ('tokens', 'segments', 'decoder_tokens', 'decoder_segments')}
  whole = test_t5x.WithHeads(model.backbone(), {'lm': test_t5x.NextTokens(model.block, model.vocab, model.tied)})
  shapes = test_t5x.nn.unbox(test_t5x.jax.eval_shape(whole.init, test_t5x.jax.random.key(0), batch))['params']
  params = test_t5x.jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes)
  (ground / 't5x').mkdir(exist_ok=True)
  test_t5x.write(ground / 't5x', test_t5x.theirs(params))


class Odd:
  """Storage of a tensor in a pickle; if `place` is 'numbers', its element count is given as `odd`."""

  def __init__(self, array: np.ndarray, place: str = '', odd: int = 0, axis: int = 0):
    self.array, self.place, self.odd, self.axis = array, place, odd, axis


def write_pickle(path: pathlib.Path, state: dict[str, np.ndarray], name: str = '', place: str = '', odd: int = 0,
                 draw: random.Random | None = None) -> None:
  """Write a state dict in the format of torch.save, a zip, without torch.

  Args:
    name: tensor that is described falsely; '' for none.
    place: which value is false: 'offset', 'size', 'stride' or 'numbers' (element count).
    odd: the false value.
    draw: picks the axis of a false size or stride; without it the first axis.
  """
  made = {module: types.ModuleType(module) for module in ('torch', 'torch._utils')}
  for owner, item in (('torch', 'FloatStorage'), ('torch._utils', '_rebuild_tensor_v2')):
    setattr(made[owner], item, type(item, (), {'__module__': owner}))
  storages: dict[str, np.ndarray] = {}

  class Pickler(pickle.Pickler):

    def persistent_id(self, obj):
      if not isinstance(obj, Odd):
        return None
      key = str(len(storages))
      storages[key] = obj.array
      count = obj.array.size if obj.place != 'numbers' else obj.odd
      return ('storage', made['torch'].FloatStorage, key, 'cpu', count)

    def reducer_override(self, obj):
      if not isinstance(obj, np.ndarray):
        return NotImplemented
      odd_one = obj is state.get(name)
      shape, steps, offset = list(obj.shape), [step // obj.itemsize for step in obj.strides], 0
      axis = draw.randrange(max(1, obj.ndim)) if odd_one and draw else 0
      if odd_one and place == 'size' and shape:
        shape[axis] = odd
      elif odd_one and place == 'stride' and steps:
        steps[axis] = odd
      elif odd_one and place == 'offset':
        offset = odd
      numbers = Odd(obj.ravel(), place if odd_one else '', odd)
      return made['torch._utils']._rebuild_tensor_v2, (
          numbers, offset, tuple(shape), tuple(steps), False, collections.OrderedDict())

  sys.modules.update(made)
  try:
    data = io.BytesIO()
    Pickler(data, 2).dump(collections.OrderedDict((key, np.ascontiguousarray(x, np.float32)) if key != name else
                                                  (key, state.setdefault(key, x)) for key, x in state.items()))
  finally:
    for module in made:
      del sys.modules[module]
  with zipfile.ZipFile(path, 'w') as file:
    file.writestr('archive/data.pkl', data.getvalue())
    for key, numbers in storages.items():
      file.writestr(f'archive/data/{key}', numbers.tobytes())


KINDS: dict[str, Callable[[random.Random, pathlib.Path, pathlib.Path], Made]] = {
    'option': option, 'run': run, 'config': config, 'tokenizer': tokenizer, 'records': records, 'journal': journal,
    'safetensors': safetensors, 'pickle': pickle_, 't5x': t5x, 'text': text}
