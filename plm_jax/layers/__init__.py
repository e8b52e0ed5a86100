"""Layers that every model is composed of; none imports TensorFlow.

    stack, block, attention, mlp, norm, dense   the transformer, from the stack of layers down
    masks, positions, rope, t5_relative_bias, disentangled, relative_logits   attention masks and
                       position schemes
    sliding_window     local attention
    embeddings, heads, pooling   from token ids to vectors; from hidden states to outputs
    chunked_cross_entropy, sampled_softmax   losses over large vocabularies
    char_ids, char_cnn, lstm, recurrent_heads, crf   ELMo and its tasks
    common, init       sizes and initialization that parts share
    kernels            kernels for one kind of hardware

Einsums and comments of the whole project use these letters for axes:

    B batch   L length   Q/K query/key length   M predicted positions   D hidden   E embedding width
    H heads   G key heads   A head size   F MLP width   V vocabulary   R relative buckets
    N layers   C classes

Parameters are float32. Activations, the residual stream included, have the compute dtype (`dtype`,
mixed precision). Sums inside matrix products, softmax, norms and losses are float32 whatever the
compute dtype is.
"""
