"""How good a trained model is, by measures of the field.

    scoring       log-likelihoods of continuations, on which others rest
    perplexity    of texts, by a window that slides
    few_shot      tasks that are asked in words; cloze: classification as a blank
    text_to_text  tasks that an encoder-decoder answers
    metrics       of generated text, by libraries
    harness       the model as lm-evaluation-harness wants it
"""
