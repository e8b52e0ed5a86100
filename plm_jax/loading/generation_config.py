"""Generation settings: options of the user, and those in a checkpoint's files of transformers.

The files are config.json, generation_config.json and the tokenizer's configuration. Options of
the user come before them.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any, Literal

from plm_jax import validation
from plm_jax.conversion import ConvertError, ImportedCheckpoint
from plm_jax.tokenizers.contract import abbreviate
from plm_jax.validation import ValidatedConfig, intervals

FIELD_NAMES = {
    'num_beams': 'beams', 'length_penalty': 'length_penalty', 'num_return_sequences': 'number',
    'repetition_penalty': 'repetition_penalty', 'no_repeat_ngram_size': 'no_repeat_ngram',
    'max_new_tokens': 'max_new', 'min_new_tokens': 'min_new', 'forced_bos_token_id': 'forced_first',
    'forced_eos_token_id': 'forced_last'}
"""Attribute of transformers -> field of `GenerationConfig`, for settings that mean the same."""
SAMPLING_DEFAULTS = {'temperature': 1.0, 'top_k': 50, 'top_p': 1.0, 'min_p': 0.0}
"""Defaults of transformers."""
UNSUPPORTED = {
    'begin_suppress_tokens': (), 'diversity_penalty': (0.0,), 'encoder_no_repeat_ngram_size': (0,),
    'encoder_repetition_penalty': (1.0,), 'epsilon_cutoff': (0.0,), 'eta_cutoff': (0.0,),
    'exponential_decay_length_penalty': (), 'guidance_scale': (1.0,), 'num_beam_groups': (1,),
    'penalty_alpha': (0.0,), 'sequence_bias': (), 'stop_strings': (), 'top_h': (),
    'typical_p': (1.0,)}
"""Settings that change the text and are not implemented here, with the values that have no
effect."""
OTHER_SETTINGS = frozenset({
    '_from_model_config', 'bad_words_ids', 'bos_token_id', 'cache_config', 'cache_implementation',
    'compile_config', 'decoder_start_token_id', 'disable_compile', 'do_sample', 'early_stopping',
    'eos_token_id', 'low_memory', 'max_length', 'min_length', 'output_attentions',
    'output_hidden_states', 'output_logits', 'output_scores', 'pad_token_id', 'prefill_chunk_size',
    'remove_invalid_values', 'return_dict_in_generate', 'suppress_tokens', 'transformers_version',
    'trust_remote_code', 'use_cache'})
"""Settings that are read elsewhere, or that do not change the text."""
BEAM_OPTIONS = ('beams', 'length_penalty', 'early_stopping')
SAMPLING_OPTIONS = ('temperature', 'top_k', 'top_p', 'min_p')


@dataclasses.dataclass(frozen=True)
class GenerationConfig(ValidatedConfig):
  """Options of text generation: length, sampling, and beam search."""

  limits = intervals(
      max_new='[1, 1048576]', top_p='(0, 1]', min_p='[0, 1]', beams='[1, 4096]',
      length_penalty='[-100, 100]', number='[1, 65536]', repetition_penalty='(0, inf)',
      forced_first='[-1, inf)', forced_last='[-1, inf)', steps='[0, 1048576]')
  counts_with = dict.fromkeys(('length_penalty', 'early_stopping'), ('beams', range(2, 4097)))
  counts_with |= dict(hole_order=('hole', None))

  max_new: int = 64
  """Maximum number of new tokens."""
  min_new: int = 0
  """Minimum number of new tokens."""
  temperature: float = 0.0
  """Sampling temperature, which divides the logits. 0: greedy decoding, or beam search with
  --beams."""
  top_k: int = 0
  """Top-k sampling: sample from the k most likely tokens. 0: off."""
  top_p: float = 1.0
  """Nucleus (top-p) sampling: sample from the smallest set of most likely tokens whose
  probabilities sum to at least this value. 1: off."""
  min_p: float = 0.0
  """Min-p sampling: sample from tokens with at least this fraction of the top token's probability.
  0: off."""
  beams: int = 1
  """Beam search: number of beams. 1: no beam search."""
  length_penalty: float = 1.0
  """Length penalty: exponent of the length (including the end token) by which a beam's log
  probability is divided. Larger values favor longer texts."""
  early_stopping: Literal['full', 'heuristic', 'never'] = 'heuristic'
  """When beam search stops. full: when there are as many finished texts as --beams; heuristic: when
  no unfinished beam, scored at its present length, beats the finished texts; never: when no
  unfinished beam can beat them at any length (`early_stopping` in transformers: True, False and
  "never")."""
  number: int = 1
  """Number of texts per prompt: samples, or the best beams."""
  repetition_penalty: float = 1.0
  """Repetition penalty: values above 1 make tokens that the prompt or the text already contains
  less likely. 1: off."""
  no_repeat_ngram: int = 0
  """Never generate an n-gram of this length twice, including those in the prompt. 0: off."""
  forced_first: int = -1
  """Id of the first new token (BART). -1: not forced."""
  forced_last: int = -1
  """Id of the token at the last position, --max-new (BART). -1: not forced."""
  stop: tuple[str, ...] = ()
  """Stop sequences: the text ends before the first occurrence of any of these strings."""
  hole: str = ''
  """Fill in the middle: mark of the hole in each prompt, such as <FILL>, which generated text
  replaces. For decoders trained with --data.prepare.fim-rate, and released ones with such tokens.
  """
  hole_order: Literal['psm', 'spm'] = 'psm'
  """Order of the text around the hole for the model. psm: prefix, suffix; spm: suffix, prefix."""
  start: bool = True
  """Prepend the start token to each prompt, as in training. transformers does not prepend one for
  GPT-2 and GPT-Neo, whose training sequences began anywhere in a text."""
  order: Literal['auto', 'random', 'confidence'] = 'auto'
  """Order in which a masked language model unmasks the --max-new new tokens: random, or the most
  confident predictions first. auto: random for a model of masked diffusion; other masked language
  models generate only with random or confidence."""
  steps: int = 0
  """Number of unmasking steps of a masked language model. Fewer steps are faster and predict
  several tokens independently. 0: one step per new token."""

  def conflict(self, option):
    if self.min_new > self.max_new:
      return (f'{option("min_new")} is {option("max_new")} at most, got {self.min_new} and '
              f'{self.max_new}')
    if 0 < self.temperature < 1e-3:
      return f'{option("temperature")} is 0, or 0.001 or more, got {self.temperature}'
    if '' in self.stop:
      return f'{option("stop")}: a stop sequence is empty'
    if self.beams > 1 and self.temperature > 0:
      return f'beam search does not sample: leave {option("temperature")} or {option("beams")} out'
    if self.beams > 1 and self.number > self.beams:
      return f'{option("number")}: {self.beams} beams do not give {self.number} sequences'
    if self.beams == 1 and not self.temperature and self.number > 1:
      return (f'{option("number")}: the likeliest tokens give one sequence, not {self.number}: '
              f'give {option("temperature")} or {option("beams")}')
    neutral = {'top_k': 0, 'top_p': 1, 'min_p': 0}
    sampling = [option(name) for name, value in neutral.items() if getattr(self, name) != value]
    if not self.temperature and sampling:
      return f'{" and ".join(sampling)} is for sampling: give {option("temperature")} too'
    return None

  @property
  def rows(self) -> int:
    """Number of sequences that a prompt becomes."""
    return max(self.beams, self.number)


@dataclasses.dataclass(frozen=True)
class GenerationDefaults:
  """Generation settings of a checkpoint, where a user gives no others."""

  end_ids: tuple[int, ...] = ()
  """Ids that end a text; empty: the tokenizer's."""
  start_id: int = -1
  """Id with which a decoder starts; -1: as in training here."""
  suppressed_ids: tuple[int, ...] = ()
  """Ids that are never generated."""
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  """Fields of `GenerationConfig`."""
  unsupported: tuple[str, ...] = ()
  """Settings of the files that are not implemented here."""

  def __bool__(self) -> bool:
    return self != GenerationDefaults()

  def describe(self, pieces: list[str] | None = None) -> str:
    """Describe the settings in one line."""
    def name(token):
      return f'{pieces[token]} ({token})' if pieces and token < len(pieces) else str(token)
    parts = []
    if self.end_ids:
      parts.append(f'ends at {" or ".join(name(token) for token in self.end_ids)}')
    if self.start_id >= 0:
      parts.append(f'begins with {name(self.start_id)}')
    if self.suppressed_ids:
      parts.append(f'never writes {len(self.suppressed_ids):,} tokens')
    parts += [f'{option}={value}' for option, value in self.options.items()]
    if self.unsupported:
      parts.append(f'not implemented: {", ".join(self.unsupported)}')
    return '; '.join(parts)


