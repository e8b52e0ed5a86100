"""Models that are loaded: checkpoints whose tokenizer and model do not fit are refused. Called from
several threads, one model gives what sequential calls give, with every kind of tokenizer."""
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
import dataclasses
import json
import pathlib
import random
import sys
from typing import Any

import backbones
import numpy as np
import pytest
import ready
import safetensors.numpy
import tuned

import plm_jax
from plm_jax import conversion, tokenizers
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.tokenizers import Tokenizer


@pytest.fixture
def folder(tmp_path):
  """An exported BERT."""
  plm_jax.export(ready.model('bert'), tmp_path / 'bert')
  return tmp_path / 'bert'


def shrink_embeddings(folder, rows):
  """Remove the last rows of the token table, as in a model that was not resized."""
  tensors = safetensors.numpy.load_file(folder / 'model.safetensors')
  for name, x in tensors.items():
    if name.endswith('word_embeddings.weight') or name == 'cls.predictions.bias':
      tensors[name] = np.ascontiguousarray(x[:-rows])
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})
  stated = json.loads((folder / 'config.json').read_text())
  stated['vocab_size'] -= rows
  (folder / 'config.json').write_text(json.dumps(stated))


@pytest.mark.parametrize('rows', [1, 3])
def test_tokens_without_an_embedding_are_refused(folder, rows):
  size = ready.model('bert').tokenizer.vocab.size
  shrink_embeddings(folder, rows)
  message = f'the tokenizer has {size} tokens, but the model has embeddings of {size - rows}: '
  with pytest.raises(conversion.ConvertError, match=message):
    plm_jax.load(folder)
  # Fine-tuning reads such a checkpoint, and adds the rows.
  assert conversion.load(folder).config.vocab == size - rows


def test_added_tokens_are_counted(folder):
  size = ready.model('bert').tokenizer.vocab.size
  (folder / 'tokenizer.json').unlink()
  (folder / 'added_tokens.json').write_text(json.dumps({'covid': size, 'sars': size + 1}))
  with pytest.raises(conversion.ConvertError, match=f'the tokenizer has {size + 2} tokens, but'):
    plm_jax.load(folder)


def test_padding_needs_no_embedding(folder, monkeypatch):
  """Some LLaMA files have a token for it that the model does not know."""
  imported = conversion.load(folder)
  assert imported.tokenizer
  vocab = imported.tokenizer.vocab
  vocab = dataclasses.replace(vocab, size=vocab.size + 1, pad=vocab.size)
  monkeypatch.setattr(imported.tokenizer, 'vocab', vocab)
  monkeypatch.setattr(conversion, 'load', lambda *_, **more: imported)
  trained = plm_jax.load(folder)
  assert np.isfinite(plm_jax.encode(trained, ['ana came home', 'a'])).all()


FIXTURES = pathlib.Path(__file__).parents[1] / 'fixtures'
THREADS = 8
Call = Callable[[], Any]


def words(seed: int, count: int) -> list[str]:
  """Sample words of random letters; a tokenizer has not seen most of them."""
  draw = random.Random(seed)
  return [''.join(draw.choices('abcdefghiklmnoprstu', k=draw.randint(2, 9))) for _ in range(count)]


LINES = [' '.join(words(number, 12)) + '.' for number in range(40)]
NAMED = ['<unk>', '[CLS]', '[SEP]', '[MASK]', 'covid']
UNIGRAM = {
    'normalizer': None, 'post_processor': None, 'decoder': None, 'version': '1.0',
    'pre_tokenizer': {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': 'always',
                      'split': True},
    'added_tokens': [{'id': number, 'content': name, 'single_word': False, 'lstrip': False,
                      'rstrip': False,
                      'normalized': False, 'special': name != 'covid'}
                      for number, name in enumerate(NAMED)],
    'model': {'type': 'Unigram', 'unk_id': 0, 'byte_fallback': False,
              'vocab': [[name, 0.0] for name in NAMED]
              + [[letter, -3.0] for letter in '▁abcdefghiklmnoprstu.']}}
TRAINED: dict[str, Callable[[], Tokenizer]] = {
    'wordpiece': lambda: tokenizers.train_wordpiece(LINES, 90),
    'byte_bpe': lambda: tokenizers.train_byte_bpe(LINES, 290),
    'byte_bpe of GPT-2': lambda: tokenizers.train_byte_bpe(LINES, 290, layout='gpt2'),
    'sentencepiece': lambda: tokenizers.train_sentencepiece(LINES, 90, layout='albert'),
    'sentencepiece of T5': lambda: tokenizers.train_sentencepiece(LINES, 190, layout='t5'),
    'languages': lambda: tokenizers.train_fairseq_sentencepiece(LINES, 120, layout='xlm-r'),
    'word_bpe': lambda: tokenizers.train_word_bpe(LINES, 90),
    'bytes': lambda: tokenizers.ByteTokenizer(),
    'words': lambda: tokenizers.train_word_tokenizer(LINES, 60),
    'tokenizer_json': lambda: tokenizers.TokenizerJson(
        UNIGRAM, {'cls': '[CLS]', 'sep': '[SEP]', 'mask': '[MASK]'}),
    'subword_bpe': lambda: tokenizers.load(FIXTURES / 'subword_bpe' / 'phobert'),
}
"""of every kind, and of some kinds each way to encode"""
QUICK = ('wordpiece',)


