"""Word vectors, as published: C&W, word2vec, GloVe, fastText.

    python -m plm_jax train word2vec --data.path=TEXT            # skip-gram, 300 wide
    python -m plm_jax train word2vec_cbow --data.path=TEXT
    python -m plm_jax train glove --data.path=TEXT
    python -m plm_jax train fasttext --data.path=TEXT
    python -m plm_jax train cw --data.path=TEXT
    python -m plm_jax train word2vec --scale=laptop              # 2 CPU cores: a minute
    python -m plm_jax train word2vec --scale=test                # seconds

word2vec is the negative sampling of Mikolov et al. 2013 (section 3: 300 wide, 5 words of noise, a threshold of 1e-5,
words that come 5 times; a billion words of news), word2vec_cbow word2vec's demo-word.sh (200 wide, a window of 8, 25
words of noise, 15 epochs), glove the vectors of 6 billion words (Pennington et al. 2014, section 4.2: 400,000 words, a
window of 10, 300 wide, 100 epochs), fasttext the defaults of its `skipgram`, cw the first language model of Collobert
et al. 2011 (section 4.2: windows of 11 words, 50 wide, 100 hidden units, 100,000 words). Their text was split before;
here runs of letters and digits are words (--data.split), Chinese ones with --data.split=jieba.

`python -m plm_jax vectors` asks a run, or another program's file, for neighbours and analogies, measures it, and writes
it in word2vec's, GloVe's or fastText's formats.
"""
from collections.abc import Callable
import dataclasses
from typing import Any

from plm_jax import checked
from plm_jax.config import Scale
from plm_jax.vectors.corpus import WordsConfig
from plm_jax.vectors.glove import GloVe
from plm_jax.vectors.ranking import Ranking
from plm_jax.vectors.subwords import Subwords
from plm_jax.vectors.train import VectorRun, VectorTrainConfig
from plm_jax.vectors.word2vec import Word2Vec

PAPER = {
    'word2vec': VectorRun(
        'word2vec', model=Word2Vec(width=300, threshold=1e-5), train=VectorTrainConfig(epochs=1, rate=0.025)),
    'word2vec_cbow': VectorRun(
        'word2vec_cbow', model=Word2Vec('cbow', width=200, window=8, negatives=25, threshold=1e-4),
        train=VectorTrainConfig(epochs=15, rate=0.05)),
    'glove': VectorRun(
        'glove', model=GloVe(width=300), data=WordsConfig(least=1, most=400_000),
        train=VectorTrainConfig(epochs=100, rate=0.05, decay='constant')),
    'fasttext': VectorRun(
        'fasttext', model=Word2Vec(threshold=1e-4, subwords=Subwords()), data=WordsConfig(lower=False),
        train=VectorTrainConfig(epochs=5, rate=0.05)),
    'cw': VectorRun(
        'cw', model=Ranking(), data=WordsConfig(least=1, most=100_000),
        train=VectorTrainConfig(epochs=5, rate=0.01, decay='constant')),
}
SMALLER: dict[str, Callable[[Any], dict[str, Any]]] = {
    'laptop': lambda model: {
        Word2Vec: {'width': 100, 'threshold': 1e-3}, GloVe: {'width': 50, 'memory': 2_000_000}, Ranking: {}}[
            type(model)],
    'test': lambda model: {
        Word2Vec: {'width': 16, 'threshold': 1e-3, 'blocks': 2, 'words': 16, 'call': 4096, 'noise': 16},
        GloVe: {'width': 8, 'memory': 100_000, 'call': 1 << 16}, Ranking: {'width': 8, 'hidden': 8, 'call': 4096}}[
            type(model)],
}


def recipe(name: str, scale: Scale) -> VectorRun:
  """Builds the run of a name."""
  paper = PAPER[name]
  if scale == 'paper':
    return paper
  model = checked.changed(paper.model, SMALLER[scale](paper.model))
  if isinstance(model, Word2Vec) and model.subwords:
    model = dataclasses.replace(
        model, subwords=dataclasses.replace(model.subwords, buckets=100_000 if scale == 'laptop' else 1000))
  epochs = {'laptop': 10 if isinstance(model, GloVe) else 2, 'test': 1}[scale]
  return dataclasses.replace(
      paper, scale=scale, model=model, data=dataclasses.replace(paper.data, least=max(paper.data.least, 5)),
      train=dataclasses.replace(paper.train, epochs=epochs, eval_every=50, save_every=200))
