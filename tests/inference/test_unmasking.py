"""Iterative unmasking: samples of a known model, by enumeration, and of a small language that was
learned."""
import dataclasses
import itertools
from typing import Any

import flax.linen as nn
from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import plm_jax
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.errors import ConfigError
from plm_jax.evaluation.diffusion_bound import (
  draw_masks,
  estimate_bound,
  make_estimator,
)
from plm_jax.inference import generate, unmasking
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives.masked_diffusion import MaskedDiffusion
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.transformations import make_optimizer
from plm_jax.training.step import init_state, train_step
from tests.objectives import test_masked_diffusion as enumerated
from tests.objectives.test_masked_diffusion import SIZE, SMALL

WORDS = 5, 6, 7
TEXTS = list(itertools.product(WORDS, repeat=SIZE))


class Letters:
  """A tokenizer of the letters a, b and c."""

  vocab = SMALL
  pieces = '<pad>', '<unk>', '<cls>', '<sep>', '<mask>', 'a', 'b', 'c'

  def encode(self, text, specials=False):
    return ['abc'.index(letter) + 5 for letter in text]

  def encode_batch(self, texts):
    return [self.encode(text) for text in texts]

  def decode(self, ids):
    return ''.join(self.pieces[i] for i in ids)


class Nothing(nn.Module):
  def __call__(self, batch, row_ids=None):
    return None


class TableHead(nn.Module):
  """Predicts the three tokens after [CLS] by a table; see `test_masked_diffusion`."""

  @nn.compact
  def __call__(self, output, batch, row_ids=None):
    table = self.param('table', nn.initializers.zeros, (4 ** SIZE, SIZE, SMALL.size))
    logits = enumerated.read_table(table, batch['tokens'][:, 1:1 + SIZE])
    logits = jnp.pad(logits, ((0, 0), (1, batch['tokens'].shape[1] - SIZE - 1), (0, 0)))
    if 'positions' not in batch:
      return logits
    return jnp.take_along_axis(logits, batch['positions'][..., None], 1)


@dataclasses.dataclass(frozen=True)
class TableModel:
  kind: str = 'encoder'
  max_length: int = 32
  vocab: int = SMALL.size
  cls_last: bool = False

  def backbone(self):
    return Nothing()


@pytest.fixture(scope='module')
def table():
  found = enumerated.table()
  found[..., [0, 1, 2, 3]] = -40
  return found


@pytest.fixture(scope='module')
def trained(table) -> LoadedModel:
  tokenizer: Any = Letters()
  params = {'backbone': {}, 'heads_mlm': {'table': np.float32(table)}}
  return LoadedModel('bert', TableModel(), {'mlm': TableHead()}, params, tokenizer,
                     generates_by_unmasking=True)


def frequencies(found):
  """Returns the share of each text of three words."""
  numbers = (found - 5) @ [9, 3, 1]
  return np.bincount(numbers, minlength=27) / len(found)


def marginals(table):
  """Returns the probability of each word at each position, of the text that is all masks."""
  odds = np.exp(table[-1][:, WORDS])
  return odds / odds.sum(-1, keepdims=True)


def test_random_order_samples_from_the_mean_over_orders(trained, table):
  """With a token per step; with all tokens in one step, from independent tokens."""
  whole = np.array([np.exp(-enumerated.order_losses(table, np.array(text))).mean()
                    for text in TEXTS])
  apart = np.array([np.prod([marginals(table)[place, word - 5] for place, word in enumerate(text)])
                    for text in TEXTS])
  config = GenerationConfig(SIZE, temperature=1.0, number=8000)
  for steps, want, other in ((0, whole, apart), (1, apart, whole)):
    _, found = unmasking.generate_tokens(trained, [[]], dataclasses.replace(config, steps=steps))
    got = frequencies(found)
    error = 5 * np.sqrt(want * (1 - want) / 8000)
    assert (abs(got - want) <= error + 1e-3).all()
    assert (abs(got - other) > error + 1e-3).any()


def test_the_most_confident_prediction_is_unmasked_first(trained, table):
  _, found = unmasking.generate_tokens(trained, [[]], GenerationConfig(SIZE, order='confidence'))
  tokens = np.full(SIZE, SMALL.mask)
  for _ in range(SIZE):
    odds = np.exp(enumerated.read_table(table, tokens)[:, 5:])
    odds /= odds.sum(-1, keepdims=True)
    odds[tokens != SMALL.mask] = 0
    place = odds.max(-1).argmax()
    tokens[place] = 5 + odds[place].argmax()
  np.testing.assert_array_equal(found[0], tokens)


def test_prompts_stay_and_rows_are_their_own(trained):
  config = GenerationConfig(2, temperature=1.0)
  given, found = unmasking.generate_tokens(trained, ['a', 'c'], config, seed=3)
  assert given == [[5], [7]] and found.shape == (2, 2)
  np.testing.assert_array_equal(unmasking.generate_tokens(trained, ['a'], config, seed=3)[1],
                                found[:1])
  (first,), = generate.generate(trained, ['a'], config, seed=3)
  assert first.text == Letters().decode(found[0]) and first.ended == 'length'
  stopped = dataclasses.replace(config, stop=(first.text[1],))
  assert generate.generate(trained, ['a'], stopped,
                           3)[0][0].text == first.text[:first.text.index(first.text[1])]
  assert unmasking.tokens_per_step(7, 3).tolist() == [3, 2, 2]


