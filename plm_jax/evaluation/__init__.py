"""Evaluation of trained models with standard measures.

    scoring            log-likelihoods of continuations, which other measures use
    perplexity         sliding-window perplexity of texts
    pseudo_likelihood  pseudo-log-likelihood by masked language models
    minimal_pairs      accuracy on minimal pairs (BLiMP)
    few_shot           zero-shot and few-shot tasks
    cloze              classification by filling a blank (GLM)
    text_to_text       text-to-text tasks of encoder-decoders
    harness            adapter for lm-evaluation-harness
    probing            linear probes on all layers
    attention_maps     statistics of attention heads
    token_losses       losses by token frequency and position
    neighbors          nearest neighbors of tokens and words
"""
