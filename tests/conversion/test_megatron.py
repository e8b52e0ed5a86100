"""Files as Megatron-LM writes them, made from a golden case of transformers' class by what its own
converter undoes."""
import argparse
import os
import pathlib
import shutil

import numpy as np
import pytest
import torch_files as pickles

from plm_jax import conversion
from plm_jax.conversion import ConvertError
from plm_jax.models import bert, families

library = pytest.importorskip('safetensors.numpy')
torch = pickles.torch  # the fixture
GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'megatron_bert' / 'pretraining_mlm_nsp'
HEADS, LAYERS = 4, 2
OF_LAYER = {'attention.output.dense': '{a}.dense', 'attention.ln': 'input_layernorm',
            'ln': 'post_attention_layernorm',
            'intermediate.dense': 'mlp.dense_h_to_4h', 'output.dense': 'mlp.dense_4h_to_h'}


def joined(parts, version):
  """Query, key and value [H * A, ...] in one, as fix_query_key_value_ordering of each version
  expects them."""
  x = np.stack([part.reshape(HEADS, -1, *part.shape[1:]) for part in parts])  # [3, H, A, ...]
  x = {0: x, 1: np.moveaxis(x, 0, 2), 2: x.swapaxes(0, 1), 3.0: x.swapaxes(0, 1)}[version]
  return np.ascontiguousarray(x).reshape(-1, *parts[0].shape[1:])


def model_of(version):
  """The nested state dict; attention and the encoder have other names in files before version 3."""
  theirs = {name: x.astype(np.float32)
            for name, x in library.load_file(GOLDEN / 'model.safetensors').items()}
  attention, encoder = ('self_attention',
                        'encoder') if version == 3 else ('attention', 'transformer')
  stack = {}
  for layer in range(LAYERS):
    before = f'bert.encoder.layer.{layer}'
    for kind in ('weight', 'bias'):
      for name, called in OF_LAYER.items():
        stack[f'layers.{layer}.{called.format(a=attention)}.{kind}'] = theirs[
            f'{before}.{name}.{kind}']
      parts = [theirs[f'{before}.attention.self.{part}.{kind}']
               for part in ('query', 'key', 'value')]
      stack[f'layers.{layer}.{attention}.query_key_value.{kind}'] = joined(parts, version)
  def both(name):
    return {kind: theirs[f'{name}.{kind}'] for kind in ('weight', 'bias')}
  final = both('bert.encoder.ln')
  stack |= {f'final_layernorm.{kind}': x for kind, x in final.items()}
  embedding = {f'{called}_embeddings': {
      'weight': theirs[f'bert.embeddings.{name}_embeddings.weight']}
      for called, name in (('word', 'word'), ('position', 'position'), ('tokentype', 'token_type'))}
  head = 'cls.predictions.transform'
  return {
      'language_model': {
          'embedding': embedding, encoder: stack,
          'pooler': {f'dense.{kind}': x for kind, x in both('bert.pooler.dense').items()}},
      'lm_head': {'bias': theirs['cls.predictions.bias'],
                  **{f'dense.{kind}': x for kind, x in both(f'{head}.dense').items()},
                  **{f'layernorm.{kind}': x for kind, x in both(f'{head}.LayerNorm').items()}},
      'binary_head': both('cls.seq_relationship')}


class Something:
  """Other content of such a file, of a class that is not imported."""

  def __reduce__(self):
    return os.mkdir, ('never-made',)


def write(path, version, torch, arguments=None, **more):
  path.parent.mkdir(parents=True, exist_ok=True)
  arguments = argparse.Namespace(**{'num_attention_heads': HEADS, 'layernorm_epsilon': 1e-5,
                                    'rank': 0, 'kind': None,
                                    'openai_gelu': False, 'hidden_dropout': 0.0,
                                    'attention_dropout': 0.0,
                                    **(arguments or {})})
  state = {'args': arguments, 'checkpoint_version': version, 'iteration': 7,
           'model': model_of(version),
           'optimizer': {'step': Something()}, **more}
  pickles.write(path, {name: value for name, value in state.items() if value is not None}, torch)


