"""Optimizers, learning-rate schedules, trainable parameters and adapters.

    optimizers       the optimizers of the papers, one class each, and learning-rate schedules
    directions       optax transformations that they consist of
    muon             Muon's orthogonalized momentum
    transformations  the optimizer of a run, with clipping, weight decay and frozen parameters
    trainable        which parameters are trained, by name and by depth below the head
    adapters         LoRA, rsLoRA and DoRA
    tuning           strategies of fine-tuning

Knows no objective.
"""
