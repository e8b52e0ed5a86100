"""What a model knows of language: how likely it finds texts, which of two it finds likelier, what its layers know of
words, and where its heads look.

Part of the front door (`plm_jax.api`), whose way to say things it shares.
"""
from collections.abc import Sequence

import numpy as np

from plm_jax.api import Model, on, opened, several
from plm_jax.errors import ConfigError
from plm_jax.evaluation import attending, by_token, nearby, probing, pseudo, scoring
from plm_jax.evaluation import minimal_pairs as pairing
from plm_jax.evaluation.attending import Head, Map
from plm_jax.evaluation.by_token import Bin
from plm_jax.evaluation.minimal_pairs import Judged, Pair
from plm_jax.evaluation.nearby import Nearby
from plm_jax.evaluation.probing import ProbeConfig, Probed, Tagged
from plm_jax.evaluation.pseudo import How
from plm_jax.inference.loading import Trained
from plm_jax.tasks.reading import Columns
from plm_jax.tasks.sources import examples


def likelihood(model: Model, texts: str | Sequence[str], how: How = 'pll', start: bool = True) -> np.ndarray:
  """Scores whole texts: by their likelihood where a model reads from left to right, by their pseudo-likelihood where it
  fills masks.

  >>> good, bad = plm_jax.likelihood('runs/bert_base-laptop', ['Returns the array.', 'Returns the the.'])

  Args:
    model: a decoder, or an encoder with a masked language model head
    texts: of a row at most, where an encoder reads them
    how: of an encoder: 'pll' masks each token in turn (Salazar et al. 2020), 'pll-word-l2r' those of its word behind
      it too (Kauf and Ivanova 2023); causal: of one that writes texts too (GPT-BERT), each from those before it
    start: of a decoder: a text begins with the token that begins texts in training

  Returns:
    [N] logarithms, natural, of all tokens of a text together.

  Raises:
    CheckpointError: the model gives texts no probability.
    ConfigError: a text without tokens, or too long.
  """
  trained = opened(model)
  return np.array(scorer(trained, how, start)(several(texts)))


def minimal_pairs(model: Model, pairs: str | Sequence[tuple[str, str]], how: How = 'pll', start: bool = True,
                  limit: int = 0) -> list[Judged]:
  """Judges pairs of sentences, of which the first should be likelier than the second.

  >>> judged, = plm_jax.minimal_pairs('runs/bert_base-laptop', [('Returns the array.', 'Returns the the.')])
  >>> judged.right == (judged.good > judged.bad)
  True

  Args:
    model, how, start: as of `likelihood`
    pairs: files of BLiMP's form, by commas; or a list of two texts each
    limit: of files, pairs of a paradigm at most; 0: all

  Returns:
    The pairs with what both got, in their order; `plm_jax.evaluation.minimal_pairs` counts them by paradigm.

  Raises:
    CheckpointError: the model gives texts no probability.
    ConfigError, SourceError: a text without tokens, or too long; a file without pairs.
  """
  trained = opened(model)
  found = [*pairing.read(pairs, limit)] if isinstance(pairs, str) else [
      Pair(good, bad, 'pairs', '', '') for good, bad in pairs]
  return pairing.evaluate(scorer(trained, how, start), found)


def probe(model: Model, train: str, test: str, columns: Columns = Columns(), config: ProbeConfig = ProbeConfig()
          ) -> Probed:
  """Probes every layer for what it knows of words, by linear classifiers (`evaluation.probing`).

  >>> found = plm_jax.probe('runs/bert_base-laptop', 'train.conll', 'test.conll')
  >>> [layer.layer for layer in found.layers], len(found.layers[0].accuracy)
  ([0, 1, 2], 3)

  Args:
    model: any with a tokenizer; of an encoder-decoder its encoder is probed
    train: sentences to learn from, words and tags in columns
    test: sentences to be asked; a tag that training never had is refused
    columns: which has the words, and which the tags
    config: how probes learn

  Raises:
    CheckpointError: the model has no tokenizer.
    SourceError, ConfigError: a file without tagged words; a word longer than a row.
  """
  seen = examples('tagging', [train], columns)
  asked = examples('tagging', [test], columns, seen.labels, use='dev')
  first, second = [Tagged([one.texts for one in some.examples], [tags_of(one.label) for one in some.examples])
                   for some in (seen, asked)]
  return probing.probe(opened(model), first, second, config)


