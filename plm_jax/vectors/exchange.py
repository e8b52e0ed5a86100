"""What is learned here as fastText's .bin, with which fastText and gensim go on."""
import numpy as np

from plm_jax.errors import ConfigError
from plm_jax.vectors import fasttext_bin
from plm_jax.vectors.fasttext_bin import Arguments, FastText
from plm_jax.vectors.train import VectorRun
from plm_jax.vectors.vocabulary import Vocabulary
from plm_jax.vectors.word2vec import Word2Vec


def fasttext_of(run: VectorRun, vocabulary: Vocabulary, params: dict[str, np.ndarray]) -> FastText:
  """Makes the .bin of a run. Raises ConfigError for a model that fastText has none of.

  Along a Huffman tree fastText asks for the branch 1 where word2vec asks for the branch 0, so nodes change their signs
  (loss.cc, HierarchicalSoftmaxLoss); its matrix has a row more than the tree has nodes.
  """
  model = run.model
  if not isinstance(model, Word2Vec):
    raise ConfigError(f'fastText has no model like {type(model).__name__}: give another --form')
  output = params['output']
  if model.loss == 'hierarchical':
    output = np.append(-output, np.zeros((1, model.width), output.dtype), 0)
  subwords = model.subwords
  arguments = Arguments(
      width=model.width, window=model.window, epochs=run.train.epochs, least=run.data.least, negatives=model.negatives,
      word_ngrams=1, loss=fasttext_bin.LOSSES[model.loss], model=fasttext_bin.MODELS[model.kind],
      buckets=subwords.buckets if subwords else 0, shortest=subwords.shortest if subwords else 0,
      longest=subwords.longest if subwords else 0, rate_every=100, threshold=model.threshold)
  return FastText(
      arguments, vocabulary.words, (), tuple(map(int, vocabulary.counts)), vocabulary.total, params['input'], output)
