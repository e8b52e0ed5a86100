"""Word vectors: Collobert and Weston's ranking model, word2vec, GloVe and fastText.

    from plm_jax import word_vectors
    vectors = word_vectors.load('runs/word2vec-laptop')
    vectors.nearest('king'), vectors.analogy('man', 'king', 'woman')

`load` also reads files of other programs: GoogleNews.bin.gz, cc.en.300.bin, glove.6B.100d.txt.

`word_corpus` turns text into ids of words. A model (`word2vec`, `glove`, `ranking`) turns ids into
batches, and batches into updates of the table rows in them. `train` is the training loop. `formats`
and `fasttext_bin` read and write other programs' files. `evaluation` scores vectors on word
similarity and analogies. `token_vectors` trains vectors of the tokens of a vocabulary.

May import `training`, `data` and what is below them; the API, the command line, recipes, runs and
cleaning use it.
"""
from plm_jax.word_vectors.formats import load, save
from plm_jax.word_vectors.vectors import WordVectors

__all__ = ['WordVectors', 'load', 'save']
