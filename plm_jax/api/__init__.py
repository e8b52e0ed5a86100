"""Public API: the functions of `import plm_jax`, one module per subject.

    models      load, train, fill masks, generate, export
    scoring     likelihoods of continuations, perplexity
    transfer    fine-tune, predict, tag, answer
    similarity  encode, compare, search, distill text vectors
    retrieval   mine negatives, evaluate retrieval and reranking
    mteb_adapter    evaluate by the package mteb
    model_identity  digests of a model, for results that are kept
    knowledge   likelihoods, minimal pairs, probes, attention, token losses
    corpus      clean, prepare, inspect text
    serving     compile a model's programs before the first request

Modules here may import all packages but `cli`.
"""
