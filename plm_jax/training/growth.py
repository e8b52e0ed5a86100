"""A vocabulary that grows by the words of a domain: each begins as the mean of the pieces that it was."""
from collections import Counter
from collections.abc import Iterable, Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import pre_tokenizers

from plm_jax.errors import ConfigError
from plm_jax.inference.loading import Trained
from plm_jax.tokenizers.wordpiece import WordPiece


def new_words(texts: Iterable[str], tokenizer: WordPiece, number: int, least: int = 5) -> list[str]:
  """Returns the most frequent words of texts that the tokenizer splits, at most `number`, that come `least` times.

  Of equally frequent ones the first in the alphabet. Words of which a part is unknown are none.
  """
  normalize, split = tokenizer.text.normalizer().normalize_str, pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  counts = Counter(word for text in texts for word, _ in split(normalize(text)))
  ranked = sorted((word for word, count in counts.items() if count >= least), key=lambda word: (-counts[word], word))
  pieces = tokenizer.encode_batch(ranked)
  return [word for word, ids in zip(ranked, pieces, strict=True)
          if len(ids) > 1 and tokenizer.vocab.unk not in ids][:number]


def wordpiece_of(trained: Trained) -> WordPiece:
  """Returns the tokenizer of a model whose vocabulary can grow. Raises ConfigError for others."""
  tokenizer = trained.tokenizer
  if not isinstance(tokenizer, WordPiece):
    kind = f'a {tokenizer.kind} tokenizer' if tokenizer else 'no tokenizer'
    raise ConfigError(f'{trained.source or "the model"} has {kind}: only a WordPiece vocabulary grows by whole words, '
                      'merges and scores of others would not find them')
  return tokenizer


def grown(trained: Trained, words: Sequence[str]) -> Trained:
  """Returns a model with whole words more in its vocabulary, behind the pieces that there are, whose ids stay.

  Rows of the token table, and where there are some of the output's matrix and bias, begin as the mean of those of the
  pieces that a word was. Raises ConfigError for a tokenizer that is no WordPiece, and for no words.
  """
  tokenizer = wordpiece_of(trained)
  if not words:
    raise ConfigError('there is no word to add: none of the text is split into pieces and comes often enough')
  old, size = tokenizer.vocab.size, trained.model.vocab
  pieces = tokenizer.encode_batch(list(words))
  larger = WordPiece([*tokenizer.pieces, *words], tokenizer.text)
  vocab = max(size, larger.vocab.size)

  def more(path, x):
    names = [entry.key for entry in path]
    of_head = names[0].startswith('heads_') and len(names) == 2 and names[1] in ('bias', 'kernel')
    axis = 0 if names[-1] in ('tokens', 'bias') else x.ndim - 1
    if not (names[-1] == 'tokens' or of_head) or x.shape[axis] != size:
      return x
    rows = np.moveaxis(np.asarray(x), axis, 0)
    made = np.concatenate([rows, np.zeros((vocab - size, *rows.shape[1:]), rows.dtype)])
    made[old:larger.vocab.size] = [rows[ids].mean(0) for ids in pieces]
    return jnp.asarray(np.moveaxis(made, 0, axis))

  params: Any = jax.tree_util.tree_map_with_path(more, trained.params)
  return dataclasses.replace(
      trained, model=dataclasses.replace(trained.model, vocab=vocab), params=params, tokenizer=larger)
