"""Parts that every model is wired from.

One legend of dimensions, for docstrings, comments and einsums of the whole project:

    B batch   L length   Q/K query/key length   M predicted positions   D width   E embedding width
    H heads   G key heads   A head size   F MLP width   V vocabulary   R relative buckets   N layers   C classes

Parameters are float32 and computed with in `dtype`; softmax, norms and losses are float32 whatever `dtype` is.
"""