def read_generation_defaults(imported: ImportedCheckpoint) -> GenerationDefaults:
  """Read the generation settings of a checkpoint's files.

  As in transformers, settings in config.json count only where there is no generation_config.json.

  Raises:
    ConvertError: a setting has a value that it cannot take.
  """
  kind, rows = imported.config.kind, getattr(imported.config, 'vocab', 0)
  if kind not in ('decoder', 'encoder-decoder') or 'lm' not in imported.heads:
    return GenerationDefaults()
  said = imported.generation or imported.extra
  stated = {name: value for name, value in said.items() if value is not None}
  options: dict[str, Any] = {}
  for theirs, ours in FIELD_NAMES.items():
    if theirs in stated:
      value = stated[theirs]
      is_single = isinstance(value, list) and len(value) == 1
      options[ours] = value[0] if is_single else value
  unsupported = find_unsupported(stated, imported, options)
  if kind == 'encoder-decoder':  # where a length counts the token with which the decoder begins
    for theirs, ours in (('max_length', 'max_new'), ('min_length', 'min_new')):
      if theirs in stated and ours not in options and type(stated[theirs]) is int:
        options[ours] = stated[theirs] - 1
  if 'early_stopping' in stated:
    names = {True: 'full', False: 'heuristic'}
    options['early_stopping'] = names.get(stated['early_stopping'], 'never')
  if stated.get('do_sample') and options.get('beams', 1) == 1:
    options |= {name: stated.get(name, value) for name, value in SAMPLING_DEFAULTS.items()}
  longest = imported.config.max_length
  if longest and type(options.get('max_new')) is int and options['max_new'] >= longest:
    options['max_new'] = longest - 1
  if type(options.get('max_new')) is int and options['max_new'] < 1:
    del options['max_new']
  usual = GenerationConfig()
  options = {name: value for name, value in options.items() if value != getattr(usual, name)}
  try:
    dataclasses.replace(usual, **options)
  except ValueError as error:
    raise ConvertError(
        f'the generation settings of the checkpoint cannot be used: {error}') from error
  words = [word for word in stated.get('bad_words_ids') or () if isinstance(word, list)]
  single_tokens = [word[0] for word in words if len(word) == 1]
  barred = set(stated.get('suppress_tokens') or ()).union(single_tokens)
  if wrong := [one for one in barred if type(one) is not int]:
    raise ConvertError(f'suppress_tokens and bad_words_ids are ids, got {abbreviate(wrong[0])}')
  known = min(rows, imported.tokenizer.vocab.size) if imported.tokenizer else rows
  start: Any = stated.get('decoder_start_token_id', imported.extra.get('decoder_start_token_id'))
  usable = kind == 'encoder-decoder' and type(start) is int and 0 <= start < rows
  if not usable:
    start = -1
  suppressed = sorted(one for one in barred if 0 <= one < known)
  return GenerationDefaults(
      imported.end_ids, start, tuple(suppressed), options, unsupported)


