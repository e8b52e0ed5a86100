"""Public API for linguistic analysis: likelihood, minimal pairs, probes, attention, token losses.

See `plm_jax.api.models` for what all functions share.
"""
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plm_jax.api.models import Model, as_list, ensure_loaded, mesh_context
from plm_jax.errors import ConfigError
from plm_jax.evaluation import (
  attention_maps,
  probing,
  pseudo_likelihood,
  scoring,
  token_losses,
)
from plm_jax.evaluation import minimal_pairs as pairing
from plm_jax.evaluation import neighbors as neighbor_search
from plm_jax.evaluation.attention_maps import AttentionMap, HeadStatistics
from plm_jax.evaluation.minimal_pairs import JudgedPair, MinimalPair
from plm_jax.evaluation.neighbors import Neighbor
from plm_jax.evaluation.probing import ProbeConfig, ProbeResult, TaggedSentences
from plm_jax.evaluation.pseudo_likelihood import MaskingMode
from plm_jax.evaluation.token_losses import LossBin
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sources.row_readers import Columns, Example
from plm_jax.tasks.sources import read_sources


def likelihood(
    model: Model, texts: str | Sequence[str], how: MaskingMode = 'pll', start: bool = True
) -> np.ndarray:
  """Compute log-likelihoods of texts, or pseudo-log-likelihoods under a masked language model.

  >>> texts = ['Returns the array.', 'Returns the the.']
  >>> plm_jax.likelihood('runs/bert_base-laptop', texts).tolist()
  [-..., -...]

  Args:
    model: a decoder, or an encoder with a masked-language-model head
    texts: texts; those for an encoder must fit one sequence
    how: for an encoder: 'pll' masks each token in turn (Salazar et al. 2020); 'pll-word-l2r' also
      masks the tokens after it in the same word (Kauf and Ivanova 2023); 'causal' predicts each
      token from those before it, for a model that also generates text (GPT-BERT)
    start: for a decoder: whether a text begins with the token that begins texts in training

  Returns:
    [N] natural logarithms, summed over the tokens of each text.

  Raises:
    CheckpointError: the model gives no likelihood for text.
    ConfigError: a text without tokens, or too long.
  """
  trained = ensure_loaded(model)
  return np.array(make_scorer(trained, how, start)(as_list(texts)))


def minimal_pairs(
    model: Model, pairs: str | Sequence[tuple[str, str]], how: MaskingMode = 'pll',
    start: bool = True, limit: int = 0) -> list[JudgedPair]:
  """Judge minimal pairs: a good sentence should be more likely than a bad one.

  >>> pairs = [('Returns the array.', 'Returns the the.')]
  >>> judged, = plm_jax.minimal_pairs('runs/bert_base-laptop', pairs)
  >>> print(f'good {judged.good:.1f}, bad {judged.bad:.1f}')  # log-likelihoods
  good -..., bad -...

  Args:
    model, how, start: as for `likelihood`
    pairs: files in the format of BLiMP, separated by commas; or (good, bad) texts
    limit: largest number of pairs per paradigm from files; 0: all

  Returns:
    The pairs with both likelihoods, in their order. `plm_jax.evaluation.minimal_pairs` counts them
    by paradigm.

  Raises:
    CheckpointError: the model gives no likelihood for text.
    ConfigError, SourceError: a text without tokens, or too long; a file without pairs.
  """
  trained = ensure_loaded(model)
  if isinstance(pairs, str):
    found = list(pairing.read_pairs(pairs, limit))
  else:
    found = [MinimalPair(good, bad, 'pairs') for good, bad in pairs]
  return pairing.judge_pairs(make_scorer(trained, how, start), found)


def probe(
    model: Model, train: str, test: str, columns: Columns = Columns(),
    config: ProbeConfig = ProbeConfig()) -> ProbeResult:
  """Train linear probes on every layer to measure its knowledge of words (`evaluation.probing`).

  >>> found = plm_jax.probe('runs/bert_base-laptop', 'train.conll', 'test.conll')
  >>> [layer.layer for layer in found.layers], len(found.layers[0].accuracy)
  ([0, 1, 2], 3)

  Args:
    model: any model with a tokenizer; of an encoder-decoder its encoder is probed
    train: training sentences, words and tags in columns
    test: test sentences; a tag that training does not have is refused
    columns: names of the columns with the words and with the tags
    config: how probes are trained

  Raises:
    CheckpointError: the model has no tokenizer.
    SourceError, ConfigError: a file without tagged words, or a word longer than a sequence.
  """
  train_set = read_sources('tagging', [train], columns)
  test_set = read_sources('tagging', [test], columns, train_set.labels, use='dev')
  seen, unseen = tagged_sentences(train_set.examples), tagged_sentences(test_set.examples)
  return probing.probe(ensure_loaded(model), seen, unseen, config)