def tags_of(label) -> tuple[int, ...]:
  """Returns the tags of a sentence that has some."""
  assert isinstance(label, tuple)
  return label


def attention(model: Model, texts: str | Sequence[str], maps: int = 4) -> tuple[list[Head], list[Map]]:
  """Looks where the heads of a model look, on average over texts; and keeps the maps of the first of these.

  >>> heads, maps = plm_jax.attention('runs/bert_base-laptop', 'Returns the mean of the array.')
  >>> previous = [f'{head.layer}.{head.head}' for head in heads if head.role == 'previous']

  Args:
    model: any but an ELMo; of an encoder-decoder its encoder
    texts: sentences, whose words are what stands between spaces
    maps: how many of the texts are kept, the first

  Returns:
    `evaluation.attending.Head` for each head, and `Map` for each text that was kept.

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: an ELMo; no text; a word longer than a row.
  """
  sentences = [words for text in several(texts) if (words := tuple(text.split()))]
  if not sentences:
    raise ConfigError('there is nothing to look at: give texts with words')
  return attending.look(opened(model), sentences, maps)


def losses(model: Model, texts: str | Sequence[str], corpus: Sequence[str] = ()) -> tuple[list[Bin], list[Bin]]:
  """Measures how hard tokens are to predict, by how often they were met and by where they stand.

  >>> by_frequency, by_place = plm_jax.losses('runs/gpt2_small-laptop', ['Returns the array.', 'Returns its index.'])
  >>> sum(one.tokens for one in by_place) == sum(one.tokens for one in by_frequency)
  True

  Args:
    model: a decoder, which predicts a token from those before it; or an encoder, in which each is masked in turn
    texts: what is predicted; a text that is longer than a row is read as several
    corpus: texts in which tokens are counted, those that the model has learned from, say; empty: `texts`

  Returns:
    `evaluation.by_token.Bin` by frequency, and by place.

  Raises:
    CheckpointError: the model gives tokens no probability.
    ConfigError: there is no token to predict.
  """
  trained = opened(model)
  found = by_token.losses(trained, several(texts))
  return by_token.by_frequency(found, by_token.counts(trained, corpus or several(texts))), by_token.by_place(found)


def neighbours(model: Model, sentence: str, among: Sequence[str], layer: int = -1, top: int = 10
               ) -> tuple[list[tuple[str, float]], list[Nearby]]:
  """Finds what is near a word, in and out of context.

  >>> alone, nearby = plm_jax.neighbours('runs/bert_base-laptop', 'Returns the *array* .', ['Returns the array .'])
  >>> nearby[0].word, len(alone)
  ('array', 10)

  Args:
    model: any with a tokenizer; an ELMo has words in context alone
    sentence: words between spaces, one of them between stars
    among: sentences in whose words the neighbours in context are looked for
    layer: whose vectors are compared: 0 the embeddings, -1 the last
    top: neighbours of each kind

  Returns:
    Tokens near the word's own in the table of embeddings, with cosines; words of `among` near the word as it stands
    in its sentence, with cosines and their sentences.

  Raises:
    CheckpointError: the model has no tokenizer.
    ConfigError: no word is between stars, or several; no sentence to look in; a layer that the model does not have.
  """
  return nearby.neighbours(opened(model), sentence, among, layer, top)


def scorer(trained: Trained, how: How, start: bool):
  """Makes what scores texts -> a list of numbers. Raises CheckpointError, ConfigError."""
  if 'mlm' in trained.heads and how != 'causal':
    asked = pseudo.of(trained, how)
    return lambda texts: [found.logprob for found in asked.score(texts)]
  if how == 'causal' and not trained.writer:
    raise ConfigError(f'causal is of models that predict what comes next: a {trained.family} fills masks alone')
  if how == 'pll-word-l2r':
    raise ConfigError(f'{how} is of models that fill masks: a {trained.family} reads from left to right')
  with on(trained):
    reads = scoring.of(trained, start, trained.mesh)
  return lambda texts: [found.logprob for found in reads.score([('', text) for text in texts])]