def find_unsupported(
    stated: Mapping[str, Any], imported: ImportedCheckpoint, options: Mapping[str, Any],
) -> tuple[str, ...]:
  """Find the settings that change the text and are not implemented here.

  Args:
    stated: the settings of the checkpoint that are not null.
    imported: the checkpoint.
    options: fields of `GenerationConfig` for settings that mean the same.
  """
  found = []
  if imported.config.kind == 'decoder':  # where these lengths count the prompt
    for theirs, ours in (('max_length', 'max_new'), ('min_length', 'min_new')):
      if stated.get(theirs) and ours not in options:
        found.append(theirs)
  if stated.get('do_sample') and options.get('beams', 1) != 1:
    found.append('do_sample with num_beams')
    found += [name for name, usual in SAMPLING_DEFAULTS.items() if stated.get(name, usual) != usual]
  for name, neutral in UNSUPPORTED.items():
    if name in stated and stated[name] not in (*neutral, [], {}):
      found.append(name)
  known = FIELD_NAMES.keys() | SAMPLING_DEFAULTS.keys() | UNSUPPORTED.keys() | OTHER_SETTINGS
  found += [name for name, value in imported.generation.items()
            if value and name not in known and 'assistant' not in name]
  words = [word for word in stated.get('bad_words_ids') or () if isinstance(word, list)]
  if any(len(word) > 1 for word in words):
    found.append('bad_words_ids of several tokens')
  return tuple(found)


def resolve_generation_config(
    defaults: GenerationDefaults, config: GenerationConfig | None, options: Mapping[str, Any],
) -> GenerationConfig:
  """Resolve the settings of one call: the user's options, on `config` or on the checkpoint's
  defaults.

  Defaults that contradict an option are dropped: beams where tokens are sampled, and the reverse.
  """
  if config is not None:
    return validation.with_overrides(config, options)
  base = dict(defaults.options)
  dropped: set[str] = set()
  if options.get('temperature'):
    dropped |= set(BEAM_OPTIONS)
  if options.get('beams', 1) != 1 or options.get('temperature', 1) == 0:
    dropped |= set(SAMPLING_OPTIONS)
  if options.get('beams') == 1:
    dropped |= set(BEAM_OPTIONS)
  if 'number' not in options and dropped:
    dropped.add('number')
  if options.get('max_new', base.get('max_new', GenerationConfig.max_new)) < base.get('min_new', 0):
    dropped.add('min_new')
  base = {name: value for name, value in base.items() if name not in dropped}
  with validation.defer_checks():
    config = dataclasses.replace(GenerationConfig(), **base)
  return validation.with_overrides(config, options)
