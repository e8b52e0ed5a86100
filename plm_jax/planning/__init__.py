"""Fit a run to a machine, a time and a text: `--scale=gpu` and the command `plan`.

    devices    data sheets of GPUs and TPUs, and the utilization that estimates assume
    memory     memory of a training step, from what its backward pass keeps
    timing     time of training steps, measured or estimated
    fit        batch, gradient accumulation, activation checkpointing, vocabulary, steps
    choices    sizes of a family for a device, a time and a text, and the best of them
"""
