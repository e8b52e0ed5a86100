"""A run: from a configuration and records to a checkpoint.

    train       the loop, over what the others give
    learner     the model, objective and optimizer of a run
    warm_start  the parameters that it begins with, where another model gives them
    step        initialisation, a step of training and of evaluation: pure functions
    optim       optimizers and schedules
    checkpoint  what is saved and found again; sums: checksums of its files
    evaluate    figures on held-out rows; metrics: where figures are written
    scales      the same run, smaller
"""