@pytest.mark.parametrize('version', [0, 1, 2, 3.0])
def test_every_version_is_transformers_megatron_bert(tmp_path, torch, monkeypatch, version):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'latest_checkpointed_iteration.txt').write_text(
      '7\n' if version == 3 else 'release')
  step = 'iter_0000007' if version == 3 else 'release'
  write(tmp_path / 'run' / step / 'mp_rank_00' / 'model_optim_rng.pt', version, torch)
  want = conversion.load(GOLDEN)
  assert conversion.is_checkpoint(tmp_path / 'run')
  for place in (tmp_path / 'run', tmp_path / 'run' / step, tmp_path / 'run' / step / 'mp_rank_00',
                tmp_path / 'run' / step / 'mp_rank_00' / 'model_optim_rng.pt'):
    got = conversion.load(place)
    assert (got.family, got.config, {*got.heads}) == ('megatron-bert', want.config, {'mlm', 'nsp'})
    wanted, found = conversion.flatten_tree(want.params), conversion.flatten_tree(got.params)
    assert {*found} == {*wanted}
    for name, x in wanted.items():
      np.testing.assert_array_equal(found[name], np.asarray(x, np.float32), err_msg=name)
  assert not (tmp_path / 'never-made').exists()


def test_a_file_without_arguments_and_without_a_question(tmp_path, torch):
  """Heads are of 64 then, so that this one has one; types are zeros; gelu is Megatron's own."""
  model = model_of(0)
  language = model['language_model']
  del model['binary_head'], language['pooler'], language['embedding']['tokentype_embeddings']
  write(tmp_path / 'model_optim_rng.pt', 0, torch, model=model, args=None, checkpoint_version=None)
  got = conversion.load(tmp_path)
  assert (got.config.block.heads, got.config.block.mlp.activation,
          got.config.pooler) == (1, 'gelu_tanh', False)
  assert {*got.heads} == {'mlm'} and (
      conversion.flatten_tree(got.params)['backbone/embeddings/types'] == 0).all()


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'checkpoint_version': 4}, 'is of version 4, known are 0 to 3'),
    ({'arguments': {'tensor_model_parallel_size': 2}},
     'is a part of a model, whose tensor_model_parallel_size was 2'),
    ({'arguments': {'num_layers': 9}}, 'num_layers is 9, the tensors make it'),
    (
      {'arguments': {'apply_residual_connection_post_layernorm': True}},
      'post_layernorm is True, only False is supported',
    ),
    ({'arguments': {'num_attention_heads': 5}}, '5 heads do not divide a width of 32'),
    ({'model': {'language_model': {'encoder': {}}}}, 'is no BERT of Megatron-LM: it has no tensor'),
    ({'model': {'language_model': Something()}}, 'holds more than named tensors'),
  ],
)
def test_other_files_are_refused(tmp_path, torch, monkeypatch, changes, message):
  monkeypatch.chdir(tmp_path)
  write(tmp_path / 'model_optim_rng.pt', 3.0, torch, **changes)
  with pytest.raises(ConvertError, match=message):
    conversion.load(tmp_path)
  assert not (tmp_path / 'never-made').exists()


def test_dictionaries_without_end_are_refused(tmp_path, torch):
  endless = {}
  endless['again'] = endless
  many = {str(number): np.zeros(1, np.float32) for number in range(300)}
  for model, message in ((endless, 'too deep inside one another'),
                         ({str(number): many for number in range(300)}, 'more than 65,536 names')):
    write(tmp_path / 'model_optim_rng.pt', 3.0, torch, model=model)
    with pytest.raises(ConvertError, match=message):
      conversion.load(tmp_path)


def test_parts_of_a_model_are_refused(tmp_path, torch):
  for rank in ('00', '01'):
    write(tmp_path / f'mp_rank_{rank}' / 'model_optim_rng.pt', 3.0, torch)
  with pytest.raises(ConvertError,
                     match='holds the parts of a model that was split between processes'):
    conversion.load(tmp_path)
  shutil.rmtree(tmp_path / 'mp_rank_01')
  assert conversion.load(tmp_path).family == 'megatron-bert'


def test_the_released_one_has_its_parameters():
  """MegatronBertForPreTraining of transformers' default configuration."""
  config = bert.megatron_345m()
  heads = {name: bert.MEGATRON_BERT.heads[name].make(config, 2) for name in ('mlm', 'nsp')}
  shapes = families.parameter_shapes(bert.MEGATRON_BERT, config, heads)
  assert sum(int(np.prod(shape)) for shape in shapes.values()) == 334_723_458
