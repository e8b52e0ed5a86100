"""fastText vectors of tokens, trained on token records: the auxiliary vectors of FOCUS."""
from collections.abc import Sequence
import itertools

from etils import epath
import jax
import numpy as np

from plm_jax import storage
from plm_jax.data import records
from plm_jax.errors import ConfigError, name_field
from plm_jax.storage.digests import compute_digest
from plm_jax.tokenizers import Tokenizer
from plm_jax.word_vectors import train
from plm_jax.word_vectors.subwords import Subwords
from plm_jax.word_vectors.word2vec import Word2Vec
from plm_jax.word_vectors.word_corpus import Sentences, Vocabulary, WordCorpus

MAX_TOKENS = 50_000_000
"""tokens of the text that vectors are trained on, from its beginning"""
LEAST = 10
"""minimum count of a token that gets a vector"""
BUCKETS_PER_TOKEN = 16
"""rows of n-grams per token, at most those of fastText: tokens are short, and share n-grams"""


def train_token_vectors(folders: Sequence[epath.Path], tokenizer: Tokenizer) -> np.ndarray:
  """Train fastText vectors [V, D] of the tokens in records; zeros for rare tokens.

  The settings are those of konstantinjdobler/focus: CBOW of width 100 with 10 negative samples,
  three epochs, tokens with 10 occurrences or more (src/deepfocus/focus.py, lines 104 to 106,
  and fasttext_embs.py, lines 83 to 93). The result is in the cache, and is resumed from there.

  Raises:
    ConfigError: the job has several processes, or the text is too short.
  """
  if jax.process_count() > 1:
    raise ConfigError(f'{name_field("tuning.vocabulary")}=focus trains vectors in one process: '
                      'make one step in one process first, and start the job from that run')
  corpus, kept = read_corpus(folders, tokenizer)
  if len(kept) < 2:
    raise ConfigError(f'{name_field("tuning.vocabulary")}=focus needs text in which tokens occur '
                      f'{LEAST} times or more: give more text, or mean')
  buckets = min(Subwords().buckets, BUCKETS_PER_TOKEN * len(kept))
  model = Word2Vec('cbow', negatives=10, threshold=1e-4, power=0.5,
                   subwords=Subwords(buckets=buckets))
  name = compute_digest(f'{corpus.digest} {tokenizer.hash}')[:32]
  run = train.VectorRun(
      'token_vectors', output=str(storage.cache_folder() / 'token_vectors' / name), model=model,
      train=train.VectorTrainConfig(epochs=3, rate=0.05))
  print(f'training fastText vectors of {len(kept):,} tokens', flush=True)
  result = train.train(run, corpus)
  if not result.finished:
    raise KeyboardInterrupt
  vectors = np.zeros((tokenizer.vocab.size, model.width), np.float32)
  vectors[kept] = result.vectors.matrix
  return vectors


def read_corpus(
    folders: Sequence[epath.Path], tokenizer: Tokenizer) -> tuple[WordCorpus, np.ndarray]:
  """Read the training text of records as sentences of tokens, without special and rare ones.

  Returns:
    The corpus, and the ids of the tokens that its rows stand for.
  """
  ids, lengths, room = [], [], MAX_TOKENS
  shards = itertools.chain.from_iterable(
      [(folder, shard) for shard in records.read_meta(folder).train] for folder in folders)
  for folder, shard in shards:
    if room <= 0:
      break
    tokens = records.open_tokens(folder, shard)['token'][:room]
    starts = records.read_sentences(folder, shard)['start']
    ids.append(np.asarray(tokens, np.int64))
    lengths.append(np.diff(np.append(starts[starts < len(tokens)], len(tokens))))
    room -= len(tokens)
  flat = np.concatenate([np.zeros(0, np.int64), *ids])
  counts = np.bincount(flat, minlength=tokenizer.vocab.size)
  counts[list(tokenizer.vocab.specials)] = 0
  order = np.lexsort((np.arange(len(counts)), -counts))
  kept = order[counts[order] >= LEAST]
  rank = np.full(len(counts), -1, np.int32)
  rank[kept] = np.arange(len(kept))
  rows = rank[flat]
  # Starts of the sentences among the tokens that are kept.
  before = np.concatenate([[0], np.cumsum(rows >= 0)])
  starts = before[np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, int), *lengths]))])]
  nothing = Sentences(np.zeros(0, np.int32), np.zeros(1, np.int64))
  words = Vocabulary(tuple(tokenizer.pieces[i] for i in kept), counts[kept])
  return WordCorpus(words, Sentences(rows[rows >= 0], starts), nothing), kept
