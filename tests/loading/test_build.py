"""Parameter shapes computed from the model configuration equal those of training."""
import dataclasses

import jax
import pytest

from plm_jax import recipes
from plm_jax.loading.build import build_model, parameter_shapes
from plm_jax.recipes import finetune
from plm_jax.training.learner import make_learner, placeholder_vocab, state_shapes


def check(config, monkeypatch):
  vocab = placeholder_vocab(config)
  want = state_shapes(config, make_learner(config, vocab)).params
  for kind in type(config.objective).__mro__:
    if 'corrupt' in vars(kind):
      monkeypatch.setattr(kind, 'corrupt', lambda *_: pytest.fail('text is corrupted'))
  found = parameter_shapes(config, build_model(config, vocab))
  assert jax.tree.structure(found) == jax.tree.structure(want)
  assert jax.tree.leaves(found) == jax.tree.leaves(want)


@pytest.mark.parametrize('name', ['bert_base', 'electra_small', 'elmo_small', 'xlnet_base',
                                  'glm_base', 'spanbert_base'])
def test_pretraining(name, monkeypatch):
  check(recipes.find_recipe(name)('test'), monkeypatch)


@pytest.mark.parametrize('kind', ['classification', 'tagging', 'answers', 'choice', 'embedding'])
def test_finetuning(kind, monkeypatch):
  config = finetune.recipe(kind, scale='test', train=('x',))
  objective = dataclasses.replace(config.objective, labels=('a', 'b', 'c'))
  check(dataclasses.replace(config, objective=objective), monkeypatch)
