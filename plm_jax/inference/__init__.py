"""What a trained model is asked for: words for blanks, and texts, token by token.

    loading    a run, or another library's checkpoint, as a model that can be asked
    encode     vectors of texts; batches: rows of many lengths in few shapes
    fill_mask  words for the [MASK]s of an encoder
    blanks     what a GLM writes in a blank
    generate   texts that go on from prompts, or answer them
    prompts    what a prompt may be; samples: what a report shows

One engine serves all that decode:

    logits     what is done to logits before a token is chosen
    search     how tokens are chosen: greedily, by lot, by beams
    engine     the loop around a model's two functions: start and next
    decoder    these two of decoders; encoder_decoder, of models that read a text before
"""
