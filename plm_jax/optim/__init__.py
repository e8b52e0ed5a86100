"""Optimizers, learning-rate schedules, trainable parameters and adapters.

    optimizers       configuration of optimizers, and learning-rate schedules
    transformations  the optimizers of the papers, made of optax transformations
    trainable        which parameters are trained, by name and by depth below the head
    adapters         LoRA, rsLoRA and DoRA
    tuning           strategies of fine-tuning

Knows no objective.
"""
