"""Training: from a run's configuration and token records to a checkpoint.

    train                 the training loop
    learner               model, objective and optimizer of a run
    warm_start            the parameters with which it begins, where another model gives them
    step                  initialization, training step (gradient accumulation), evaluation step
    compile_ahead         compilation while the text is prepared
    feed                  batches of text, and held-out text
    evaluate              metrics on held-out text
    early_stopping        the best checkpoint by a held-out metric
    run_metrics, writers  where metrics are written
    vocabulary_expansion  larger models from smaller ones

The loop knows no model and no objective by name.
"""
