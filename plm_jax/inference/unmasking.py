"""Generation by iterative unmasking with a masked language model.

The new tokens are [MASK] at first. In each step the model predicts all of them from both sides, and
some of the predictions are kept. Tokens that are kept do not change any more.

    random      positions in random order. With one token per step this samples exactly from the
                any-order autoregressive model, which is the limit of MDLM's ancestral sampler for
                many steps (Sahoo et al. 2024, section 3.3; Zheng et al. 2024, section 4)
    confidence  the predictions with the highest probabilities (MaskGIT: Chang et al. 2022, section
                3.2; low-confidence remasking of LLaDA: Nie et al. 2025, section 2.4)

The number of kept tokens per step is fixed, as in LLaDA's code (generate.py,
get_num_transfer_tokens). In MDLM's sampler it is random, with this mean for the linear schedule.
"""
from collections.abc import Sequence
import functools
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.errors import ConfigError
from plm_jax.inference import engine, search
from plm_jax.inference import sampling as of
from plm_jax.inference.prompts import (
  BERT_TOKENS,
  Prompt,
  check_text_prompts,
  encoder_delimiters,
  make_batch,
  prompt_ids,
  require_tokens,
)
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel

Order = Literal['random', 'confidence']
LEFT_TO_RIGHT_OPTIONS = (
    'hole', 'min_new', 'beams', 'repetition_penalty', 'no_repeat_ngram', 'forced_first',
    'forced_last', 'start', 'length_penalty', 'early_stopping')
"""options of generation from left to right, which unmasking does not have"""


def unmasks(trained: LoadedModel, config: GenerationConfig) -> bool:
  """Tell whether a model generates by iterative unmasking.

  Raises:
    ConfigError: an option of unmasking for a model that predicts next tokens.
  """
  if not trained.lm_head_name:
    return trained.generates_by_unmasking or (config.order != 'auto' and 'mlm' in trained.heads)
  for name in ('order', 'steps'):
    if getattr(config, name) != getattr(GenerationConfig, name):
      raise ConfigError(f'{name} is for masked language models, and this model generates its '
                        f'tokens from left to right: leave {name} out')
  return False


def generate_tokens(
    trained: LoadedModel, prompts: Sequence[Prompt], config: GenerationConfig, seed: int = 0,
) -> tuple[list[list[int]], np.ndarray]:
  """Generate config.max_new tokens after each prompt, config.number times.

  Returns:
    (ids of the prompts, new ids [prompts * config.number, max_new], those of a prompt adjacent).

  Raises:
    CheckpointError: the tokenizer has no [MASK], [CLS] or [SEP].
    ConfigError: a prompt is too long for the model, or an option is not one of unmasking.
  """
  model, tokenizer = trained.model, trained.tokenizer
  if not tokenizer:
    raise CheckpointError('the model has no tokenizer: text cannot be generated without it')
  vocab = tokenizer.vocab
  require_tokens(vocab, BERT_TOKENS, 'text cannot be generated without it')
  for name in LEFT_TO_RIGHT_OPTIONS:
    if getattr(config, name) != getattr(GenerationConfig, name):
      raise ConfigError(f'{name} is for models that generate from left to right, and this one '
                        f'unmasks tokens in any order: leave {name} out')
  if config.steps > config.max_new:
    raise ConfigError(f'steps is at most max_new ({config.max_new}), because each step unmasks at '
                      f'least one token: got {config.steps}')
  check_text_prompts(prompts)

  # Rows: [CLS] prompt [MASK] ... [MASK] [SEP], as in training.
  given = [prompt_ids(tokenizer, prompt) for prompt in prompts]
  before, after = encoder_delimiters(vocab, model.cls_last)
  longest = max(map(len, given)) + config.max_new + 2
  if model.max_length and longest > model.max_length:
    raise ConfigError(f'the longest prompt has {longest - config.max_new - 2} tokens, and max_new '
                      f'is {config.max_new}: the model takes {model.max_length} in all, with two '
                      'special ones. Shorten the prompt or lower max_new')
  length = engine.padded_length(longest, model.max_length)
  rows = [before + ids + [vocab.mask] * config.max_new + after for ids in given]
  batch = make_batch(rows, length, max(vocab.pad, 0), cls_last=model.cls_last)
  firsts = np.array([len(before) + len(ids) for ids in given], np.int32)
  batch['positions'] = firsts[:, None] + np.arange(config.max_new, dtype=np.int32)
  batch = {name: np.repeat(x, config.number, 0) for name, x in batch.items()}
  order: Order = 'confidence' if config.order == 'confidence' else 'random'
  settings = (order, config.temperature, config.top_k, config.top_p, config.min_p)
  barred = tuple(sorted(set(vocab.specials) - {vocab.unk, -1}))
  counts = tokens_per_step(config.max_new, config.steps or config.max_new)
  found, finite = unmask(
      model, trained.heads['mlm'], settings, (vocab.size, barred),
      trained.device_params('backbone', 'heads_mlm'), jax.device_put(batch),
      jax.device_put(counts), jax.device_put(engine.check_seed(seed)))
  search.check_logits(finite)
  return given, np.asarray(found)


