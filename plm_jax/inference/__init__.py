"""Inference: vectors, filled masks and generated text from a loaded model.

    encode            text embeddings from any layer
    sentence_vectors  sentence embeddings by a model that was trained for them
    static_vectors    static embeddings distilled from an encoder (Model2Vec)
    token_features    hidden states of words in all layers, and attention probabilities
    elmo              contextual vectors of words from an ELMo
    fill_mask         predictions for the [MASK] tokens of an encoder
    glm_infill        blank infilling by a GLM
    generate          text generation by decoders and encoder-decoders
    prompts           validation of prompts, and templates
    samples           example predictions for the report

All models generate text with one engine:

    search                 decoding strategies: greedy search, sampling and beam search
    sampling               logits processors, such as top-k, top-p and repetition penalty
    engine                 the decoding loop around a model's prefill and decode steps
    decoder_steps          these steps for decoders and encoder-decoders, with a KV cache
    encoder_steps          these steps for an encoder that predicts next tokens (GPT-BERT)

Imports no training.
"""
