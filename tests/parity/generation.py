"""Runs the cases of transformers' generate: token for token, and the scores of beams."""
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity.shared import Unsupported
from plm_jax import conversion
from plm_jax.inference import engine
from plm_jax.inference.decoder_steps import DecoderSteps, EncoderDecoderSteps
from plm_jax.inference.search import OutputVocab
from plm_jax.loading.generation_config import GenerationConfig

# Their names of what we have under ours.
SAME = {'max_new_tokens': 'max_new', 'min_new_tokens': 'min_new', 'num_beams': 'beams',
        'num_return_sequences': 'number', 'length_penalty': 'length_penalty',
        'repetition_penalty': 'repetition_penalty', 'no_repeat_ngram_size': 'no_repeat_ngram',
        'forced_bos_token_id': 'forced_first', 'forced_eos_token_id': 'forced_last'}
STOPPING: Any = {True: 'full', False: 'heuristic', 'never': 'never'}
IDS = ('pad_token_id', 'bos_token_id', 'eos_token_id', 'decoder_start_token_id')
# Options that do not affect greedy decoding, or have their neutral value.
GREEDY = {'temperature', 'top_k', 'top_p', 'typical_p', 'use_cache', 'return_dict_in_generate',
          'output_scores'}
OFF = dict(do_sample=False, num_beam_groups=1, diversity_penalty=0.0,
           encoder_repetition_penalty=1.0,
           encoder_no_repeat_ngram_size=0, bad_words_ids=None, suppress_tokens=None,
           begin_suppress_tokens=None,
           renormalize_logits=False, remove_invalid_values=False,
           exponential_decay_length_penalty=None,
           sequence_bias=None, penalty_alpha=None, guidance_scale=None)


def decoder(case) -> dict[str, np.ndarray]:
  """Rows of prompt and continuation."""
  tokens, mask = rows_of(case)
  return generated(case, DecoderSteps, {'tokens': tokens, 'segments': mask})


def encoder_decoder(case) -> dict[str, np.ndarray]:
  """Rows of the decoder, which begin with its start token."""
  source, mask = rows_of(case)
  start = (case.config | case.about['generate'])['decoder_start_token_id']
  case.about['generate'].asked.add('decoder_start_token_id')
  tokens = case.inputs.get('decoder_input_ids', np.zeros((len(source), 0), np.int32))
  if not tokens.size or (tokens[:, 0] != start).all():
    tokens = np.concatenate([np.full((len(source), 1), start), tokens], 1)
  tokens = tokens.astype(np.int32)
  batch = {'tokens': tokens, 'segments': np.ones_like(tokens), 'source': source,
           'source_segments': mask}
  return generated(case, EncoderDecoderSteps, batch)


def rows_of(case) -> tuple[np.ndarray, np.ndarray]:
  """-> tokens, segments [B, L]."""
  tokens = case.inputs['input_ids'].astype(np.int32)
  mask = case.inputs.get('attention_mask')
  return tokens, np.ones_like(tokens) if mask is None else mask.astype(np.int32)


def generated(case, kind, batch) -> dict[str, np.ndarray]:
  """Return batch['tokens'] and the generated tokens, padded after the end to the longest; `kind`
  computes the steps."""
  said, tokens = case.about['generate'], batch['tokens']
  said.only(**OFF)
  said.asked |= GREEDY
  prompt = tokens.shape[1]
  settings: Any = {ours: said[theirs] for theirs, ours in SAME.items() if said.get(theirs)
                   is not None}
  for name in ('forced_first', 'forced_last'):
    if isinstance(settings.get(name), list):
      settings[name], *others = settings[name]
      if others:
        raise Unsupported(
            f'generate with a choice of tokens that are forced, {[settings[name], *others]}')
  if prompt > 1:  # there only a row's own first token is forced
    settings.pop('forced_first', None)
  for name in ('max', 'min'):
    if said.get(f'{name}_length') is not None and f'{name}_new' not in settings:
      settings[f'{name}_new'] = max(0, said[f'{name}_length'] - prompt)
  config = GenerationConfig(**settings, early_stopping=STOPPING[said.get('early_stopping', False)])
  ids = {name: said.get(name, case.config.get(name)) for name in IDS}
  if left := said.left():
    raise Unsupported(f'generate with {", ".join(left)}')
  imported = conversion.load(case.path)
  ends = ids['eos_token_id']
  ends = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
  pad = next(x for x in (ids['pad_token_id'], *ends, 0) if x is not None)
  steps = kind(imported.config, imported.heads['lm'])
  params = steps.load_params(imported.params)
  batch = {name: jnp.asarray(x) for name, x in batch.items()}
  found = engine.generate_tokens(steps, params, batch, config,
                                 OutputVocab(imported.config.vocab, ends, pad))
  added, lengths = (np.asarray(found[name]) for name in ('tokens', 'lengths'))
  # Behind the end of a beam they put padding, or where its id is 0 the end again.
  fill = pad or (*ends, 0)[0] if config.beams > 1 else pad
  added = np.where(np.arange(config.max_new) < lengths[..., None], added, fill)[..., :lengths.max()]
  rows = np.concatenate([np.repeat(tokens, config.number, 0),
                         added.reshape(len(tokens) * config.number, -1)], 1)
  got = {'sequences': rows.astype(np.int64)}
  return got | ({'sequences_scores': np.asarray(found['scores']).ravel()} if 'scores' in found
                else {})