def tagged_sentences(examples: Sequence[Example]) -> TaggedSentences:
  """Return the words and tags of examples of token classification."""
  tags: Any = [example.label for example in examples]
  return TaggedSentences([example.texts for example in examples], tags)


def attention(
    model: Model, texts: str | Sequence[str], maps: int = 4
) -> tuple[list[HeadStatistics], list[AttentionMap]]:
  """Measure what attention heads attend to, averaged over texts, and return attention maps.

  >>> heads, maps = plm_jax.attention('runs/bert_base-laptop', 'Returns the mean of the array.')
  >>> print(f'layer {heads[0].layer}, head {heads[0].head}: {heads[0].role}')
  layer ..., head ...: ...

  Args:
    model: any model but an ELMo; of an encoder-decoder its encoder is used
    texts: sentences, with spaces between words
    maps: number of texts, from the first, whose attention maps are returned

  Returns:
    `evaluation.attention_maps.HeadStatistics` for each head, and an `AttentionMap` for each of the
    first texts.

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: an ELMo, no text, or a word longer than a sequence.
  """
  sentences = [tuple(text.split()) for text in as_list(texts) if text.strip()]
  if not sentences:
    raise ConfigError('there is nothing to look at: give texts with words')
  return attention_maps.analyze_heads(ensure_loaded(model), sentences, maps)


def losses(
    model: Model, texts: str | Sequence[str], corpus: Sequence[str] = ()
) -> tuple[list[LossBin], list[LossBin]]:
  """Compute token losses by the frequency of tokens and by their position.

  >>> by_frequency, by_place = plm_jax.losses(
  ...     'runs/gpt2_small-laptop', ['Returns the array.', 'Returns its index.'])
  >>> print(f'loss {by_place[0].nats:.2f}, {by_place[0].tokens} tokens')
  loss ..., ... tokens

  Args:
    model: a decoder, which predicts a token from those before it; or an encoder, in which each
      token is masked in turn
    texts: texts to predict; a text longer than a sequence is read as several
    corpus: texts in which token frequencies are counted, such as the training text; empty: `texts`

  Returns:
    Objects of `evaluation.token_losses.LossBin` by frequency, and by position.

  Raises:
    CheckpointError: the model gives no likelihood for tokens.
    ConfigError: there is no token to predict.
  """
  trained = ensure_loaded(model)
  found = token_losses.compute_losses(trained, as_list(texts))
  counts = token_losses.count_tokens(trained, corpus or as_list(texts))
  by_frequency = token_losses.group_by_frequency(found, counts)
  return by_frequency, token_losses.group_by_position(found)


def neighbors(
    model: Model, sentence: str, among: Sequence[str], layer: int = -1, top: int = 10
) -> tuple[list[tuple[str, float]], list[Neighbor]]:
  """Find the nearest neighbors of a word, by its embedding and by its vector in context.

  >>> alone, nearby = plm_jax.neighbors(
  ...     'runs/bert_base-laptop', 'Returns the *array* .', ['Returns the array .'])
  >>> nearby[0].word, len(alone)
  ('array', 10)

  Args:
    model: any model with a tokenizer; an ELMo has words in context only
    sentence: words between spaces, one of them between stars
    among: sentences whose words are candidates in context
    layer: layer of the vectors: 0 the embeddings, -1 the last layer
    top: number of neighbors of each kind

  Returns:
    Tokens nearest to the word's own in the embedding table, with cosine similarities; and words of
    `among` nearest to the word in its sentence, with cosine similarities and their sentences.

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: not exactly one word is between stars, there are no sentences to search, or the
      model does not have the layer.
  """
  return neighbor_search.find_neighbors(ensure_loaded(model), sentence, among, layer, top)


def make_scorer(
    trained: LoadedModel, how: MaskingMode, start: bool
) -> Callable[[Sequence[str]], list[float]]:
  """Return a function that scores texts; see `likelihood`.

  Raises:
    CheckpointError: the model gives no likelihood for text.
    ConfigError: the model cannot score in this way.
  """
  if 'mlm' in trained.heads and how != 'causal':
    masked = pseudo_likelihood.make_pseudo_scorer(trained, how)
    return lambda texts: [found.logprob for found in masked.score(texts)]
  if how == 'causal' and not trained.lm_head_name:
    raise ConfigError('causal is for models that predict the next token: a '
                      f'{trained.family} only fills masks')
  if how == 'pll-word-l2r':
    raise ConfigError(f'{how} is for models that fill masks: a {trained.family} reads from left to '
                      'right')
  with mesh_context(trained):
    causal = scoring.make_scorer(trained, start, trained.mesh)

  def score_texts(texts: Sequence[str]) -> list[float]:
    pairs = [('', text) for text in texts]
    return [found.logprob for found in causal.score(pairs)]

  return score_texts
