"""Training: from a run's configuration and token records to a checkpoint (level 7).

    train                 the training loop
    learner               model, objective and optimizer of a run
    warm_start            the parameters with which it begins, where another model gives them
    step                  initialization, training step (with gradient accumulation), evaluation
    step feed                  batches of text, and held-out text early_stopping        the best
    checkpoint by a held-out metric evaluate              metrics on held-out text run_metrics,
    writers  where metrics are written vocabulary_expansion  larger models from smaller ones

Imports `plm_jax/loading`, `plm_jax/config` and lower levels. The loop knows no model and no
objective by name.
"""
