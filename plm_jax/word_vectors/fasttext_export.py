"""Export of word2vec runs to fastText's .bin, which fastText and gensim can train further."""
import numpy as np

from plm_jax.errors import ConfigError, name_field
from plm_jax.word_vectors import fasttext_bin
from plm_jax.word_vectors.fasttext_bin import FastTextArguments, FastTextModel
from plm_jax.word_vectors.train import VectorRun
from plm_jax.word_vectors.vocabulary import Vocabulary
from plm_jax.word_vectors.word2vec import Word2Vec


def to_fasttext(
    run: VectorRun, vocabulary: Vocabulary, params: dict[str, np.ndarray]) -> FastTextModel:
  """Convert the trained tables of a run to a fastText model.

  Along a Huffman tree fastText predicts branch 1 where word2vec predicts branch 0, so nodes change
  their signs (loss.cc, HierarchicalSoftmaxLoss). Its matrix has one row more than the tree has
  nodes.

  Raises:
    ConfigError: fastText has no such model.
  """
  model = run.model
  if not isinstance(model, Word2Vec):
    raise ConfigError(f'fastText has no model like {type(model).__name__}: give another '
                      f'{name_field("form")}')
  output = params['output']
  if model.loss == 'hierarchical':
    output = np.append(-output, np.zeros((1, model.width), output.dtype), 0)
  shortest = longest = buckets = 0
  if subwords := model.subwords:
    shortest, longest, buckets = subwords.shortest, subwords.longest, subwords.buckets
  arguments = FastTextArguments(
      width=model.width, window=model.window, epochs=run.train.epochs, least=run.data.least,
      negatives=model.negatives, word_ngrams=1, loss=fasttext_bin.LOSSES[model.loss],
      model=fasttext_bin.MODELS[model.kind], buckets=buckets, shortest=shortest, longest=longest,
      rate_every=100, threshold=model.threshold)
  counts = tuple(map(int, vocabulary.counts))
  return FastTextModel(
      arguments, vocabulary.words, (), counts, vocabulary.total, params['input'], output)
