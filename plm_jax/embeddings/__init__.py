"""Sentence embeddings: one vector a text, such that texts of like meaning have like vectors.

    losses       objectives of them, as values
    measures     how good they are: similarity, retrieval, how they lie in their space; whitening
    nearest      exact search among many
    encoding     vectors of texts, by a model that has learned them
    exchange     folders of sentence-transformers, both ways
    teaching     vectors that a teacher gives
    static       a vector a token, distilled from an encoder
"""
