"""Training: from a run's configuration and token records to a checkpoint.

    train                 the training loop
    learner               model, objective and optimizer of a run
    warm_start            the parameters with which it begins, where another model gives them
    step                  initialization, training step (gradient accumulation), evaluation step
    compile_ahead         compilation while the text is prepared
    feed                  batches of text, and held-out text
    evaluate              metrics on held-out text, and the best checkpoint by one of them
    run_metrics, writers  where metrics are written
    vocabulary_expansion  larger models from smaller ones
    vocabulary_replacement  token embeddings for another tokenizer

The loop knows no model and no objective by name.
"""
