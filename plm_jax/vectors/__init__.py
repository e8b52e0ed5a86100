"""Word vectors: what came before the encoders. C&W's ranking, word2vec, GloVe, fastText.

    vectors = plm_jax.vectors.load('runs/word2vec-laptop')     # or GoogleNews.bin.gz, cc.en.300.bin, glove.6B.100d.txt
    vectors.nearest('king'), vectors.analogy('man', 'king', 'woman')

`corpus` turns text into ids of words, a model (`word2vec`, `glove`, `ranking`) turns ids into batches and batches into
updates of the rows that are in them, `train` is the loop; `formats` and `fasttext_bin` read and write other programs'
files, `measure` holds vectors against word similarities and analogies.
"""
from plm_jax.vectors.formats import load, save
from plm_jax.vectors.words import WordVectors

__all__ = ['WordVectors', 'load', 'save']
