"""After a warm-up no call within its limits compiles anything."""
import dataclasses
import random

from compilations import compiled
import pytest
import ready

import plm_jax
from plm_jax.api import serving
from plm_jax.config.run import ConfigError
from plm_jax.loading.generation_config import GenerationConfig, GenerationDefaults

DRAW = random.Random(0)


def sentence(most):
  return ' '.join(DRAW.choices(ready.WORDS, k=DRAW.randint(1, most)))


CALLS = {
    'bert': {'encode': lambda model, texts: plm_jax.encode(model, texts),
             'fill_mask': lambda model, texts: plm_jax.fill_mask(
                 model, [f'{text} [MASK]' for text in texts])},
    'gpt2': {'generate': lambda model, texts: plm_jax.generate(model, texts, max_new=3),
             'encode': lambda model, texts: plm_jax.encode(model, texts)},
    't5': {'generate': lambda model, texts: plm_jax.generate(model, texts, max_new=3)},
    'glm': {'generate': lambda model, texts: plm_jax.generate(model, texts, max_new=3)},
    'elmo': {'encode': lambda model, texts: plm_jax.encode(model, texts)},
    'embedding': {'encode': lambda model, texts: plm_jax.search(model, texts, texts[0])},
    'classification': {'predict': lambda model, texts: plm_jax.predict(model, texts)},
    'choice': {'predict': lambda model, texts: plm_jax.predict(
        model, [(text, ['fine', 'dull']) for text in texts])},
    'tagging': {'tag': lambda model, texts: plm_jax.tag(model, texts)},
    'answers': {'answer': lambda model, texts: plm_jax.answer(model, [text[:8] for text in texts],
                                                              texts[0])}}

MARKS = {'classification': [], 'gpt2': [pytest.mark.slow], 't5': [pytest.mark.slow]}


@pytest.mark.parametrize('kind', [
    pytest.param(kind, marks=MARKS.get(kind, [pytest.mark.slow, pytest.mark.release]))
    for kind in CALLS])
def test_no_call_compiles_after_it(kind):
  model = ready.model(kind)
  words = 4 if kind in ('answers', 'choice', 'tagging', 'classification') else 6
  made = plm_jax.warm_up(model, length=32, batch=2, functions=[*CALLS[kind]], max_new=3)
  assert {call.function for call in made} == CALLS[kind].keys()
  compiled.clear()
  for function in CALLS[kind].values():
    for _ in range(25):
      function(model, [sentence(words) for _ in range(DRAW.randint(1, 2))])
  assert not compiled


def test_generate_uses_the_settings_of_the_checkpoint(monkeypatch):
  stated = GenerationDefaults(options={'beams': 2, 'repetition_penalty': 1.5})
  model = dataclasses.replace(ready.model('gpt2'), generation=stated)
  seen = []
  monkeypatch.setattr(serving, 'generate', lambda model, texts, config: seen.append(config))
  plm_jax.warm_up(model, length=16, functions=['generate'], max_new=3)
  assert seen == [GenerationConfig(max_new=3, beams=2, repetition_penalty=1.5)]


def test_it_compiles_only_the_given_functions():
  model = ready.model('bert')
  assert [call[:3] for call in plm_jax.warm_up(model, length=40, batch=2,
                                               functions=['encode'])] == [
      ('encode', texts, length) for length in (16, 24, 32, 48) for texts in (1, 2)]
  assert [call.length for call in plm_jax.warm_up(model, length=40,
                                                  functions=['fill_mask'])] == [16, 32, 64]
  assert max(call.length for call in plm_jax.warm_up(model, length=500, functions=['encode'])) == 64


def test_unsupported_functions_and_lengths_are_refused():
  model = ready.model('bert')
  with pytest.raises(ConfigError,
                     match='generate cannot be warmed up: of this model encode, fill_mask can'):
    plm_jax.warm_up(model, functions=['generate'])
  with pytest.raises(ConfigError, match='length is 8 or more'):
    plm_jax.warm_up(model, length=2)
  with pytest.raises(ConfigError, match='max_new 60 leaves no room for a prompt'):
    plm_jax.warm_up(ready.model('gpt2'), max_new=60)