def tokens_per_step(number: int, steps: int) -> np.ndarray:
  """Divide a number of tokens among steps as evenly as possible, larger shares first."""
  return (number // steps + (np.arange(steps) < number % steps)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def unmask(
    model: Any, head: nn.Module, settings: tuple, vocab: tuple[int, tuple[int, ...]], params: Any,
    batch: Any, counts, seed) -> tuple[jax.Array, jax.Array]:
  """Unmask the tokens at the positions of a batch, in a loop on the device.

  A row depends on the seed and its index, not on the other rows.

  Args:
    model: configuration of the backbone.
    head: the masked-LM head.
    settings: (order, temperature, top_k, top_p, min_p); see `GenerationConfig`.
    vocab: (number of ids, ids that are never generated).
    params: the parameters.
    batch: tokens and segments [rows, length], positions of the masks [rows, new].
    counts: tokens to keep in each step, [steps].
    seed: random seed.

  Returns:
    (the new tokens [rows, new], whether all logits were finite).
  """
  order, temperature, top_k, top_p, min_p = settings
  size, barred = vocab
  config = GenerationConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
  network = ModelWithHeads(model.backbone(), {'mlm': head})
  rows, new = batch['positions'].shape
  each = jnp.arange(rows)[:, None]
  keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(seed), row))(jnp.arange(rows))

  def step(number, state):
    tokens, masked, finite = state
    outputs: Any = network.apply({'params': params}, {**batch, 'tokens': tokens})
    finite &= jnp.isfinite(outputs['mlm']).all()
    logits = of.mask_unused_ids(outputs['mlm'], size)
    logits = of.suppress_tokens(logits.reshape(rows * new, -1), barred, True)
    step_keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number), 2))(keys)

    # A prediction for each masked position, and its probability.
    if temperature:
      chosen_from = search.filter_logits(config, logits / temperature).reshape(rows, new, -1)
      predicted = jax.vmap(jax.random.categorical)(step_keys[:, 0], chosen_from)
    else:
      predicted = logits.argmax(-1).reshape(rows, new)
    if order == 'random':
      scores = jax.vmap(lambda key: jax.random.uniform(key, (new,)))(step_keys[:, 1])
    else:
      probabilities = jax.nn.softmax(logits).reshape(rows, new, -1)
      scores = jnp.take_along_axis(probabilities, predicted[..., None], -1)[..., 0]

    # Keep the predictions with the highest scores; ties go to the left.
    ranks = jnp.argsort(jnp.argsort(jnp.where(masked, -scores, jnp.inf), axis=1), axis=1)
    kept = masked & (ranks < counts[number])
    old = jnp.take_along_axis(tokens, batch['positions'], 1)
    tokens = tokens.at[each, batch['positions']].set(
        jnp.where(kept, predicted.astype(tokens.dtype), old))
    return tokens, masked & ~kept, finite

  state = batch['tokens'], jnp.ones((rows, new), bool), jnp.array(True)
  tokens, _, finite = jax.lax.fori_loop(0, len(counts), step, state)
  return jnp.take_along_axis(tokens, batch['positions'], 1), finite
