import dataclasses
import pathlib
from typing import Any

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import conversion, validation
from plm_jax.architectures.encoder import Encoder
from plm_jax.config.run import ConfigError, check
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.embeddings import init_sinusoids
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.models import bert, roberta, xlm
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import Single
from plm_jax.recipes import find_recipe
from plm_jax.training.learner import make_selection

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
SMALL = {'block.width': 32, 'block.heads': 4, 'block.mlp_dim': 128, 'stack.layers': 1, 'vocab': 67,
         'max_length': 40}


def params_of(config):
  model = ModelWithHeads(Encoder(config), MaskedLM(pair=Single()).heads(config))
  batch = {name: jnp.ones((2, 8), jnp.int32) for name in ('tokens', 'segments', 'positions')}
  return unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), batch)['params']))


@pytest.mark.parametrize(('config', 'number'), [
    (roberta.xlm_r_base(), 278_295_186), (roberta.xlm_r_large(), 560_142_482),
    (xlm.xlm_xnli15(), 249_071_384),
    (xlm.xlm_en(), 667_119_041), (xlm.xlm_100(), 571_696_960)],
    ids=['r_base', 'r_large', 'xnli15', 'english', '100'])
def test_parameters_with_the_head_of_masked_tokens(config, number):
  """Those of transformers' classes with a head of masked tokens; published as 270M, 550M, 250M,
  665M, 570M."""
  assert count_parameters(params_of(config)) == number


def test_parameters_of_ernie():
  """Those of transformers' ErnieModel."""
  assert count_parameters(params_of(bert.ernie_base())['backbone']) == 99_866_112


def test_a_language_moves_a_token_and_padding_is_cleared():
  """And with no languages given none is added, not the first."""
  config = validation.with_paths(xlm.xlm_xnli15(), {**SMALL, 'embeddings.languages': 3})
  model: Any = Encoder(config)
  batch = {'tokens': jnp.arange(6, 14)[None],
           'segments': (jnp.arange(8) < 6).astype(jnp.int32)[None]}
  params = jax.tree.map(lambda x: 20 * x,
                        unbox(jax.jit(model.init)(jax.random.key(0), batch)['params']))
  run = jax.jit(lambda batch: model.apply({'params': params}, batch).hidden)
  bare, first, mixed = (np.asarray(run(batch | more)) for more in (
      {}, {'languages': jnp.zeros((1, 8), int)},
      {'languages': jnp.array([[0, 0, 0, 1, 1, 1, 2, 2]])}))
  assert np.abs(bare - first).max() > 0.01 and np.abs(mixed - first)[0, 3:6].max() > 0.01
  for hidden in (bare, first, mixed):
    assert (hidden[0, 6:] == 0).all() and np.abs(hidden[0, :6]).min(-1).max() > 0


def test_causal_rows_do_not_attend_to_later_tokens():
  config = validation.with_paths(xlm.xlm_xnli15(), {**SMALL, 'causal': True})
  model: Any = Encoder(config)
  segments = jnp.ones((1, 8), jnp.int32)
  tokens = jnp.arange(6, 14)[None]
  params = jax.jit(model.init)(jax.random.key(0), {'tokens': tokens, 'segments': segments})
  run = jax.jit(lambda x: model.apply(params, {'tokens': x, 'segments': segments}).hidden)
  one, other = (np.asarray(run(x)) for x in (tokens, tokens.at[0, 5].set(40)))
  np.testing.assert_array_equal(one[0, :5], other[0, :5])
  assert np.abs(one - other)[0, 5:].max() > 1e-4


def test_sines_and_cosines_stay():
  """In turn, as released; the table is in the file, and is not trained."""
  config = validation.with_paths(xlm.xlm_xnli15(), {**SMALL, 'embeddings.absolute': 'sinusoidal'})
  want = [np.sin(3), np.cos(3), np.sin(3 / 10_000 ** (2 / 32))]
  np.testing.assert_allclose(init_sinusoids(None, (4, 32))[3, :3], want, atol=1e-6)
  run = dataclasses.replace(find_recipe('roberta_base')('test'), model=config)
  assert make_selection(run).frozen == ('backbone/embeddings/positions',)


@pytest.mark.parametrize('case', [
    'xlm/langs_sinusoidal', 'ernie/pretraining_tasks', 'xlm_roberta/masked_lm'],
    ids=lambda case: case.split('/')[0])
def test_there_and_back(tmp_path, case):
  """The configuration and every tensor, to the bit."""
  imported = conversion.load(GOLDEN / case)
  conversion.save(tmp_path / 'out', imported.config, imported.params, like=imported)
  again = conversion.load(tmp_path / 'out')
  assert again.config == imported.config
  jax.tree.map(np.testing.assert_array_equal, again.params, imported.params)


def test_settings_without_a_counterpart_in_xlm_are_not_exported():
  config = validation.with_paths(xlm.xlm_xnli15(), {**SMALL, 'block.mlp_dim': 100})
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), params_of(config))
  with pytest.raises(conversion.ConvertError, match='at four times the width, 128'):
    conversion.save('never', config, params, like='xlm')


def test_no_more_corpora_than_languages():
  """Tokens of a sixteenth corpus would have the embedding of the fifteenth language."""
  run = find_recipe('xlm_xnli15')('test')
  check(dataclasses.replace(run, data=dataclasses.replace(run.data, path=tuple('abcdefghijklmno'))))
  with pytest.raises(ConfigError,
                     match=r'16 corpora of 16 languages, and model.embeddings.languages is 15'):
    check(dataclasses.replace(run, data=dataclasses.replace(run.data,
                                                            path=tuple('abcdefghijklmnop'))))