def test_every_kind_of_tokenizer_is_here():
  names = {value.__name__ for value in vars(tokenizers).values()
           if isinstance(value, type) and hasattr(value, 'encode_flat') and value is not Tokenizer}
  assert {type(make()).__name__ for make in TRAINED.values()} == names


def models(tokenizer: Tokenizer) -> Iterator[tuple[str, LoadedModel]]:
  """Yields the functions that can be called with this tokenizer, and a model for each; all share
  the tokenizer."""
  vocab = tokenizer.vocab
  if isinstance(tokenizer, tokenizers.WordTokenizer):
    yield 'encode', ready.elmo(tokenizer)
    return
  if vocab.sentinel >= 0:
    config = backbones.small('t5', vocab.size, ready.LENGTH)
    yield 'generate', ready.of_heads('t5', config,
                                     {'lm': conversion.build_head('t5', 'lm', config, 2)},
                                     tokenizer)
    return
  config = backbones.small('gpt2', vocab.size, ready.LENGTH)
  decoder = ready.of_heads('gpt2', config, {'lm': conversion.build_head('gpt2', 'lm', config, 2)},
                           tokenizer)
  yield from ((name, decoder) for name in ('generate', 'perplexity', 'encode')
              if min(vocab.bos, vocab.eos) >= 0
              or vocab.sep >= 0 or name == 'encode')
  if min(vocab.mask, vocab.cls, vocab.sep) >= 0:
    config = backbones.small('bert', vocab.size, ready.LENGTH)
    yield (
      'fill_mask',
      ready.of_heads('bert', config, {'mlm': conversion.build_head('bert', 'mlm', config, 2)},
                     tokenizer),
    )
  if min(vocab.cls, vocab.sep) >= 0:
    for name, task in (('predict', 'classification'), ('answer', 'answers'), ('tag', 'tagging')):
      yield name, ready.of_task(tuned.TASKS[task], tokenizer)


def calls(name: str, model: LoadedModel, count: int) -> list[Call]:
  """Makes calls of a function with other texts each."""
  def made(number: int) -> Call:
    some = words(1000 + number, 5)
    text = ' '.join(some)
    return {
        'encode': lambda: plm_jax.encode(model, [text, some[0]]).tobytes(),
        'predict': lambda: plm_jax.predict(model, text),
        'answer': lambda: plm_jax.answer(model, some[0], text),
        'tag': lambda: plm_jax.tag(model, text),
        'fill_mask': lambda: plm_jax.fill_mask(model, f'{some[0]} [MASK] {some[1]}'),
        'generate': lambda: plm_jax.generate(model, text, max_new=2),
        'perplexity': lambda: plm_jax.perplexity(model, [text], length=16)}[name]
  return [made(number) for number in range(count)]


def assert_same_from_threads(kind: str, folder: pathlib.Path, count: int) -> int:
  """Makes `count` calls of each function, once in sequence and once from all threads, by tokenizers
  that have not seen the words -> number of calls."""
  TRAINED[kind]().save(folder)
  first, second = tokenizers.load(folder), tokenizers.load(folder)
  want = {name: [call() for call in calls(name, model, count)] for name, model in models(first)}
  jobs = [(name, number, call) for name, model in models(second) for number, call in
          enumerate(calls(name, model, count))]
  random.Random(0).shuffle(jobs)
  before = sys.getswitchinterval()
  sys.setswitchinterval(1e-5)  # threads take turns often
  try:
    with ThreadPoolExecutor(THREADS) as pool:
      found = list(pool.map(lambda job: job[2](), jobs))
  finally:
    sys.setswitchinterval(before)
  wrong = [f'{name} {number}: {got} instead of {want[name][number]}'
           for (name, number, _), got in zip(jobs, found, strict=True) if got != want[name][number]]
  assert not wrong, f'{len(wrong)} of {len(jobs)} calls, such as {wrong[0]:.500}'
  return len(jobs)


@pytest.mark.parametrize('kind', [
    pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.slow, pytest.mark.release])
    for kind in TRAINED])
def test_threads_get_what_one_gets(kind, tmp_path):
  assert_same_from_threads(kind, tmp_path, count=12)


@pytest.mark.release
@pytest.mark.slow
def test_many_calls(tmp_path):
  """In all, over all functions and tokenizers; 560 calls of each, 22,400 in all, were compared
  once."""
  total = sum(assert_same_from_threads(kind, tmp_path / kind, count=50) for kind in TRAINED)
  assert total >= 1800