def test_unsupported_settings_of_unmasking_are_refused(trained):
  def refused(match, model=trained, **options):
    with pytest.raises((ConfigError, CheckpointError), match=match):
      generate.generate(model, ['a'], GenerationConfig(**{'max_new': 2, **options}))
  refused('the longest prompt has 1 tokens, and max_new is 30: the model takes 32', max_new=30)
  refused('beams is for models that generate from left to right', beams=2)
  refused('steps is at most max_new', steps=3)
  with pytest.raises(ConfigError, match='cannot be streamed'):
    list(generate.stream(trained, ['a'], GenerationConfig(2)))
  other = dataclasses.replace(trained, generates_by_unmasking=False)
  refused('masked language model, such as BERT: order=random fills masks', other)
  assert len(generate.generate(other, ['a'], GenerationConfig(2, order='random'))[0][0].tokens) == 2
  assert {'generate',
          'perplexity'} <= {*trained.capabilities} and 'generate' not in other.capabilities
  left = dataclasses.replace(trained, heads={'lm': TableHead()})
  refused('order is for masked language models', left, order='random')
  with pytest.raises(ConfigError, match='samples is for masked language models'):
    plm_jax.perplexity(left, ['ab'], samples=4)
  with pytest.raises(ConfigError, match='leave stride and start out'):
    plm_jax.perplexity(trained, ['ab'], stride=2)
  with pytest.raises(ConfigError, match='length is at least 3 and at most 32 tokens'):
    plm_jax.perplexity(trained, ['ab'], length=33)


def test_the_bound_converges_to_enumeration(trained, table):
  found = plm_jax.perplexity(trained, ['aca', 'bbc'], samples=1500)
  want = [enumerated.exact_bound(table, np.array(text)) for text in ((5, 7, 5), (6, 6, 7))]
  assert found.is_bound and (found.tokens, found.words, found.bytes) == (6, 2, 6)
  assert found.nats == pytest.approx(sum(want), rel=0.01)
  assert found.per_token == pytest.approx(np.exp(found.nats / 6))
  # The same masks for the same seed, and about the same result for others.
  again = estimate_bound(trained, ['aca', 'bbc'], samples=12)
  assert again == estimate_bound(trained, ['aca', 'bbc'], samples=12)
  assert again.nats != estimate_bound(trained, ['aca', 'bbc'], samples=12, seed=1).nats
  masks = draw_masks(np.random.default_rng(0), 4, 8)
  assert np.sort(masks.sum(1)).tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


STEPS = 600
LANGUAGE = {(5, 6, 7, 8): 0.5, (8, 5, 5, 6): 0.3, (6, 6, 6, 6): 0.2}


@pytest.mark.release
@pytest.mark.slow
def test_samples_have_the_frequencies_of_the_training_text():
  """Three texts of four words; the bound of a text is its likelihood."""
  objective = MaskedDiffusion()
  texts, shares = np.array(list(LANGUAGE), np.int32), np.array(list(LANGUAGE.values()))
  model = tiny.config(dropout=0.0, attention={'dropout': 0.0})
  optim = AdamW(peak=3e-3, warmup=20, schedule='cosine')
  learner = dataclasses.replace(
      tiny.learner(), model=objective.build(model, packed=False), objective=objective, steps=STEPS,
      optimizer=make_optimizer(optim, STEPS))
  draw, rows = np.random.default_rng(0), 64
  def windows(step):
    number = np.arange(rows, dtype=np.int32)
    return {'tokens': texts[draw.choice(3, rows, p=shares)],
            'segments': np.ones((rows, 4), np.int32),
            'sentences': np.ones((rows, 4), np.int32),
            'words': np.tile(np.arange(1, 5, dtype=np.int32), (rows, 1)),
            'document': number, 'corpus': 0 * number, 'index': number + rows * step,
            'epoch': 0 * number}
  state = unbox(jax.jit(lambda: init_state(learner, windows(0)))())
  update = jax.jit(lambda state, windows: train_step(learner, state, windows))
  for step in range(STEPS):
    state, metrics = update(state, windows(step))
  assert int(metrics['skipped']) == 0
  tokenizer: Any = Letters()
  tokenizer.vocab = tiny.VOCAB
  trained = LoadedModel('bert', model, objective.heads(model), jax.device_get(state.params),
                        tokenizer,
                        generates_by_unmasking=True)
  config = GenerationConfig(4, temperature=1.0, number=1000)
  _, found = unmasking.generate_tokens(trained, [[]], config)
  same = (found[:, None] == texts).all(-1).mean(0)
  np.testing.assert_allclose(same, shares, atol=0.06)
  assert same.sum() > 0.9
  _, sure = unmasking.generate_tokens(trained, [[]],
                                      dataclasses.replace(config, order='confidence'))
  assert (sure[:, None] == texts).all(-1).any(1).mean() > 0.9
  bounds = make_estimator(trained).estimate([list(text) for text in texts], samples=64)
  np.testing.assert_allclose(bounds, -np.log(shares), atol=0.25)
