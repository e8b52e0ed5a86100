"""Models that are loaded: checkpoints whose tokenizer and model do not fit are refused."""
import dataclasses
import json

import numpy as np
import pytest
import ready
import safetensors.numpy

import plm_jax
from plm_jax import conversion


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
